"""Countdown: reach a target with every given number used exactly once."""

from __future__ import annotations

import itertools
import math
import random
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import ClassVar

from interlace.tasks.answers import final_answer
from interlace.tasks.base import PuzzleTask, Reward, judged, require, unscorable
from interlace.tasks.expressions import evaluate
from interlace.types import Problem, Score

OPERATIONS = "+-*/"
LIST_AT_MOST = 2000
"""Number multisets up to which all problems are listed; above, they are drawn at random."""

Key = tuple[tuple[int, ...], int]
Step = tuple[int, str, int, int]
"""a, operation, b, result."""


@dataclass(frozen=True)
class Countdown(PuzzleTask):
    """Three numbers, a target, and the chain of steps that leads there.

    Every number is used exactly once and every step gives a whole number that is not negative.
    Compact style: prompt `4 7 9 = 20:`, demonstration `4+7=11,11+9=20`. Text style: an English
    question, steps on lines of their own and a last line `Answer: (4 + 7) + 9`.

    Attributes:
        numbers: How many numbers.
        low, high: Their range.
        target_low, target_high: Range of the target.
        ops: Operations allowed, of `+-*/`.
        style: `compact` or `text`.
    """

    name = "countdown"
    summary = "reach a target with every given number used exactly once"

    numbers: int = 3
    low: int = 1
    high: int = 12
    target_low: int = 1
    target_high: int = 50
    ops: str = "+-*"
    style: str = "compact"

    def __post_init__(self) -> None:
        require(2 <= self.numbers <= 6, self.name, "numbers", self.numbers, "2 to 6")
        require(1 <= self.low <= self.high <= 999, self.name, "low..high", (self.low, self.high), "1 to 999")
        targets = (self.target_low, self.target_high)
        require(
            1 <= self.target_low <= self.target_high <= 9999,
            self.name,
            "target_low..target_high",
            targets,
            "1 to 9999",
        )
        legal = bool(self.ops) and set(self.ops) <= set(OPERATIONS) and len(set(self.ops)) == len(self.ops)
        require(legal, self.name, "ops", self.ops, f"some of {OPERATIONS}, each once")
        require(self.style in ("compact", "text"), self.name, "style", self.style, "compact, text")

    @property
    def alphabet(self) -> str | None:
        return None if self.style == "text" else "".join(sorted({*" ,:=0123456789", *self.ops}))

    @property
    def reward(self) -> Reward:
        return CountdownReward(self.style)

    def ood(self) -> Mapping[str, PuzzleTask]:
        low, high = self.target_high + 1, 2 * self.target_high
        variants: dict[str, PuzzleTask] = {}
        if self.numbers < 6:
            variants["ood_numbers"] = replace(self, numbers=self.numbers + 1)
        if high <= 9999:
            variants["ood_large"] = replace(self, target_low=low, target_high=high)
        return variants

    def space(self) -> Sequence[Key] | None:
        multisets = math.comb(self.high - self.low + self.numbers, self.numbers)
        if self.numbers > 4 or multisets > LIST_AT_MOST:
            return None
        return _space(replace(self, style="compact"))

    def draw(self, rng: random.Random) -> Key | None:
        numbers = tuple(sorted(rng.randint(self.low, self.high) for _ in range(self.numbers)))
        targets = [t for t in reachable(numbers, self.ops) if self.target_low <= t <= self.target_high]
        return (numbers, rng.choice(sorted(targets))) if targets else None

    def write(self, key: Key, rng: random.Random) -> Problem:
        numbers, target = key
        shown = list(numbers)
        rng.shuffle(shown)
        steps = solve(numbers, target, self.ops)
        assert steps is not None, f"no solution of {key}"
        text = self.style == "text"
        return Problem(
            id=f"{self.name}:{','.join(map(str, shown))}={target}",
            prompt=_question(shown, target, self.ops) if text else f"{' '.join(map(str, shown))} = {target}:",
            answer={"numbers": shown, "target": target, "ops": self.ops},
            demonstration=_worked(steps) if text else ",".join(f"{a}{op}{b}={c}" for a, op, b, c in steps),
            task=self.name,
            meta={"key": f"{','.join(map(str, numbers))}={target}"},
        )


@lru_cache(maxsize=8)
def _space(task: Countdown) -> tuple[Key, ...]:
    low, high = task.target_low, task.target_high
    return tuple(
        (numbers, target)
        for numbers in itertools.combinations_with_replacement(range(task.low, task.high + 1), task.numbers)
        for target in sorted(reachable(numbers, task.ops))
        if low <= target <= high
    )


def _results(a: int, b: int, op: str) -> int | None:
    """The result of the pair in the one order that stays a whole number, or `None`."""
    if op == "+":
        return a + b
    if op == "*":
        return a * b
    small, large = sorted((a, b))
    if op == "-":
        return large - small
    return large // small if small and large % small == 0 else None


