import dataclasses

import pytest

from interlace.compare.advice import advice
from interlace.compare.results import Search
from interlace.compare.summary import sentences
from tests.compare.made import failed, results, run, task


def grid(accuracies, **more):
    return [run(label, seed, a, **more) for label, a in accuracies.items() for seed in range(3)]


def said(t):
    return "\n".join(sentences(results(t)))


def advised(t):
    return {a.what: a.why for a in advice(results(t))}


def altered(t, label, **changed):
    """The task with some of every outcome of a method changed."""
    runs = [
        dataclasses.replace(r, outcome={**r.outcome, **changed}) if r.label == label else r for r in t.runs
    ]
    return dataclasses.replace(t, runs=runs)


def test_the_first_sentence_names_the_best_with_its_interval():
    t = task(grid({"sft": 0.2, "sft_then_rl": 0.7}))
    best = t.ranking[0].accuracy
    line = sentences(results(t))[0]
    assert line.startswith("sft_then_rl has the highest greedy accuracy of 2 methods: ")
    assert f"{100 * best.value:.1f} % [{100 * best.low:.1f}, {100 * best.high:.1f}] on 60 held-out" in line


def test_what_is_not_told_apart_is_said_and_what_would_tell():
    t = task(grid({"chord": 0.5, "sft_then_rl": 0.47}))
    text = said(t)
    assert "not distinguishable" in text and "at this budget" in text
    assert "told apart from" not in text.replace("not told apart from", "").replace(
        "is told apart from it", ""
    )
    first = t.ranking[0]
    other = t.ranking[1].label
    assert f"the probability that {first.label} is truly the better of the two" in text
    assert any(other in what or "seeds" in what for what in advised(t))


def test_what_is_told_apart_from_the_baseline_is_said():
    text = said(task(grid({"sft": 0.15, "sft_then_rl": 0.8})))
    assert "It is told apart from sft" in text
    assert "Against the corrected baseline sft_then_rl: sft (-" in text and "is worse" in text


def test_unequal_costs_are_said():
    t = task([*grid({"sft": 0.3}), *grid({"sft_then_rl": 0.4}, flops=3e12)])
    assert "The costs are not equal: sft took 900 GFLOP, sft_then_rl 3 TFLOP (3.3 times as much)." in said(t)


def test_failed_runs_are_said_and_advised_on():
    t = task(
        [
            *grid({"sft": 0.3, "sft_then_rl": 0.4}),
            run("chord", 0, 0.3),
            failed("chord", 1, "diverged", "the gradient was not finite"),
            *(failed("grpo", s, "dead", "equal rewards") for s in range(3)),
        ]
    )
    text = said(t)
    assert "1 of 2 runs of chord ended without a result (diverged)." in text
    assert "grpo has no result: dead." in text
    found = advised(t)
    assert found["chord: a lower lr."] == "seed 1 diverged: the gradient was not finite."
    assert any(what.startswith("grpo: give it rewards that differ; start=sft") for what in found)


def test_nothing_is_advised_without_evidence():
    flat = task(grid({"sft": 0.0, "sft_then_rl": 1.0}))
    looks = [{**x, "greedy": 0.5, "sampled": 0.5, "entropy": 1.0} for x in flat.runs[0].outcome["looks"]]
    training = {"totals": flat.runs[0].outcome["training"]["totals"], "series": {}, "tokens": [[1.0, 1.0]]}
    for label in ("sft", "sft_then_rl"):
        flat = altered(flat, label, looks=looks, training=training)
    flat.base["outcome"]["untrained"] = True
    assert advised(flat) == {}


def test_a_curve_that_rises_in_every_seed_asks_for_a_larger_budget():
    found = advised(task(grid({"sft_then_rl": 0.6, "sft": 0.1})))
    (why,) = (why for what, why in found.items() if what.startswith("sft_then_rl had not levelled off"))
    rose = "validation accuracy rose from 45.0 % to 60.0 % in the last quarter of its budget"
    assert why == f"{rose}, in each of 3 seeds."


def test_dead_groups_and_memorising_are_noticed_by_their_numbers():
    t = task(grid({"grpo": 0.3, "sft_then_rl": 0.35}))
    one = t.runs[0].outcome
    series = {"reward/pass": [[1.0, 0.9], [2.0, 0.9]], "groups/live": [[1.0, 0.1], [2.0, 0.2]]}
    t = altered(t, "grpo", training={**one["training"], "series": series})
    found = advised(t)
    (why,) = (why for what, why in found.items() if what.startswith("grpo: a larger group_size"))
    assert why == "groups with different rewards, the only ones that give a gradient: grpo 15 %."
    (why,) = (why for what, why in found.items() if what.startswith("grpo: more training problems"))
    assert why == "90.0 % of its last training rollouts pass, 30.0 % of samples on validation problems."


@pytest.mark.parametrize(("chosen", "side"), [("switch=0.25", "below"), ("switch=0.75", "above")])
def test_a_setting_at_the_edge_of_the_search_asks_for_a_wider_one(chosen, side):
    scores = {"switch=0.25": 0.3, "switch=0.5": 0.3, "switch=0.75": 0.3}
    t = task(grid({"sft_then_rl": 0.4}), {"sft_then_rl": Search(chosen, scores, 1e12, 3)})
    assert any(what == f"sft_then_rl: try switch {side} {chosen[7:]} too." for what in advised(t))
    inner = task(grid({"sft_then_rl": 0.4}), {"sft_then_rl": Search("switch=0.5", scores, 1e12, 3)})
    assert not any("try switch" in what for what in advised(inner))


def test_forgetting_is_noticed_against_the_start_model():
    t = task(grid({"sft_then_rl": 0.5}))  # log-probability -2.02 at the start, -2.5 now
    (why,) = (why for what, why in advised(t).items() if "hold on to the start model" in what)
    assert (
        why
        == "log-probability of a token of arithmetic, in nats: -2.02 at the start, then sft_then_rl -2.50."
    )
    t.base["outcome"]["untrained"] = True
    assert not any("hold on" in what for what in advised(t))
