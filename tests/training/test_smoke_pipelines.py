"""Methods whose stages build data for each other: they train, skip what is empty, and resume anywhere."""

import json
import math

import pytest

from interlace import explain
from interlace.config import resolve
from interlace.methods import MethodError
from interlace.rewards import REWARDS
from interlace.tasks.base import judged
from tests.training.runs import (
    Parity,
    Told,
    assert_same_run,
    crashed_and_resumed,
    lines,
    result,
    train,
    weights,
)


class Always:
    """Everything is right."""

    bounded = True

    def __call__(self, completion, problem):
        return judged(completion != "zzz")


SETTINGS = {
    "metis_rise": {"samples": 4},
    "specs": {},
    "tms": {"checkpoints": 3, "alpha": 0.5, "steps": 3},
    "re_distillation": {"last_steps": 1},
    "expert_iteration": {"samples": 4, "rounds": 2, "cap": 2},
    "dph_rl": {"samples": 2, "steps": 3},
    "cat": {},
}
STAGES = {
    "metis_rise": ["rl", "rl", "sft", "sft"],
    "specs": ["zero", "zero", "cold_start", "cold_start", "rl", "rl"],
    "tms": ["harvest"] * 3 + ["student"] * 3,
    "re_distillation": ["sft", "sft", "rl", "rl", "distill", "distill"],
    "expert_iteration": ["round_1", "round_1", "round_2", "round_2"],
    "dph_rl": ["train"] * 3,
    "cat": ["sft", "sft", "rl", "rl"],
}


