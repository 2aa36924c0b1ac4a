"""Golden numbers from verl: its advantage estimators, its `ppo_loss` (policy and KL loss), its `sft_loss`.

The functions are the ones verl's actor worker calls, given the fixture's log-probabilities in the place of a
model's; token rewards hold the reward on a row's last token. Everything runs in float64.

    pip install torch==2.13.0 verl==0.9.1
    python benchmarks/goldens/make_verl.py
"""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

import fixtures
import numpy as np
import torch
from fixtures import BATCHES, MAX_LENGTH, Row, case, mask, padded
from tensordict import TensorDict
from verl.trainer.config import AlgoConfig
from verl.trainer.ppo import core_algos
from verl.utils import tensordict_utils
from verl.utils.dataset.dataset_utils import DatasetPadMode
from verl.workers.config import ActorConfig
from verl.workers.config.actor import PolicyLossConfig
from verl.workers.utils.losses import ppo_loss, sft_loss

LENGTH_GUARD = (
    "verl divides a row's sum by its length + 1e-8, which shrinks a row of T tokens by a share of 1e-8/T"
)
WHITENING = (
    "verl whitens with rsqrt(variance + 1e-8), interlace divides by std + std_eps; std_eps=1e-12 leaves a "
    "relative difference of 0.5e-8/variance"
)
WHITENING_DEFAULT = (
    "verl whitens with rsqrt(variance + 1e-8), interlace divides by std + 1e-6: relative difference of about "
    "1e-6/std"
)


def token_rewards(rows: list[Row]) -> torch.Tensor:
    """Reward on the last token; of an empty row on its first (masked) slot, where sums still see it."""
    rewards = torch.zeros(mask(rows).shape)
    for i, row in enumerate(rows):
        rewards[i, max(len(row["logp"]) - 1, 0)] = row["reward"]
    return rewards


def advantage(batch: str, estimator: str, *, kl_in_reward: float = 0.0, **setting: Any) -> torch.Tensor:
    """verl's advantages of one batch, [rows, longest]."""
    rows = BATCHES[batch]()
    config = AlgoConfig(adv_estimator=estimator, **setting)
    rewards = token_rewards(rows)
    if kl_in_reward:
        old, ref = (torch.tensor(padded(rows, key)) for key in ("old_logp", "ref_logp"))
        rewards = core_algos.compute_rewards(rewards, old, ref, kl_in_reward)
    arguments: dict[str, Any] = {
        "token_level_rewards": rewards,
        "response_mask": torch.tensor(mask(rows)).double(),
    }
    if estimator == "gae":
        arguments |= {
            "values": torch.tensor(padded(rows, "values")),
            "gamma": config.gamma,
            "lam": config.lam,
        }
    elif estimator == "reinforce_plus_plus":
        arguments |= {"config": config}
    else:
        arguments |= {"config": config, "index": np.array([str(row["group"]) for row in rows], dtype=object)}
        if estimator == "grpo":
            arguments["norm_adv_by_std_in_grpo"] = config.norm_adv_by_std_in_grpo
    return core_algos.get_adv_estimator_fn(estimator)(**arguments)[0]


def policy(batch: str, advantages: torch.Tensor, loss_mode: str, **setting: Any) -> tuple:
    """verl's `ppo_loss` and its gradient; every row has a prompt of one token."""
    rows = BATCHES[batch]()
    valid = torch.tensor(mask(rows))
    leaf = torch.tensor(padded(rows, "logp"), requires_grad=True)
    # The model answers one number per input token; the last one of each sequence predicts nothing.
    flat = torch.cat([torch.cat([leaf[i, valid[i]], leaf.new_zeros(1)]) for i in range(len(rows))])
    prompt = torch.ones(len(rows), 1, dtype=torch.long)
    data = TensorDict(
        {
            "prompts": prompt,
            "responses": valid.long(),
            "attention_mask": torch.cat([prompt, valid.long()], dim=1),
            "response_mask": valid.long(),
            "old_log_probs": torch.tensor(padded(rows, "old_logp")),
            "ref_log_prob": torch.tensor(padded(rows, "ref_logp")),
            "advantages": advantages,
        },
        batch_size=[len(rows)],
    )
    tensordict_utils.assign_non_tensor(data, dp_size=1, batch_num_tokens=None, global_batch_size=None)
    config = ActorConfig(
        strategy="fsdp",
        rollout_n=4,
        ppo_mini_batch_size=16,
        ppo_micro_batch_size_per_gpu=16,
        use_dynamic_bsz=True,
        policy_loss=PolicyLossConfig(loss_mode=loss_mode),
        **setting,
    )
    loss, _ = ppo_loss(config, {"log_probs": flat}, data)
    (gradient,) = torch.autograd.grad(loss, leaf)
    return loss.item(), gradient


