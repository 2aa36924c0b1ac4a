"""A small exact policy in float64, and random trajectories with every source: what the laws are tried on."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from interlace.parts.segments import position_in_row
from interlace.training.collect import pack
from interlace.types import Batch, Finish, Problem, Sampling, Source, Trajectory, Verdict

VOCABULARY = 11
ARRAYS = ("old_logp", "ref_logp", "entropy", "values", "topk_mass")


class ToyPolicy:
    """logits = head(tanh(E[input] + P[position] + mean of E over the row so far)), so that rows matter."""

    def __init__(self, seed: int = 0, width: int = 6) -> None:
        generator = torch.Generator().manual_seed(seed)

        def weight(*shape: int) -> torch.nn.Parameter:
            return torch.nn.Parameter(torch.randn(*shape, generator=generator, dtype=torch.float64))

        self.embedding, self.place = weight(VOCABULARY, width), weight(32, width)
        self.head, self.value_head = weight(width, VOCABULARY), weight(width)
        self.calls = 0
        self.rows_scored = 0

    def _hidden(self, batch: Batch) -> Tensor:
        s = batch.slots
        assert s is not None
        e = self.embedding[s.input]
        place = position_in_row(s.row, batch.n_rows)
        total = torch.cat([torch.zeros_like(e[:1]), torch.cumsum(e, 0)])
        first = torch.arange(e.shape[0]) - place
        running = (total[1:] - total[first]) / (place + 1)[:, None]
        return torch.tanh(e + self.place[s.position] + running)[s.slot]

    def score(
        self, batch: Batch, needs: Sequence[str] = ("logp",), *, grad: bool = True
    ) -> dict[str, Tensor]:
        self.calls += 1
        self.rows_scored += batch.n_rows
        assert batch.slots is not None
        with torch.set_grad_enabled(grad):
            hidden = self._hidden(batch)
            logits = hidden @ self.head
            target = batch.slots.target[:, None]
            tempered = torch.log_softmax(logits / batch.slots.temperature.double()[:, None], -1)
            plain = torch.log_softmax(logits, -1)
            everything = {
                "logp": tempered.gather(1, target)[:, 0],
                "logp_t1": plain.gather(1, target)[:, 0],
                "entropy": -(tempered.exp() * tempered).sum(-1),
                "mean_logp": plain.mean(-1),
                "kl": (plain.exp() * plain).sum(-1) + math.log(VOCABULARY),
                "reverse_kl": -math.log(VOCABULARY) - plain.mean(-1),
                "topk_mass": plain.exp().topk(2, -1).values.sum(-1).detach(),
                "argmax": plain.argmax(-1),
                "value": hidden @ self.value_head,
            }
            return {name: everything[name] for name in needs}

    def backward(self, statistics: Mapping[str, Tensor], cotangents: Mapping[str, Tensor]) -> None:
        names = [n for n in cotangents if statistics[n].requires_grad]
        torch.autograd.backward([statistics[n] for n in names], [cotangents[n] for n in names])

    def trainable(self) -> list[torch.nn.Parameter]:
        return [self.embedding, self.place, self.head, self.value_head]

    def publish(self) -> None:
        pass

    def gradient(self) -> Tensor:
        """All parameters' gradients in one vector."""
        parts = [torch.zeros_like(p) if p.grad is None else p.grad for p in self.trainable()]
        return torch.cat([part.reshape(-1) for part in parts])


def trajectories(seed: int = 0, groups: int = 4, temperature: float = 1.0) -> list[Trajectory]:
    """Rows of several groups: rollouts (some truncated, one unscorable), prefixes, hints, demonstrations.

    Group 0 has equal rewards, group 1 no correct rollout, and one demonstration stands in a group alone.
    """
    rng = random.Random(seed)
    rows: list[Trajectory] = []

    def add(
        group: str, sources: list[Source], reward: float | None, verdict: Verdict | None = None, **extra: Any
    ) -> None:
        prompt = [Source.PROMPT] * rng.randint(1, 3)
        source = prompt + sources
        decisions = sum(s != Source.PROMPT for s in source)
        sampled = Source.ROLLOUT in sources
        spans = [(len(prompt), len(prompt) + 1, "guess")] if Source.DEMO in sources else []
        rows.append(
            Trajectory(
                row=len(rows),
                ids=[rng.randrange(VOCABULARY) for _ in source],
                source=source,
                group=group,
                problem=Problem(group, ""),
                behaviour_logp=[math.nan if s == Source.PROMPT else -rng.expovariate(1) for s in source],
                reward=reward,
                verdict=verdict,
                finish=rng.choice([Finish.STOP, Finish.STOP, Finish.LENGTH]),
                temperature=temperature,
                span=spans,
                sampling=Sampling() if sampled else None,
                extra={
                    "class_weight": rng.choice([0.1, 1.0]),
                    "token_reward": [rng.gauss(0, 1) for _ in range(decisions)],
                    "role": "rejected" if sampled else "chosen",
                    "mix_lambda": rng.uniform(0.1, 0.9),
                    **extra,
                },
            )
        )

    for g in range(groups):
        name = f"g{g}"
        for _ in range(4):
            head = [Source.HINT] * rng.randint(0, 2) if g == 2 else []
            reward = 1.0 if g == 0 else (rng.choice([0.0, 0.3]) if g == 1 else rng.choice([0.0, 0.4, 1.0]))
            verdict = Verdict.PASS if reward == 1 else Verdict.FAIL
            add(name, head + [Source.ROLLOUT] * rng.randint(1, 7), reward, verdict)
        if g in (1, 2):
            add(name, [Source.PREFIX] * 2 + [Source.ROLLOUT] * rng.randint(1, 4), rng.choice([0.0, 1.0]))
        if g != 3:
            add(name, [Source.DEMO] * rng.randint(1, 7), 1.0)
    add("g2", [Source.ROLLOUT] * 3, None, Verdict.UNSCORABLE)
    add("alone", [Source.DEMO] * 4, 1.0)
    return rows


def batch_of(rows: Sequence[Trajectory], seed: int = 0) -> Batch:
    """A packed batch with random detached arrays by (row id, position), whatever the row order."""
    batch = pack(rows, completion_limit=8)
    columns: dict[str, list[float]] = {name: [] for name in ARRAYS}
    for row in rows:
        rng = random.Random(seed * 7919 + row.row)
        for source in row.source:
            drawn = (
                -rng.expovariate(0.5),
                -rng.expovariate(0.5),
                rng.uniform(0, 2),
                rng.gauss(0, 1),
                rng.random(),
            )
            if source != Source.PROMPT:
                for name, value in zip(ARRAYS, drawn, strict=True):
                    columns[name].append(value)
    return batch.with_arrays(**{k: torch.tensor(v, dtype=torch.float64) for k, v in columns.items()})
