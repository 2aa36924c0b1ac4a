"""What the standard objectives average over, DAPO's rules, the KL in the loss, and what reduces to what."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from interlace import explain
from interlace.analysis.explain import parse_rows
from interlace.methods import get
from interlace.training.objective import assign, evaluate, prepare, total
from tests.methods.batches import Row, assert_same_rule, random_rows
from tests.methods.fixtures import FIXTURE_A, B, first, fixture_b, group, near


def test_dynamic_sampling_drops_groups_without_two_distinct_rewards() -> None:
    rows = [*group("equal", 1, 1, 1), *group("live", 1, 0, 1), *group("single", 1)]
    out = explain("dapo", rows)
    assert out["terms"][0]["n"] == 3
    assert [bool(r["coefficient"][0]) for r in out["rows"]] == [False] * 3 + [True] * 3 + [False]
    assert explain("dapo", rows, dynamic_sampling=False)["terms"][0]["n"] == 7


def test_overlong_rows_lose_reward_inside_the_buffer() -> None:
    # limit 10, buffer 4: lengths 6, 8, 10 lose 0, .5, 1; rewards (1, .5, 0) about their mean .5
    rows = [{**row, "logp": [-1.0] * n} for row, n in zip(group("g", 1, 1, 1), (6, 8, 10))]
    options = {"overlong_buffer": 4, "max_length": 10, "std": False}
    out = explain("dapo", rows, dynamic_sampling=False, **options)
    assert [r["advantage"][0] for r in out["rows"]] == near(0.5, 0, -0.5)
    half = explain("dapo", rows, dynamic_sampling=False, overlong_penalty=0.5, **options)
    assert [r["advantage"][0] for r in half["rows"]] == near(0.25, 0, -0.25)
    # equal before shaping: dropped, whatever their length
    assert explain("dapo", rows, **options)["terms"][0]["n"] == 0


def test_overlong_shaping_without_a_limit_is_an_error() -> None:
    with pytest.raises(ValueError, match="overlong_buffer needs max_length"):
        explain("dapo", group("g", 1, 0), overlong_buffer=4)


@pytest.mark.parametrize("method", ["grpo", "dr_grpo", "dapo"])
def test_truncated_rows_stay_in_the_baseline_and_leave_the_loss(method: str) -> None:
    rows = [*group("g", 1, 0), *group("g", 0, finish="length")]
    options = {"std": False, "denominator": "tokens"}
    out = explain(method, rows, mask_truncated=True, **options)
    assert out["terms"][0]["n"] == 2
    assert [r["coefficient"][0] for r in out["rows"]] == near(2 / 3 / 2, -1 / 3 / 2, 0)
    assert explain(method, rows, **options)["terms"][0]["n"] == 3


AGGREGATED: list[Row] = [
    {"source": "demo", "logp": [-1.0, -2.0, -3.0]},
    {"source": "demo", "logp": [-10.0]},
]


@pytest.mark.parametrize(
    ("denominator", "loss", "n", "coefficients"),
    [
        ("tokens", 4, 4, (1 / 4, 1 / 4)),
        ("sequences", 8, 2, (1 / 2, 1 / 2)),
        ("sequence_means", 6, 2, (1 / 6, 1 / 2)),
        ("length", 2.666667, 6, (1 / 6, 1 / 6)),
        ("length_sum", 5.333333, 3, (1 / 3, 1 / 3)),
        ("longest", 2.666667, 6, (1 / 6, 1 / 6)),
    ],
)
def test_each_aggregation_of_two_rows(
    denominator: str, loss: float, n: float, coefficients: tuple[float, float]
) -> None:
    out = explain("sft", AGGREGATED, denominator=denominator, max_length=3)
    assert out["loss"] == pytest.approx(loss, abs=6e-7)
    assert out["terms"] == [{"name": "sft", "coefficient": 1.0, "denominator": denominator, "n": n}]
    assert out["rows"][0]["coefficient"] == near(*[coefficients[0]] * 3)
    assert out["rows"][1]["coefficient"] == near(coefficients[1])


@pytest.mark.parametrize("denominator", ["sequences", "sequence_means", "length", "longest"])
def test_rows_without_a_covered_token_are_in_no_row_count(denominator: str) -> None:
    others = [{"source": "demo", "logp": []}, {"source": "rollout", "reward": 1.0, "logp": [-1.0]}]
    out = explain("sft", [*AGGREGATED, *others], denominator=denominator, max_length=3)
    assert out["loss"] == explain("sft", AGGREGATED, denominator=denominator, max_length=3)["loss"]


def test_an_empty_term_is_exactly_zero() -> None:
    for denominator in ("tokens", "sequences", "sequence_means", "length", "length_sum", "longest"):
        out = explain("sft", [{"source": "rollout", "logp": [-1.0]}], denominator=denominator)
        assert (out["loss"], first(out), first(out, "advantage")) == (0, [0], [0])


@pytest.mark.parametrize(
    ("estimator", "value", "gradient"),
    [
        ("k1", (0.095310, -0.693147, 0.405465), (1, 1, 1)),
        ("k2", (0.004542, 0.240227, 0.082201), (0.095310, -0.693147, 0.405465)),
        ("k3", (0.004401, 0.306853, 0.072132), (0.090909, -1, 0.333333)),
    ],
)
@pytest.mark.parametrize("method", ["grpo", "dr_grpo", "dapo"])
def test_kl_estimators_on_fixture_b(
    method: str, estimator: str, value: tuple[float, ...], gradient: tuple[float, ...]
) -> None:
    # a row alone in its group has A = 0, so the loss is kl * mean of k
    row = {**fixture_b(1.0)[0], "ref_logp": B["old_logp"]}
    keep = {"dynamic_sampling": False} if method == "dapo" else {}
    out = explain(method, [row], kl=0.5, kl_estimator=estimator, denominator="tokens", **keep)
    assert out["loss"] == pytest.approx(0.5 * sum(value) / 3, abs=6e-7)
    assert first(out) == near(*[-0.5 * g / 3 for g in gradient])


def test_kl_stands_inside_the_rollout_term() -> None:
    rows = [{**r, "ref_logp": B["old_logp"] if r["logp"] else []} for r in fixture_b(1.0, -1.0)]
    out = explain("grpo", rows, std=False, kl=0.5)
    # PG -.933333 plus .5 * (.004401 + .306853 + .072132) / 3
    assert out["loss"] == pytest.approx(-0.933333 + 0.5 * 0.383386 / 3, abs=2e-6)
    assert len(out["terms"]) == 1


@pytest.mark.parametrize(
    ("denominator", "loss"), [("sequence_means", 0.0), ("tokens", -1 / 3), ("length", -0.125)]
)
def test_the_loss_at_ratio_one_is_zero_only_under_sequence_means(denominator: str, loss: float) -> None:
    # advantages 1 and -1 on 2 and 1 tokens: (-1 + 1) / 2, (-2 + 1) / 3, (-2 + 1) / (2 * 4)
    rows = [{**row, "logp": [-1.0] * n} for row, n in zip(group("g", 1, -1), (2, 1))]
    out = explain("grpo", rows, std=False, denominator=denominator, max_length=4)
    assert out["loss"] == pytest.approx(loss, abs=1e-12)
    assert any(first(out))


@pytest.mark.parametrize("split", [[[0, 1, 2, 3, 4]], [[0, 1, 2, 3], [4]], [[0], [1], [2], [3], [4]]])
def test_micro_batches_add_up_to_the_token_mean_of_the_whole_step(split: list[list[int]]) -> None:
    # losses {2, 2, 2, 2} and {6}: the mean of means would be 4
    rows = [{"source": "demo", "logp": [-x]} for x in (2.0, 2.0, 2.0, 2.0, 6.0)]
    method = get("sft")()
    batch = parse_rows(rows)
    prepared = prepare(assign(batch, method), method)
    loss, gradient = 0.0, []
    for part in split:
        logp = batch.arrays["logp"][torch.tensor(part)]
        results = evaluate(prepared.rows(torch.tensor(part)), {"policy": {"logp": logp}})
        loss += sum(report.loss for report, _ in results)
        gradient += total([g for _, g in results], len(part))["logp"].tolist()
    assert loss == pytest.approx(2.8)
    assert gradient == [-1 / 5] * 5


def test_average_inside_the_sequence_first_is_not_the_masked_mean() -> None:
    rows = [{"source": "demo", "logp": [-2.0] * 5}, {"source": "demo", "logp": [-10.0]}]
    assert explain("sft", rows, denominator="sequence_means")["loss"] == pytest.approx(6.0)
    assert explain("sft", rows, denominator="tokens")["loss"] == pytest.approx(3.333333, abs=6e-7)


@pytest.mark.parametrize(
    ("method", "denominator"),
    [
        ("sft", "tokens"),
        ("reinforce", "tokens"),
        ("rloo", "sequences"),
        ("grpo", "sequence_means"),
        ("dr_grpo", "length"),
        ("dapo", "tokens"),
        ("gspo", "sequences"),
        ("cispo", "tokens"),
        ("reinforce_pp", "tokens"),
        ("ppo", "tokens"),
        ("sft_then_rl", "length"),
    ],
)
def test_default_denominators(method: str, denominator: str) -> None:
    assert explain(method, FIXTURE_A)["terms"][0]["denominator"] == denominator


def test_stages_of_sft_then_rl_run_sft_first_and_explain_shows_rl() -> None:
    method = get("sft_then_rl")(rl_steps=50)
    assert list(method.stages) == ["sft", "rl"]
    assert method.stage()[0] == "rl"
    assert method.stage_steps == {"rl": 50}
    assert get("sft_then_rl")().stage_steps["rl"] is None


@pytest.mark.parametrize(
    ("first_rule", "second_rule"),
    [
        (("sft_then_rl", {}), ("dr_grpo", {})),
        (("sft_then_rl", {"stage": "rl"}), ("dr_grpo", {})),
        (("sft_then_rl", {"stage": "sft"}), ("sft", {})),
        (("sft_then_rl", {"stage": "sft", "sft_denominator": "length"}), ("sft", {"denominator": "length"})),
        (("dr_grpo", {"std": True, "denominator": "sequence_means"}), ("grpo", {})),
        (("dapo", {"dynamic_sampling": False, "clip_high": 0.2}), ("grpo", {"denominator": "tokens"})),
        (("dapo", {}), ("grpo", {"denominator": "tokens", "clip_high": 0.28})),
        (("ppo", {"whiten": False, "gae_lambda": 1.0, "clip_low": None, "clip_high": None}),
         ("ppo", {"whiten": False, "gae_lambda": 1.0, "clip_low": "none", "clip_high": "none"})),
    ],
)  # fmt: skip
def test_reductions(first_rule: tuple[str, dict[str, Any]], second_rule: tuple[str, dict[str, Any]]) -> None:
    def live_groups(seed: int) -> list[Row]:
        # dynamic sampling is only without effect where every group has two distinct rewards
        rows = random_rows(seed)
        return (
            [row for row in rows if row.get("group") not in (None, "g0")] if first_rule[0] == "dapo" else rows
        )

    assert_same_rule(first_rule, second_rule, make=live_groups, seeds=(0, 1, 2))


def test_reinforce_with_the_mean_is_rloo_up_to_the_group_size() -> None:
    mean = explain("reinforce", FIXTURE_A, baseline="mean", denominator="sequences")
    loo = explain("rloo", FIXTURE_A)
    for a, b in zip(mean["rows"], loo["rows"], strict=True):
        assert b["coefficient"] == pytest.approx([1.5 * c for c in a["coefficient"]])
