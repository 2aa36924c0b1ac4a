import pytest

from interlace import explain
from tests.methods.batches import assert_same_rule, coefficients, row

H = [0.1, 2.0, 0.5, 1.5, 0.05]


def prompt(name, right, wrong, **given):
    """Rollouts of one token, and a demonstration of five."""
    rollouts = [row("rollout", [0.5], r, group=name, **given) for r in [1.0] * right + [0.0] * wrong]
    return [*rollouts, row("demo", [0.5] * 5, group=name, entropy=H)]


def sft(rows, **given):
    return explain("mifo", rows, stage="sft", **given)


def test_tokens_outside_the_entropy_mask_are_not_in_the_denominator():
    # 5 tokens, share 0.4: the entropies 2.0 and 1.5.
    result = sft([row("demo", [0.5] * 5, entropy=H)], top_entropy=0.4)
    assert coefficients(result) == [[0, 0.5, 0, 0.5, 0]]
    assert result["terms"][0]["n"] == 2
    assert result["rows"][0]["advantage"] == [0, 1, 0, 1, 0]


@pytest.mark.parametrize(
    ("right", "wrong", "trained"), [(0, 2, True), (1, 7, True), (1, 6, False), (2, 0, False)]
)
def test_demonstrations_of_prompts_up_to_the_threshold_are_trained(right, wrong, trained):
    assert (sft(prompt("a", right, wrong))["terms"][0]["n"] > 0) is trained


def test_threshold_is_compared_with_a_tolerance():
    assert 1 - 0.9 < 1 / 10  # by rounding
    assert sft(prompt("a", 1, 9), threshold=1 - 0.9)["terms"][0]["n"] == 1


def test_prompt_from_the_buffer_is_trained_and_one_whose_rollouts_are_left_out_is_not():
    assert sft(prompt("a", 0, 0))["terms"][0]["n"] == 1
    assert sft(prompt("a", 0, 2, verdict="unscorable"))["terms"][0]["n"] == 0


@pytest.mark.parametrize(
    ("scope", "expected"), [("row", [[0.5, 0], [0.5, 0]]), ("step", [[0.5, 0.5], [0, 0]])]
)
def test_share_is_of_each_row_or_pooled_over_the_trained_tokens(scope, expected):
    # The easy prompt's entropies are larger still and are not pooled.
    rows = [row("demo", [0.5, 0.5], group=g, entropy=h) for g, h in (("a", [3.0, 2.0]), ("b", [1.0, 0.5]))]
    rows += [row("rollout", [0.5], 1.0, group="easy"), row("demo", [0.5], group="easy", entropy=[9.0])]
    shown = coefficients(sft(rows, top_entropy=0.5, entropy_scope=scope))
    assert shown == [*expected, [0], [0]]


def test_sft_denominator_is_a_parameter():
    rows = [row("demo", [0.5] * 5, entropy=H)]
    assert coefficients(sft(rows, top_entropy=0.4, sft_denominator="sequences")) == [[0, 1, 0, 1, 0]]


def test_share_zero_trains_nothing():
    result = sft([row("demo", [0.5], entropy=[1.0])], top_entropy=0)
    assert (result["loss"], result["terms"][0]["n"]) == (0, 0)


def test_entropy_is_needed_on_trained_prompts_alone():
    rows = [*prompt("easy", 1, 0), *prompt("hard", 0, 1)]
    del rows[1]["entropy"]
    sft(rows)
    del rows[3]["entropy"]
    with pytest.raises(ValueError, match="row 3: 'entropy' is needed"):
        sft(rows)


def test_stage_rl_is_grpo_and_the_default():
    assert_same_rule(("mifo", {"kl": 0.1}), ("grpo", {"kl": 0.1}))
    assert_same_rule(("mifo", {"stage": "rl", "std": "false"}), ("grpo", {"std": False}))


def test_stage_sft_without_masks_is_sft():
    # threshold=1 takes every prompt with a measured rollout, so none may have only rollouts left out.
    assert_same_rule(("mifo", {"stage": "sft", "top_entropy": 1, "threshold": 1}), ("sft", {}))


@pytest.mark.parametrize(
    "bad", [{"threshold": 2}, {"entropy_scope": "group"}, {"freeze": -1}, {"alpha": 2}, {"buffer_size": 0}]
)
def test_impossible_parameters_raise(bad):
    with pytest.raises(ValueError, match="mifo: "):
        explain("mifo", [], **bad)