@pytest.fixture(autouse=True)
def rewards(monkeypatch):
    monkeypatch.setitem(REWARDS, "parity", Parity)
    monkeypatch.setitem(REWARDS, "always", Always)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The uninterrupted run of each method, made once."""
    made = {}

    def run(method):
        if method not in made:
            out = tmp_path_factory.mktemp(method) / "run"
            made[method] = train(method, out, reward="parity", **SETTINGS[method])
        return made[method]

    return run


def harvests(run):
    return {one["stage"]: one for one in result(run)["harvests"]}


@pytest.mark.parametrize("method", STAGES)
def test_its_stages_train_in_order(whole, method) -> None:
    run = whole(method)
    steps = lines(run)
    assert [line["stage"] for line in steps] == STAGES[method]
    assert run.complete and result(run)["final"]
    losses = [value for line in steps for key, value in line.items() if key.startswith("loss/")]
    assert losses and "NaN" not in json.dumps(losses) and "Infinity" not in json.dumps(losses)
    assert all(line["rows/scored"] > 0 and line["grad_norm"] > 0 for line in steps)


def test_stages_of_a_run_are_not_all_known_to_explain() -> None:
    running = [stage.name for stage in resolve("expert_iteration", {"rounds": 4}).stages]
    assert running == ["round_1", "round_2", "round_3", "round_4"]
    assert [stage.name for stage in resolve("expert_iteration", {}).stages] == running[:3]
    c = resolve("expert_iteration", {"stages": {"round_2": {"lr": 0.5}}})
    assert [stage.settings.lr for stage in c.stages] == [3e-3, 0.5, 3e-3]
    with pytest.raises(MethodError, match="this method has no stages"):
        explain("expert_iteration", [], stage="round_1")
    assert [stage.name for stage in resolve("specs", {}).stages] == ["zero", "cold_start", "rl"]
    with pytest.raises(MethodError, match="accepted are cold_start, rl"):
        explain("specs", [], stage="zero")


@pytest.mark.parametrize(
    ("method", "crash_at"),
    [
        ("metis_rise", "sft: making its data"),
        ("metis_rise", 4),
        ("specs", "cold_start: making its data"),
        ("specs", 4),
        ("tms", 3),
        ("tms", 5),
        ("re_distillation", 4),
        ("re_distillation", 6),
        ("expert_iteration", "round_2: making its data"),
        ("expert_iteration", 4),
        ("dph_rl", 3),
    ],
)
def test_a_run_that_died_ends_as_if_it_had_not(whole, tmp_path, method, crash_at) -> None:
    run = crashed_and_resumed(method, tmp_path / "run", crash_at, reward="parity", **SETTINGS[method])
    assert_same_run(run, whole(method))


def test_metis_rise_trains_what_its_own_policy_routed(whole) -> None:
    made = harvests(whole("metis_rise"))["sft"]
    assert made["prompts_unstable"] > 0 and made["rows_own"] <= 2 * made["prompts_unstable"]
    kinds = ("solved", "unstable", "unsolved", "unscorable")
    assert sum(made[f"prompts_{kind}"] for kind in kinds) == 12
    assert made["rows"] == made["rows_own"] + made["rows_expert"]
    kept = whole("metis_rise").folder / "harvest" / "1-sft.jsonl"
    rows = [json.loads(line) for line in kept.read_text().splitlines()]
    assert len(rows) == made["rows"] and all(row["response"] and row["reward"] in (1, None) for row in rows)
    first = lines(whole("metis_rise"))[2]
    assert first["rows/demo"] == 4 and first["rows/rollout"] == 0
    assert first["harvest/rows_own"] == made["rows_own"]


def test_specs_begins_its_cold_start_at_the_base_with_pairs(whole, tmp_path) -> None:
    run = whole("specs")
    cold = lines(run)[2]
    # At the reference every margin is 0: -log sigmoid(0) = ln 2. Four pairs are eight rows.
    assert cold["loss/preference"] == pytest.approx(0.693147, abs=1e-5)
    assert cold["n/preference"] == 4 and cold["rows/demo"] == 8
    rows = (run.folder / "harvest" / "1-cold_start.jsonl").read_text().splitlines()
    roles = [json.loads(line)["role"] for line in rows]
    assert roles == ["chosen", "rejected"] * (len(rows) // 2)


def test_specs_ends_its_first_stage_when_the_form_is_learnt(tmp_path) -> None:
    view = Told()
    run = train("specs", tmp_path / "run", view, reward="always", stop_dead_after=0)
    assert [line["stage"] for line in lines(run)][:2] == ["zero", "cold_start"]
    assert "stage zero is finished by its own rule after 1 steps" in view.text


def test_tms_mixes_labels_with_answers_of_three_checkpoints(whole, tmp_path) -> None:
    steps = lines(whole("tms"))
    assert all(line["tokens/generated"] > 0 for line in steps[:3])
    shares = [line["mixture/labels"] for line in steps[3:]]
    assert min(shares) < 1 and max(shares) > 0


def test_tms_with_labels_alone_is_sft(tmp_path) -> None:
    """Check (a): alpha = 1 gives the same batches, losses and weights as SFT with the same seed."""
    mixed = train("tms", tmp_path / "tms", alpha=1, checkpoints=1)
    plain = train("sft", tmp_path / "sft")
    assert weights(mixed) == weights(plain)
    assert [x["loss/sft"] for x in lines(mixed)[2:]] == [x["loss/sft"] for x in lines(plain)]


def test_re_distillation_starts_from_the_base_with_rows_of_the_last_step(whole) -> None:
    run = whole("re_distillation")
    made = harvests(run)["distill"]
    assert 1 <= made["rows"] <= 2  # two prompts a step, one row of each
    base = lines(run)[0]["demo/nll"]
    # A uniform policy's loss, not that of the reinforced one.
    assert lines(run)[4]["demo/nll"] == pytest.approx(base, abs=0.2)


def test_expert_iteration_counts_its_rows(whole) -> None:
    for made in harvests(whole("expert_iteration")).values():
        assert made["rows"] == made["rows_own"] + made["rows_demonstration"]
        assert made["rows_own"] <= 2 * made["prompts_solved"] <= made["rows_correct"] * 2
        assert made["rows_demonstration"] == 12


def test_expert_iteration_restarts_or_continues(tmp_path) -> None:
    """A round from the base begins near the loss of a uniform policy, ln 18, a continued one lower."""
    settings = {"samples": 1, "rounds": 2, "steps": 12, "lr": 0.03, "demos_per_step": 16, "reward": "parity"}
    again = lines(train("expert_iteration", tmp_path / "a", **settings))
    on = lines(train("expert_iteration", tmp_path / "b", restart=False, **settings))
    assert again[:12] == on[:12]
    assert again[0]["demo/nll"] == pytest.approx(math.log(18), abs=0.15)
    assert again[12]["demo/nll"] == pytest.approx(math.log(18), abs=0.15)
    assert on[12]["demo/nll"] < 2.7


def test_expert_iteration_without_a_number_of_rounds_ends_by_validation(tmp_path) -> None:
    run = train("expert_iteration", tmp_path / "run", reward="always", samples=1)
    made = harvests(run)
    # Everything is right from the start, so the first round cannot raise it.
    assert list(made) == ["round_1", "round_2"]
    assert made["round_2"]["skip"].startswith("the rounds no longer help")
    assert {line["stage"] for line in lines(run)} == {"round_1"} and result(run)["final"]


def test_dph_rl_samples_what_it_cannot_do_and_rehearses_the_rest(whole) -> None:
    run = whole("dph_rl")
    made = harvests(run)["train"]
    assert made["prompts_rehearsed"] + made["prompts_explored"] == 12 and made["prompts_rehearsed"] > 0
    assert made["prompts_sampled"] == made["prompts_explored"]
    steps = lines(run)
    assert all(line["rows/demo"] == 4 and line["rows/rollout"] == 8 for line in steps)
    # Every divergence is 0 at the start policy, and not once it has moved.
    assert steps[0]["loss/divergence"] == pytest.approx(0, abs=1e-10) and steps[2]["loss/divergence"] > 0
    assert not (run.folder / "references").exists()


def test_dph_rl_without_anything_to_rehearse_is_grpo(tmp_path) -> None:
    hybrid = train("dph_rl", tmp_path / "dph", reward="parity", samples=12)
    assert harvests(hybrid)["train"]["prompts_rehearsed"] == 0
    plain = train("dapo", tmp_path / "dapo", reward="parity", dynamic_sampling=False)
    assert weights(hybrid) == weights(plain)


@pytest.mark.parametrize(
    ("method", "stage", "reward", "trained", "said"),
    [
        ("metis_rise", "sft", "always", ["rl"], "no prompt is unstable"),
        ("specs", "cold_start", None, ["zero", "rl"], "no prompt has a correct answer"),
        ("re_distillation", "distill", None, ["sft", "rl"], "no rollout of its last steps is correct"),
        ("expert_iteration", "round_1", None, [], "no sampled answer is correct"),
        ("dph_rl", "train", "always", [], "the start policy solves every prompt"),
    ],
)
def test_a_stage_without_data_is_left_out_with_a_reason(
    tmp_path, method, stage, reward, trained, said
) -> None:
    view = Told()
    run = train(method, tmp_path / "run", view, reward=reward, demos_per_step=4, **SETTINGS[method])
    assert list(dict.fromkeys(line["stage"] for line in lines(run))) == trained
    assert run.complete and result(run)["final"]
    assert said in harvests(run)[stage]["skip"]
    assert f"warning: stage {stage}" in view.text and said in view.text


def test_metis_rise_without_an_expert_trains_its_own_rows_alone(tmp_path) -> None:
    run = train("metis_rise", tmp_path / "run", reward="parity", demonstrations=0, samples=4)
    made = harvests(run)["sft"]
    assert made["rows_expert"] == 0 and made["rows"] == made["rows_own"] > 0


def test_demonstrations_that_are_not_used_are_not_used_anywhere(tmp_path) -> None:
    """Two of twelve demonstrations: no harvest may take another one."""
    run = train("expert_iteration", tmp_path / "run", reward="parity", demonstrations=2, samples=1, rounds=1)
    assert harvests(run)["round_1"]["rows_demonstration"] == 2
    run = train("metis_rise", tmp_path / "metis", demonstrations=2, samples=1)  # nothing is solved
    assert harvests(run)["sft"]["rows_expert"] == 2 and harvests(run)["sft"]["prompts_unsolved"] == 12
