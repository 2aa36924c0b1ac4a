"""`interlace.explain` against polgrad's reference losses and the verl, OpenRLHF and TRL losses it carries.

polgrad (MIT, a development dependency) works on padded tensors and knows nothing of rows, sources or
denominators; it is the independent implementation here. Value and gradient, float64.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import polgrad
import pytest
import torch
from polgrad.conformance._vendor.openrlhf_loss import PolicyLoss as OpenRLHFLoss
from polgrad.conformance.harness import VENDORED
from polgrad.testing import assert_conforms
from torch import Tensor

import interlace

MAX_LENGTH = 10
STD_EPS = 1e-6
SEEDS = range(6)

GROUPS = (0, 1, 2, 1, 0, 3, 2, 1, 3, 0, 2)
REWARDS = (1.0, 0.5, 0.0, 0.5, 0.0, 0.25, 1.0, 0.5, -0.75, 0.0, 0.0)


@dataclass(frozen=True)
class Padded:
    """A ragged batch as [rows, longest] tensors with noise in the padding; `logp` is the leaf."""

    logp: Tensor
    old: Tensor
    ref: Tensor
    values: Tensor
    mask: Tensor
    reward: Tensor
    group: Tensor

    @classmethod
    def draw(cls, seed: int) -> Padded:
        """Four interleaved groups; the rewards of group 1 are equal. Ratios reach every clip."""
        generator = torch.Generator().manual_seed(seed)
        n, longest = len(GROUPS), 7
        lengths = torch.randint(1, longest + 1, (n,), generator=generator)
        lengths[0] = longest

        def uniform(low: float, high: float) -> Tensor:
            return low + (high - low) * torch.rand(n, longest, generator=generator, dtype=torch.float64)

        logp = uniform(-6.0, -2.0)
        return cls(
            logp=logp.requires_grad_(),
            old=logp.detach() + uniform(-1.5, 1.5),
            ref=logp.detach() + uniform(-1.0, 1.0),
            values=uniform(-1.0, 1.0),
            mask=torch.arange(longest)[None, :] < lengths[:, None],
            reward=torch.tensor(REWARDS, dtype=torch.float64),
            group=torch.tensor(GROUPS),
        )

    def kept(self, rows: Tensor) -> Padded:
        return Padded(**{name: value[rows] for name, value in vars(self).items()})

    def rows(self) -> list[dict[str, Any]]:
        return [
            {
                "group": int(self.group[i]),
                "source": "rollout",
                "reward": float(self.reward[i]),
                "logp": self.logp[i, m].tolist(),
                "old_logp": self.old[i, m].tolist(),
                "ref_logp": self.ref[i, m].tolist(),
                "values": self.values[i, m].tolist(),
            }
            for i, m in enumerate(self.mask)
        ]


def explained(
    method: str, rows: list[dict[str, Any]], mask: Tensor, **parameters: Any
) -> tuple[float, Tensor]:
    """Loss and d loss / d logp of `interlace.explain`, padded like `mask`; rows beyond the mask are cut."""
    result = interlace.explain(method, rows, **parameters)
    gradient = torch.zeros(mask.shape, dtype=torch.float64)
    answers = result["rows"][: len(mask)]
    gradient[mask] = -torch.tensor([x for row in answers for x in row["coefficient"]], dtype=torch.float64)
    return result["loss"], gradient


def policy_loss(config: polgrad.PolicyLossConfig, b: Padded, advantages: Tensor) -> Tensor:
    return polgrad.policy_loss(
        config,
        logprobs=b.logp,
        old_logprobs=b.old,
        advantages=advantages,
        response_mask=b.mask,
        ref_logprobs=b.ref,
    ).loss


def z(b: Padded, *, std: bool = True, unbiased: bool = True) -> Tensor:
    config = polgrad.GroupNormConfig(scale="std" if std else "none", eps=STD_EPS, unbiased=unbiased)
    return polgrad.grpo_advantages(b.reward, b.group, config)


def whitened(x: Tensor, mask: Tensor) -> Tensor:
    """polgrad's whitening with the epsilon that turns its sqrt(var + eps) into interlace's std + 1e-6."""
    eps = 2 * STD_EPS * float(x[mask].std()) + STD_EPS**2
    return polgrad.whiten(x, mask, eps=eps)


def token_rewards(b: Padded, kl: float, reward: Tensor | None = None) -> Tensor:
    """The reward on the last token, minus kl * k1 of the old policy on every token."""
    last = b.mask & ~torch.nn.functional.pad(b.mask[:, 1:], (0, 1))
    rewards = torch.where(last, (b.reward if reward is None else reward)[:, None], 0.0)
    return polgrad.kl_in_reward(rewards, b.old, b.ref, polgrad.KLEstimator.K1, kl, response_mask=b.mask)


def gae(b: Padded, rewards: Tensor, values: Tensor, gamma: float, lam: float) -> Tensor:
    return polgrad.gae(rewards, values, config=polgrad.GAEConfig(gamma, lam), response_mask=b.mask)[0]


def returns(b: Padded, rewards: Tensor, gamma: float) -> Tensor:
    return gae(b, rewards, torch.zeros_like(rewards), gamma, 1.0)


def spec(name: str, **changes: Any) -> polgrad.PolicyLossConfig:
    return replace(polgrad.get_algorithm(name).loss, **changes)


def grouped(name: str, b: Padded, *, std: bool = True, unbiased: bool = True, **changes: Any) -> Tensor:
    return policy_loss(spec(name, **changes), b, z(b, std=std, unbiased=unbiased))


def dapo_without_dead_groups(b: Padded) -> Tensor:
    return grouped("dapo", b.kept(b.group != 1))


def rloo(b: Padded, kl: float) -> Tensor:
    reward = token_rewards(b, kl).sum(1)
    return policy_loss(spec("rloo"), b, polgrad.rloo_advantages(reward, b.group))


def reinforce_pp(b: Padded, *, kl: float, gamma: float, baseline: bool = False) -> Tensor:
    reward = z(b, std=False) if baseline else b.reward
    advantages = whitened(returns(b, token_rewards(b, kl, reward), gamma), b.mask)
    return policy_loss(spec("reinforce_pp"), b, advantages)


def ppo(b: Padded, *, kl: float, whiten: bool) -> Tensor:
    advantages = gae(b, token_rewards(b, kl), b.values, 0.99, 0.95)
    return policy_loss(spec("ppo"), b, whitened(advantages, b.mask) if whiten else advantages)


K = polgrad.KLEstimator
KL = {name: polgrad.KLLossConfig(kind=kind, coef=0.04) for name, kind in (("k1", K.K1), ("k2", K.K2))}
VERL_CLIP = polgrad.ClipConfig(eps_low=0.2, eps_high=0.28)
WIDE = {"clip_low": 0.2, "clip_high": 0.2}
Reference = Callable[[Padded], Tensor]

METHODS: dict[str, tuple[str, dict[str, Any], Reference]] = {
    "grpo": ("grpo", {"kl": 0.04}, partial(grouped, "grpo")),
    "grpo population std": (
        "grpo",
        {"kl": 0.04, "std_correction": 0},
        partial(grouped, "grpo", unbiased=False),
    ),
    "grpo without kl": ("grpo", {}, partial(grouped, "grpo", kl=None)),
    "grpo k1": ("grpo", {"kl": 0.04, "kl_estimator": "k1"}, partial(grouped, "grpo", kl=KL["k1"])),
    "grpo k2": ("grpo", {"kl": 0.04, "kl_estimator": "k2"}, partial(grouped, "grpo", kl=KL["k2"])),
    "dr_grpo": (
        "dr_grpo",
        {"max_length": MAX_LENGTH},
        partial(grouped, "dr_grpo", std=False, norm_len=MAX_LENGTH),
    ),
    "dapo": ("dapo", {}, dapo_without_dead_groups),
    "dapo without dynamic sampling": ("dapo", {"dynamic_sampling": False}, partial(grouped, "dapo")),
    "gspo": ("gspo", {}, partial(grouped, "gspo")),
    "gspo wide": (
        "gspo",
        WIDE,
        partial(grouped, "gspo", clip=polgrad.ClipConfig(eps_low=0.2, eps_high=0.2)),
    ),
    "gspo_token": ("gspo", {}, partial(grouped, "gspo_token")),
    "cispo": ("cispo", {}, partial(grouped, "cispo", clip=polgrad.ClipConfig(eps_low=None, eps_high=4.0))),
    "cispo two-sided": (
        "cispo",
        {"clip_low": 0.2, "clip_high": 0.28},
        partial(grouped, "cispo", clip=VERL_CLIP),
    ),
    "rloo": ("rloo", {}, partial(rloo, kl=0.0)),
    "rloo kl": ("rloo", {"kl": 0.03}, partial(rloo, kl=0.03)),
    "reinforce_pp": (
        "reinforce_pp",
        {"kl": 0.001, "denominator": "sequence_means"},
        partial(reinforce_pp, kl=0.001, gamma=1.0),
    ),
    "reinforce_pp discounted": (
        "reinforce_pp",
        {"kl": 0.05, "gamma": 0.9, "denominator": "sequence_means"},
        partial(reinforce_pp, kl=0.05, gamma=0.9),
    ),
    "reinforce_pp group baseline": (
        "reinforce_pp",
        {"baseline": "mean", "denominator": "sequence_means"},
        partial(reinforce_pp, kl=0.0, gamma=1.0, baseline=True),
    ),
    "ppo": ("ppo", {"gamma": 0.99}, partial(ppo, kl=0.0, whiten=True)),
    "ppo raw advantages": ("ppo", {"gamma": 0.99, "whiten": False}, partial(ppo, kl=0.0, whiten=False)),
    "ppo kl": ("ppo", {"gamma": 0.99, "kl": 0.05}, partial(ppo, kl=0.05, whiten=True)),
}


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("seed", SEEDS)
def test_method_from_reward_to_gradient_equals_polgrad(name: str, seed: int) -> None:
    method, parameters, reference = METHODS[name]
    b = Padded.draw(seed)
    expected = reference(b)
    (gradient,) = torch.autograd.grad(expected, b.logp)
    loss, ours = explained(method, b.rows(), b.mask, **parameters)
    torch.testing.assert_close(loss, expected.item(), rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(ours, gradient, rtol=1e-10, atol=1e-12)


def openrlhf_gspo(
    *, logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor, response_mask: Tensor
) -> Tensor:
    loss = OpenRLHFLoss(3e-4, 4e-4, policy_loss_type="gspo")
    return loss(logprobs, old_logprobs, advantages, response_mask.double())[0]


def openrlhf_dual_clip(
    *, logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor, response_mask: Tensor
) -> Tensor:
    loss = OpenRLHFLoss(0.2, 0.2, dual_clip=2.0)
    return loss(logprobs, old_logprobs, advantages, response_mask.double())[0]


TOKENS = {"denominator": "tokens"}
DUAL = {"dual_clip": 3.0}
# Several of these divide a row of T tokens by T + 1e-8; their row means are off by a share of up to 1e-8.
GUARDED, EXACT = 2e-8, 1e-10
FRAMEWORKS: dict[str, tuple[Callable[..., Tensor], str, dict[str, Any], float]] = {
    "verl token-mean": (VENDORED["verl", "pg_clip_token_mean"], "grpo", DUAL | TOKENS, EXACT),
    "verl seq-mean-token-mean": (VENDORED["verl", "pg_clip_seq_mean_token_mean"], "grpo", DUAL, GUARDED),
    "verl seq-mean-token-sum": (
        VENDORED["verl", "pg_clip_seq_mean_token_sum"],
        "grpo",
        DUAL | {"denominator": "sequences"},
        EXACT,
    ),
    "verl seq-mean-token-sum-norm": (
        VENDORED["verl", "pg_clip_seq_mean_token_sum_norm"],
        "dr_grpo",
        DUAL | {"std": True},
        EXACT,
    ),
    "verl gspo": (VENDORED["verl", "gspo"], "gspo", WIDE, GUARDED),
    "verl cispo": (VENDORED["verl", "cispo"], "cispo", WIDE, EXACT),
    "openrlhf token level": (VENDORED["openrlhf", "pg_clip_token_mean"], "grpo", TOKENS, EXACT),
    "openrlhf sample level": (VENDORED["openrlhf", "pg_clip_seq_mean_token_mean"], "grpo", {}, GUARDED),
    "openrlhf gspo": (openrlhf_gspo, "gspo", {}, GUARDED),
    "openrlhf dual clip": (openrlhf_dual_clip, "grpo", TOKENS | {"dual_clip": 2.0}, EXACT),
    "trl grpo": (VENDORED["trl", "grpo"], "grpo", {}, EXACT),
    "trl bnpo": (VENDORED["trl", "bnpo"], "grpo", TOKENS, EXACT),
    "trl dr_grpo": (VENDORED["trl", "dr_grpo"], "dr_grpo", {"std": True}, EXACT),
}


@pytest.mark.parametrize("name", FRAMEWORKS)
@pytest.mark.parametrize("seed", SEEDS)
def test_method_equals_the_loss_of_the_framework(name: str, seed: int) -> None:
    loss_of, method, parameters, tolerance = FRAMEWORKS[name]
    b = Padded.draw(seed)
    advantages = polgrad.broadcast_to_tokens(z(b), b.mask)
    expected = loss_of(logprobs=b.logp, old_logprobs=b.old, advantages=advantages, response_mask=b.mask)
    (gradient,) = torch.autograd.grad(expected, b.logp)
    loss, ours = explained(method, b.rows(), b.mask, **parameters)
    torch.testing.assert_close(loss, expected.item(), rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(ours, gradient, rtol=tolerance, atol=1e-12)


def conforming(method: str, *, mate: float | None, **parameters: Any) -> Callable[..., Tensor]:
    """`method` as polgrad wants a loss: from given advantages, differentiable in `logprobs`.

    A row's reward is its advantage A. So that a group baseline leaves it there, each row shares its group
    with an empty row of reward mate * A (-1: the group mean is 0; 0: the mean of the others is 0).
    """

    def loss_of(
        *, logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor, response_mask: Tensor
    ) -> Tensor:
        rows: list[dict[str, Any]] = [
            {
                "group": i,
                "source": "rollout",
                "reward": float(advantages[i]),
                "logp": logprobs[i, m].tolist(),
                "old_logp": old_logprobs[i, m].tolist(),
            }
            for i, m in enumerate(response_mask)
        ]
        if mate is not None:
            rows += [
                {"group": row["group"], "source": "rollout", "reward": mate * row["reward"], "logp": []}
                for row in rows
            ]
        loss, gradient = explained(method, rows, response_mask, **parameters)
        moved = torch.where(response_mask, logprobs - logprobs.detach(), 0.0)
        return loss + (gradient * moved).sum()

    return loss_of


CENTRED = {"mate": -1.0, "std": False}
RAW = {"mate": None, "whiten": False, "gae_lambda": 1.0}
NORMED = spec("dr_grpo", norm_len=MAX_LENGTH)
CONFORMING: dict[str, tuple[Callable[..., Tensor], polgrad.PolicyLossConfig | str]] = {
    "ppo": (conforming("ppo", **RAW), "ppo"),
    "ppo with row means": (conforming("ppo", denominator="sequence_means", **RAW), "reinforce_pp"),
    "grpo": (conforming("grpo", **CENTRED), "grpo"),
    "dr_grpo": (conforming("dr_grpo", max_length=MAX_LENGTH, **CENTRED), NORMED),
    "dapo": (conforming("dapo", **CENTRED), "dapo"),
    "gspo": (conforming("gspo", **CENTRED), "gspo"),
    "gspo_token": (conforming("gspo", **CENTRED), "gspo_token"),
    "cispo": (conforming("cispo", clip_high=0.2, **CENTRED), "cispo"),
    "rloo": (conforming("rloo", mate=0.0), "rloo"),
}


@pytest.mark.parametrize("name", CONFORMING)
def test_method_passes_polgrads_conformance_suite(name: str) -> None:
    loss_of, reference = CONFORMING[name]
    assert_conforms(loss_of, reference)


def test_conformance_suite_notices_a_wrong_denominator() -> None:
    with pytest.raises(AssertionError, match="conformance violation"):
        assert_conforms(conforming("grpo", denominator="tokens", **CENTRED), "grpo")
