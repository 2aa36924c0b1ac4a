import json

import numpy as np
import pytest

from interlace.compare.results import numbers_of
from interlace.compare.statistics import difference
from interlace.compare.tables import markdown, write_csv
from interlace.evaluation.metrics import pass_at_k
from tests.compare.made import failed, results, run, task


def grid(**accuracies):
    return [run(label, seed, a) for label, a in accuracies.items() for seed in range(3)]


def test_ranking_is_by_mean_accuracy_over_seeds_and_problems():
    t = task(grid(sft=0.3, sft_then_rl=0.75, chord=0.5))
    assert [s.label for s in t.ranking] == ["sft_then_rl", "chord", "sft"]
    by_hand = np.mean([list(r.scores("greedy").values()) for r in t.of("chord")])
    assert t.ranking[1].accuracy.value == pytest.approx(by_hand)
    assert t.ranking[0].against is None
    d = difference(t.table("sft_then_rl", (0, 1, 2)), t.table("sft", (0, 1, 2)))
    assert t.ranking[2].against == d
    assert {p.told for p in t.pairs if {p.first, p.second} == {"sft_then_rl", "sft"}} == {True}
    assert t.ranking[0].letters != t.ranking[2].letters


def test_pairs_are_compared_on_the_seeds_that_both_have():
    runs = [
        *grid(sft_then_rl=0.5),
        run("chord", 0, 0.6),
        failed("chord", 1, "diverged", "nan"),
        run("chord", 2, 0.6),
    ]
    t = task(runs)
    pair = t.pair("chord", "sft_then_rl")
    assert pair.difference.seeds == 2
    (chord,) = (s for s in t.ranking if s.label == "chord")
    assert chord.seeds == (0, 2) and chord.missing == {1: "diverged: nan"}


def test_a_method_without_any_result_is_absent_and_hinders_nobody():
    t = task(
        [*grid(sft=0.3, sft_then_rl=0.4), *(failed("grpo", s, "dead", "equal rewards") for s in range(3))]
    )
    assert t.absent == {"grpo": dict.fromkeys(range(3), "dead: equal rewards")}
    assert [s.label for s in t.ranking] == ["sft_then_rl", "sft"]
    assert "- grpo, seed 1: dead: equal rewards" in markdown(results(t))


def test_pass_at_k_is_the_unbiased_estimate_over_seeds_and_problems():
    t = task(grid(sft=0.4))
    records = [r.measured["final"]["test"]["problems"] for r in t.of("sft")]
    by_hand = np.mean([[pass_at_k(4, p.get("correct", 0), 2) for p in of_run] for of_run in records])
    assert t.pass_curve("sft")[2].value == pytest.approx(by_hand)


def test_numbers_of_a_measurement_have_names():
    numbers = numbers_of(run("sft", 0, 0.5).measured["final"])
    assert numbers["retention/arithmetic/logp"] == -2.5
    assert {"greedy", "sampled", "pass@4", "majority@4", "ood/ood_large", "entropy"} <= set(numbers)
    assert numbers["entropy"] == pytest.approx(1.0)


def test_several_tasks_are_joined_by_the_interquartile_mean_of_their_runs():
    first = task(grid(sft_then_rl=0.5, sft=0.3), name="sums")
    second = task(grid(sft_then_rl=0.7, sft=0.4), name="others")
    r = results(first, second)
    means = [[row.mean() for row in t.table("sft", (0, 1, 2))] for t in (first, second)]
    assert r.overall["sft"]["value"] == pytest.approx(np.mean(sorted(np.ravel(means))[1:5]))
    d = r.overall_difference("sft", "sft_then_rl")
    each = [t.difference("sft", "sft_then_rl").value for t in (first, second)]
    assert d.value == pytest.approx(np.mean(each))
    assert results(first).overall == {}


def test_everything_can_be_written_as_json_and_csv(tmp_path):
    r = results(task([*grid(sft=0.3, sft_then_rl=0.5), failed("grpo", 0, "failed", "x")]))
    json.dumps(r.to_dict(), allow_nan=False)
    write_csv(r, tmp_path)
    rows = (tmp_path / "runs.csv").read_text().splitlines()
    assert len(rows) == 1 + 7 and rows[0].startswith("task,method,seed,state,setting,greedy,sampled")
    assert len((tmp_path / "scores.csv").read_text().splitlines()) == 1 + 6 * 60
    assert len((tmp_path / "curves.csv").read_text().splitlines()) == 1 + 6 * 4
