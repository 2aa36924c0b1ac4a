"""A real batch of a task in the rows of `explain`: what a method would train on in its next step."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from interlace.config import resolve
from interlace.methods import Entry
from interlace.policies import Renderer, load_policy
from interlace.rewards import Scorer, load_reward
from interlace.rollout import LocalEngine
from interlace.tasks import load_task
from interlace.training.collect import Feed, Rollouts, annotate, collect, pack
from interlace.types import SPANS, Finish, Sampling, Source


@dataclass(frozen=True)
class SampledBatch:
    """Rows for `explain` and the text of every token.

    Attributes:
        rows: One dict per row in the schema of `explain`.
        tokens: The text of each decision token, row by row.
        prompts: What stands before them.
        about: The task, model and seed, for people to read.
    """

    rows: list[dict[str, Any]]
    tokens: list[list[str]]
    prompts: list[str]
    about: dict[str, str] = field(default_factory=dict)


FINISH = {Finish.STOP: "stop", Finish.LENGTH: "length"}


def sample_batch(method: str | Entry = "grpo", **settings: Any) -> SampledBatch:
    """Sample rollouts of a few problems, with their demonstrations, and score them.

    Args:
        method: Settings are checked against its parameters.
        **settings: As for `interlace.train` (`task`, `model`, `seed`, ...). `prompts_per_step` (default 2)
            problems with `group_size` (default 4) rollouts and one demonstration each.

    Returns:
        Rows with `old_logp`, `ref_logp`, `entropy` and `topk_mass` of the model itself.
    """
    chosen: Mapping[str, Any] = {"prompts_per_step": 2, "group_size": 4, **settings}
    configuration = resolve(method, chosen)
    run, s = configuration.run, configuration.stages[-1].settings
    task = load_task(run.task or "countdown")
    policy = load_policy(
        run.init_from or run.model,
        precision=run.precision,
        device=run.device,
        alphabet=task.alphabet,
        seed=run.seed,
    )
    renderer = Renderer(policy.tokenizer, policy.eos_ids)
    problems = task.problems("train", s.prompts_per_step, seed=run.seed)
    with Scorer(load_reward(run.reward) if run.reward else task.reward, timeout=run.reward_timeout) as scorer:
        rollouts = Rollouts(
            LocalEngine.for_policy(policy),
            renderer,
            scorer,
            Sampling(s.temperature, max_tokens=s.max_new_tokens or 64),
            run.seed,
        )
        found = collect(
            rollouts, None, Feed(problems, run.seed).take(len(problems)), step=0, group_size=s.group_size
        )
        rows = list(found.rows)
        groups = {row.problem.id: row.group for row in rows}
        for problem in problems:
            if problem.demonstration is not None:
                row = rollouts.demonstration(problem, len(rows), groups[problem.id])
                rollouts.score([row])
                rows.append(row)
    batch = pack(rows, completion_limit=s.max_new_tokens)
    policies = {"policy": policy, "reference": policy}
    batch = annotate(
        batch,
        ["old_logp", "ref_logp", "entropy", "topk_mass"],
        policies,
        micro_batch_tokens=s.micro_batch_tokens,
    )
    starts = [0, *torch.cumsum(batch.length, 0).tolist()]
    out, texts, prompts = [], [], []
    assert batch.slots is not None
    for r, row in enumerate(rows):
        a, b = starts[r], starts[r + 1]
        numbers = {
            k: [None if math.isnan(x) else x for x in v[a:b].tolist()] for k, v in batch.arrays.items()
        }
        out.append(
            {
                "group": str(row.group),
                "source": [Source(x).name.lower() for x in batch.source[a:b].tolist()] or "rollout",
                "reward": row.reward,
                "verdict": None if row.verdict is None else str(row.verdict),
                "finish": FINISH.get(row.finish),
                "logp": numbers["old_logp"],
                "span": [None if x < 0 else SPANS[x] for x in batch.span[a:b].tolist()],
                **{k: v for k, v in numbers.items() if any(x is not None for x in v)},
            }
        )
        texts.append([policy.tokenizer.decode([i]) for i in batch.slots.target[a:b].tolist()])
        prompts.append(
            renderer.decode([i for i, x in zip(row.ids, row.source, strict=True) if x == Source.PROMPT])
        )
    about = {"task": run.task or "countdown", "model": str(run.init_from or run.model), "seed": str(run.seed)}
    return SampledBatch(out, texts, prompts, about)
