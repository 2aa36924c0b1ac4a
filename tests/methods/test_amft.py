import math

import pytest
import torch

import interlace
from interlace import explain
from interlace.analysis.explain import parse_rows
from interlace.training.objective import assign, evaluate, prepare
from tests.methods.batches import advantages, assert_same_rule, coefficients, random_rows, row


def rows():
    """A right and a wrong rollout of one token, and a demonstration of two tokens."""
    return [*(row("rollout", [0.5], r) for r in (1.0, 0.0)), row("demo", [0.5, 0.25])]


def test_mixture_of_group_advantages():
    # A = +-1/2 over 2 tokens times 1/4, NLL over 2 tokens times 3/4.
    result = explain("amft", rows(), mu=0.75, advantage="group", std=False)
    assert coefficients(result) == [[1 / 16], [-1 / 16], [3 / 8, 3 / 8]]
    assert result["loss"] == pytest.approx(0.75 * math.log(8) / 2)  # the two surrogates cancel
    assert [(t["coefficient"], t["n"]) for t in result["terms"]] == [(0.25, 2), (0.75, 2)]


def test_advantages_of_a_critic():
    # gamma = lambda = 1: A_t = R - V_t = (1 - 0.2, 1 - 0.4); over 2 tokens, times 1 - mu = 1/2.
    shown = [row("rollout", [0.5, 0.5], 1.0, values=[0.2, 0.4]), row("demo", [0.5])]
    result = explain("amft", shown, mu=0.5, gae_lambda=1, whiten=False)
    assert advantages(result)[0] == pytest.approx([0.8, 0.6])
    assert coefficients(result) == [pytest.approx([0.2, 0.15]), [0.5]]
    # gamma = lambda = 1/2: delta = (V_2/2 - V_1, 1 - V_2) = (0, 0.6), A_1 = 0.6 / 4.
    shown = explain("amft", shown, mu=0.5, gamma=0.5, gae_lambda=0.5, whiten=False)
    assert advantages(shown)[0] == pytest.approx([0.15, 0.6])


def test_values_are_zero_where_absent_and_advantages_are_whitened():
    # A = (1, 0): mean 1/2, Bessel-corrected deviation sqrt(1/2).
    z = 0.5 / (math.sqrt(0.5) + 1e-6)
    assert advantages(explain("amft", rows()))[:2] == [pytest.approx([z]), pytest.approx([-z])]


def test_state_replaces_mu():
    by_state = explain("amft", rows(), state={"mu": 0.5, "entropy": 1.0}, mu=0.9)
    assert by_state == explain("amft", rows(), mu=0.5)


def test_step_without_demonstrations_has_mu_zero_and_one_without_rollouts_keeps_mu():
    result = explain("amft", rows()[:2], advantage="group", std=False)
    assert coefficients(result) == [[0.25], [-0.25]]
    assert [t["coefficient"] for t in result["terms"]] == [1, 0]
    assert coefficients(explain("amft", rows()[2:])) == [[0.4, 0.4]]  # mu = 0.8 over 2 tokens


def test_stage_sft_is_the_likelihood_alone():
    assert_same_rule(("amft", {"stage": "sft"}), ("sft", {}))


def test_without_imitation_it_is_ppo_or_grpo():
    assert_same_rule(("amft", {"mu": 0}), ("ppo", {}))
    assert_same_rule(("amft", {"mu": 0, "advantage": "group"}), ("grpo", {"denominator": "tokens"}))


def test_only_imitation_is_sft():
    assert_same_rule(("amft", {"mu": 1}), ("sft", {}))


def test_critic_and_entropy_terms_act_in_training_only():
    # Entropy bonus 0.01 (1 - mu) over 3 rollout tokens; value loss 0.1 (v - return)^2 / 2 at weight 1.
    batch = parse_rows([row("rollout", [0.5] * 3, 1.0, values=[0.0] * 3), row("demo", [0.5])])
    _, mix = interlace.methods.amft(mu=0.25, gae_lambda=1).stage("mix")
    prepared = prepare(assign(batch, mix), mix)
    assert [p.term.explained for p in prepared.terms] == [True, True, False, False]
    leaves = {"logp": batch.arrays["logp"], "entropy": torch.ones(4), "value": torch.zeros(4)}
    gradients = [g for _, g in evaluate(prepared, {"policy": leaves, "critic": leaves})]
    assert gradients[2]["value"].tolist() == pytest.approx([-0.1 / 3] * 3 + [0])  # return 1 on each token
    assert gradients[3]["entropy"].tolist() == pytest.approx([-0.0075 / 3] * 3 + [0])


def test_critic_is_absent_with_group_advantages():
    _, mix = interlace.methods.amft(advantage="group", entropy_bonus=0, eta_entropy=0).stage("mix")
    assert [t.name for t in mix.terms] == ["policy", "sft"]
    assert mix.needs == frozenset()


@pytest.mark.parametrize("mu", [-0.1, 1.5])
def test_state_outside_0_and_1_raises(mu):
    with pytest.raises(ValueError, match=f"state.mu={mu}: accepted are numbers from 0 to 1"):
        explain("amft", rows(), state={"mu": mu})


@pytest.mark.parametrize(
    "bad",
    [{"mu": 2}, {"advantage": "vtrace"}, {"gae_lambda": 2}, {"entropy_sign": 0}, {"entropy_sign": 2},
     {"meta": "adam"}, {"mu_min": 0.9, "mu_max": 0.1}, {"every": 0}, {"kl": 0.1}],
)  # fmt: skip
def test_impossible_parameters_raise(bad):
    with pytest.raises(ValueError, match="amft: "):
        explain("amft", rows(), **bad)


def test_training_parameters_change_no_coefficient():
    base = explain("amft", random_rows(0))
    given = {"eta_mu": 1, "eta_entropy": 1, "mu_min": 0, "mu_max": 1, "every": 1, "entropy_sign": "-1",
             "meta": "raw", "value_coef": 0, "entropy_bonus": 0}  # fmt: skip
    assert explain("amft", random_rows(0), **given) == base
