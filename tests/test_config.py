import pytest

from interlace.config import ConfigError, read_yaml, resolve
from interlace.methods import MethodError


def test_keys_go_to_the_run_the_stages_and_the_method() -> None:
    c = resolve("grpo", {"model": "scratch:1m", "lr": "1e-4", "kl": 0.01, "steps": 7, "seed": "3"})
    assert c.run.model == "scratch:1m" and c.run.seed == 3
    assert c.stages[0].settings.lr == 1e-4 and c.stages[0].settings.steps == 7
    assert c.parameters.kl == 0.01
    assert c.stages[0].samples and "ref_logp" in c.stages[0].method.needs


def test_a_stage_has_its_own_settings() -> None:
    c = resolve("sft_then_rl", {"lr": 0.5, "stages": {"sft": {"lr": 0.1}}, "sft_then_rl": {"std": "true"}})
    by_name = {s.name: s.settings for s in c.stages}
    assert list(by_name) == ["sft", "rl"]
    assert by_name["sft"].lr == 0.1 and by_name["rl"].lr == 0.5
    assert c.parameters.std is True
    assert [s.samples for s in c.stages] == [False, True]


def test_truncated_form_limits_the_rl_stage() -> None:
    c = resolve("sft_then_rl", {"rl_steps": 50})
    assert {s.name: s.settings.steps for s in c.stages}["rl"] == 50


def test_default_learning_rates_depend_on_stage_and_model() -> None:
    scratch = {s.name: s.settings.lr for s in resolve("sft_then_rl", {}).stages}
    real = {s.name: s.settings.lr for s in resolve("sft_then_rl", {"model": "smollm2"}).stages}
    assert scratch["sft"] > scratch["rl"] > 0
    assert all(real[name] < scratch[name] for name in real)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"promts_per_step": 3}, "did you mean 'prompts_per_step'"),
        ({"stages": {"rll": {}}}, "stages.rll: accepted are sft, rl"),
        ({"stages": {"rl": {"lrr": 1}}}, "did you mean 'lr'"),
        ({"lr": "fast"}, "lr='fast'"),
        ({"group_size": 0}, "group_size=0"),
        ({"temperature": 0}, "temperature=0 has no log-probabilities"),
        ({"updates_per_epoch": 20}, "groups are never split"),
        ({"task": "countdown", "data": "x.jsonl"}, "both task and data"),
    ],
)
def test_bad_settings_say_what_is_accepted(settings, message) -> None:
    with pytest.raises(ConfigError, match=message):
        resolve("sft_then_rl", settings)


def test_method_parameters_are_checked_by_the_method() -> None:
    with pytest.raises(MethodError, match="clip_low=7"):
        resolve("grpo", {"clip_low": 7})


def test_prompts_and_group_size_need_not_divide_anything() -> None:
    """Report J1: 8 prompts, 4 rollouts each, a micro-batch that divides neither."""
    c = resolve("grpo", {"prompts_per_step": 8, "group_size": 4, "micro_batch_tokens": 3})
    assert c.derived()["train"]["rollouts per step"] == 32


@pytest.mark.parametrize(("updates", "text"), [(1, "yes"), (2, "no (ratios differ after update 1)")])
def test_a_run_says_whether_it_is_on_policy(updates, text) -> None:
    assert resolve("grpo", {"updates_per_epoch": updates}).derived()["train"]["on-policy"] == text


def test_a_resolved_configuration_resolves_to_itself() -> None:
    c = resolve("sft_then_rl", {"lr": 1e-4, "std": True, "stop": "a,b", "stages": {"rl": {"steps": 3}}})
    again = resolve(c.to_dict()["method"], c.to_dict())
    assert again.to_dict() == c.to_dict()


def test_yaml_files(tmp_path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text("lr: 1.0e-4\nstages:\n  rl:\n    steps: 2\n")
    assert read_yaml(path) == {"lr": 1e-4, "stages": {"rl": {"steps": 2}}}
    path.write_text("- 1\n")
    with pytest.raises(ConfigError, match="mapping"):
        read_yaml(path)
    with pytest.raises(ConfigError, match="nothing"):
        read_yaml(tmp_path / "nothing.yaml")