def rl_cases() -> list[dict[str, Any]]:
    cases: list[dict[str, Any]] = []

    def add(
        name: str,
        batch: str,
        estimator: dict[str, Any],
        actor: dict[str, Any],
        method: str,
        parameters: dict[str, Any],
        factor: float = 1.0,
        **more: Any,
    ) -> None:
        setting = {"loss_mode": "vanilla", "loss_agg_mode": "token-mean", **actor}
        advantages = advantage(batch, **estimator)
        loss, gradient = policy(batch, advantages, **setting)
        shown = None if estimator["estimator"] == "gpg" else advantages
        setting = {**estimator, **setting}
        cases.append(
            case(
                name,
                batch,
                setting,
                method,
                parameters,
                loss,
                gradient,
                advantages=shown,
                factor=factor,
                **more,
            )
        )

    four, uneven, empty = "groups_of_four", "uneven_groups", "empty_row"
    grpo = {"estimator": "grpo"}
    centred = {"estimator": "grpo", "norm_adv_by_std_in_grpo": False}
    row_mean = {"loss_agg_mode": "seq-mean-token-mean"}
    dual = {"dual_clip": 3.0}
    guard = {"tolerance": 2e-8, "deviation": LENGTH_GUARD}
    whitened = {"tolerance": 1e-7, "deviation": WHITENING}

    add("vanilla_token_mean", four, grpo, {}, "grpo", {**dual, "denominator": "tokens"})
    add("vanilla_seq_mean_token_mean", four, grpo, row_mean, "grpo", dual, **guard)
    add(
        "vanilla_seq_mean_token_sum",
        four,
        grpo,
        {"loss_agg_mode": "seq-mean-token-sum"},
        "grpo",
        {**dual, "denominator": "sequences"},
    )
    norm = {"loss_agg_mode": "seq-mean-token-sum-norm"}
    add("vanilla_seq_mean_token_sum_norm", four, grpo, norm, "grpo", {**dual, "denominator": "length"})
    add(
        "dr_grpo",
        four,
        centred,
        {**norm, "loss_scale_factor": MAX_LENGTH},
        "dr_grpo",
        {**dual, "max_length": MAX_LENGTH},
    )
    add("uneven_groups", uneven, grpo, {}, "grpo", {**dual, "denominator": "tokens"})
    add("uneven_groups_centred", uneven, centred, {}, "grpo", {**dual, "denominator": "tokens", "std": False})
    add("empty_row_token_mean", empty, grpo, {}, "grpo", {**dual, "denominator": "tokens"})
    add("empty_row_seq_mean_token_mean", empty, grpo, row_mean, "grpo", dual, **guard)
    add(
        "empty_row_seq_mean_token_sum_norm",
        empty,
        grpo,
        {**norm, "loss_scale_factor": MAX_LENGTH},
        "dr_grpo",
        {**dual, "std": True, "max_length": MAX_LENGTH},
    )
    add(
        "dapo_clip_higher",
        four,
        grpo,
        {"clip_ratio_high": 0.28},
        "dapo",
        {**dual, "dynamic_sampling": False},
    )
    for verl_name, name in (("low_var_kl", "k3"), ("mse", "k2"), ("kl", "k1")):
        kl = {"use_kl_loss": True, "kl_loss_coef": 0.04, "kl_loss_type": verl_name}
        add(
            f"kl_loss_{name}",
            four,
            grpo,
            kl,
            "grpo",
            {**dual, "denominator": "tokens", "kl": 0.04, "kl_estimator": name},
        )

    sequence = {"loss_mode": "gspo", **row_mean}
    paper = {**sequence, "clip_ratio_low": 3e-4, "clip_ratio_high": 4e-4}
    add("gspo_near", "near_policy", grpo, paper, "gspo", {}, **guard)
    add("gspo_far", four, grpo, paper, "gspo", {}, **guard)
    add("gspo_wide", uneven, grpo, sequence, "gspo", {"clip_low": 0.2, "clip_high": 0.2}, **guard)
    add("cispo", four, grpo, {"loss_mode": "cispo"}, "cispo", {"clip_low": 0.2, "clip_high": 0.2})
    add(
        "cispo_clip_higher",
        uneven,
        grpo,
        {"loss_mode": "cispo", "clip_ratio_high": 0.28},
        "cispo",
        {"clip_low": 0.2, "clip_high": 0.28},
    )

    reinforce = {"loss_mode": "gpg"}
    add("reinforce_mean", four, centred, reinforce, "reinforce", {"baseline": "mean"})
    rows = BATCHES[four]()
    add(
        "gpg",
        four,
        {"estimator": "gpg"},
        reinforce,
        "reinforce",
        {"baseline": "mean"},
        factor=sum(row["reward"] != 0 for row in rows) / len(rows),
        deviation="the gpg estimator multiplies by rows / rows with a reward other than 0",
    )
    add(
        "rloo",
        uneven,
        {"estimator": "rloo"},
        {"loss_mode": "gpg", "loss_agg_mode": "seq-mean-token-sum"},
        "rloo",
        {},
    )
    add(
        "rloo_vectorized_ppo",
        uneven,
        {"estimator": "rloo_vectorized"},
        {},
        "rloo",
        {**dual, "ratio": "token", "denominator": "tokens"},
    )

    plus = {"estimator": "reinforce_plus_plus"}
    exact = {**dual, "std_eps": 1e-12}
    add("reinforce_pp", four, {**plus, "gamma": 1.0}, {}, "reinforce_pp", exact, **whitened)
    add(
        "reinforce_pp_default_eps",
        four,
        {**plus, "gamma": 1.0},
        {},
        "reinforce_pp",
        dual,
        tolerance=1e-5,
        deviation=WHITENING_DEFAULT,
    )
    add(
        "reinforce_pp_discounted_kl",
        uneven,
        {**plus, "gamma": 0.9, "kl_in_reward": 0.05},
        {},
        "reinforce_pp",
        {**exact, "gamma": 0.9, "kl": 0.05},
        **whitened,
    )
    add(
        "reinforce_pp_baseline",
        uneven,
        {"estimator": "reinforce_plus_plus_baseline"},
        {},
        "reinforce_pp",
        {**exact, "baseline": "mean"},
        **whitened,
    )
    gae = {"estimator": "gae", "gamma": 1.0, "lam": 0.95}
    add("gae", four, gae, {}, "ppo", exact, **whitened)
    add("gae_default_eps", four, gae, {}, "ppo", dual, tolerance=1e-5, deviation=WHITENING_DEFAULT)
    add(
        "gae_discounted_kl",
        uneven,
        {"estimator": "gae", "gamma": 0.97, "lam": 0.8, "kl_in_reward": 0.05},
        {},
        "ppo",
        {**exact, "gamma": 0.97, "gae_lambda": 0.8, "kl": 0.05},
        **whitened,
    )
    return cases


def sft_case() -> dict[str, Any]:
    batch = "demonstrations_only"
    rows = BATCHES[batch]()
    valid = torch.tensor(mask(rows))
    leaf = torch.tensor(padded(rows, "logp"), requires_grad=True)
    data = TensorDict({"response_mask": valid}, batch_size=[len(rows)])
    tensordict_utils.assign_non_tensor(
        data, pad_mode=DatasetPadMode.LEFT_RIGHT, dp_size=1, batch_num_tokens=int(valid.sum())
    )
    loss, _ = sft_loss(None, {"log_probs": leaf}, data)
    (gradient,) = torch.autograd.grad(loss, leaf)
    return case("sft", batch, {"loss": "sft_loss"}, "sft", {}, loss.item(), gradient)


def main() -> None:
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)
    fixtures.write(
        "verl",
        "verl",
        version("verl"),
        "float64",
        [*rl_cases(), sft_case()],
        torch=torch.__version__.split("+")[0],
        tensordict=version("tensordict"),
    )


if __name__ == "__main__":
    main()
