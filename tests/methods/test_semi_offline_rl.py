import math

import pytest
import torch

import interlace
from interlace import explain
from interlace.analysis.explain import parse_rows
from interlace.training.objective import assign, evaluate, prepare
from tests.methods.batches import (
    advantages,
    assert_gradient,
    assert_same_rule,
    coefficients,
    random_rows,
    row,
)


def fill(logp, reward, name="a"):
    return {"group": name, "source": "rollout", "reward": reward, "logp": logp}


def test_sum_over_the_fills_of_a_prompt():
    # R - mean = (0.3, 0, -0.3): -(0.3 * -1 + -0.3 * -3) = -0.6, one group.
    rows = [fill([-1.0], 0.6), fill([-2.0], 0.3), fill([-3.0], 0.0)]
    result = explain("semi_offline_rl", rows, rl_coef=1)
    assert result["loss"] == pytest.approx(-0.6)
    assert [c[0] for c in coefficients(result)] == pytest.approx([0.3, 0, -0.3])
    assert [a[0] for a in advantages(result)] == pytest.approx([0.3, 0, -0.3])
    assert result["terms"][0] == {"name": "fills", "coefficient": 1, "denominator": "groups", "n": 1}


def test_a_fill_is_the_mean_of_its_masked_positions_and_prompts_are_averaged():
    # A = +-1/2, 2 groups, coefficient 20: 20 * 1/2 / 2 over the row's tokens.
    rows = [fill([-1.0] * 4, 1.0), fill([-1.0] * 2, 0.0), fill([-1.0], 1.0, "b"), fill([-1.0], 0.0, "b")]
    assert coefficients(explain("semi_offline_rl", rows)) == [[1.25] * 4, [-2.5] * 2, [5], [-5]]


def test_an_empty_fill_counts_in_the_mean_and_its_group_in_no_denominator():
    rows = [fill([-1.0], 1.0), fill([], 0.0), fill([], 1.0, "b"), fill([], 0.0, "b")]
    result = explain("semi_offline_rl", rows, rl_coef=1)
    assert coefficients(result) == [[0.5], [], [], []]
    assert result["terms"][0]["n"] == 1


def test_fewer_than_two_valid_fills_or_equal_rewards_give_nothing_but_count_as_a_group():
    rows = [fill([-1.0], 1.0), {**fill([-1.0], None), "verdict": "unscorable"}]
    rows += [fill([-1.0], 0.3, "b"), fill([-1.0], 0.3, "b")]
    result = explain("semi_offline_rl", rows)
    assert coefficients(result) == [[0], [0], [0], [0]]
    assert result["terms"][0]["n"] == 2


def test_reference_is_trained_by_likelihood_beside_the_fills():
    rows = [fill([-1.0], 1.0), fill([-1.0], 0.0), row("demo", [0.5, 0.25], 9.0)]
    assert coefficients(explain("semi_offline_rl", rows, rl_coef=4)) == [[2], [-2], [0.5, 0.5]]
    shown = explain("semi_offline_rl", rows, sft_denominator="length_sum", max_length=10)
    assert coefficients(shown)[2] == [0.1, 0.1]


def test_without_rl_it_is_sft():
    assert_same_rule(("semi_offline_rl", {"rl_coef": 0}), ("sft", {}))


def test_gradient_is_that_of_the_loss():
    assert_gradient("semi_offline_rl", random_rows(3, groups=3, rollouts=2, longest=3))


def test_label_smoothing_acts_in_training_on_the_references_alone():
    # (1 - e) NLL + e (-mean logp) over 2 tokens: d/dlogp = -(1 - e)/2, d/dmean_logp = -e/2.
    batch = parse_rows([row("demo", [0.5, 0.25]), fill([-1.0], 1.0)])
    method = interlace.methods.semi_offline_rl(label_smoothing=0.1)
    prepared = prepare(assign(batch, method), method)
    leaves = {"logp": batch.arrays["logp"], "mean_logp": torch.full((3,), -2.0)}
    results = evaluate(prepared, {"policy": leaves})
    logp = sum(g["logp"] for _, g in results if "logp" in g)
    assert logp.tolist() == pytest.approx([-0.45, -0.45, 0])
    assert results[2][1]["mean_logp"].tolist() == pytest.approx([-0.05, -0.05, 0])
    loss = 0.9 * math.log(8) / 2 + 0.1 * 2
    assert sum(r.loss for r, _ in results) == pytest.approx(loss)
    assert len(interlace.methods.semi_offline_rl(label_smoothing=0).terms) == 2


@pytest.mark.parametrize("given", [{"label_smoothing": 0.5}, {"mask_rate": 1}, {"samples": 16}])
def test_training_parameters_change_no_coefficient(given):
    assert explain("semi_offline_rl", random_rows(0), **given) == explain("semi_offline_rl", random_rows(0))


@pytest.mark.parametrize("bad", [{"mask_rate": 2}, {"samples": 0}, {"label_smoothing": 1}, {"rl_coef": -1}])
def test_impossible_parameters_raise(bad):
    with pytest.raises(ValueError, match="semi_offline_rl: "):
        explain("semi_offline_rl", [], **bad)
