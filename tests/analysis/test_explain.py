"""`explain` reads the schema exactly, and says what is wrong with anything else."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

import interlace
from interlace import explain
from interlace.analysis.explain import ExplainError
from interlace.methods import MethodError
from interlace.parts.terms import MissingStatistic

ROLLOUT: dict[str, Any] = {"logp": [-1.0, -0.5], "source": "rollout", "reward": 1.0}
DEMO: dict[str, Any] = {"logp": [-1.0, -0.5], "source": "demo"}


def test_output_has_exactly_the_keys_of_the_schema_and_is_json() -> None:
    out = explain("sft_then_rl", [ROLLOUT, DEMO])
    assert json.loads(json.dumps(out)) == out
    assert set(out) == {"loss", "terms", "rows"}
    assert all(set(t) == {"name", "coefficient", "denominator", "n"} for t in out["terms"])
    assert all(set(r) == {"advantage", "coefficient"} for r in out["rows"])


def test_rows_and_tokens_come_back_in_input_order() -> None:
    rows = [{"logp": [-float(i)] * n, "source": "demo"} for i, n in enumerate((2, 0, 3, 1))]
    rows[1] = {"logp": [], "source": "demo"}
    out = explain("dft", rows, denominator="length", max_length=1)
    # DFT's coefficient of a token is its p, over the 3 rows
    assert [[round(3 * c, 9) for c in r["coefficient"]] for r in out["rows"]] == [
        [round(math.exp(-float(i)), 9)] * n for i, n in enumerate((2, 0, 3, 1))
    ]


def test_a_term_that_does_not_act_has_advantage_zero_and_a_likelihood_term_one() -> None:
    out = explain("sft", [ROLLOUT, DEMO])
    assert [r["advantage"] for r in out["rows"]] == [[0, 0], [1, 1]]
    assert out["rows"][0]["coefficient"] == [0, 0]


def test_parameters_may_be_the_texts_of_the_command_line() -> None:
    rows = [{**ROLLOUT, "reward": r, "old_logp": [-1.5, -0.4]} for r in (1.0, 0.0)]
    texts = explain("grpo", rows, std="false", clip_high="0.1", denominator="tokens", kl="0")
    values = explain("grpo", rows, std=False, clip_high=0.1, denominator="tokens", kl=0.0)
    assert texts == values


@pytest.mark.parametrize("none", ["none", "None", " none ", "null", None])
def test_none_and_its_texts_are_the_same(none: str | None) -> None:
    # ratio e^0.5 = 1.65: a bound of 1.2 stops the gradient, no bound does not
    rows = [{**ROLLOUT, "reward": r, "old_logp": [-1.5, -1.0], "group": 0} for r in (1.0, 0.0)]
    bounded = explain("dr_grpo", rows)
    free = explain("dr_grpo", rows, clip_high=none)
    assert bounded["rows"][0]["coefficient"] == [0, 0]
    assert free["rows"][0]["coefficient"][0] == pytest.approx(math.exp(0.5) * 0.5 / 4)


def test_without_a_limit_the_length_denominators_take_the_longest_row_of_the_input() -> None:
    # the longest row, 5 tokens, is a rollout that SFT does not even cover
    rows = [{"logp": [-1.0] * 2, "source": "demo"}, {"logp": [-1.0] * 5, "source": "rollout", "reward": 1.0}]
    assert explain("sft", rows, denominator="length")["terms"][0]["n"] == 1 * 5
    assert explain("sft", rows, denominator="length_sum")["terms"][0]["n"] == 5
    assert explain("sft", rows, denominator="length", max_length="none")["loss"] == pytest.approx(2 / 5)
    assert explain("sft", rows, denominator="length", max_length=8)["loss"] == pytest.approx(2 / 8)
    assert explain("sft", rows, denominator="longest")["terms"][0]["n"] == 1 * 2


def test_no_rows_at_all_give_an_empty_loss() -> None:
    out = explain("grpo", [])
    assert (out["loss"], out["rows"], out["terms"][0]["n"]) == (0, [], 0)


def test_an_empty_row_needs_one_string_as_source_and_no_statistics() -> None:
    empty = {"logp": [], "source": "rollout", "reward": 0.0, "group": "g"}
    out = explain("grpo", [{**ROLLOUT, "group": "g", "ref_logp": [-1.0, -0.5]}, empty], kl=0.1, std=False)
    assert out["rows"][1] == {"advantage": [], "coefficient": []}
    assert out["rows"][0]["advantage"] == [0.5, 0.5]  # it keeps its place in the group
    assert out["terms"][0]["n"] == 1  # and is in no denominator
    with pytest.raises(ExplainError, match=r"row 0: 'source': .* one string for an empty row"):
        explain("grpo", [{"logp": [], "source": []}])


def test_null_stands_for_an_absent_number_on_tokens_that_need_none() -> None:
    row = {
        "logp": [-1.0, -0.5],
        "source": ["prefix", "rollout"],
        "ref_logp": [None, -0.5],
        "old_logp": [None, None],
        "span": [None, "answer"],
        "reward": None,
        "verdict": "pass",
    }
    assert explain("grpo", [row], kl=1.0)["rows"][0]["coefficient"] == [0, 0]


def test_groups_of_equal_text_and_number_are_different() -> None:
    rows = [{**ROLLOUT, "group": g, "reward": r} for g, r in (("1", 1.0), (1, 0.0))]
    assert explain("dr_grpo", rows)["rows"][0]["advantage"] == [0, 0]


def bad(**keys: Any) -> list[dict[str, Any]]:
    """A good row, and a second one with these keys (`...` takes the key away)."""
    row = {**ROLLOUT, **keys}
    return [ROLLOUT, {k: v for k, v in row.items() if v is not ...}]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (bad(lopg=[1]), r"row 1: unknown key 'lopg'; did you mean 'logp'\? Accepted are logp, source"),
        (bad(rewards=1.0), r"row 1: unknown key 'rewards'; did you mean 'reward'\?"),
        (bad(logp=...), r"row 1: 'logp' is required"),
        (bad(source=...), r"row 1: 'source' is required, one of rollout, demo, prefix, hint"),
        (bad(logp="abc"), r"row 1: 'logp': 'abc' is not accepted; accepted is a list"),
        (bad(logp=[-1.0, math.nan]), r"row 1: 'logp': nan is not accepted; accepted is finite numbers"),
        (bad(logp=[-1.0, -math.inf]), r"row 1: 'logp': -inf is not accepted"),
        (bad(logp=[-1.0, None]), r"row 1: 'logp': None is not accepted"),
        (bad(logp=[-1.0, True]), r"row 1: 'logp': True is not accepted"),
        (bad(logp=[-1.0, 0.5]), r"row 1: 'logp': 0\.5 is not accepted; accepted is log-probabilities"),
        (bad(old_logp=[-1.0]), r"row 1: 'old_logp' has 1 numbers, 'logp' has 2; they must agree"),
        (bad(ref_logp=[-1.0] * 3), r"row 1: 'ref_logp' has 3 numbers, 'logp' has 2"),
        (bad(values=[0.0, math.nan]), r"row 1: 'values': nan is not accepted; .*null where absent"),
        (bad(entropy=["x", 0.0]), r"row 1: 'entropy': 'x' is not accepted"),
        (bad(source=["rollout"]), r"row 1: 'source' has 1 entries, 'logp' has 2"),
        (bad(source="rolout"), r"row 1: 'source': 'rolout' is not accepted; accepted is rollout, demo"),
        (bad(source=["rollout", "prompt"]), r"row 1: 'source': 'prompt' is not accepted"),
        (bad(span=["answer"]), r"row 1: 'span' has 1 entries, 'logp' has 2"),
        (bad(span=[None, "end"]), r"row 1: 'span': 'end' is not accepted; accepted is guess, think, answer"),
        (bad(reward=math.nan), r"row 1: 'reward': nan is not accepted; accepted is a number from -1e\+100"),
        (bad(reward="1"), r"row 1: 'reward': '1' is not accepted"),
        (bad(verdict="maybe"), r"row 1: 'verdict': 'maybe' is not accepted; accepted is pass, fail, unscor"),
        (bad(finish="eos"), r"row 1: 'finish': 'eos' is not accepted; accepted is stop, length"),
        (bad(group=1.5), r"row 1: 'group': 1\.5 is not accepted; accepted is a string or an integer"),
        (bad(extra=[1]), r"row 1: 'extra': \[1\] is not accepted; accepted is an object"),
        ([ROLLOUT, 3], r"row 1: 3 is not accepted; accepted is an object"),
        ({"rows": []}, r"rows: accepted is a list of objects, not dict"),
    ],
)
def test_a_bad_row_is_refused_with_its_place_and_what_is_accepted(rows: Any, message: str) -> None:
    with pytest.raises(ExplainError, match=message):
        explain("grpo", rows)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"klx": 1}, r"grpo: unknown parameter 'klx'; did you mean 'kl'\? Accepted are"),
        ({"kl": -1}, r"grpo: kl=-1: .*greater than or equal to 0"),
        ({"kl": "much"}, r"grpo: kl='much': .*valid number"),
        ({"kl": math.nan}, r"grpo: kl=nan"),
        ({"clip_low": 1.5}, r"grpo: clip_low=1\.5"),
        ({"dual_clip": 1.0}, r"grpo: dual_clip=1\.0"),
        ({"std": "maybe"}, r"grpo: std='maybe'"),
        ({"std_correction": 2}, r"grpo: std_correction=2"),
        ({"std_scope": "batch"}, r"grpo: std_scope='batch': .*'group' or 'step'"),
        ({"kl_estimator": "k4"}, r"grpo: kl_estimator='k4': .*'k1', 'k2' or 'k3'"),
        ({"denominator": "groups"}, r"grpo: denominator='groups': .*'sequence_means'"),
        ({"max_length": 0}, r"grpo: max_length=0"),
        ({"variant": "code"}, r"grpo: variant='code': accepted are paper"),
        ({"stage": "rl"}, r"stage='rl': this method has no stages"),
    ],
)
def test_a_bad_parameter_is_refused_with_what_is_accepted(options: dict[str, Any], message: str) -> None:
    with pytest.raises(MethodError, match=message):
        explain("grpo", [ROLLOUT], **options)


def test_an_unknown_method_names_the_nearest() -> None:
    with pytest.raises(MethodError, match=r"unknown method 'drgrpo': did you mean 'dr_grpo'\?"):
        explain("drgrpo", [ROLLOUT])


def test_an_unknown_stage_names_the_stages() -> None:
    with pytest.raises(MethodError, match=r"stage='sfr': accepted are sft, rl"):
        explain("sft_then_rl", [ROLLOUT], stage="sfr")


def test_an_unknown_variant_names_the_variants() -> None:
    with pytest.raises(MethodError, match=r"variant='paperr': accepted are paper, code"):
        explain("on_policy_sft", [ROLLOUT], variant="paperr")


def test_the_variant_paper_is_accepted_everywhere() -> None:
    assert explain("grpo", [ROLLOUT], variant="paper") == explain("grpo", [ROLLOUT])


@pytest.mark.parametrize("step", [-1, 1.5, True, "1"])
def test_step_is_a_count(step: Any) -> None:
    with pytest.raises(ExplainError, match=r"step=.*: accepted are integers >= 0"):
        explain("grpo", [ROLLOUT], step=step)


@pytest.mark.parametrize("value", [math.nan, math.inf, "x", None, True])
def test_state_holds_finite_numbers(value: Any) -> None:
    with pytest.raises(ExplainError, match=r"state\.mu=.*: accepted are finite numbers"):
        explain("grpo", [ROLLOUT], state={"mu": value})


@pytest.mark.parametrize(
    ("method", "options", "row", "key"),
    [
        ("grpo", {"kl": 0.1}, {"ref_logp": ...}, "ref_logp"),
        ("grpo", {"kl": 0.1}, {"ref_logp": [-1.0, None]}, "ref_logp"),
        ("rloo", {"kl": 0.1}, {"ref_logp": ...}, "ref_logp"),
        ("reinforce_pp", {"kl": 0.1}, {"ref_logp": ...}, "ref_logp"),
        ("ppo", {"kl": 0.1}, {"ref_logp": ...}, "ref_logp"),
    ],
)
def test_a_missing_statistic_names_row_and_key(
    method: str, options: dict[str, Any], row: dict[str, Any], key: str
) -> None:
    good = {**ROLLOUT, "ref_logp": [-1.0, -0.5]}
    rows = [good, {k: v for k, v in {**good, **row}.items() if v is not ...}]
    with pytest.raises(MissingStatistic, match=rf"row 1: '{key}' is needed .*; accepted is a list of finite"):
        explain(method, rows, **options)


def test_rows_that_no_term_uses_may_lack_statistics() -> None:
    good = {**ROLLOUT, "ref_logp": [-1.0, -0.5]}
    others = [DEMO, {**ROLLOUT, "verdict": "unscorable"}, {**ROLLOUT, "reward": None}]
    assert explain("grpo", [good, *others], kl=0.1)["terms"][0]["n"] == 1


def test_every_error_is_a_value_error() -> None:
    assert all(issubclass(e, ValueError) for e in (ExplainError, MethodError, MissingStatistic))


def test_explain_is_at_the_top_of_the_package() -> None:
    assert interlace.explain is explain


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"reward": 1e160}, "row 0: 'reward'"),
        ({"reward": 10**400}, "row 0: 'reward'"),
        ({"entropy": [-1.0]}, "row 0: 'entropy'"),
        ({"topk_mass": [1.5]}, "row 0: 'topk_mass'"),
    ],
)
def test_numbers_that_cannot_be_are_refused(changed, message) -> None:
    """The square of 1e160 is no number: its group would look dead, with exit status 0."""
    row = {"source": "rollout", "reward": 1.0, "logp": [-0.5]}
    with pytest.raises(ValueError, match=message):
        explain("grpo", [{**row, **changed}])


def test_kl_none_is_no_penalty() -> None:
    row = {"source": "rollout", "reward": 1.0, "logp": [-0.5], "group": 0}
    assert explain("uft", [row], kl="none") == explain("uft", [row], kl=0)
