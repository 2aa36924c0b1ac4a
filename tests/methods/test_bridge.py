import pytest

from interlace import explain
from tests.methods.batches import assert_same_rule, coefficients, row


def rows():
    return [*(row("rollout", [0.5], r) for r in (1.0, 0.0)), row("demo", [0.5, 0.25])]


def test_student_step_is_a_convex_combination():
    # A = +-1/2, a mean over 2 rows, times 3/4; NLL over 2 tokens times 1/4 (the paper's lambda is 3/4).
    result = explain("bridge", rows(), mu=0.25, std=False)
    assert coefficients(result) == [[3 / 16], [-3 / 16], [1 / 8, 1 / 8]]
    assert [t["coefficient"] for t in result["terms"]] == [0.75, 0.25]


def test_kl_stands_inside_the_rollout_term():
    # k2 has gradient delta: 0.4 over 1 row, times kl = 0.1 and 1 - mu = 1/2.
    one = row("rollout", [0.5], 1.0)
    one["ref_logp"] = [one["logp"][0] - 0.4]
    shown = explain("bridge", [one, row("demo", [0.5])], kl=0.1, kl_estimator="k2")
    assert coefficients(shown)[0] == pytest.approx([-0.02])


def test_mu_follows_a_schedule():
    shown = [
        explain("bridge", rows(), step=s, mu="linear:1,0,10")["terms"][1]["coefficient"] for s in (0, 5, 20)
    ]
    assert shown == [1, 0.5, 0]


def test_step_without_demonstrations_has_mu_zero_and_one_without_rollouts_keeps_mu():
    assert coefficients(explain("bridge", rows()[:2], std=False)) == [[0.25], [-0.25]]
    assert coefficients(explain("bridge", rows()[2:])) == [[0.25, 0.25]]


def test_a_demonstration_that_is_left_out_is_none():
    left = {**rows()[2], "verdict": "unscorable"}
    assert explain("bridge", [*rows()[:2], left])["terms"][1]["coefficient"] == 0


def test_without_imitation_it_is_grpo():
    assert_same_rule(("bridge", {"mu": 0}), ("grpo", {}))
    assert_same_rule(("bridge", {"mu": 0, "kl": 0.1}), ("grpo", {"kl": 0.1}))


def test_only_imitation_is_sft():
    assert_same_rule(("bridge", {"mu": 1}), ("sft", {}))


@pytest.mark.parametrize(
    "bad",
    [{"mu": 1.5}, {"mu": "linear:0,2,10"}, {"mu": "reward:0.5"}, {"lora_rank": 0}, {"teacher_lr": 0},
     {"resync": 0}],
)  # fmt: skip
def test_impossible_parameters_raise(bad):
    with pytest.raises(ValueError, match="bridge: "):
        explain("bridge", rows(), **bad)
