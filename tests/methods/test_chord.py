import pytest

from interlace import explain
from tests.methods.batches import assert_same_rule, coefficients, row

P = (0.1, 0.5, 0.9)


def demo(**given):
    return [row("demo", P, entropy=[1.0, 2.0, 3.0], **given)]


def test_phi_is_detached():
    # phi = (0.09, 0.25, 0.09) over 3 tokens; attached it would be (-0.0314, 0.0833, 0.0553).
    result = explain("chord", demo(), mu=1)
    assert coefficients(result)[0] == pytest.approx([0.03, 0.25 / 3, 0.03])
    assert result["loss"] == pytest.approx(0.130001, abs=5e-7)


@pytest.mark.parametrize(
    ("phi", "weights"),
    [
        ("p1mp", (0.09, 0.25, 0.09)),
        ("p(1-p)", (0.09, 0.25, 0.09)),
        ("1", (1, 1, 1)),
        (1, (1, 1, 1)),
        ("p", P),
        ("is_clip", (0.1, 0, 0)),  # cutoff 0.4
        ("focal", (0.81, 0.25, 0.01)),  # (1 - p)^2
        ("entropy_top", (0, 0, 1)),  # the largest of 3
        ("entropy_norm", (0.5, 1, 1.5)),  # h / 2
    ],
)
def test_each_phi_keeps_the_token_count(phi, weights):
    shown = coefficients(explain("chord", demo(), mu=1, phi=phi))[0]
    assert shown == pytest.approx([w / 3 for w in weights])


def test_parameters_of_phi():
    assert coefficients(explain("chord", demo(), mu=1, phi="is_clip", cutoff=0.5))[0] == pytest.approx(
        [0.1 / 3, 0.5 / 3, 0]
    )
    assert coefficients(explain("chord", demo(), mu=1, phi="focal", gamma=1))[0] == pytest.approx(
        [0.3, 0.5 / 3, 0.1 / 3]
    )
    shown = explain("chord", demo(), mu=1, phi="entropy_top", top_entropy=0.5)  # ceil(1.5) = 2
    assert coefficients(shown)[0] == pytest.approx([0, 1 / 3, 1 / 3])


def test_entropy_weights_pool_over_the_demonstrations_of_the_step():
    rows = [row("demo", [0.5], group=g, entropy=[h]) for g, h in (("a", 1.0), ("b", 3.0))]
    rows.append(row("rollout", [0.5], 1.0, entropy=[9.0]))
    assert coefficients(explain("chord", rows, mu=1, phi="entropy_norm"))[:2] == [[0.25], [0.75]]
    assert coefficients(explain("chord", rows, mu=1, phi="entropy_top"))[:2] == [[0], [0.5]]


def test_entropies_of_zero_give_no_weight_and_no_nan():
    rows = [row("demo", [0.5], entropy=[0.0])]
    assert coefficients(explain("chord", rows, mu=1, phi="entropy_norm")) == [[0]]


def test_mixture_of_both_parts():
    # A = +-1/2 over 2 tokens times 0.9; phi = 1/4 over 1 token times 0.1.
    rows = [*(row("rollout", [0.5], r) for r in (1.0, 0.0)), row("demo", [0.5])]
    result = explain("chord", rows, std=False)
    assert [c[0] for c in coefficients(result)] == pytest.approx([0.225, -0.225, 0.025])
    assert [t["coefficient"] for t in result["terms"]] == pytest.approx([0.9, 0.1])


@pytest.mark.parametrize(
    ("mu", "values"),
    [
        ("cosine:0.9,0.05,0,200", {0: 0.9, 50: 0.775520, 100: 0.475, 200: 0.05, 999: 0.05}),
        ("cosine(0.5,0.02,200,400)", {0: 0, 100: 0.25, 200: 0.5, 400: 0.26, 600: 0.02}),
        ("linear:0.9,0.1,200", {0: 0.9, 100: 0.5, 300: 0.1}),
    ],
)
def test_mu_follows_its_schedule(mu, values):
    for step, expected in values.items():
        result = explain("chord", demo(), step=step, mu=mu)
        assert result["terms"][1]["coefficient"] == pytest.approx(expected, abs=5e-7)


@pytest.mark.parametrize(
    ("tau", "rewards", "mu"),
    [
        ("reward:0.5", (1.0, 0.0, 0.0, 0.0), 0.25),
        ("reward(0.5)", (1.0, 1.0), 0.0),  # never negative
        ("reward:0.5", (-1.0, -1.0), 1.0),  # 1.5 would turn the rollout term around
        ("reward:0.5", (), 0.5),
    ],
)
def test_mu_is_driven_by_the_mean_reward_of_valid_rollouts(tau, rewards, mu):
    rows = [*(row("rollout", [0.5], r) for r in rewards), row("rollout", [0.5], 1.0, verdict="unscorable")]
    result = explain("chord", [*rows, *demo(reward=1.0)], mu=tau)
    assert [t["coefficient"] for t in result["terms"]] == [1 - mu, mu]


def test_step_without_demonstrations_has_mu_zero():
    rows = [row("rollout", [0.5], r) for r in (1.0, 0.0)]
    assert coefficients(explain("chord", rows, std=False, mu=0.9)) == [[0.25], [-0.25]]


def test_without_imitation_it_is_grpo():
    assert_same_rule(("chord", {"mu": 0}), ("grpo", {"denominator": "tokens"}))


def test_only_imitation_without_phi_is_sft():
    assert_same_rule(("chord", {"mu": 1, "phi": 1}), ("sft", {}))


def test_likelihood_weighted_by_p_is_dft():
    assert_same_rule(("chord", {"mu": 1, "phi": "p"}), ("dft", {}))


def test_entropy_is_needed_where_phi_reads_it():
    rows = [row("demo", [0.5]), row("rollout", [0.5], 1.0)]
    explain("chord", rows)
    with pytest.raises(ValueError, match="row 0: 'entropy' is needed"):
        explain("chord", rows, phi="entropy_top")


@pytest.mark.parametrize(
    "bad",
    [{"mu": 1.5}, {"mu": "cosine:2,0,0,10"}, {"mu": "reward:x"}, {"mu": "reward:inf"}, {"phi": "4p1mp"},
     {"phi": 0.5}, {"cutoff": 2}, {"gamma": -1}, {"top_entropy": -0.1}, {"kl": 0.1}],
)  # fmt: skip
def test_impossible_parameters_raise(bad):
    with pytest.raises(ValueError, match="chord: "):
        explain("chord", demo(), **bad)
