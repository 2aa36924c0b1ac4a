"""Expert iteration: what is kept, and what it has to do with REINFORCE."""

import pytest

from interlace import explain
from tests.methods.batches import assert_same_rule, coefficients, random_rows, row


def samples(*rewards):
    return [row("rollout", [0.5, 0.5], r) for r in rewards]


def test_correct_rollouts_and_demonstrations_share_one_mean():
    rows = [*samples(1.0, 0.0), row("demo", [0.5])]
    out = explain("expert_iteration", rows)
    assert coefficients(out) == [[1 / 3] * 2, [0] * 2, [1 / 3]]
    assert out["terms"] == [{"name": "sft", "coefficient": 1.0, "denominator": "tokens", "n": 3.0}]


def test_demonstrations_can_be_left_to_the_first_stage():
    rows = [*samples(1.0, 0.0), row("demo", [0.5])]
    out = explain("expert_iteration", rows, use_demos="false")
    assert coefficients(out) == [[1 / 2] * 2, [0] * 2, [0]]


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ({"finish": "length"}, True),  # correct is all that counts
        ({"verdict": "fail"}, False),
        ({"verdict": "unscorable"}, False),
        ({"reward": 0.5}, False),
        ({"reward": 0.0, "verdict": "pass"}, True),
        ({"reward": None}, False),
    ],
)
def test_rollouts_are_kept_if_correct(given, kept):
    out = explain("expert_iteration", [{**samples(1.0)[0], **given}])
    assert out["terms"][0]["n"] == (2 if kept else 0)


def test_demonstrations_are_kept_as_they_are():
    rows = [row("demo", [0.5], 0.0), row("demo", [0.5], verdict="fail"), row("demo", [0.5])]
    assert coefficients(explain("expert_iteration", rows)) == [[1 / 3]] * 3
    assert explain("expert_iteration", [row("demo", [0.5], verdict="unscorable")])["terms"][0]["n"] == 0


def test_prefixes_of_correct_rollouts_are_not_trained():
    rows = [row(["prefix", "rollout"], [0.5, 0.5], 1.0)]
    assert coefficients(explain("expert_iteration", rows)) == [[0, 1]]


def test_one_round_is_reinforce_over_the_mean_accuracy():
    rows = samples(1.0, 0.0, 1.0, 0.0, 0.0)
    ours = explain("expert_iteration", rows, denominator="sequences")
    theirs = explain("reinforce", rows, denominator="sequences")
    for a, b in zip(coefficients(ours), coefficients(theirs), strict=True):
        assert [0.4 * x for x in a] == pytest.approx(b)


def test_ppo_without_critic_at_ratio_one_is_reinforce():
    def fresh(seed):
        return [{k: v for k, v in r.items() if k not in ("old_logp", "values")} for r in random_rows(seed)]

    plain = {"whiten": False, "gae_lambda": 1.0, "gamma": 1.0}
    for seed in range(3):
        ours, theirs = explain("ppo", fresh(seed), **plain), explain("reinforce", fresh(seed))
        for a, b in zip(coefficients(ours), coefficients(theirs), strict=True):
            assert a == pytest.approx(b)


def test_without_rollouts_it_is_sft():
    def demos(seed):
        return [r for r in random_rows(seed) if "rollout" not in r["source"]]

    assert_same_rule(("expert_iteration", {}), ("sft", {}), make=demos)


def test_without_demonstrations_it_is_on_policy_sft_where_nothing_is_cut_off():
    def finished(seed):
        return [{**r, "finish": "stop"} for r in random_rows(seed)]

    assert_same_rule(
        ("expert_iteration", {"use_demos": False}), ("on_policy_sft", {"variant": "code"}), make=finished
    )


def test_rounds_and_sampling_are_of_training_only():
    rows = samples(1.0, 0.0)
    options = {"samples": 4, "rounds": 3, "restart": "false", "cap": 2}
    assert explain("expert_iteration", rows, **options) == explain("expert_iteration", rows)


@pytest.mark.parametrize("options", [{"samples": 0}, {"rounds": 0}, {"cap": 0}, {"restart": "maybe"}])
def test_impossible_parameters(options):
    with pytest.raises(ValueError, match=f"expert_iteration: {next(iter(options))}="):
        explain("expert_iteration", [], **options)
