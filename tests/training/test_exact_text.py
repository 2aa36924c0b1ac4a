"""The laws on real transformers models in float64: packing, micro-batches and row order change nothing."""

import random

import pytest
import torch

from interlace.methods import REGISTER
from interlace.policies import Critic, Renderer, load_policy
from interlace.rollout import LocalEngine
from interlace.tasks import load_task
from interlace.training.collect import Rollouts, annotate, collect, pack
from interlace.training.distributed import Ranks
from interlace.training.objective import assign, prepare
from interlace.training.step import accumulate
from interlace.types import Sampling, Score, Verdict

ARCHITECTURES = ["llama", "qwen3", "gpt2", "gemma"]


class Parity:
    """Right if the text has an even length: some rewards of a random model differ."""

    def score(self, items):
        return [
            Score(1.0 - len(text) % 2, Verdict.FAIL if len(text) % 2 else Verdict.PASS) for text, _ in items
        ]


@pytest.fixture(scope="module", params=ARCHITECTURES)
def collected(request):
    task = load_task("countdown")
    policy = load_policy(
        f"scratch:nano,arch={request.param},hidden=16,layers=2,heads=2",
        precision="fp64",
        alphabet=task.alphabet,
    )
    renderer = Renderer(policy.tokenizer, policy.eos_ids)
    rollouts = Rollouts(LocalEngine.for_policy(policy), renderer, Parity(), Sampling(max_tokens=12), seed=1)
    problems = task.problems("train", 6, seed=0)
    rows = collect(rollouts, None, problems[:4], step=0, group_size=4, demonstrations=problems[4:]).rows
    return policy, rows


def gradient(policy, rows, name, budget, **settings):
    method = REGISTER[name](**settings).stage(None)[1]
    policies = {"policy": policy, "reference": policy}
    if name == "ppo":
        torch.manual_seed(0)
        policies["critic"] = Critic(policy)
        torch.nn.init.normal_(policies["critic"].text.value_head.weight)
    batch = annotate(pack(rows, completion_limit=12), method.needs, policies, micro_batch_tokens=budget)
    prepared = prepare(assign(batch, method), method)
    parameters = [p for q in ("policy", "critic") if q in policies for p in policies[q].trainable()]
    for p in parameters:
        p.grad = None
    accumulate(prepared, policies, micro_batch_tokens=budget, ranks=Ranks())
    return torch.cat(
        [torch.zeros_like(p).reshape(-1) if p.grad is None else p.grad.reshape(-1) for p in parameters]
    )


@pytest.mark.parametrize(
    ("name", "settings"),
    [("sft", {}), ("grpo", {"kl": 0.1}), ("gspo", {}), ("ppo", {}), ("chord", {"mu": 0.4}), ("rrhf", {})],
)
def test_gradient_of_a_real_model_does_not_depend_on_the_split(collected, name, settings) -> None:
    policy, rows = collected
    whole = gradient(policy, rows, name, 10**6, **settings)
    assert whole.abs().max() > 0
    for budget in (90, 40, 1):
        torch.testing.assert_close(
            gradient(policy, rows, name, budget, **settings), whole, rtol=0, atol=1e-10
        )
    shuffled = random.Random(0).sample(rows, len(rows))
    torch.testing.assert_close(gradient(policy, shuffled, name, 60, **settings), whole, rtol=0, atol=1e-10)


def test_score_equals_the_samplers_log_probability_just_after_sampling(collected) -> None:
    policy, rows = collected
    batch = pack(rows, completion_limit=12)
    scored = policy.score(batch, ("logp",), grad=False)["logp"]
    sampled = batch.is_source("rollout")
    assert sampled.any()
    torch.testing.assert_close(
        scored[sampled].double(), batch.arrays["behaviour_logp"][sampled], rtol=0, atol=1e-5
    )
