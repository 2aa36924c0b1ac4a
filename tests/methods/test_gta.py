import math

import pytest

from interlace import explain
from interlace.methods import get
from tests.methods.batches import assert_same_rule, coefficients, random_rows, row

# <g> L </g> <t> a b </t> <a> L </a>
SPAN = [None, "guess", None, None, "think", "think", None, None, "answer", None]
P = [0.5] * 10
LABEL = row("demo", [0.5] * 3, span=[None, "guess", None])


def rollouts(**given):
    return [row("rollout", P, r, span=SPAN, **given) for r in (1.0, 0.0)]


def test_spans_of_the_two_losses_are_disjoint():
    result = explain("gta", [*rollouts(), row("demo", P, span=SPAN)], kl=0, std=False)
    # RL: A = +-0.5, a mean over nine tokens, two rows; SFT: the one guess token.
    rl = [0.0 if s == "guess" else 0.5 / 18 for s in SPAN]
    assert coefficients(result) == [
        pytest.approx(rl),
        pytest.approx([-c for c in rl]),
        [1.0 if s == "guess" else 0.0 for s in SPAN],
    ]
    assert [(t["name"], t["denominator"], t["n"]) for t in result["terms"]] == [
        ("policy", "sequence_means", 2.0),
        ("sft", "sequence_means", 1.0),
    ]


def test_long_labels_do_not_dominate():
    rows = [LABEL, row("demo", [0.5] * 2, span=["guess"] * 2, group="b")]
    assert coefficients(explain("gta", rows, kl=0)) == [[0.0, 0.5, 0.0], [0.25, 0.25]]
    tokens = explain("gta", rows, kl=0, sft_denominator="tokens")
    assert coefficients(tokens)[1] == pytest.approx([1 / 3] * 2)


def test_demonstration_without_a_guess_has_no_term():
    for span in (None, ["answer"] * 3):
        result = explain("gta", [row("demo", [0.5] * 3, span=span)], kl=0)
        assert coefficients(result) == [[0.0] * 3] and result["terms"][1]["n"] == 0


def test_rollout_without_a_guess_is_trained_whole():
    rows = [row("rollout", [0.5] * 2, r) for r in (1.0, 0.0)]
    assert coefficients(explain("gta", rows, kl=0, std=False))[0] == [0.125, 0.125]


def test_coefficients_of_the_two_losses():
    result = explain("gta", [*rollouts(), LABEL], kl=0, std=False, sft_coef=0.3, rl_coef=2.0)
    assert coefficients(result)[0][0] == pytest.approx(2 * 0.5 / 18)
    assert coefficients(result)[2][1] == pytest.approx(0.3)
    only_sft = explain("gta", [*rollouts(), LABEL], kl=0, rl_coef=0)
    assert coefficients(only_sft) == [[0.0] * 10, [0.0] * 10, [0.0, 1.0, 0.0]]


def test_kl_acts_outside_the_guess_and_is_scaled_with_the_rl_loss():
    delta = math.log(2)
    ref = [None if s == "guess" else math.log(0.5) - delta for s in SPAN]
    rows = rollouts(ref_logp=ref)[:1]  # a lone reward: A = 0
    result = explain("gta", rows, kl=0.02, rl_coef=3.0)
    # d k3 = 1 - e^-delta = 0.5, a mean over nine tokens
    assert coefficients(result)[0] == pytest.approx(
        [0.0 if s == "guess" else -3 * 0.02 * 0.5 / 9 for s in SPAN]
    )


def test_default_kl_needs_the_reference():
    with pytest.raises(ValueError, match="row 0: 'ref_logp' is needed"):
        explain("gta", rollouts())


def test_without_spans_and_sft_it_is_grpo():
    def unmarked(seed):
        return [{k: v for k, v in r.items() if k != "span"} for r in random_rows(seed)]

    assert_same_rule(("gta", {"sft_coef": 0}), ("grpo", {"kl": 0.01}), unmarked)


def test_the_guess_is_cut_out_of_grpo():
    """The same as GRPO on rows that never held the guess."""

    def cut(rows):
        out = []
        for r in rows:
            keep = [i for i, s in enumerate(r["span"]) if s != "guess"]
            one = {k: [v[i] for i in keep] if isinstance(v, list) else v for k, v in r.items()}
            out.append(
                one if keep else {**one, "source": "rollout" if r["source"] == "rollout" else r["source"][0]}
            )
        return out

    for seed in (0, 1):
        rows = random_rows(seed, demos=False, prefixes=False, hints=False)
        ours = coefficients(explain("gta", rows))
        grpo = coefficients(explain("grpo", cut(rows), kl=0.01))
        for r, a, b in zip(rows, ours, grpo, strict=True):
            assert [c for c, s in zip(a, r["span"], strict=True) if s != "guess"] == b
            assert not any(c for c, s in zip(a, r["span"], strict=True) if s == "guess")


def test_conflict_rules():
    assert [get("gta").validate(conflict=c).conflict for c in ("drop", "project", "none", None)] == [
        "drop",
        "project",
        None,
        None,
    ]


@pytest.mark.parametrize("bad", [{"conflict": "ignore"}, {"sft_coef": -1}, {"kl_estimator": "k4"}])
def test_impossible_parameters_raise(bad):
    with pytest.raises(ValueError, match="gta: "):
        explain("gta", rollouts(), **bad)
