import pytest

from interlace import explain
from tests.methods.batches import assert_same_rule, coefficients, row


def prompt(name, rewards, demo=True, **given):
    rows = [row("rollout", [0.5], r, group=name, **given) for r in rewards]
    return [*rows, row("demo", [0.2, 0.4], 1.0, group=name)] if demo else rows


THREE = [*prompt("failed", (0.0, 0.0)), *prompt("mixed", (1.0, 0.0)), *prompt("solved", (1.0, 1.0))]


def sft(rows, **given):
    result = explain("relift", rows, stage="sft", **given)
    assert [t["name"] for t in result["terms"]] == ["sft"]
    return result


def test_sft_trains_the_demonstration_of_the_failed_prompt_alone():
    result = sft(THREE)
    assert coefficients(result) == [[0.0], [0.0], [0.5, 0.5], *[[0.0], [0.0], [0.0, 0.0]] * 2]
    assert result["terms"][0]["n"] == 2


def test_sft_denominator_is_a_parameter():
    assert coefficients(sft(THREE, sft_denominator="sequences"))[2] == [1.0, 1.0]


def test_failing_means_exactly_the_fail_reward():
    # A format score of -1 beside 0 is not the fail value throughout.
    assert sft(prompt("a", (-1.0, 0.0)))["terms"][0]["n"] == 0
    assert sft(prompt("a", (-1.0, -1.0)))["terms"][0]["n"] == 0
    assert sft(prompt("a", (-1.0, -1.0)), fail_reward=-1)["terms"][0]["n"] == 2


def test_only_valid_rollouts_decide():
    rows = [*prompt("a", (0.0, 0.0)), row("rollout", [0.5], 1.0, verdict="unscorable")]
    assert sft(rows)["terms"][0]["n"] == 2


def test_empty_rollouts_count():
    assert sft([row("rollout", [], 0.0), row("demo", [0.5])])["terms"][0]["n"] == 1


def test_prompt_from_the_buffer_has_no_rollouts_and_is_trained():
    assert coefficients(sft([row("demo", [0.2, 0.4])])) == [[0.5, 0.5]]


def test_group_whose_rollouts_are_all_left_out_is_in_neither_stage():
    rows = prompt("a", (0.0, None), verdict="unscorable")
    for stage in ("rl", "sft"):
        result = explain("relift", rows, stage=stage)
        assert coefficients(result) == [[0.0], [0.0], [0.0, 0.0]]
        assert result["terms"][0]["n"] == 0


def test_rl_is_the_default_stage_without_std_and_clip():
    rows = prompt("a", (1.0, 0.0))
    rows[0]["old_logp"] = [rows[0]["logp"][0] - 1.0]  # ratio e
    result = explain("relift", rows, max_length=10)
    assert coefficients(result) == [pytest.approx([2.718281828459045 * 0.5 / 20]), [-0.025], [0.0, 0.0]]
    assert result == explain("relift", rows, stage="rl", max_length=10)


def test_stage_rl_is_dr_grpo_without_clip():
    assert_same_rule(("relift", {}), ("dr_grpo", {"clip_low": None, "clip_high": None}))


def test_stage_sft_of_demonstrations_alone_is_sft():
    def failed(seed):
        return [*prompt("a", (0.0,)), *prompt("b", (0.0, 0.0)), row("demo", [0.3], group="c")]

    assert_same_rule(("relift", {"stage": "sft"}), ("sft", {}), failed, seeds=(0,))


@pytest.mark.parametrize("bad", [{"buffer_size": 0}, {"sft_lr": 0}, {"fail_reward": "none"}, {"kl": 0.1}])
def test_impossible_parameters_raise(bad):
    with pytest.raises(ValueError, match="relift: "):
        explain("relift", THREE, **bad)


def test_unknown_stage_raises():
    with pytest.raises(ValueError, match="stage='warmup': accepted are rl, sft"):
        explain("relift", THREE, stage="warmup")
