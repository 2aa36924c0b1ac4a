"""Knights and knaves: who tells the truth, when everybody talks about everybody."""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import ClassVar

from interlace.tasks.answers import final_answer
from interlace.tasks.base import PuzzleTask, Reward, judged, require, unscorable
from interlace.types import Problem, Score

PEOPLE = "ABCDEF"
KINDS = "1&|=#"

Statement = tuple[str, int, int, int, int]
"""Kind, person, whether said to be a knight, second person, whether said to be a knight. Kinds: `1` one
person; `&` both claims hold; `|` at least one; `=` both are of one kind; `#` of different kinds (no
claims of their own)."""

Key = tuple[Statement, ...]
"""One statement per person."""


@dataclass(frozen=True)
class KnightsKnaves(PuzzleTask):
    """Knights tell the truth, knaves lie, everybody makes one statement, exactly one assignment fits.

    Compact style: prompt `A:B0 B:A1&C0 C:A=B:` (A says that B is a knave, ...), demonstration
    `111A,110B,101`: assignments in order from all knights to the solution, each refuted one followed
    by the first person whose statement contradicts it; the last one is the answer. Text style: the
    same in English. Puzzles that differ only by the names of the people have one key.

    Attributes:
        people: How many people.
        kinds: The kinds of statements that occur, of `1&|=#`; claims about single people alone always
            leave two assignments, so at least one other kind is needed.
        check: `answer` looks at the last assignment only; `trace` wants every refutation to be right
            (compact style).
        style: `compact` or `text`.
    """

    name = "knights_knaves"
    summary = "who is a knight and who is a knave, with a trace of refuted assignments"

    people: int = 3
    kinds: str = KINDS
    check: str = "answer"
    style: str = "compact"

    def __post_init__(self) -> None:
        require(2 <= self.people <= 6, self.name, "people", self.people, "2 to 6")
        legal = set(self.kinds) <= set(KINDS) and bool(set(self.kinds) - {"1"})
        require(legal, self.name, "kinds", self.kinds, f"some of {KINDS}, with more than 1")
        require(self.check in ("answer", "trace"), self.name, "check", self.check, "answer, trace")
        require(self.style in ("compact", "text"), self.name, "style", self.style, "compact, text")
        if self.check == "trace":
            require(self.style == "compact", self.name, "style", self.style, "compact, with check=trace")

    @property
    def alphabet(self) -> str | None:
        names = PEOPLE[: min(6, self.people + 1)]
        return None if self.style == "text" else "".join(sorted({*names, *"01&|=#:, "}))

    @property
    def reward(self) -> Reward:
        return KnightsKnavesReward(self.style, self.check)

    def ood(self) -> Mapping[str, PuzzleTask]:
        return {"ood_people": replace(self, people=self.people + 1)} if self.people < 6 else {}

    def space(self) -> Sequence[Key] | None:
        return _space(self.people, self.kinds) if self.people <= 3 else None

    def draw(self, rng: random.Random) -> Key | None:
        choices = _statements(self.people, self.kinds)
        puzzle = tuple(rng.choice(choices[person]) for person in range(self.people))
        return canonical(puzzle) if len(_solutions(puzzle)) == 1 else None

    def write(self, key: Key, rng: random.Random) -> Problem:
        order = list(range(self.people))
        rng.shuffle(order)
        puzzle = _renamed(key, order)
        (solution,) = _solutions(puzzle)
        compact = " ".join(f"{PEOPLE[i]}:{_short(s)}" for i, s in enumerate(puzzle))
        text = self.style == "text"
        return Problem(
            id=f"{self.name}:{compact}",
            prompt=_question(puzzle) if text else f"{compact}:",
            answer={"solution": solution, "puzzle": [list(s) for s in puzzle]},
            demonstration=_argued(puzzle, solution) if text else _trace(puzzle, solution),
            task=self.name,
            meta={"key": " ".join(map(_short, key))},
        )


@lru_cache(maxsize=16)
def _statements(people: int, kinds: str) -> tuple[tuple[Statement, ...], ...]:
    """For each person, everything that person may say."""
    both: list[Statement] = []
    for a, b in itertools.combinations(range(people), 2):
        for kind in kinds:
            if kind in "&|":
                both += [(kind, a, x, b, y) for x, y in itertools.product((0, 1), repeat=2)]
            elif kind in "=#":
                both.append((kind, a, 0, b, 0))
    single = range(people) if "1" in kinds else ()
    return tuple(
        (*(("1", other, x, 0, 0) for other in single if other != me for x in (0, 1)), *both)
        for me in range(people)
    )


@lru_cache(maxsize=100_000)
def _holds(statement: Statement, assignment: str) -> bool:
    kind, a, x, b, y = statement
    first, second = int(assignment[a]), int(assignment[b])
    if kind == "1":
        return first == x
    if kind == "&":
        return first == x and second == y
    if kind == "|":
        return first == x or second == y
    return (first == second) == (kind == "=")


@lru_cache(maxsize=8)
def _assignments(people: int) -> tuple[str, ...]:
    """From all knights (1) to all knaves (0)."""
    return tuple("".join(bits) for bits in itertools.product("10", repeat=people))


def contradictions(puzzle: Sequence[Statement], assignment: str) -> list[int]:
    """The people whose statement does not fit what the assignment says they are."""
    return [i for i, s in enumerate(puzzle) if _holds(s, assignment) != (assignment[i] == "1")]


@lru_cache(maxsize=4096)
def _fitting(statement: Statement, speaker: int, people: int) -> int:
    """Bit set of the assignments under which what the speaker says fits what the speaker is."""
    fits = 0
    for k, assignment in enumerate(_assignments(people)):
        fits |= (_holds(statement, assignment) == (assignment[speaker] == "1")) << k
    return fits