@lru_cache(maxsize=200_000)
def reachable(numbers: tuple[int, ...], ops: str) -> frozenset[int]:
    """Every number that uses all of `numbers` (sorted) exactly once."""
    if len(numbers) == 1:
        return frozenset(numbers)
    found: set[int] = set()
    for i, j in itertools.combinations(range(len(numbers)), 2):
        rest = numbers[:i] + numbers[i + 1 : j] + numbers[j + 1 :]
        for op in ops:
            result = _results(numbers[i], numbers[j], op)
            if result is not None:
                found |= reachable(tuple(sorted((*rest, result))), ops)
    return frozenset(found)


def solve(numbers: Sequence[int], target: int, ops: str = OPERATIONS) -> list[Step] | None:
    """The first solution in a fixed order: additions before subtractions before products before
    quotients, the running result before numbers not yet used, small numbers before large ones.

    Returns:
        Steps `(a, operation, b, result)`, or `None` if there is no solution.
    """
    ordered = "".join(op for op in OPERATIONS if op in ops)
    return _solve(tuple(sorted(numbers)), target, ordered)


def _solve(numbers: tuple[int, ...], target: int, ops: str) -> list[Step] | None:
    if target not in reachable(tuple(sorted(numbers)), ops):
        return None
    if len(numbers) == 1:
        return []
    for op in ops:
        for i, j in itertools.combinations(range(len(numbers)), 2):
            a, b = numbers[i], numbers[j]
            result = _results(a, b, op)
            if result is None:
                continue
            rest = (result, *numbers[:i], *numbers[i + 1 : j], *numbers[j + 1 :])
            later = _solve(rest, target, ops)
            if later is not None:
                if op in "-/" and b > a:
                    a, b = b, a
                return [(a, op, b, result), *later]
    raise AssertionError(f"{target} is reachable from {numbers}, but no step leads there")


def _question(numbers: Sequence[int], target: int, ops: str) -> str:
    listed = ", ".join(map(str, numbers))
    return (
        f"Using the numbers {listed}, each exactly once, and only the operations {' '.join(ops)}, write an "
        f"expression that equals {target}. Every intermediate result must be a whole number. Show the "
        'steps, then finish with a line "Answer: " followed by the expression.'
    )


def _worked(steps: Sequence[Step]) -> str:
    lines = []
    written: dict[int, list[str]] = {}  # expressions whose value is known, by value
    expression = ""
    for a, op, b, result in steps:
        lines.append(f"{a} {op} {b} = {result}")
        left, right = (written[x].pop() if written.get(x) else str(x) for x in (a, b))
        expression = f"{left} {op} {right}"
        written.setdefault(result, []).append(f"({expression})")
    return "\n".join([*lines, f"Answer: {expression}"])


_STEP = re.compile(r"([0-9]{1,9})([-+*/])([0-9]{1,9})=([0-9]{1,9})")


@dataclass(frozen=True)
class CountdownReward:
    """Right if every step, or the final expression in text style, follows the rules of the problem."""

    style: str = "compact"
    bounded: ClassVar[bool] = True

    def __call__(self, completion: str, problem: Problem) -> Score:
        answer = problem.answer
        if not isinstance(answer, Mapping) or not {"numbers", "target"} <= answer.keys():
            return unscorable("gold", "countdown needs an answer with `numbers` and `target`")
        numbers, target, ops = answer["numbers"], answer["target"], answer.get("ops", OPERATIONS)
        if self.style == "text":
            return _check_expression(completion, numbers, target, ops)
        return _check_steps(completion, numbers, target, ops)


def _check_steps(completion: str, numbers: Sequence[int], target: int, ops: str) -> Score:
    steps = completion.strip().split(",", len(numbers))
    last = steps[-1].rpartition("=")[2][:12] or None
    if len(steps) != len(numbers) - 1:
        return judged(False, last)
    available = list(numbers)
    result = -1
    for step in steps:
        match = _STEP.fullmatch(step)
        if match is None or match[2] not in ops:
            return judged(False, last)
        a, op, b, result = int(match[1]), match[2], int(match[3]), int(match[4])
        for number in (a, b):
            if number not in available:
                return judged(False, last)
            available.remove(number)
        if op == "/":
            right = b != 0 and a == b * result
        else:
            right = result == (a + b if op == "+" else a - b if op == "-" else a * b)
        if not right:
            return judged(False, last)
        available.append(result)
    return judged(result == target, last)


_SIGNS = str.maketrans({"×": "*", "·": "*", "÷": "/", "−": "-", "–": "-", "[": "(", "]": ")"})


def _check_expression(completion: str, numbers: Sequence[int], target: int, ops: str) -> Score:
    text = final_answer(completion)
    text = completion.strip() if text is None else text.partition("\n")[0]
    text = text.translate(_SIGNS).partition("=")[0].strip(" .$*`")[:500]
    value = evaluate(text)
    correct = (
        value is not None
        and value.value == target
        and value.whole
        and Counter(value.numbers) == Counter(numbers)
        and set(value.operations) <= set(ops)
    )
    return judged(correct, text)
