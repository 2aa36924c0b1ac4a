"""Every method on the same rows: what a coefficient is made of, why a token is silent, and the balance."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from rich.console import Console

import interlace
from interlace.analysis.explain import ExplainError
from interlace.analysis.side_by_side import SILENT, Lane, side_by_side
from interlace.analysis.terminal import ratio
from interlace.methods import REGISTER, MethodError
from tests.analysis.rows import toy_rows

HALF = math.log(0.5)


def rollout(reward: float | None, *logp: float, group: Any = "a", **more: Any) -> dict[str, Any]:
    return {"logp": list(logp), "source": "rollout", "reward": reward, "group": group, **more}


def demo(*logp: float, group: Any = "a", **more: Any) -> dict[str, Any]:
    return {"logp": list(logp), "source": "demo", "group": group, **more}


PAIR = [rollout(1.0, HALF, HALF), rollout(0.0, HALF), demo(HALF, HALF, HALF)]


def only(method: Any, rows: list[dict[str, Any]], **more: Any) -> Lane:
    return side_by_side([method], rows, **more).lanes[0]


def reasons(lane: Lane) -> list[list[str | None]]:
    return [[token.silent for token in row] for row in lane.rows]


def test_a_coefficient_is_taken_apart_into_factor_n_weight_and_advantage() -> None:
    lane = only(("chord", {"mu": 0.3, "std": False}), PAIR)
    # rollouts: (1 - 0.3)/3 tokens * A, A = 1/2 and -1/2; demonstration: 0.3/3 tokens * p(1 - p) = 1/4
    first, last = lane.rows[0][0], lane.rows[2][2]
    assert first.coefficient == pytest.approx(0.7 / 3 * 0.5)
    assert (first.parts[0].term, first.parts[0].n) == ("policy", 3)
    assert (first.parts[0].advantage, first.parts[0].weight) == (0.5, pytest.approx(1.0))
    assert last.coefficient == pytest.approx(0.3 / 3 * 0.25)
    assert (last.parts[0].term, last.parts[0].advantage) == ("sft", 1.0)
    assert last.parts[0].weight == pytest.approx(0.25)


def test_the_divisor_of_a_row_holds_its_own_length_in_sequence_means() -> None:
    lane = only(("grpo", {"std": False}), PAIR)
    # two rows; the first has two tokens: 1/(2 * 2), the second one: 1/2
    assert [token.parts[0].n for token in (*lane.rows[0], *lane.rows[1])] == [4, 4, 2]


@pytest.mark.parametrize("name", sorted(REGISTER))
def test_parts_add_up_to_the_coefficient_of_explain_and_every_zero_has_a_reason(name: str) -> None:
    rows = toy_rows(3)
    for stage in REGISTER[name]().stages or [None]:
        settings = {} if stage is None else {"stage": stage}
        lane = only((name, settings), rows)
        assert lane.problem is None
        expected = interlace.explain(name, rows, **settings)
        assert lane.loss == expected["loss"]
        factors = {term["name"]: term["coefficient"] for term in lane.terms}
        for shown, given in zip(lane.rows, expected["rows"], strict=True):
            assert [t.coefficient for t in shown] == given["coefficient"]
            assert [t.advantage for t in shown] == given["advantage"]
            for token in shown:
                made = sum(part.coefficient for part in token.parts)
                assert made == pytest.approx(token.coefficient, abs=1e-12)
                for part in token.parts:
                    if part.weight is not None:
                        product = factors[part.term] / part.n * part.weight * part.advantage
                        assert product == pytest.approx(part.coefficient, abs=1e-12)
                assert (token.silent is None) == (token.coefficient != 0)
                assert token.silent is None or token.silent in SILENT


def test_a_kl_acts_where_the_advantage_is_zero_and_has_no_weight() -> None:
    rows = [rollout(1.0, -0.5, ref_logp=[-1.0]), rollout(1.0, -0.5, ref_logp=[-0.5])]
    lane = only("grpo kl=0.1 kl_estimator=k1", rows)
    # k1: d(0.1 * (logp - ref_logp))/d logp = 0.1 on both, over 2 rows of one token
    assert [row[0].coefficient for row in lane.rows] == pytest.approx([-0.05, -0.05])
    assert [row[0].parts[0].weight for row in lane.rows] == [None, None]


def test_tokens_that_no_term_reads_are_masked_and_told_by_source() -> None:
    lane = only("sft", PAIR)
    assert reasons(lane) == [["mask", "mask"], ["mask"], [None, None, None]]
    assert lane.rows[0][0].detail == "no term reads rollout tokens"


def test_a_group_of_equal_rewards_is_dead_and_a_lone_rollout_too() -> None:
    rows = [rollout(1.0, -0.1), rollout(1.0, -0.2), rollout(1.0, -0.3, group="b")]
    lane = only("grpo", rows)
    assert reasons(lane) == [["dead group"], ["dead group"], ["dead group"]]
    assert lane.rows[0][0].detail == "all rewards of the group are 1"
    assert lane.rows[2][0].detail == "fewer than two rewards in the group"


def test_a_reward_at_the_mean_has_zero_advantage_in_a_living_group() -> None:
    lane = only("dr_grpo", [rollout(r, -0.1) for r in (0.0, 0.5, 1.0)])
    assert reasons(lane) == [[None], ["zero advantage"], [None]]


def test_a_ratio_beyond_the_bound_is_clipped_only_where_the_advantage_pushes_further() -> None:
    # ratio e^0.5 = 1.65 > 1.2 on both: the good row is stopped, the bad one is pushed down at full ratio
    rows = [rollout(1.0, -0.5, old_logp=[-1.0]), rollout(0.0, -0.5, old_logp=[-1.0])]
    lane = only("grpo", rows)
    assert reasons(lane) == [["clip"], [None]]
    assert lane.rows[1][0].parts[0].weight == pytest.approx(math.exp(0.5))


def test_rows_that_are_dropped_say_by_what() -> None:
    rows = [
        rollout(1.0, -0.1),
        rollout(0.0, -0.1),
        rollout(None, -0.1, verdict="unscorable"),
        rollout(None, -0.1),
        rollout(0.0, -0.1, finish="length"),
    ]
    lane = only("grpo mask_truncated=true", rows)
    assert reasons(lane) == [[None], [None], ["left out"], ["left out"], ["left out"]]
    details = [row[0].detail for row in lane.rows[2:]]
    assert details[:2] == ["unscorable", "a rollout without reward"]
    assert "length limit" in details[2]
    dropped = only("dapo", [rollout(1.0, -0.1), rollout(1.0, -0.1)])
    assert "dynamic sampling" in dropped.rows[0][0].detail


def test_a_factor_of_zero_and_a_weight_of_zero_are_told_apart() -> None:
    assert reasons(only("chord mu=0", PAIR))[2] == ["factor 0"] * 3
    rows = [*PAIR[:2], demo(HALF, HALF, entropy=[1.0, 0.1])]
    assert reasons(only("chord phi=entropy_top top_entropy=0.5", rows))[2] == [None, "weight 0"]


def test_a_mask_of_a_method_names_its_term_and_condition() -> None:
    rows = [demo(HALF, HALF, span=["guess", None])]
    lane = only("gta", rows)
    assert reasons(lane) == [[None, "mask"]]
    assert lane.rows[0][1].detail == "outside sft (in the span guess)"


def test_a_missing_statistic_is_the_lane_and_not_the_end_of_the_comparison() -> None:
    compared = side_by_side(["sft", "pear"], PAIR)
    assert compared.lanes[0].problem is None
    assert "row 2" in compared.lanes[1].problem and "'behaviour_logp'" in compared.lanes[1].problem
    assert compared.lanes[1].rows == ()
    assert "behaviour_logp" in compared.to_json()


def test_sums_by_source_and_the_effective_ratio_of_sft_and_rl() -> None:
    lane = only(("chord", {"mu": 0.3, "std": False}), PAIR)
    # rollouts: three times 0.7/3 * 1/2 (two up, one down); demonstration: three times 0.3/3 * 1/4
    assert lane.sums["rollout"].absolute == pytest.approx(0.35)
    assert lane.sums["rollout"].signed == pytest.approx(0.35 / 3)
    assert lane.sums["demo"].absolute == lane.sums["demo"].signed == pytest.approx(0.075)
    assert (lane.sums["demo"].tokens, lane.sums["demo"].trained) == (3, 3)
    assert lane.sft_share == pytest.approx(0.075 / 0.425)
    assert ratio(lane) == "1 : 4.7"
    assert ratio(only("sft", PAIR)) == "SFT only" and ratio(only("grpo", PAIR)) == "RL only"
    assert ratio(only("chord mu=0.99 phi=1", PAIR)).endswith(" : 1")
    nothing = only("grpo", [demo(HALF)])
    assert nothing.sft_share is None and ratio(nothing) == "nothing"


def test_prefix_and_hint_tokens_count_as_sft() -> None:
    rows = [
        {"logp": [HALF, HALF], "source": ["hint", "rollout"], "reward": 1.0, "group": 0},
        {"logp": [HALF, HALF], "source": ["hint", "rollout"], "reward": 0.0, "group": 0},
    ]
    lane = only("uft std=false kl=0 hint_coef=0.5", rows)
    # hint: 0.5 * 2 tokens / 2 rows; rollouts: 1/2 * 2 / 2
    assert lane.sft == pytest.approx(0.5) and lane.rl == pytest.approx(0.5)


def test_warnings_become_notes_of_the_lane() -> None:
    lane = only("luffy", PAIR)
    assert len(lane.notes) == 1 and "row 2" in lane.notes[0] and "'reward'" in lane.notes[0]
    assert only("sft", PAIR).notes == ()


def test_methods_may_be_names_with_settings_tuples_and_entries() -> None:
    compared = side_by_side(
        ["chord mu=0.5 phi=1", ("chord", {"mu": 0.25}), REGISTER["sft"], "relift stage=sft"], PAIR
    )
    assert [lane.name for lane in compared.lanes] == [
        "chord mu=0.5 phi=1",
        "chord mu=0.25",
        "sft",
        "relift stage=sft",
    ]
    assert [lane.stage for lane in compared.lanes] == [None, None, None, "sft"]


@pytest.mark.parametrize(
    ("methods", "more", "error", "says"),
    [
        ([], {}, ExplainError, "at least one method"),
        (["sft", "sft"], {}, ExplainError, "named twice"),
        (["chrd"], {}, MethodError, "did you mean 'chord'"),
        (["chord mu"], {}, MethodError, "unknown method 'chord mu'"),
        (["chord mu=2"], {}, MethodError, "from 0 to 1"),
        (["chord mu=0.5 phi"], {}, ExplainError, "'phi' is not key=value"),
        (["relift stage=warm"], {}, MethodError, "accepted are rl, sft"),
        (["sft"], {"tokens": [["a"], ["b"]]}, ExplainError, "2 rows of texts for 3 rows"),
        (["sft"], {"tokens": [["a"], ["b"], ["c"]]}, ExplainError, "row 0: 1 token texts, 'logp' has 2"),
        (["sft"], {"prompts": ["x"]}, ExplainError, "1 texts for 3 rows"),
        (["sft"], {"step": -1}, ExplainError, "integers >= 0"),
    ],
)
def test_mistakes_say_what_is_accepted(methods: Any, more: Any, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        side_by_side(methods, PAIR, **more)


def test_json_has_every_number_and_no_infinity() -> None:
    rows = [*PAIR, rollout(None, group="c")]
    given = {"tokens": [["a", "b"], ["c"], ["d", "e", "f"], []], "prompts": ["p"] * 4}
    compared = side_by_side(["sft", "grpo", "pear"], rows, about={"task": "none"}, step=2, **given)
    out = json.loads(compared.to_json())
    assert out["step"] == 2 and out["about"] == {"task": "none"} and out["tokens"] == given["tokens"]
    sft = out["methods"][0]
    assert sft["rows"][2]["coefficient"] == pytest.approx([1 / 3] * 3)
    assert sft["rows"][2]["term"] == ["sft"] * 3 and sft["rows"][0]["silent"] == ["mask", "mask"]
    assert sft["sums"]["demo"]["absolute"] == pytest.approx(1.0)
    assert out["rows"][0]["ratio"] == [None, None] and out["rows"][3]["source"] == []


def printed(compared: Any, **how: Any) -> str:
    console = Console(highlight=False, width=200, record=True, file=open("/dev/null", "w"), **how)  # noqa: SIM115
    compared.show(console)
    return console.export_text(styles=bool(how))


def test_terminal_without_colours_writes_numbers_once_per_run_of_equal_ones() -> None:
    compared = side_by_side(
        ["sft", "grpo std=false", "pear"], PAIR, tokens=[["x", "\n"], ["y"], ["u", "v", "w"]]
    )
    text = printed(compared)
    assert "x⏎(+0.12)" in text  # 1/2 / (2 rows * 2 tokens)
    assert "y(-0.25)" in text
    assert "(mask: no term reads rollout tokens)" in text
    assert "pear: row 2" in text and "SFT only" in text and "RL only" in text
    assert "+0.12" in printed(side_by_side(["grpo std=false"], PAIR))


def test_terminal_colours_tell_the_sign_and_texts_are_never_markup() -> None:
    rows = [rollout(1.0, HALF), rollout(0.0, HALF)]
    compared = side_by_side(["grpo"], rows, tokens=[["[red]x"], ["[/]"]])
    text = printed(compared, force_terminal=True, color_system="truecolor")
    assert "[red]x" in text and "[/]" in text
    blue, orange = "48;2;10;95;165", "48;2;196;80;10"
    assert blue in text.split("row 1")[0] and orange in text.split("row 1")[1]
