"""Arithmetic: chains of whole numbers, worked one operation at a time."""

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

LIST_AT_MOST = 100_000

Key = tuple[tuple[int, tuple[int, ...]], ...]
"""Sorted terms of a sum: sign, sorted factors."""


@dataclass(frozen=True)
class Arithmetic(PuzzleTask):
    """Compute a chain such as `12+45-7`, products first, then from left to right.

    Compact style: prompt `12+45-7:`, demonstration `12+45=57,57-7=50`. Text style: an English question,
    steps on lines of their own and a last line `Answer: 50`. Chains that differ only by the order of
    terms or factors have one key.

    Attributes:
        operands: How many numbers.
        digits: Digits of each number.
        ops: Operations, of `+-*`.
        style: `compact` or `text`.
    """

    name = "arithmetic"
    summary = "compute a chain of whole numbers step by step"

    operands: int = 3
    digits: int = 2
    ops: str = "+-"
    style: str = "compact"

    def __post_init__(self) -> None:
        require(2 <= self.operands <= 12, self.name, "operands", self.operands, "2 to 12")
        require(1 <= self.digits <= 6, self.name, "digits", self.digits, "1 to 6")
        legal = bool(self.ops) and set(self.ops) <= set("+-*") and len(set(self.ops)) == len(self.ops)
        require(legal, self.name, "ops", self.ops, "some of +-*, each once")
        require(self.style in ("compact", "text"), self.name, "style", self.style, "compact, text")

    @property
    def alphabet(self) -> str | None:
        # A difference may be negative, so `-` belongs to the answers wherever it is an operation.
        return None if self.style == "text" else "".join(sorted({*"0123456789=,:", *self.ops}))

    @property
    def reward(self) -> Reward:
        return ArithmeticReward(self.style)

    def ood(self) -> Mapping[str, PuzzleTask]:
        variants: dict[str, PuzzleTask] = {}
        if self.operands < 12:
            variants["ood_longer"] = replace(self, operands=self.operands + 1)
        if self.digits < 6:
            variants["ood_digits"] = replace(self, digits=self.digits + 1)
        return variants

    @property
    def _numbers(self) -> range:
        return range(10 ** (self.digits - 1), 10**self.digits)

    def space(self) -> Sequence[Key] | None:
        chains = len(self._numbers) ** self.operands * len(self.ops) ** (self.operands - 1)
        return _space(replace(self, style="compact")) if chains <= LIST_AT_MOST else None

    def draw(self, rng: random.Random) -> Key:
        numbers = [rng.choice(self._numbers) for _ in range(self.operands)]
        return _key(numbers, [rng.choice(self.ops) for _ in range(self.operands - 1)])

    def write(self, key: Key, rng: random.Random) -> Problem:
        terms = [(sign, rng.sample(factors, len(factors))) for sign, factors in key]
        rng.shuffle(terms)
        first = next(i for i, (sign, _) in enumerate(terms) if sign > 0)
        terms.insert(0, terms.pop(first))
        numbers, ops = [], []
        for sign, factors in terms:
            ops += ["+" if sign > 0 else "-", *"*" * (len(factors) - 1)]
            numbers += factors
        chain = str(numbers[0]) + "".join(f"{op}{n}" for op, n in zip(ops[1:], numbers[1:], strict=True))
        steps = _steps(numbers, ops[1:])
        result = steps[-1][3]
        if self.style == "text":
            prompt = (
                f"Compute {_spaced(chain)}. Show the steps, then finish with a line "
                '"Answer: " followed by the result.'
            )
            lines = [f"{a} {op} {b} = {c}" for a, op, b, c in steps]
            demonstration = "\n".join([*lines, f"Answer: {result}"])
        else:
            prompt = f"{chain}:"
            demonstration = ",".join(f"{a}{op}{b}={c}" for a, op, b, c in steps)
        return Problem(
            id=f"{self.name}:{chain}",
            prompt=prompt,
            answer=result,
            demonstration=demonstration,
            task=self.name,
            meta={"key": _canonical_text(key)},
        )


def _key(numbers: Sequence[int], ops: Sequence[str]) -> Key:
    terms: list[tuple[int, list[int]]] = [(1, [numbers[0]])]
    for op, number in zip(ops, numbers[1:], strict=True):
        if op == "*":
            terms[-1][1].append(number)
        else:
            terms.append((1 if op == "+" else -1, [number]))
    return tuple(sorted((sign, tuple(sorted(factors))) for sign, factors in terms))


@lru_cache(maxsize=8)
def _space(task: Arithmetic) -> tuple[Key, ...]:
    keys = {
        _key(numbers, ops)
        for numbers in itertools.product(task._numbers, repeat=task.operands)
        for ops in itertools.product(task.ops, repeat=task.operands - 1)
    }
    return tuple(sorted(keys))


def _steps(numbers: Sequence[int], ops: Sequence[str]) -> list[tuple[int, str, int, int]]:
    values, waiting = list(numbers), list(ops)
    steps = []
    while waiting:
        i = waiting.index("*") if "*" in waiting else 0
        a, op, b = values[i], waiting.pop(i), values.pop(i + 1)
        values[i] = a * b if op == "*" else a + b if op == "+" else a - b
        steps.append((a, op, b, values[i]))
    return steps


def _canonical_text(key: Key) -> str:
    return "".join(f"{'+' if sign > 0 else '-'}{'*'.join(map(str, factors))}" for sign, factors in key)


def _spaced(chain: str) -> str:
    return re.sub(r"([-+*])", r" \1 ", chain)


_INTEGER = re.compile(r"-?[0-9]{1,18}")


@dataclass(frozen=True)
class ArithmeticReward:
    """Right if the last number is the result."""

    style: str = "compact"
    bounded: ClassVar[bool] = True

    def __call__(self, completion: str, problem: Problem) -> Score:
        if not isinstance(problem.answer, int):
            return unscorable("gold", "arithmetic needs a whole number as answer")
        if self.style == "text":
            said = final_answer(completion)
            said = completion.strip() if said is None else said.partition("\n")[0]
            said = said.strip(" .$*`").replace(",", "")
        else:
            said = completion.strip()
        last = said.rpartition("=")[2].strip()[:32]
        return judged(_INTEGER.fullmatch(last) is not None and int(last) == problem.answer, last)
