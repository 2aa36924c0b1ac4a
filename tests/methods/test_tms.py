"""TMS: two stages of plain likelihood on different data."""

import pytest

from interlace import explain
from interlace.methods import get
from tests.methods.batches import assert_same_rule, coefficients, row


def test_the_harvest_runs_first_and_explain_shows_the_student():
    method = get("tms")()
    assert list(method.stages) == ["harvest", "student"]
    assert method.stage()[0] == "student"


@pytest.mark.parametrize("stage", [None, "student", "harvest"])
def test_each_stage_is_sft(stage):
    assert_same_rule(("tms", {"stage": stage}), ("sft", {}))
    assert_same_rule(
        ("tms", {"stage": stage, "denominator": "sequence_means"}), ("sft", {"denominator": "sequence_means"})
    )


def test_the_optimum_is_the_mixture_of_label_and_own_answers():
    # labels (1, 0), own answers (.4, .6), alpha 1/4: .25 + .75 * .4 = .55; 11 and 9 of 20 draws
    rows = [row("demo", [0.55])] * 11 + [row("demo", [0.45])] * 9
    out = explain("tms", rows)
    assert out["loss"] == pytest.approx(0.68814, abs=5e-6)
    c = [x[0] for x in coefficients(out)]
    logit = sum(x * (1 - 0.55) for x in c[:11]) - sum(x * 0.55 for x in c[11:])
    assert logit == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("options", [{"alpha": 1.5}, {"alpha": -0.1}, {"checkpoints": 0}])
def test_impossible_parameters(options):
    with pytest.raises(ValueError, match=f"tms: {next(iter(options))}="):
        explain("tms", [], **options)
