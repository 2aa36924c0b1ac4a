"""Every method whose rows need a sampler, a data mechanism or nothing at all trains a few tiny steps.

The random model solves nothing, so where rollouts must differ a reward by the parity of their length is used.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest

from interlace.evaluation.model import judge_of
from interlace.rewards import REWARDS
from interlace.rules.blocks import STYLES
from interlace.types import Problem, Score, Verdict
from tests.training.resuming import assert_resumes_exactly, run, weights


@dataclass(frozen=True)
class Parity:
    """Right if the text has an even number of characters."""

    bounded: ClassVar[bool] = True

    def __call__(self, completion: str, problem: Problem) -> Score:
        even = len(completion) % 2 == 0
        return Score(float(even), Verdict.PASS if even else Verdict.FAIL)


@pytest.fixture(autouse=True)
def parity(monkeypatch):
    monkeypatch.setitem(REWARDS, "parity", Parity)


def finite(log: list[Mapping[str, Any]]) -> bool:
    return all(math.isfinite(v) for line in log for v in line.values() if isinstance(v, int | float))


PLAIN = {
    "sft": {},
    "dft": {},
    "iw_sft": {},
    "sed_sft": {},
    "c_rlft": {},
    "ift": {},
    "superhf": {"reward": "parity"},
    "on_policy_sft": {"reward": "parity", "group_size": 6},
    "reinforce": {"reward": "parity"},
    "rloo": {"reward": "parity"},
    "grpo": {"reward": "parity"},
    "dr_grpo": {"reward": "parity"},
    "dapo": {"reward": "parity"},
    "gspo": {"reward": "parity"},
    "cispo": {"reward": "parity"},
    "reinforce_pp": {"reward": "parity"},
    "ppo": {"reward": "parity"},
}


@pytest.mark.parametrize("method", PLAIN)
def test_methods_that_need_no_sampler_of_their_own_train(method, tmp_path):
    log = run(method, tmp_path / "run", steps=2, seed=3, **PLAIN[method])
    assert len(log) == 2 and finite(log)
    assert all(line["grad_norm"] > 0 for line in log)


GROUPS = {
    # settings, rows of rollouts and of demonstrations in a step of two problems
    "luffy": ({}, 6, 2),
    "rl_plus": ({}, 6, 2),
    "srft": ({}, 8, 2),
    "visurf": ({}, 8, 2),
    "hpt": ({}, 8, 2),
    "rrhf": ({}, 8, 2),
    "fest": ({"shots": 3}, 20, 3),
    "trapo": ({"thresholds": "-1,2,2,2"}, 14, 2),
    "irl_dense_reward": ({"reward_lr": 1e-3}, 8, 2),
}


@pytest.mark.parametrize("method", GROUPS)
def test_demonstrations_stand_in_the_groups_and_a_resumed_run_is_the_same(method, tmp_path):
    settings, rollouts, demos = GROUPS[method]
    log = run(method, tmp_path / "run", steps=3, **settings)
    assert finite(log)
    assert [(line["rows/rollout"], line["rows/demo"]) for line in log] == [(rollouts, demos)] * 3
    assert all(line["grad_norm"] > 0 and line["tokens/imitated"] > 0 for line in log)
    assert_resumes_exactly(tmp_path / "run")


def test_a_hinted_prompt_is_judged_with_its_hint_and_learned_gently(tmp_path):
    log = run("uft", tmp_path / "run", steps=3, hint_steps=1)
    assert [line["hint/share"] for line in log] == pytest.approx([0.95, 0.05, 0.0])
    assert log[0]["hint/tokens"] > 0 and log[0]["tokens/imitated"] > 0 and log[2]["tokens/imitated"] == 0
    assert log[0]["n/hint"] == 8 and log[2]["n/hint"] == 0
    assert finite(log)
    assert_resumes_exactly(tmp_path / "run")


def test_whole_hints_leave_the_end_token_to_the_policy(tmp_path):
    """A whole hint and nothing more is right: the verdict is of hint and answer together."""
    log = run("uft", tmp_path / "run", steps=1, p_low=1, p_high=1, seed=2, group_size=32)
    assert log[0]["reward/pass"] > 0
    (samples,) = (tmp_path / "run" / "samples").iterdir()
    for line in map(json.loads, samples.read_text().splitlines()):
        assert (line["verdict"] == "pass") == (line["response"] == "")


def test_one_rollout_starts_from_a_prefix(tmp_path):
    log = run("prefix_rft", tmp_path / "run", steps=3, reward="parity", window_steps=2, low_end=0.5)
    assert [line["prefix/low"] for line in log] == pytest.approx([0.95, 0.725, 0.5])
    assert all(line["rows/rollout"] == 8 and line["grad_norm"] > 0 for line in log)
    assert finite(log)
    assert_resumes_exactly(tmp_path / "run")


def test_micro_groups_follow_the_rewards(tmp_path):
    """Nothing is right: every later turn is guided; with thresholds of 0 none is."""
    log = run("trapo", tmp_path / "low", steps=1)
    assert [log[0][f"guided/turn_{i}"] for i in range(4)] == [0, 1, 1, 1]
    log = run("trapo", tmp_path / "high", steps=1, thresholds="-1,0,0,0")
    assert [log[0][f"guided/turn_{i}"] for i in range(4)] == [0, 0, 0, 0] and log[0]["rows/rollout"] == 16


def test_the_gate_of_hpt_skips_a_step_with_a_large_gradient(tmp_path):
    log = run("hpt", tmp_path / "run", steps=2, skip_grad_norm=1e-6, weight_decay=0)
    assert [line["update/skipped"] for line in log] == [1, 1]
    first, last = (tmp_path / "run" / "checkpoints" / n for n in ("0-train-000001", "0-train-000002-end"))
    assert (first / "policy" / "model.safetensors").read_bytes() == (
        last / "policy" / "model.safetensors"
    ).read_bytes()
    assert "update/skipped" not in run("hpt", tmp_path / "free", steps=1)[0]


def test_a_bare_label_joins_the_group_of_visurf(tmp_path):
    data = tmp_path / "sums.jsonl"
    rows = [{"prompt": f"{a}+{b}=", "answer": str(a + b)} for a in range(5) for b in range(5)]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    log = run("visurf", tmp_path / "run", steps=1, data=str(data), task=None, label="{answer}",
              reward="exact", max_new_tokens=6, problems=None)  # fmt: skip
    assert log[0]["rows/demo"] == 2 and log[0]["reward/demonstration"] == 1


@pytest.mark.parametrize("tags", ["words", "symbols"])
def test_guess_think_answer_on_a_model_of_characters(tags, tmp_path):
    log = run("gta", tmp_path / "run", steps=3, tags=tags, kl=0, conflict="none")
    assert all((line["rows/rollout"], line["rows/demo"]) == (8, 2) for line in log)
    assert all(2 * len("1+2=3") <= line["decisions/sft"] <= 2 * len("11*12=132") for line in log)
    assert finite(log) and "blocks/well_formed" in log[0]
    judge = judge_of(tmp_path / "run", scorer := object())
    assert (judge.inner, judge.blocks.tags) == (scorer, STYLES[tags].tags)
    assert judge_of("scratch:nano", scorer) is scorer
    assert_resumes_exactly(tmp_path / "run")


def test_masked_fills_and_masked_teaching(tmp_path):
    log = run("semi_offline_rl", tmp_path / "run", steps=3, samples=4, reward="parity", mask_rate=0.5)
    assert finite(log)
    assert sum(line["decisions/fills"] for line in log) > 0
    assert all(line["decisions/label_smoothing"] == line["decisions/sft"] > 0 for line in log)
    assert all(line["rows/rollout"] in (4, 8) and line["rows/demo"] == 2 for line in log)
    assert_resumes_exactly(tmp_path / "run")


def test_corrupted_prompts_make_pairs(tmp_path):
    log = run("mergemix", tmp_path / "run", steps=3)
    assert all(line["rows/demo"] == 8 and line["n/rank"] == 4 for line in log)
    assert finite(log)
    assert_resumes_exactly(tmp_path / "run")


def test_pear_scores_demonstrations_with_its_start_weights(tmp_path):
    with pytest.warns(UserWarning, match="start weights stand in"):
        log = run("pear", tmp_path / "run", steps=3)
    assert log[0]["harvest/rows_start"] == 24
    assert finite(log) and all(line["grad_norm"] > 0 for line in log)
    assert_resumes_exactly(tmp_path / "run")


def test_pear_learns_from_its_own_correct_answers(tmp_path):
    log = run("pear", tmp_path / "run", steps=1, author="samples", samples=2, reward="parity")
    assert log[0]["harvest/rows_samples"] > 0 and log[0]["grad_norm"] > 0


def test_weights_of_a_class_come_from_a_column(tmp_path):
    """Rows of weight 0 are as good as absent: the gradient is that of the others."""
    texts = [(f"{a}+{b}=", str(a + b)) for a in range(4) for b in range(4)]
    for name, weight in (("weighted", 0.0), ("equal", 1.0)):
        rows = [
            {"prompt": p, "demonstration": d, "answer": d, "class_weight": 1.0 if i % 2 else weight}
            for i, (p, d) in enumerate(texts)
        ]
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        log = run("c_rlft", tmp_path / name, steps=1, data=str(tmp_path / f"{name}.jsonl"), task=None,
                  reward="exact", problems=None, demos_per_step=12)  # fmt: skip
        demos = log[0]["decisions/sft"]
        assert log[0]["n/sft"] == demos if weight else 0 < log[0]["n/sft"] < demos


def test_own_predictions_are_mixed_into_the_input(tmp_path):
    """mix=0 reads the demonstrations as they are; with a schedule the later step differs."""
    for name, mix in (("none", 0), ("some", "linear:0,0.5,1")):
        run("ift", tmp_path / name, steps=2, mix=mix)
    logs = [json.loads((tmp_path / n / "metrics.jsonl").read_text().splitlines()[i])["loss/sft"]
            for i in (0, 1) for n in ("none", "some")]  # fmt: skip
    assert logs[0] == logs[1] and logs[2] != logs[3]


def test_top_k_of_sed_sft_is_that_of_its_annotation(tmp_path):
    """With the whole vocabulary as top k the mass is 1 everywhere, and no position is open (below tau)."""
    for name, k in (("two", 2), ("all", 19)):
        run("sed_sft", tmp_path / name, steps=1, top_k=k, tau=0.999)
    run("sft", tmp_path / "sft", steps=1)
    assert weights(tmp_path / "all") == weights(tmp_path / "sft")
    assert weights(tmp_path / "two") != weights(tmp_path / "sft")


def test_group_size_of_the_method_is_the_one_that_counts(tmp_path):
    log = run("on_policy_sft", tmp_path / "run", steps=1, group_size=5)
    assert log[0]["rows/rollout"] == 10
