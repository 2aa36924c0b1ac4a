"""Runs that are measured in floating-point operations instead of steps."""

import itertools
from pathlib import Path

import pytest

from interlace.config import ConfigError, resolve
from interlace.rewards import REWARDS
from interlace.training.loop import is_due
from tests.training.runs import Parity, assert_same_run, crashed_and_resumed, lines, result, train

BUDGET = 4e7


@pytest.fixture(autouse=True)
def parity(monkeypatch):
    monkeypatch.setitem(REWARDS, "parity", Parity)


def run(method, out, **settings):
    given = {"budget": BUDGET, "steps": None, "reward": "parity", "eval_problems": 2, **settings}
    return train(method, out, **given)


@pytest.mark.parametrize("method", ["sft", "grpo", "chord"])
def test_a_run_ends_with_the_step_that_comes_nearest_to_its_budget(tmp_path: Path, method: str) -> None:
    steps = lines(run(method, tmp_path / "a"))
    costs = [steps[0]["flops"], *(b["flops"] - a["flops"] for a, b in itertools.pairwise(steps))]
    assert len(steps) > 3
    assert abs(steps[-1]["flops"] - BUDGET) <= max(costs) / 2 + 1e-6 * BUDGET
    parts = [sum(s[f"flops/{kind}"] for s in steps) for kind in ("generate", "score", "train")]
    assert sum(parts) == pytest.approx(steps[-1]["flops"])


def test_stages_share_the_budget_and_what_one_leaves_goes_to_the_next(tmp_path: Path) -> None:
    whole = lines(run("sft_then_rl", tmp_path / "a", stages={"sft": {"share": 1}, "rl": {"share": 3}}))
    sft = [s for s in whole if s["stage"] == "sft"]
    assert sft[-1]["flops"] == pytest.approx(BUDGET / 4, rel=0.1)
    assert whole[-1]["flops"] == pytest.approx(BUDGET, rel=0.1)
    short = lines(run("sft_then_rl", tmp_path / "b", stages={"sft": {"steps": 1}}))
    assert [s["stage"] for s in short].count("sft") == 1
    assert short[-1]["flops"] == pytest.approx(BUDGET, rel=0.1)


def test_the_learning_rate_falls_with_the_share_that_is_spent(tmp_path: Path) -> None:
    steps = lines(run("sft", tmp_path / "a", lr=1.0))
    before = [0.0, *(s["flops"] / BUDGET for s in steps[:-1])]
    assert [s["lr"] for s in steps] == pytest.approx([1 - share for share in before])


def test_what_the_start_weights_cost_is_part_of_the_budget(tmp_path: Path) -> None:
    charged = 0.75 * BUDGET
    steps = lines(run("sft", tmp_path / "a", charged=charged))
    assert steps[-1]["flops"] == pytest.approx(BUDGET - charged, rel=0.2)
    with pytest.raises(ConfigError, match="nothing is left"):
        resolve("sft", {"budget": 1e6, "charged": 1e6})


def test_evaluations_are_not_counted_and_may_be_spaced_by_share(tmp_path: Path) -> None:
    plain = run("sft", tmp_path / "a")
    looked = run("sft", tmp_path / "b", eval_every=0.25, eval_split="validation")
    assert [s["flops"] for s in lines(plain)] == [s["flops"] for s in lines(looked)]
    looks = [e["flops"] for e in looked.evaluations]
    assert looks == pytest.approx([k * BUDGET / 4 for k in range(5)], abs=BUDGET / 8)
    assert [e["at"] for e in looked.evaluations] == ["start", "train", "train", "train", "after train"]
    assert {is_due(0.5, 7, 0.49, 0.51), is_due(5, 10, 0, 1)} == {True}
    assert {is_due(0.5, 7, 0.51, 0.6), is_due(5, 11, 0, 1), is_due(0, 3, 0, 1)} == {False}


def test_a_killed_run_spends_what_an_uninterrupted_one_does(tmp_path: Path) -> None:
    settings = {"budget": BUDGET, "steps": None, "reward": "parity"}
    whole = train("grpo", tmp_path / "a", save_every=1, **settings)
    broken = crashed_and_resumed("grpo", tmp_path / "b", 3, **settings)
    assert_same_run(whole, broken)
    assert result(whole)["work"]["generated"] > 0


def test_what_a_harvest_costs_is_counted_once_also_after_a_kill(tmp_path: Path) -> None:
    settings = {"reward": "parity", "stages": {"rl": {"steps": 2}, "sft": {"steps": 2}}}
    whole = train("metis_rise", tmp_path / "a", save_every=1, **settings)
    broken = crashed_and_resumed("metis_rise", tmp_path / "b", 3, **settings)
    assert result(whole)["flops"] == result(broken)["flops"]
    (record,) = result(whole)["harvests"]
    inside = sum(s["flops/generate"] + s["flops/score"] + s["flops/train"] for s in lines(whole))
    harvest = sum(record[f"work_{kind}"] for kind in ("generate", "score", "train"))
    assert harvest > 0
    assert result(whole)["flops"] == pytest.approx(inside + harvest)
