import pytest

from interlace import explain
from tests.methods.batches import advantages, assert_same_rule, coefficients, random_rows, row


def prompt(name, right, wrong, *demos):
    rollouts = [row("rollout", [0.5], r, group=name) for r in [1.0] * right + [0.0] * wrong]
    return [*rollouts, *({**d, "group": name} for d in demos)]


EXPERT = row("demo", [0.5, 0.5], 1.0)


def sft(rows, **given):
    return explain("metis_rise", rows, stage="sft", **given)


def trained(result):
    return [any(r) for r in coefficients(result)]


def test_prompts_are_routed_by_their_pass_rate():
    # Pass counts (0, 3, 8) of 8: expert, own correct rollouts, nothing.
    rows = [
        *prompt("unsolved", 0, 8, EXPERT),
        *prompt("unstable", 3, 5, EXPERT),
        *prompt("solved", 8, 0, EXPERT),
    ]
    result = sft(rows)
    assert trained(result) == [*[False] * 8, True, *[True] * 3, *[False] * 6, *[False] * 9]
    # One common denominator: 2 expert tokens and 3 own.
    assert (result["terms"][0]["denominator"], result["terms"][0]["n"]) == ("tokens", 5)
    assert coefficients(result)[8:10] == [[0.2, 0.2], [0.2]]
    assert advantages(result)[8:13] == [[1, 1], [1], [1], [1], [0]]


def test_an_expert_that_fails_is_dropped_and_one_without_verdict_is_not():
    rows = prompt("a", 0, 1, {**EXPERT, "verdict": "fail"}, {**EXPERT, "verdict": "pass"}, row("demo", [0.5]))
    assert trained(sft(rows)) == [False, False, True, True]


def test_a_prompt_without_valid_rollouts_trains_nothing():
    rows = [EXPERT, row("rollout", [0.5], 1.0, verdict="unscorable"), {**EXPERT, "group": "b"}]
    assert sft(rows)["terms"][0]["n"] == 0


def test_correct_is_the_verdict_where_there_is_one():
    rows = [row("rollout", [0.5], 1.0, verdict="fail"), row("rollout", [0.5], 0.0, verdict="pass")]
    assert trained(sft(rows)) == [False, True]


def test_prefix_tokens_of_a_correct_rollout_are_not_trained():
    rows = [row(["prefix", "rollout"], [0.5, 0.5], 1.0), row("rollout", [0.5], 0.0)]
    assert coefficients(sft(rows)) == [[0, 1], [0]]


def test_sft_denominator_is_a_parameter():
    rows = [row("rollout", [0.5, 0.5], 1.0), row("rollout", [0.5], 0.0)]
    assert coefficients(sft(rows, sft_denominator="sequences")) == [[1, 1], [0]]


@pytest.mark.parametrize(
    "given",
    [{}, {"kl": 0.1, "mask_truncated": True}, {"dynamic_sampling": False, "clip_high": 0.2, "std": False},
     {"overlong_buffer": 3, "max_length": 6, "overlong_penalty": 0.5}, {"denominator": "longest"}],
)  # fmt: skip
def test_stage_rl_is_dapo_and_the_default(given):
    assert_same_rule(("metis_rise", given), ("dapo", given))
    assert explain("metis_rise", random_rows(0), stage="rl") == explain("metis_rise", random_rows(0))


def test_stage_sft_of_routed_rows_is_sft_on_them():
    # The same rows as demonstrations alone give the same gradient.
    rows = [row("rollout", [0.2, 0.4], 1.0), row("rollout", [0.3], 0.0), row("rollout", [0.1, 0.6, 0.7], 1.0)]
    plain = explain("sft", [row("demo", [0.2, 0.4]), row("demo", [0.1, 0.6, 0.7])])
    shown = sft(rows)
    assert [coefficients(shown)[i] for i in (0, 2)] == coefficients(plain)
    assert shown["loss"] == plain["loss"]


@pytest.mark.parametrize(
    "bad", [{"samples": 0}, {"per_prompt": 0}, {"overlong_penalty": -1}, {"max_batches": 1}]
)
def test_impossible_parameters_raise(bad):
    with pytest.raises(ValueError, match="metis_rise: "):
        explain("metis_rise", [], **bad)
