"""A collector for tests of samplers: token ids are written out, rewards come from a function of the ids."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace

from interlace.rules.samplers import Collecting, Collector, MaskedText
from interlace.types import Finish, Problem, SampleRequest, Sampling, Source, Trajectory, Verdict

EOS, MASK = 99, 98
PROMPT = [1, 2]


def solution(problem: Problem) -> list[int]:
    """One id per number of the demonstration, and the end token."""
    return [] if problem.demonstration is None else [*map(int, problem.demonstration.split()), EOS]


class Recorder:
    """Fulfils what a sampler asks for with rows of one token and the end token, and remembers it.

    Args:
        reward: From a row's response ids to its reward.
    """

    def __init__(self, reward: Callable[[Sequence[int]], float | None] = lambda ids: 0.0, **settings) -> None:
        self.reward = reward
        self.asked: list[list] = []
        self.rows = 0
        self.scored = 0
        self.collector = Collector(
            group_size=settings.get("group_size", 4),
            step=settings.get("step", 0),
            seed=settings.get("seed", 0),
            sampling=Sampling(max_tokens=settings.get("max_tokens", 20)),
            renderer=SimpleNamespace(
                mask_id=MASK, special_ids=frozenset({EOS, MASK}), decode=lambda ids: " ".join(map(str, ids))
            ),
            demonstrated=settings.get("demonstrated", ()),
            more=lambda n: [],
            solution=solution,
            demonstration=self.demonstration,
            score=self.score,
        )

    def demonstration(self, problem: Problem, group: str | int) -> Trajectory | None:
        ids = solution(problem)
        if not ids:
            return None
        self.rows += 1
        source = [Source.PROMPT] * len(PROMPT) + [Source.DEMO] * len(ids)
        return Trajectory(self.rows, [*PROMPT, *ids], source, group, problem)

    def score(self, rows: Sequence[Trajectory]) -> None:
        for row in rows:
            self.scored += 1
            row.reward = self.reward(row.response_ids)
            row.verdict = Verdict.PASS if row.reward else Verdict.FAIL

    def fulfil(self, request: SampleRequest | MaskedText) -> list[Trajectory]:
        rows = []
        for k in range(request.n):
            self.rows += 1
            if isinstance(request, MaskedText):
                ids = [10 * k + t if t in request.masked else i for t, i in enumerate(request.ids)]
                source = [Source.ROLLOUT if t in request.masked else Source.PROMPT for t in range(len(ids))]
            else:
                given = [*PROMPT, *request.hint_ids, *request.prefix_ids]
                ids = [*given, 50 + k, EOS]
                source = (
                    [Source.PROMPT] * len(PROMPT)
                    + [Source.HINT] * len(request.hint_ids)
                    + [Source.PREFIX] * len(request.prefix_ids)
                    + [Source.ROLLOUT] * 2
                )
            group = request.group if request.group is not None else f"{request.problem.id}/{len(self.asked)}"
            row = Trajectory(
                self.rows, ids, source, group, request.problem, finish=Finish.STOP, sampling=Sampling()
            )
            rows.append(row)
        self.score(rows)
        return rows

    def run(self, sampler, problems: Sequence[Problem]) -> list[Trajectory]:
        """The rows that a sampler returns."""
        generator: Collecting = sampler(problems, self.collector)
        try:
            requests = next(generator)
            while True:
                self.asked.append(list(requests))
                requests = generator.send([self.fulfil(request) for request in requests])
        except StopIteration as done:
            return done.value


def problems(n: int = 2, demonstration: str | None = "11 12 13 14 15 16 17 18 19") -> list[Problem]:
    """n problems with a demonstration of nine tokens and the end token."""
    return [Problem(f"p{i}", "", demonstration=demonstration) for i in range(n)]
