"""Golden numbers from TRL: rewards through `GRPOTrainer`'s own scoring to its own loss and gradient.

A real trainer is built around a tiny random model; only what the model would say (which tokens, which
log-probabilities) is replaced by the fixture's numbers. Advantages, masks, denominators, KL, clipping and
the loss are TRL's. Everything runs in float64 (rewards are multiples of 1/4, exact in the float32 TRL keeps
them in).

    pip install torch==2.13.0 trl==1.16.0
    python benchmarks/goldens/make_trl.py
"""

from __future__ import annotations

import os
import tempfile
from types import SimpleNamespace
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")

import fixtures
import torch
import transformers
import trl
from datasets import Dataset
from fixtures import BATCHES, MAX_LENGTH, Row, case, mask, padded
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM
from trl.rewards import get_soft_overlong_punishment

GROUP = 4
EOS, WORD = 1, 2


def tiny_model(folder: str) -> str:
    """Save a random two-layer model and a four-word tokenizer; returns the folder."""
    words = Tokenizer(models.WordLevel({"<pad>": 0, "<eos>": EOS, "a": WORD, "b": 3}, unk_token="b"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=words, pad_token="<pad>", eos_token="<eos>").save_pretrained(
        folder
    )
    config = Qwen2Config(
        vocab_size=4,
        hidden_size=8,
        intermediate_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        pad_token_id=0,
        eos_token_id=EOS,
    )
    Qwen2ForCausalLM(config).save_pretrained(folder)
    return folder


def token_ids(row: Row) -> list[int]:
    """Ids of a completion: it ends with the end token unless it was cut off."""
    n = len(row["logp"])
    return [WORD] * (n - 1) + [EOS if row["finish"] == "stop" else WORD]


class Scripted:
    """Mixed into a TRL trainer: sampling and log-probabilities come from `self.rows`."""

    rows: list[Row]
    leaf: torch.Tensor

    def _generate_single_turn(self, prompt_ids: list, *_: Any) -> Any:
        assert len(prompt_ids) == len(self.rows)
        return [token_ids(row) for row in self.rows]

    def _get_per_token_logps_and_entropies(self, model: Any, *_: Any, **__: Any) -> tuple:
        if torch.is_grad_enabled():
            logp = self.leaf
        else:
            key = "ref_logp" if model is self.ref_model else "old_logp"
            logp = torch.tensor(padded(self.rows, key))
        return logp, torch.zeros_like(self.leaf), None


class ScriptedGRPO(Scripted, trl.GRPOTrainer):
    def _generate_single_turn(self, prompt_ids: list, *_: Any) -> Any:
        sampling_logps = None
        return super()._generate_single_turn(prompt_ids), sampling_logps


class ScriptedRLOO(Scripted, trl.RLOOTrainer):
    pass


def answer(trainer_class: type, config_class: type, folder: str, batch: str, **setting: Any) -> tuple:
    """Loss, gradient and advantages that TRL computes on one batch.

    `soft_punish_cache` and `max_completion_len` are handed to TRL's overlong punishment, a second reward.
    """
    rows = BATCHES[batch]()
    rewards = [row["reward"] for row in rows]

    def fixture_reward(completions: list, **_: Any) -> list[float | None]:
        return list(rewards)

    functions = [fixture_reward]
    if "soft_punish_cache" in setting:
        cache, limit = setting.pop("soft_punish_cache"), setting.pop("max_completion_len")
        functions.append(get_soft_overlong_punishment(limit, cache))
    with tempfile.TemporaryDirectory() as output:
        config = config_class(
            output_dir=output,
            use_cpu=True,
            bf16=False,
            report_to=[],
            per_device_train_batch_size=len(rows),
            gradient_accumulation_steps=1,
            steps_per_generation=1,
            num_generations=GROUP,
            num_iterations=2,
            max_completion_length=MAX_LENGTH,
            **setting,
        )
        prompts = Dataset.from_list([{"prompt": "a b"}] * len(rows))
        trainer = trainer_class(
            model=folder,
            args=config,
            reward_funcs=functions,
            train_dataset=prompts,
            processing_class=PreTrainedTokenizerFast.from_pretrained(folder),
        )
    trainer.model.train()
    trainer.current_gradient_accumulation_steps = 1
    trainer.rows = rows
    trainer.leaf = torch.tensor(padded(rows, "logp"), requires_grad=True)
    inputs = trainer._generate_and_score_completions([{"prompt": "a b"}] * len(rows))
    loss = trainer._compute_loss(trainer.model, inputs)
    (gradient,) = torch.autograd.grad(loss, trainer.leaf)
    advantages = inputs["advantages"][:, None] * inputs["completion_mask"]
    return loss.item(), gradient, advantages


def grpo_cases(folder: str) -> list[dict[str, Any]]:
    cases: list[dict[str, Any]] = []

    def add(name: str, batch: str, setting: dict, method: str, parameters: dict, **more: Any) -> None:
        full = {"beta": 0.0, "scale_rewards": "group", **setting}
        if full["beta"]:
            # On by default: KL times the ratio, which interlace does not have.
            full["use_bias_correction_kl"] = False
        loss, gradient, advantages = answer(ScriptedGRPO, trl.GRPOConfig, folder, batch, **full)
        parameters = {"std_eps": 1e-4, **parameters}
        cases.append(
            case(name, batch, full, method, parameters, loss, gradient, advantages=advantages, **more)
        )

    four = "groups_of_four"
    add("grpo", four, {"loss_type": "grpo"}, "grpo", {})
    add("grpo_kl", four, {"loss_type": "grpo", "beta": 0.04}, "grpo", {"kl": 0.04})
    add(
        "grpo_batch_std",
        four,
        {"loss_type": "grpo", "scale_rewards": "batch"},
        "grpo",
        {"std_scope": "step"},
    )
    add("grpo_delta", four, {"loss_type": "grpo", "delta": 3.0}, "grpo", {"dual_clip": 3.0})
    add("bnpo_kl", four, {"loss_type": "bnpo", "beta": 0.04}, "grpo", {"denominator": "tokens", "kl": 0.04})
    add(
        "dapo",
        four,
        {"loss_type": "dapo", "epsilon_high": 0.28},
        "dapo",
        {"dynamic_sampling": False},
    )
    add(
        "dapo_kl",
        four,
        {"loss_type": "dapo", "epsilon_high": 0.28, "beta": 0.001},
        "dapo",
        {"dynamic_sampling": False, "kl": 0.001},
    )
    add(
        "dapo_mask_truncated",
        four,
        {"loss_type": "dapo", "epsilon_high": 0.28, "mask_truncated_completions": True},
        "dapo",
        {"dynamic_sampling": False, "mask_truncated": True},
        # TRL reports an advantage for masked rows too; it multiplies them by 0 above, as interlace does.
    )
    add(
        "grpo_mask_truncated",
        four,
        {"loss_type": "grpo", "mask_truncated_completions": True},
        "grpo",
        {"mask_truncated": True},
        factor=12 / 10,
        deviation="TRL divides by all 12 rows and counts the 2 masked ones as 0; they leave interlace's "
        "denominator",
    )
    add(
        "dapo_overlong",
        four,
        {"loss_type": "dapo", "epsilon_high": 0.28, "max_completion_len": 8, "soft_punish_cache": 4},
        "dapo",
        {"dynamic_sampling": False, "max_length": 8, "overlong_buffer": 4},
    )
    add(
        "dr_grpo",
        four,
        {"loss_type": "dr_grpo", "scale_rewards": "none"},
        "dr_grpo",
        {"max_length": MAX_LENGTH},
    )
    add(
        "dr_grpo_group_std",
        four,
        {"loss_type": "dr_grpo"},
        "dr_grpo",
        {"std": True, "max_length": MAX_LENGTH},
        deviation="loss_type='dr_grpo' alone keeps the group std: scale_rewards='none' has to be said too",
    )
    add(
        "cispo",
        four,
        {"loss_type": "cispo", "epsilon_high": 5.0},
        "cispo",
        {},
        deviation="epsilon_high is the cap itself, 1 + clip_high",
    )
    add("cispo_tight", four, {"loss_type": "cispo", "epsilon_high": 1.28}, "cispo", {"clip_high": 0.28})
    sequence = {"loss_type": "grpo", "importance_sampling_level": "sequence"}
    paper = {**sequence, "epsilon": 3e-4, "epsilon_high": 4e-4}
    add("gspo_near", "near_policy", paper, "gspo", {})
    add("gspo_far", four, paper, "gspo", {})
    add("gspo_wide", four, {**sequence, "epsilon": 0.2}, "gspo", {"clip_low": 0.2, "clip_high": 0.2})
    add(
        "grpo_unscored",
        "unscored_row",
        {"loss_type": "grpo"},
        "grpo",
        {},
        factor=12 / 10,
        deviation="TRL takes rows without reward out of mean and std and gives them advantage 0, but keeps "
        "them in the denominator; interlace takes them out of it too",
    )
    tokens = [len(row["logp"]) for row in BATCHES["unscored_row"]()]
    scored = [n for n, row in zip(tokens, BATCHES["unscored_row"]()) if row["reward"] is not None]
    add(
        "dapo_unscored",
        "unscored_row",
        {"loss_type": "dapo"},
        "dapo",
        {"clip_high": 0.2, "dynamic_sampling": False},
        factor=sum(tokens) / sum(scored),
        deviation="as grpo_unscored: their tokens stay in TRL's denominator",
    )
    return cases


def rloo_cases(folder: str) -> list[dict[str, Any]]:
    cases = []
    for name, beta in (("rloo", 0.0), ("rloo_kl", 0.05)):
        setting = {"beta": beta}
        loss, gradient, advantages = answer(ScriptedRLOO, trl.RLOOConfig, folder, "groups_of_four", **setting)
        parameters = {"ratio": "sequence", "kl": beta}
        cases.append(
            case(name, "groups_of_four", setting, "rloo", parameters, loss, gradient, advantages=advantages)
        )
    return cases


def sft_cases(folder: str) -> list[dict[str, Any]]:
    """`SFTTrainer.compute_loss` on given log-probabilities: it sees a model that answers with them."""
    rows = BATCHES["demonstrations_only"]()
    valid = torch.tensor(mask(rows))
    cases = []
    for loss_type, method in (("nll", "sft"), ("dft", "dft")):
        with tempfile.TemporaryDirectory() as output:
            trainer = trl.SFTTrainer(
                model=folder,
                args=trl.SFTConfig(
                    output_dir=output, use_cpu=True, bf16=False, report_to=[], loss_type=loss_type
                ),
                train_dataset=Dataset.from_list([{"prompt": "a", "completion": " b"}]),
                processing_class=PreTrainedTokenizerFast.from_pretrained(folder),
            )
        leaf = torch.tensor(padded(rows, "logp"), requires_grad=True)

        def scripted(leaf: torch.Tensor = leaf, **_: Any) -> SimpleNamespace:
            zeros = torch.zeros_like(leaf)
            return SimpleNamespace(
                log_probs=leaf.where(valid, zeros), label_mask=valid, entropy=zeros, is_top1=zeros
            )

        labels = torch.where(valid, WORD, -100)
        inputs = {"input_ids": labels.clamp(min=0), "labels": labels, "attention_mask": valid}
        loss = trainer.compute_loss(scripted, inputs)
        (gradient,) = torch.autograd.grad(loss, leaf)
        cases.append(
            case(
                loss_type, "demonstrations_only", {"loss_type": loss_type}, method, {}, loss.item(), gradient
            )
        )
    return cases


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        tiny_model(folder)
        torch.set_default_dtype(torch.float64)
        cases = grpo_cases(folder) + rloo_cases(folder) + sft_cases(folder)
    fixtures.write(
        "trl",
        "trl",
        trl.__version__,
        "float64",
        cases,
        torch=torch.__version__.split("+")[0],
        transformers=transformers.__version__,
    )


if __name__ == "__main__":
    main()
