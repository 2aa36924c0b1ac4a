"""Re-distillation: three stages, and why samples of a converged policy are worth more."""

import pytest

from interlace import explain
from interlace.methods import get
from tests.methods.batches import assert_same_rule, coefficients, row


def test_the_base_is_distilled_last_and_explain_shows_that():
    method = get("re_distillation")()
    assert list(method.stages) == ["sft", "rl", "distill"]
    assert method.stage()[0] == "distill"


@pytest.mark.parametrize("stage", [None, "distill", "sft"])
def test_supervised_stages_are_sft_with_a_mean_of_row_means(stage):
    assert_same_rule(("re_distillation", {"stage": stage}), ("sft", {"denominator": "sequence_means"}))
    assert_same_rule(("re_distillation", {"stage": stage, "sft_denominator": "tokens"}), ("sft", {}))


@pytest.mark.parametrize(
    "options", [{}, {"kl": 0.1}, {"std": False}, {"clip_high": 0.28, "dual_clip": 3}, {"std_scope": "step"}]
)
def test_reinforcement_stage_is_grpo_with_a_token_mean(options):
    assert_same_rule(
        ("re_distillation", {"stage": "rl", **options}), ("grpo", {"denominator": "tokens", **options})
    )


def test_effect_of_a_sample_on_the_expected_reward():
    # three equally likely actions, rewards (1, 0, 0): the expectation is one row for each
    third = 1 / 3
    policy = [row("rollout", [third], r) for r in (1.0, 0.0, 0.0)]
    pulls = [c[0] for c in coefficients(explain("reinforce", policy, denominator="sequences"))]

    def of_logits(per_action):
        # d log pi(a) / d logit_k = [a = k] - 1/3
        return [sum(c * ((a == k) - third) for a, c in enumerate(per_action)) for k in range(3)]

    gradient = of_logits(pulls)
    assert gradient == pytest.approx([2 / 9, -1 / 9, -1 / 9])
    step = coefficients(explain("re_distillation", [row("demo", [third])]))[0][0]
    effect = [
        sum(x * y for x, y in zip(of_logits([step * (a == k) for a in range(3)]), gradient)) for k in range(3)
    ]
    assert effect == pytest.approx([2 / 9, -1 / 9, -1 / 9])
    assert effect[0] / 3 == pytest.approx(sum(g * g for g in gradient))  # E[r V] = |grad J|^2


@pytest.mark.parametrize("options", [{"samples": 0}, {"last_steps": 0}])
def test_impossible_parameters(options):
    with pytest.raises(ValueError, match=f"re_distillation: {next(iter(options))}="):
        explain("re_distillation", [], **options)