def _solutions(puzzle: Key) -> list[str]:
    people = len(puzzle)
    left = (1 << 2**people) - 1
    for speaker, statement in enumerate(puzzle):
        left &= _fitting(statement, speaker, people)
    return [a for k, a in enumerate(_assignments(people)) if left >> k & 1]


def _renamed(puzzle: Key, order: Sequence[int]) -> Key:
    """Person i becomes person order[i]."""
    moved: list[Statement] = [("1", 0, 0, 0, 0)] * len(puzzle)
    for i, (kind, a, x, b, y) in enumerate(puzzle):
        if kind == "1":
            moved[order[i]] = (kind, order[a], x, 0, 0)
        else:
            (c, u), (d, v) = sorted(((order[a], x), (order[b], y)))
            moved[order[i]] = (kind, c, u, d, v)
    return tuple(moved)


def canonical(puzzle: Key) -> Key:
    """The smallest puzzle that differs from this one only by the names of the people."""
    return min(_renamed(puzzle, order) for order in itertools.permutations(range(len(puzzle))))


@lru_cache(maxsize=8)
def _space(people: int, kinds: str) -> tuple[Key, ...]:
    puzzles = itertools.product(*_statements(people, kinds))
    return tuple(sorted({canonical(p) for p in puzzles if len(_solutions(p)) == 1}))


def _short(statement: Statement) -> str:
    kind, a, x, b, y = statement
    if kind == "1":
        return f"{PEOPLE[a]}{x}"
    if kind in "=#":
        return f"{PEOPLE[a]}{kind}{PEOPLE[b]}"
    return f"{PEOPLE[a]}{x}{kind}{PEOPLE[b]}{y}"


def _refuted(puzzle: Key, solution: str) -> list[tuple[str, int]]:
    """Assignments before the solution, each with the first person who contradicts it."""
    earlier = itertools.takewhile(lambda a: a != solution, _assignments(len(puzzle)))
    return [(a, contradictions(puzzle, a)[0]) for a in earlier]


def _trace(puzzle: Key, solution: str) -> str:
    refuted = [f"{assignment}{PEOPLE[who]}" for assignment, who in _refuted(puzzle, solution)]
    return ",".join([*refuted, solution])


_KIND = ("a knave", "a knight")


def _sentence(statement: Statement) -> str:
    kind, a, x, b, y = statement
    if kind == "1":
        return f"{PEOPLE[a]} is {_KIND[x]}"
    if kind in "=#":
        return f"{PEOPLE[a]} and {PEOPLE[b]} are {'the same kind' if kind == '=' else 'different kinds'}"
    return f"{PEOPLE[a]} is {_KIND[x]} {'and' if kind == '&' else 'or'} {PEOPLE[b]} is {_KIND[y]}"


def _everybody(assignment: str) -> str:
    return ", ".join(f"{PEOPLE[i]} is {_KIND[int(x)]}" for i, x in enumerate(assignment))


def _question(puzzle: Key) -> str:
    said = " ".join(f'{PEOPLE[i]} says: "{_sentence(s)}."' for i, s in enumerate(puzzle))
    names = PEOPLE[: len(puzzle)]
    return (
        "Knights always tell the truth and knaves always lie. You meet "
        f"{', '.join(names[:-1])} and {names[-1]}. {said} Who is a knight and who is a knave? Think step "
        f'by step, then finish with a line like "Answer: {_everybody("101010"[: len(names)])}".'
    )


def _argued(puzzle: Key, solution: str) -> str:
    lines = []
    for assignment, who in _refuted(puzzle, solution):
        truth = "true" if _holds(puzzle[who], assignment) else "false"
        kind, name = _KIND[int(assignment[who])], PEOPLE[who]
        lines.append(f"Suppose {_everybody(assignment)}: {name} is {kind}, but says something {truth}.")
    lines.append(f"Suppose {_everybody(solution)}: every statement fits.")
    return "\n".join([*lines, f"Answer: {_everybody(solution)}"])


_CLAIM = re.compile(r"\b([A-F]) is (?:a )?(knight|knave)\b")


@dataclass(frozen=True)
class KnightsKnavesReward:
    """Right if everybody is called what they are."""

    style: str = "compact"
    check: str = "answer"
    bounded: ClassVar[bool] = True

    def __call__(self, completion: str, problem: Problem) -> Score:
        answer = problem.answer
        if not isinstance(answer, Mapping) or "solution" not in answer:
            return unscorable("gold", "knights_knaves needs an answer with `solution`")
        solution = answer["solution"]
        if self.style == "text":
            said = final_answer(completion)
            claims = set(_CLAIM.findall(completion if said is None else said.partition("\n")[0]))
            truth = {(PEOPLE[i], ("knave", "knight")[int(x)]) for i, x in enumerate(solution)}
            read = "".join(sorted(f"{p}{int(kind == 'knight')}" for p, kind in claims))
            return judged(claims == truth, read)
        *trace, last = completion.strip().split(",")
        correct = last == solution
        if correct and self.check == "trace":
            correct = _sound(trace, answer["puzzle"], solution)
        return judged(correct, last[:12])


def _sound(trace: Sequence[str], puzzle: Sequence[Sequence], solution: str) -> bool:
    """Whether the trace refutes every other assignment that it names, once, with a real contradiction,
    and leaves none that stands before the solution."""
    people = len(solution)
    expected = list(itertools.takewhile(lambda a: a != solution, _assignments(people)))
    if [step[:people] for step in trace] != expected:
        return False
    statements = [tuple(s) for s in puzzle]
    return all(
        step[people:] in {PEOPLE[i] for i in contradictions(statements, step[:people])} for step in trace
    )
