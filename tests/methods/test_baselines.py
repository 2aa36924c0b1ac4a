"""Advantages and losses of the standard objectives, by the worked numbers of verl's and TRL's definitions."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from interlace import explain
from interlace.analysis.explain import parse_rows
from interlace.methods import get
from interlace.training.objective import assign, evaluate, prepare
from tests.methods.batches import Row
from tests.methods.fixtures import FIXTURE_A, B, first, fixture_b, logs, near


def plain(a: float, **options: Any) -> dict[str, Any]:
    """PG(A) on fixture B with A = a: without critic, whitening and discount, A is the reward."""
    return explain("ppo", fixture_b(a), whiten=False, gae_lambda=1.0, **options)


@pytest.mark.parametrize(
    ("method", "options", "expected"),
    [
        ("reinforce", {}, (1, 0, 0)),
        ("reinforce", {"baseline": "mean"}, (2 / 3, -1 / 3, -1 / 3)),
        ("rloo", {}, (1, -0.5, -0.5)),
        ("grpo", {}, (1.154699, -0.577349, -0.577349)),
        ("grpo", {"std_eps": 1e-4}, (1.154500, -0.577250, -0.577250)),
        ("grpo", {"std_scope": "step"}, (1.154699, -0.577349, -0.577349)),
        ("grpo", {"std_correction": 0, "std_eps": 0}, (math.sqrt(2), -math.sqrt(0.5), -math.sqrt(0.5))),
        ("dr_grpo", {}, (0.666667, -0.333333, -0.333333)),
        ("reinforce_pp", {}, (0.912869, -0.912869, -0.912869)),
        ("reinforce_pp", {"baseline": "mean"}, (0.912869, -0.912869, -0.912869)),
    ],
)
def test_advantages_of_fixture_a(method: str, options: dict[str, Any], expected: tuple[float, ...]) -> None:
    out = explain(method, FIXTURE_A, **options)
    for row, a, n in zip(out["rows"], expected, (3, 2, 1), strict=True):
        assert row["advantage"] == near(*[a] * n, abs=1e-6)


GAE_ROW: Row = {"source": "rollout", "reward": 1.0, "logp": [-1.0] * 3, "values": [0.2, 0.5, 0.7]}


def test_generalised_advantages_of_three_tokens_and_their_whitening() -> None:
    assert first(explain("ppo", [GAE_ROW], whiten=False), "advantage") == near(0.76075, 0.485, 0.3)
    assert first(explain("ppo", [GAE_ROW]), "advantage") == near(1.058825, -0.130466, -0.928359)


def test_returns_of_the_critic_are_advantage_plus_value() -> None:
    batch = assign(parse_rows([GAE_ROW]), get("ppo")())
    assert batch.arrays["returns"].tolist() == near(0.96075, 0.985, 1.0)


def test_ppo_without_values_takes_zero() -> None:
    row = {k: v for k, v in GAE_ROW.items() if k != "values"}
    # delta = (0, 0, 1), A = (.95^2, .95, 1)
    assert first(explain("ppo", [row], whiten=False), "advantage") == near(0.9025, 0.95, 1.0)
    assert first(explain("ppo", [row], whiten=False, gae_lambda=0.0), "advantage") == [0, 0, 1]
    partly = {**row, "values": [0.2, None, 0.7]}
    # delta = (0 - .2, .7 - 0, 1 - .7), lambda 0
    assert first(explain("ppo", [partly], whiten=False, gae_lambda=0.0), "advantage") == near(-0.2, 0.7, 0.3)


def test_ppo_discount() -> None:
    # gamma .5, lambda 1, V = 0: A = (.25, .5, 1)
    row = {k: v for k, v in GAE_ROW.items() if k != "values"}
    out = explain("ppo", [row], whiten=False, gae_lambda=1.0, gamma=0.5)
    assert first(out, "advantage") == [0.25, 0.5, 1]


def test_reinforce_pp_whitens_discounted_returns() -> None:
    # returns (.81, .9, 1): mean .903333, deviations (-.093333, -.003333, .096667),
    # squares .0087111 + .0000111 + .0093444 = .0180667, over 2 and the root: .0950438
    std = math.sqrt(0.0180666666667 / 2) + 1e-6
    out = explain("reinforce_pp", [{"source": "rollout", "reward": 1.0, "logp": [-1.0] * 3}], gamma=0.9)
    assert first(out, "advantage") == near(-0.0933333333 / std, -0.0033333333 / std, 0.0966666667 / std)


@pytest.mark.parametrize("method", ["rloo", "grpo", "dr_grpo", "gspo", "cispo"])
def test_equal_rewards_give_exactly_zero_and_stay_in_the_denominator(method: str) -> None:
    out = explain(method, [{**row, "reward": 0.1} for row in FIXTURE_A])
    assert [r["advantage"] for r in out["rows"]] == [[0] * 3, [0] * 2, [0]]
    assert [r["coefficient"] for r in out["rows"]] == [[0] * 3, [0] * 2, [0]]
    expected = {"cispo": 6, "dr_grpo": 3 * 3}.get(method, 3)
    assert out["terms"][0]["n"] == expected


@pytest.mark.parametrize("method", ["rloo", "grpo", "dr_grpo", "gspo", "cispo"])
def test_a_group_of_one_has_no_advantage(method: str) -> None:
    assert first(explain(method, FIXTURE_A[:1]), "advantage") == [0, 0, 0]


def test_methods_without_group_statistic_keep_the_reward_of_a_single_row() -> None:
    assert first(explain("reinforce", FIXTURE_A[:1]), "advantage") == [1, 1, 1]
    assert first(explain("reinforce", FIXTURE_A[:1], baseline="mean"), "advantage") == [0, 0, 0]
    row = [{**FIXTURE_A[0], "values": [0.0, 0.5, 0.0]}]
    assert first(explain("ppo", row, whiten=False, gae_lambda=0.0), "advantage") == [0.5, -0.5, 1]


@pytest.mark.parametrize("method", ["reinforce_pp", "ppo"])
def test_a_whitened_set_of_one_token_or_without_spread_is_zero(method: str) -> None:
    one = {"source": "rollout", "reward": 1.0, "logp": [-1.0]}
    assert first(explain(method, [one]), "advantage") == [0]
    equal = [{**row, "reward": 0.1} for row in FIXTURE_A]
    assert (
        first(explain(method, equal, **{"ppo": {"gae_lambda": 1.0}}.get(method, {})), "advantage") == [0] * 3
    )


@pytest.mark.parametrize("left_out", [{"verdict": "unscorable"}, {"reward": None}])
def test_a_row_left_out_is_in_no_statistic_term_or_denominator(left_out: dict[str, Any]) -> None:
    extra = {"group": "a", "source": "rollout", "reward": 7.0, "logp": [-1.0] * 4, **left_out}
    for method in ("reinforce", "rloo", "grpo", "dr_grpo", "gspo", "cispo", "reinforce_pp", "ppo"):
        fixed = {"max_length": 9} if method == "dr_grpo" else {}  # its default is the longest row
        with_it = explain(method, [*FIXTURE_A, extra], **fixed)
        without = explain(method, FIXTURE_A, **fixed)
        assert with_it["rows"].pop() == {"advantage": [0] * 4, "coefficient": [0] * 4}
        assert with_it == without


def test_a_bare_verdict_counts_as_reward_one_or_zero() -> None:
    verdicts = [
        {**{k: v for k, v in row.items() if k != "reward"}, "verdict": v}
        for row, v in zip(FIXTURE_A, ("pass", "fail", "fail"))
    ]
    assert explain("grpo", verdicts) == explain("grpo", FIXTURE_A)


def test_an_explicit_reward_wins_over_the_verdict() -> None:
    rows = [{**row, "verdict": "fail"} for row in FIXTURE_A]
    assert explain("grpo", rows) == explain("grpo", FIXTURE_A)


def test_demonstrations_of_a_group_do_not_disturb_it() -> None:
    demo = {"group": "a", "source": "demo", "reward": 5.0, "logp": [-1.0] * 2}
    for method in ("reinforce", "rloo", "grpo", "dr_grpo", "dapo", "gspo", "cispo", "reinforce_pp", "ppo"):
        out = explain(method, [demo, *FIXTURE_A])
        assert out["rows"].pop(0) == {"advantage": [0, 0], "coefficient": [0, 0]}
        assert out == explain(method, FIXTURE_A)


def test_the_deviation_of_the_step_keeps_group_means() -> None:
    # groups (2, 0) and (5, 5): deviation sqrt(6) of all four
    rows = [
        {"group": g, "source": "rollout", "reward": r, "logp": [-1.0]}
        for g, r in ((0, 2.0), (1, 5.0), (0, 0.0), (1, 5.0))
    ]
    out = explain("grpo", rows, std_scope="step")
    a = 1 / (math.sqrt(6) + 1e-6)
    assert [r["advantage"][0] for r in out["rows"]] == near(a, 0, -a, 0)


def test_reinforce_on_fixture_b() -> None:
    out = explain("reinforce", fixture_b(1.0))
    assert out["loss"] == pytest.approx(1.137083, abs=6e-7)
    assert first(out) == near(1 / 3, 1 / 3, 1 / 3)


@pytest.mark.parametrize(
    ("a", "options", "loss", "coefficient"),
    [
        (1.0, {}, -0.933333, (0.366667, 0.166667, 0)),
        (-1.0, {}, 1.133333, (-0.366667, 0, -0.5)),
        (1.0, {"clip_high": 0.28}, -0.96, (0.366667, 0.166667, 0)),
        (1.0, {"clip_low": None, "clip_high": None}, -3.1 / 3, (0.366667, 0.166667, 0.5)),
        (-1.0, {"clip_low": "none"}, 3.1 / 3, (-0.366667, -0.166667, -0.5)),
    ],
)
def test_clipped_loss_on_fixture_b(
    a: float, options: dict[str, Any], loss: float, coefficient: tuple[float, ...]
) -> None:
    out = plain(a, **options)
    assert out["loss"] == pytest.approx(loss, abs=6e-7)
    assert first(out) == near(*coefficient)


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("grpo", {"std": False}),
        ("dr_grpo", {"denominator": "tokens"}),
        ("dapo", {"std": False, "clip_high": 0.2}),
        ("rloo", {"ratio": "token", "denominator": "tokens"}),
    ],
)
def test_every_clipped_method_gives_the_same_on_fixture_b(method: str, options: dict[str, Any]) -> None:
    # rewards 1 and -1 have mean 0; for RLOO the other of 1 and 0 is 0
    other = 0.0 if method == "rloo" else -1.0
    up = explain(method, fixture_b(1.0, other), **options)
    assert up["loss"] == pytest.approx(-0.933333, abs=6e-7)
    assert first(up) == near(0.366667, 0.166667, 0)
    down = explain(method, fixture_b(other, 1.0), **options)
    assert down["loss"] == pytest.approx(1.133333, abs=6e-7)
    assert first(down) == near(-0.366667, 0, -0.5)


def test_dual_clip_stops_a_negative_advantage_at_ratio_four() -> None:
    row = {"source": "rollout", "reward": -1.0, "logp": logs(0.8), "old_logp": logs(0.2)}
    options = {"whiten": False, "gae_lambda": 1.0}
    capped = explain("ppo", [row], dual_clip=3, **options)
    assert (capped["loss"], first(capped)) == (3, [0])
    free = explain("ppo", [row], **options)
    assert free["loss"] == pytest.approx(4)
    assert first(free) == near(-4)
    assert explain("ppo", [{**row, "reward": 1.0}], dual_clip=3, **options) == explain(
        "ppo", [{**row, "reward": 1.0}], **options
    )


def test_gspo_on_fixture_b() -> None:
    # s = .825^(1/3) = .937889; A = 1 is not clipped from below, A = -1 is, at 1 - 3e-4
    up = explain("gspo", fixture_b(1.0, -1.0), std=False)
    assert up["loss"] == pytest.approx(-0.937889, abs=6e-7)
    assert first(up) == near(0.312630, 0.312630, 0.312630)
    down = explain("gspo", fixture_b(-1.0, 1.0), std=False)
    assert down["loss"] == pytest.approx(0.999700, abs=6e-7)
    assert first(down) == [0, 0, 0]
    assert up["terms"][0] | {"name": ""} == {"name": "", "coefficient": 1, "denominator": "sequences", "n": 1}


@pytest.mark.parametrize("bounds", [(0.0003, 0.0004), (0.2, 0.2)])
@pytest.mark.parametrize(("reward", "other"), [(1.0, -1.0), (-1.0, 1.0)])
def test_token_form_of_gspo_has_the_same_value_and_gradient(
    bounds: tuple[float, float], reward: float, other: float
) -> None:
    # verl: s_t = sg[s] exp(logp - sg[logp]), the PPO loss of it, mean over the tokens of the row
    logp = torch.tensor(B["logp"], dtype=torch.float64, requires_grad=True)
    old = torch.tensor(B["old_logp"], dtype=torch.float64)
    s = (logp - old).mean().exp().detach() * (logp - logp.detach()).exp()
    token = -torch.minimum(s * reward, s.clamp(1 - bounds[0], 1 + bounds[1]) * reward).mean()
    token.backward()
    out = explain("gspo", fixture_b(reward, other), std=False, clip_low=bounds[0], clip_high=bounds[1])
    assert out["loss"] == pytest.approx(token.item(), rel=1e-12)
    assert logp.grad is not None
    assert first(out) == pytest.approx((-logp.grad).tolist(), rel=1e-12)


@pytest.mark.parametrize(
    ("options", "loss", "coefficient"),
    [
        ({"clip_low": 0.2, "clip_high": 0.28}, 1.162085, (0.366667, 0.266667, 0.426667)),  # verl
        ({}, 1.089433, (0.366667, 0.166667, 0.5)),  # TRL, cap 5
        ({"clip_high": None}, 1.089433, (0.366667, 0.166667, 0.5)),
    ],
)
def test_cispo_means_different_numbers_in_verl_and_trl(
    options: dict[str, Any], loss: float, coefficient: tuple[float, ...]
) -> None:
    out = explain("cispo", fixture_b(1.0, -1.0), std=False, **options)
    assert out["loss"] == pytest.approx(loss, abs=6e-7)
    assert first(out) == near(*coefficient)


def test_default_bound_of_cispo_is_a_cap_of_five() -> None:
    row = {"group": 0, "source": "rollout", "reward": 1.0, "logp": logs(0.9), "old_logp": logs(0.1)}
    out = explain("cispo", [row, {**row, "reward": -1.0, "logp": [], "old_logp": []}], std=False)
    assert first(out) == near(5)


@pytest.mark.parametrize(
    ("reward", "other", "clip_low", "loss", "coefficient"),
    [
        (1.0, 0.0, 0.2, -0.825, 0.825),  # ratio 1.1 * .5 * 1.5 = .825, inside [.8, 1.2]
        (0.0, 1.0, 0.2, 0.825, -0.825),
        (0.0, 1.0, 0.1, 0.9, 0.0),
        (1.0, 0.0, 0.1, -0.825, 0.825),
    ],
)
def test_rloo_with_one_ratio_per_row(
    reward: float, other: float, clip_low: float, loss: float, coefficient: float
) -> None:
    out = explain("rloo", fixture_b(reward, other), ratio="sequence", clip_low=clip_low)
    assert out["loss"] == pytest.approx(loss)
    assert first(out) == near(coefficient, coefficient, coefficient)
    tokens = explain("rloo", fixture_b(reward, other), ratio="sequence", denominator="tokens")
    assert tokens["terms"][0]["n"] == 1  # always a mean over rows


def test_rloo_without_ratio_is_the_score_function_summed_over_the_row() -> None:
    out = explain("rloo", fixture_b(1.0, 0.0))
    assert out["loss"] == pytest.approx(0.597837 + 1.609438 + 1.203973, abs=2e-6)
    assert first(out) == [1, 1, 1]


KL_ROWS: list[Row] = [
    {"group": 0, "source": "rollout", "reward": 1.0, "logp": [-1.0, -1.0], "old_logp": [-1.1, -0.9],
     "ref_logp": [-1.3, -1.2]},
    {"group": 0, "source": "rollout", "reward": 0.0, "logp": [-1.0], "ref_logp": [-0.5]},
]  # fmt: skip
"""k1 is old_logp - ref_logp = (.2, .3), and logp - ref_logp = -.5 where old_logp is absent."""


def test_kl_of_rloo_is_taken_from_the_reward_summed_over_the_row() -> None:
    # R' = 1 - .1 * .5 = .95 and 0 + .1 * .5 = .05
    out = explain("rloo", KL_ROWS, kl=0.1)
    assert [r["advantage"] for r in out["rows"]] == [near(0.9, 0.9), near(-0.9)]
    assert first(out) == near(0.45, 0.45)  # detached: nothing but A / 2


def test_kl_of_ppo_falls_on_each_token() -> None:
    # r = (-.02, -.03 + 1) and (.05 + 0); lambda 1, gamma 1: (.95, .97), (.05)
    out = explain("ppo", KL_ROWS, kl=0.1, whiten=False, gae_lambda=1.0)
    assert [r["advantage"] for r in out["rows"]] == [near(0.95, 0.97), near(0.05)]


def test_kl_of_reinforce_pp_falls_on_each_token_and_the_reward_on_the_last() -> None:
    # returns (.95, .97, .05), or with the mean .5 taken from both rewards (.45, .47, -.45)
    for baseline, returns in ((None, (0.95, 0.97, 0.05)), ("mean", (0.45, 0.47, -0.45))):
        mean = sum(returns) / 3
        std = math.sqrt(sum((x - mean) ** 2 for x in returns) / 2) + 1e-6
        out = explain("reinforce_pp", KL_ROWS, kl=0.1, baseline=baseline)
        a = [x for r in out["rows"] for x in r["advantage"]]
        assert a == near(*[(x - mean) / std for x in returns])


def test_value_loss_of_ppo_reads_old_values_and_returns() -> None:
    # v_old .5, return 1 (lambda 1, reward 1), v .9: near .7, max(.01, .09) / 2, times value_coef
    row = {"source": "rollout", "reward": 1.0, "logp": [-1.0], "values": [0.5]}
    method = get("ppo")(gae_lambda=1.0)
    prepared = prepare(assign(parse_rows([row]), method), method)
    for v, loss, slope in ((0.9, 0.045, 0.0), (0.4, 0.18, -0.6)):  # clipped: no slope; inside: v - return
        value = torch.tensor([v], dtype=torch.float64)
        report, gradient = evaluate(prepared, {"critic": {"value": value, "logp": value}}, [1])[0]
        assert (report.name, report.denominator) == ("value", "tokens")
        assert report.loss == pytest.approx(0.1 * loss)
        assert gradient["value"].tolist() == near(0.1 * slope)


def test_terms_outside_the_chosen_log_probabilities_are_not_explained() -> None:
    assert [t["name"] for t in explain("ppo", [GAE_ROW])["terms"]] == ["policy"]


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("reinforce", {"baseline": "mean"}),
        ("grpo", {"std": False, "denominator": "tokens"}),
        ("grpo", {"std": False, "denominator": "tokens", "dual_clip": 3}),
        ("dr_grpo", {"denominator": "tokens"}),
        ("dapo", {"std": False}),
        ("cispo", {"std": False}),
        ("cispo", {"std": False, "clip_low": 0.2, "clip_high": 0.28}),
    ],
)
@pytest.mark.parametrize("old", ["absent", "equal"])
def test_at_ratio_one_every_method_has_the_gradient_of_reinforce(
    method: str, options: dict[str, Any], old: str
) -> None:
    rows = [{**r, **({"old_logp": r["logp"]} if old == "equal" else {})} for r in FIXTURE_A]
    out = explain(method, rows, **options)
    flat = [c for r in out["rows"] for c in r["coefficient"]]
    assert flat == pytest.approx([2 / 3 / 6] * 3 + [-1 / 3 / 6] * 3)


def test_at_ratio_one_row_ratios_have_the_gradient_of_reinforce_too() -> None:
    gspo = explain("gspo", FIXTURE_A, std=False)  # mean over 3 rows of the mean over their tokens
    assert [r["coefficient"][0] for r in gspo["rows"]] == near(2 / 3 / 9, -1 / 3 / 6, -1 / 3 / 3)
    for ratio in ("token", "sequence", None):
        rloo = explain("rloo", FIXTURE_A, ratio=ratio)
        assert [r["coefficient"][0] for r in rloo["rows"]] == near(1 / 3, -0.5 / 3, -0.5 / 3)


def test_log_ratios_are_clamped_to_twenty_without_gradient() -> None:
    row = {"source": "rollout", "reward": -1.0, "logp": [-1.0], "old_logp": [-50.0]}
    out = explain("ppo", [row], whiten=False, gae_lambda=1.0)
    assert out["loss"] == pytest.approx(math.exp(20))
    assert first(out) == [0]
