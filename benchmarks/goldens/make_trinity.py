"""Golden numbers from Trinity-RFT: its SFT + RL losses (MIX, CHORD), and the RL and SFT losses it mixes.

Group advantages are Trinity's own and in float32, because it keeps rewards there; log-probabilities and
losses are float64. Its means divide by count + 1e-8.

    pip install torch==2.13.0 verl==0.9.1
    pip install --no-deps trinity-rft==0.6.0
    python benchmarks/goldens/make_trinity.py
"""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

import fixtures
import torch
from fixtures import BATCHES, case, mask, padded
from trinity.algorithm.advantage_fn.grpo_advantage import GRPOGroupedAdvantage
from trinity.algorithm.advantage_fn.opmd_advantage import OPMDGroupAdvantage
from trinity.algorithm.policy_loss_fn import POLICY_LOSS_FN
from trinity.common.experience import EID, Experience

COUNT_GUARD = "Trinity's means divide by count + 1e-8"
FLOAT32 = "Trinity computes group advantages in float32; its means divide by count + 1e-8"


def group_advantages(batch: str, function: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Trinity's advantages, [rows, longest], and bool [rows]: the rows it trains on.

    Demonstrations are not in its groups: advantage 0.
    """
    rows = BATCHES[batch]()
    experiences = [
        Experience(
            eid=EID(task=str(row["group"]), run=i),
            tokens=torch.zeros(1 + len(row["logp"]), dtype=torch.long),
            prompt_length=1,
            reward=row["reward"],
            logprobs=torch.tensor(row["old_logp"]),
            action_mask=torch.ones(len(row["logp"]), dtype=torch.bool),
        )
        for i, row in enumerate(rows)
        if row["source"] == "rollout"
    ]
    advantages = torch.zeros(mask(rows).shape)
    kept = torch.tensor([row["source"] == "demo" for row in rows])
    for experience in function.process(experiences)[0]:
        row, values = experience.eid.run, experience.advantages
        advantages[row, : len(values)] = values.double()
        kept[row] = True
    return advantages, kept


def answer(
    batch: str, name: str, advantages: torch.Tensor, kept: torch.Tensor, step: int = 0, **setting: Any
) -> tuple:
    """Loss and gradient of one of Trinity's registered policy losses on the `kept` rows of a batch."""
    rows = BATCHES[batch]()
    expert = torch.tensor([row["source"] == "demo" for row in rows])[kept]
    n = len(expert)
    if name.startswith("mix"):
        # One GPU, one micro-batch: the weights in front of the two losses are then 1.
        setting |= {
            "ppo_mini_batch_size": n,
            "ppo_micro_batch_size_per_gpu": n,
            "train_batch_size_usual": int((~expert).sum()),
            "train_batch_size_expert": int(expert.sum()),
            "use_dynamic_bsz": False,
        }
    function = POLICY_LOSS_FN.get(name)
    leaf = torch.tensor(padded(rows, "logp"), requires_grad=True)
    loss, _ = function(**{**function.default_args(), **setting})(
        logprob=leaf[kept],
        old_logprob=torch.tensor(padded(rows, "old_logp"))[kept],
        action_mask=torch.tensor(mask(rows))[kept],
        advantages=advantages[kept],
        expert_mask=expert,
        step=torch.full((n,), step),
    )
    (gradient,) = torch.autograd.grad(loss, leaf)
    return loss.item(), gradient


def all_cases() -> list[dict[str, Any]]:
    cases: list[dict[str, Any]] = []

    def add(
        name: str,
        batch: str,
        loss_name: str,
        setting: dict[str, Any],
        method: str,
        parameters: dict[str, Any],
        advantage_fn: Any = None,
        step: int = 0,
        tolerance: float = 3e-7,
        **more: Any,
    ) -> None:
        if advantage_fn is None:
            rows = BATCHES[batch]()
            advantages, kept = torch.zeros(mask(rows).shape), torch.ones(len(rows), dtype=torch.bool)
        else:
            advantages, kept = group_advantages(batch, advantage_fn)
        loss, gradient = answer(batch, loss_name, advantages, kept, step, **setting)
        more.setdefault("deviation", COUNT_GUARD if advantage_fn is None else FLOAT32)
        shown = None if advantage_fn is None or loss_name.startswith("mix") else advantages
        full = {"policy_loss_fn": loss_name, **setting}
        golden = case(
            name,
            batch,
            full,
            method,
            parameters,
            loss,
            gradient,
            advantages=shown,
            tolerance=tolerance,
            **more,
        )
        cases.append(golden | ({"step": step} if step else {}))

    four, mixed, demos = "groups_of_four", "with_demonstrations", "demonstrations_only"
    grpo = GRPOGroupedAdvantage()
    batch_std = GRPOGroupedAdvantage(std_cal_level="batch")
    dropped = GRPOGroupedAdvantage(std_threshold=0.0)
    opmd = OPMDGroupAdvantage()
    dual = {"dual_clip": 3.0}
    tokens = {**dual, "denominator": "tokens"}

    add("ppo", four, "ppo", {}, "grpo", tokens, grpo)
    add("ppo_batch_std", four, "ppo", {}, "grpo", {**tokens, "std_scope": "step"}, batch_std)
    add("ppo_std_threshold", four, "ppo", {"clip_range_high": 0.28}, "dapo", dual, dropped)
    add(
        "ppo_seq_mean_token_mean",
        four,
        "ppo",
        {"loss_agg_mode": "seq-mean-token-mean"},
        "grpo",
        dual,
        grpo,
    )
    add(
        "ppo_seq_mean_token_sum_norm",
        four,
        "ppo",
        {"loss_agg_mode": "seq-mean-token-sum-norm"},
        "grpo",
        {**dual, "denominator": "length_sum"},
        grpo,
    )
    unclipped = {"clip_low": None, "clip_high": None, "denominator": "tokens"}
    add("importance_sampling", four, "importance_sampling", {}, "grpo", unclipped, grpo)
    add("gspo_near", "near_policy", "gspo", {}, "gspo", {}, grpo)
    add("gspo_far", four, "gspo", {}, "gspo", {}, grpo)
    add("cispo", four, "cispo", {}, "cispo", {"clip_high": 0.28}, grpo)
    add(
        "opmd",
        four,
        "opmd",
        {"tau": 1.0},
        "reinforce",
        {"baseline": "mean"},
        opmd,
        tolerance=1e-8,
        factor=2.0,
        deviation="OPMD divides by 1 + tau; its means divide by count + 1e-8",
    )
    add("sft", demos, "sft", {}, "sft", {}, tolerance=1e-8)
    add(
        "sft_seq_mean_token_mean",
        demos,
        "sft",
        {"loss_agg_mode": "seq-mean-token-mean"},
        "sft",
        {"denominator": "sequence_means"},
        tolerance=2e-8,
    )
    add("sft_is", demos, "sft_is", {}, "dft", {}, tolerance=1e-8)
    add("sft_is_as_chord", demos, "sft_is", {}, "chord", {"mu": 1.0, "phi": "p"}, tolerance=1e-8)
    add("sft_phi", demos, "sft_phi", {}, "chord", {"mu": 1.0, "phi": "p(1-p)"}, tolerance=1e-8)
    for mu in (0.1, 0.6):
        add(f"mix_{mu}", mixed, "mix", {"mu": mu}, "chord", {**dual, "mu": mu, "phi": "1"}, grpo)
    add("mix_as_bridge", mixed, "mix", {"mu": 0.3}, "bridge", {**tokens, "mu": 0.3}, grpo)
    add(
        "mix_row_means",
        mixed,
        "mix",
        {"mu": 0.3, "loss_agg_mode": "seq-mean-token-mean"},
        "chord",
        {
            **dual,
            "mu": 0.3,
            "phi": "1",
            "denominator": "sequence_means",
            "sft_denominator": "sequence_means",
        },
        grpo,
    )
    schedule = {"mu_warmup_steps": 10, "mu_decay_steps": 20, "mu_peak": 0.9, "mu_valley": 0.05}
    chord = {**dual, "mu": "cosine(0.9,0.05,10,20)", "phi": "p(1-p)"}
    for step in (4, 17, 40):
        add(f"mix_chord_step_{step}", mixed, "mix_chord", schedule, "chord", chord, grpo, step)
    add(
        "mix_chord_without_phi",
        mixed,
        "mix_chord",
        {**schedule, "enable_phi_function": False},
        "chord",
        {**chord, "phi": "1"},
        grpo,
        17,
    )
    return cases


def main() -> None:
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)
    fixtures.write(
        "trinity",
        "trinity-rft",
        version("trinity-rft"),
        "float64 losses, float32 group advantages",
        all_cases(),
        torch=torch.__version__.split("+")[0],
        verl=version("verl"),
    )


if __name__ == "__main__":
    main()
