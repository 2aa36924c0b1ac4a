"""SuperHF: the best of each group, and the anchor to the start policy."""

import math

import pytest
import torch

from interlace import explain
from interlace.analysis.explain import parse_rows
from interlace.methods import get
from interlace.training.objective import assign, evaluate, prepare
from tests.methods.batches import advantages, assert_same_rule, coefficients, row
from tests.methods.fixtures import near


def samples(*rewards, group="a"):
    return [row("rollout", [0.5], r, group=group) for r in rewards]


def trained(rows, **options):
    return [any(c) for c in coefficients(explain("superhf", rows, **options))]


@pytest.mark.parametrize(
    ("rewards", "keep", "expected"),
    [
        ((0.1, 0.9, 0.5), 1, [False, True, False]),
        ((0.1, 0.9, 0.5), 2, [False, True, True]),
        ((0.5, 0.5, 0.5), 1, [True, False, False]),  # ties keep the first
        ((0.1, 0.5, 0.5), 2, [False, True, True]),
        ((-2.0, -1.0), 5, [True, True]),
    ],
)
def test_only_the_best_rewarded_rollouts_are_trained(rewards, keep, expected):
    assert trained(samples(*rewards), keep=keep) == expected


def test_each_group_keeps_its_own():
    rows = [*samples(0.1, 0.9), *samples(5.0, 7.0, group="b")]
    out = explain("superhf", rows)
    assert [c[0] for c in coefficients(out)] == [0, 0.5, 0, 0.5]
    assert advantages(out) == [[0], [1], [0], [1]]
    assert out["loss"] == pytest.approx(math.log(2))


def test_tokens_of_all_kept_rows_share_one_mean():
    rows = [*samples(1.0), row("rollout", [0.5] * 3, 1.0, group="b")]
    assert coefficients(explain("superhf", rows)) == [[0.25], [0.25] * 3]
    out = explain("superhf", rows, denominator="sequence_means")
    assert coefficients(out)[1] == near(*[1 / 6] * 3)


def test_rows_that_cannot_be_kept():
    rows = [
        row("rollout", [], 9.0),  # empty: no candidate
        row("demo", [0.5], 9.0),
        row("rollout", [0.5], 9.0, verdict="unscorable"),
        row("rollout", [0.5]),
        row("rollout", [0.5], 0.2),
        row(["prefix", "rollout"], [0.5, 0.5], 0.3),
    ]
    assert coefficients(explain("superhf", rows)) == [[], [0], [0], [0], [0], [0, 1]]


def test_one_sample_a_group_is_sft_on_own_samples():
    def own(seed):
        lengths = (3, 1, 2 + seed)
        return [row("rollout", [0.1 + 0.2 * i] * n, 0.0, group=i) for i, n in enumerate(lengths)]

    rows = own(0)
    as_demos = [{**r, "source": "demo"} for r in rows]
    assert coefficients(explain("superhf", rows)) == coefficients(explain("sft", as_demos))
    assert_same_rule(("superhf", {}), ("superhf", {"kl": 0, "kl_reduction": "sum"}), make=own)


@pytest.mark.parametrize(("reduction", "n"), [("mean", 2), ("sum", 1)])
def test_the_anchor_is_the_mean_divergence_of_each_kept_row(reduction, n):
    # KL((.5, .5) || (.9, .1)) = .51083, start policy first; the row means are (.51083 + .1) / 2 and .3
    kl = 0.5 * math.log(0.5 / 0.9) + 0.5 * math.log(0.5 / 0.1)
    assert kl == pytest.approx(0.51083, abs=5e-6)
    method = get("superhf")(kl_reduction=reduction)
    rows = [row("rollout", [0.5] * 2, 1.0), row("rollout", [0.5], 0.0), row("rollout", [0.5], 1.0, group="b")]
    prepared = prepare(assign(parse_rows(rows), method), method)
    leaves = {"logp": torch.full((4,), -0.7), "reverse_kl": torch.tensor([kl, 0.1, 50.0, 0.3]).double()}
    report, gradient = evaluate(prepared, {"policy": leaves}, [1])[0]
    assert report.name == "kl"
    assert report.loss == pytest.approx(0.35 * ((kl + 0.1) / 2 + 0.3) / n)
    assert gradient["reverse_kl"].tolist() == near(*[0.35 * x / n for x in (0.5, 0.5, 0, 1)])


def test_the_anchor_is_outside_of_explain_and_absent_at_zero():
    assert [t["name"] for t in explain("superhf", samples(1.0))["terms"]] == ["sft"]
    assert [t.name for t in get("superhf")(kl=0).terms] == ["sft"]
    assert [t.name for t in get("superhf")().terms] == ["sft", "kl"]


@pytest.mark.parametrize("options", [{"keep": 0}, {"kl": -0.1}, {"kl_reduction": "max"}])
def test_impossible_parameters(options):
    with pytest.raises(ValueError, match=f"superhf: {next(iter(options))}="):
        explain("superhf", [], **options)
