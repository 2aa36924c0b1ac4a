"""GeneralPoints: make 24 out of playing cards, under a rule for what the face cards count."""

from __future__ import annotations

import itertools
import json
import math
import random
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from typing import ClassVar

from interlace.tasks.answers import final_answer
from interlace.tasks.base import PuzzleTask, Reward, nearest, require, unscorable
from interlace.tasks.expressions import evaluate
from interlace.types import Problem, Score, Verdict

RANKS = "A23456789TJQK"
RULES: Mapping[str, tuple[int, int, int]] = {
    "all_10": (10, 10, 10),
    "order_11_12_13": (11, 12, 13),
    "all_5": (5, 5, 5),
    "all_7": (7, 7, 7),
    "all_11": (11, 11, 11),
    "all_12": (12, 12, 12),
    "all_13": (13, 13, 13),
}
"""What J, Q and K count, by rule name."""

CORRECT, PARTIAL, WRONG, NUMBERS, ILLEGAL = 5.0, 1.0, -1.0, -2.0, -3.0
LIST_AT_MOST = 5000


@dataclass(frozen=True)
class GeneralPoints(PuzzleTask):
    """Cards, a target, and a formula that uses every card once; the rule says what J, Q, K count.

    Compact style: prompt `J=10 Q=10 K=10|K 4 T A = 24:` (T is ten), demonstration
    `10 4 10 1|10+4+10*1`: the numbers of the cards, then the formula. Text style: an English question
    answered in JSON. The split `ood_rule` has the other rule and at least one face card; its card sets
    come from those kept out of training.

    Attributes:
        cards: How many cards.
        target: The number to reach.
        rule: A name in `RULES`.
        ood_rule: The rule of the split `ood_rule`.
        ranks: The ranks that are dealt, of `A23456789TJQK`.
        faces: At least this many face cards.
        reward_kind: `graded` (5, 1, -1, -2, -3; faults add up) or `binary` (1, 0).
        style: `compact` or `text`.

    Reference:
        [042] arXiv 2501.17161.
    """

    name = "general_points"
    summary = "make 24 out of four cards under a rule for face cards (graded verifier)"

    cards: int = 4
    target: int = 24
    rule: str = "all_10"
    ood_rule: str = "order_11_12_13"
    ranks: str = RANKS
    faces: int = 0
    reward_kind: str = "graded"
    style: str = "compact"

    def __post_init__(self) -> None:
        require(2 <= self.cards <= 6, self.name, "cards", self.cards, "2 to 6")
        require(1 <= self.target <= 999, self.name, "target", self.target, "1 to 999")
        for knob in ("rule", "ood_rule"):
            rule = getattr(self, knob)
            require(rule in RULES, self.name, knob, rule, f"{', '.join(RULES)}{nearest(rule, RULES)}")
        legal = bool(self.ranks) and set(self.ranks) <= set(RANKS) and len(set(self.ranks)) == len(self.ranks)
        require(legal, self.name, "ranks", self.ranks, f"some of {RANKS}, each once")
        possible = self.cards if set(self.ranks) & set("JQK") else 0
        require(0 <= self.faces <= possible, self.name, "faces", self.faces, f"0 to {possible}")
        kinds = ("graded", "binary")
        require(self.reward_kind in kinds, self.name, "reward_kind", self.reward_kind, ", ".join(kinds))
        require(self.style in ("compact", "text"), self.name, "style", self.style, "compact, text")

    @property
    def alphabet(self) -> str | None:
        return None if self.style == "text" else "".join(sorted({*RANKS, *"0123456789 =:|+-*/()"}))

    @property
    def reward(self) -> Reward:
        return GeneralPointsReward(self.style, self.reward_kind)

    def ood(self) -> Mapping[str, PuzzleTask]:
        variants: dict[str, PuzzleTask] = {}
        if set(self.ranks) & set("JQK"):
            variants["ood_rule"] = replace(self, rule=self.ood_rule, faces=max(1, self.faces))
        if self.cards < 6:
            variants["ood_cards"] = replace(self, cards=self.cards + 1)
        return variants

    def numbers(self, cards: Sequence[str]) -> tuple[int, ...]:
        """What the cards count under the rule, in order."""
        faces = dict(zip("JQK", RULES[self.rule], strict=True))
        return tuple(faces[c] if c in faces else RANKS.index(c) + 1 for c in cards)

    def space(self) -> Sequence[str] | None:
        hands = math.comb(len(self.ranks) + self.cards - 1, self.cards)
        if self.cards > 4 or hands > LIST_AT_MOST:
            return None
        return _space(replace(self, style="compact", reward_kind="graded", ood_rule="all_10"))

    def draw(self, rng: random.Random) -> str | None:
        hand = "".join(sorted((rng.choice(self.ranks) for _ in range(self.cards)), key=RANKS.index))
        return hand if self._playable(hand) else None

    def _playable(self, hand: str) -> bool:
        faces = sum(c in "JQK" for c in hand)
        numbers = tuple(sorted(self.numbers(hand)))
        return faces >= self.faces and solvable(numbers, Fraction(self.target))

    def write(self, key: str, rng: random.Random) -> Problem:
        shown = list(key)
        rng.shuffle(shown)
        numbers = self.numbers(shown)
        formula = solve(numbers, self.target)
        values = " ".join(f"{f}={v}" for f, v in zip("JQK", RULES[self.rule], strict=True))
        if self.style == "text":
            cards = ["10" if c == "T" else c for c in shown]
            prompt = _question(cards, RULES[self.rule], self.target)
            demonstration = json.dumps({"cards": cards, "number": numbers, "formula": formula})
        else:
            prompt = f"{values}|{' '.join(shown)} = {self.target}:"
            demonstration = f"{' '.join(map(str, numbers))}|{formula}"
        return Problem(
            id=f"{self.name}:{self.rule}:{''.join(shown)}={self.target}",
            prompt=prompt,
            answer={"numbers": list(numbers), "target": self.target},
            demonstration=demonstration,
            task=self.name,
            meta={"key": f"{key}={self.target}", "rule": self.rule},
        )


@lru_cache(maxsize=8)
def _space(task: GeneralPoints) -> tuple[str, ...]:
    ranks = sorted(task.ranks, key=RANKS.index)
    hands = ("".join(h) for h in itertools.combinations_with_replacement(ranks, task.cards))
    return tuple(hand for hand in hands if task._playable(hand))


@lru_cache(maxsize=50_000)
def _values(numbers: tuple[int, ...]) -> frozenset[Fraction]:
    """Every value that uses all of `numbers` (sorted) exactly once."""
    if len(numbers) == 1:
        return frozenset({Fraction(numbers[0])})
    found: set[Fraction] = set()
    for left, right in _partitions(numbers):
        for a, b in itertools.product(_values(left), _values(right)):
            found |= {a + b, a - b, b - a, a * b}
            if b:
                found.add(a / b)
            if a:
                found.add(b / a)
    return frozenset(found)


@lru_cache(maxsize=500_000)
def solvable(numbers: tuple[int, ...], target: Fraction) -> bool:
    """Whether `numbers` (sorted) can make `target`; works backwards from the target."""
    if len(numbers) <= 3:
        return target in _values(numbers)
    for left, right in _partitions(numbers):
        for a in _values(left):
            if a == target == 0:
                return True
            needed = {target - a, a - target, target + a}
            if a:
                needed |= {target / a, target * a}
            if a and target:
                needed.add(a / target)
            if any(solvable(right, b) for b in needed):
                return True
    return False


@lru_cache(maxsize=50_000)
def _partitions(numbers: tuple[int, ...]) -> tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]:
    """Ways to cut sorted numbers in two, the smaller part first."""
    cuts: dict[tuple[tuple[int, ...], tuple[int, ...]], None] = {}
    for size in range(1, len(numbers) // 2 + 1):
        for chosen in itertools.combinations(range(len(numbers)), size):
            left = tuple(numbers[i] for i in chosen)
            cuts[left, tuple(n for i, n in enumerate(numbers) if i not in chosen)] = None
    return tuple(cuts)


def solve(numbers: Sequence[int], target: int) -> str | None:
    """A formula of `numbers` with value `target`, without spaces, or `None`.

    The first one in a fixed order (sums before differences before products before quotients), of those
    with whole intermediate results if there are any; fractions are exact.
    """
    start = tuple(sorted(numbers))
    if not solvable(start, Fraction(target)):
        return None
    return _solve(start, target, whole=True) or _solve(start, target, whole=False)


@lru_cache(maxsize=20_000)
def _solve(numbers: tuple[int, ...], target: int, whole: bool) -> str | None:
    terms = tuple((Fraction(n), str(n), 3) for n in numbers)
    return _search(terms, Fraction(target), whole, set())


Term = tuple[Fraction, str, int]
"""Value, formula, and how tightly it binds: 1 a sum, 2 a product, 3 a number."""


def _search(terms: tuple[Term, ...], target: Fraction, whole: bool, failed: set) -> str | None:
    state = tuple(sorted(t[0] for t in terms))
    if state in failed:
        return None
    if len(terms) == 1:
        return terms[0][1] if terms[0][0] == target else None
    for op in "+-*/":
        for i, j in itertools.combinations(range(len(terms)), 2):
            rest = (*terms[:i], *terms[i + 1 : j], *terms[j + 1 :])
            for a, b in ((terms[i], terms[j]), (terms[j], terms[i]))[: 1 if op in "+*" else 2]:
                joined = _join(a, op, b)
                if joined is None or (whole and (joined[0].denominator != 1 or joined[0] < 0)):
                    continue
                found = _search((joined, *rest), target, whole, failed)
                if found is not None:
                    return found
    failed.add(state)
    return None


def _join(a: Term, op: str, b: Term) -> Term | None:
    if op == "/" and b[0] == 0:
        return None
    rank = 1 if op in "+-" else 2
    left = a[1] if a[2] >= rank else f"({a[1]})"
    # a-(b-c) and a/(b/c) need their parentheses; a+(b-c) and a*(b/c) do not.
    right = b[1] if b[2] > rank or (b[2] == rank and op in "+*") else f"({b[1]})"
    x, y = a[0], b[0]
    value = x + y if op == "+" else x - y if op == "-" else x * y if op == "*" else x / y
    return value, f"{left}{op}{right}", rank


def grade(formula: str, numbers: Sequence[int], target: int) -> tuple[float, str]:
    """The graded verifier of [042]: a reward and what to tell the player.

    An illegal character gives -3 and stops. Then penalties add up: -3 per grammar fault, -2 for foreign
    or over-used numbers, -2 for unused ones. Without any, 5 if the value is the target, 1 if it has no
    value but is the beginning of a solution, else -1.
    """
    tokens = re.findall(r"[0-9]+|[-+*/()]", formula)
    if "".join(tokens) != formula:
        return ILLEGAL, "illegal characters"
    faults = [f"misplaced {token!r}" for token in _misplaced(tokens)]
    reward = ILLEGAL * len(faults)
    # Longer digit strings are foreign without being read: int() of a very long one is refused.
    used = Counter(int(t) if len(t) <= 9 else -1 for t in tokens if t[0] in "0123456789")
    given = Counter(numbers)
    if used - given:
        reward += NUMBERS
        faults.append("numbers that are not given, or used too often")
    if given - used:
        reward += NUMBERS
        faults.append("numbers left unused")
    if faults:
        return reward, ", ".join(faults)
    value = evaluate(formula)
    if value is not None:
        return (CORRECT, "correct") if value.value == target else (WRONG, f"the value is {value.value}")
    # With every number used, only closing parentheses can be missing from a solution.
    missing = formula.count("(") - formula.count(")")
    closed = evaluate(formula + ")" * missing) if missing > 0 else None
    if closed is not None and closed.value == target:
        return PARTIAL, "the beginning of a solution"
    return WRONG, "no solution"


def _misplaced(tokens: Sequence[str]) -> list[str]:
    faults = []
    after_operand, depth = False, 0
    for token in tokens:
        if token == ")":
            legal = after_operand and depth > 0
            depth -= legal
            after_operand = True
        elif token in "+-*/":
            legal, after_operand = after_operand, False
        else:
            legal = not after_operand
            depth += token == "(" and legal
            after_operand = token != "("
        if not legal:
            faults.append(token)
    return faults


def _question(cards: Sequence[str], values: tuple[int, int, int], target: int) -> str:
    j, q, k = values
    return (
        f"You have these {len(cards)} cards: {', '.join(cards)}. 'A' counts as 1, 'J', 'Q' and 'K' count as "
        f"{j}, {q} and {k}. Find a formula with the value {target} that uses the number of every card "
        "exactly once, with +, -, *, / and parentheses, without spaces. Answer in JSON: "
        '{"cards": [the cards], "number": [their numbers], "formula": "the formula"}'
    )


_FORMULA = re.compile(r'"formula"\s{0,5}:\s{0,5}"([^"]*)"')


@dataclass(frozen=True)
class GeneralPointsReward:
    """The graded verifier; `correctness` is 1 only for the full reward of 5."""

    style: str = "compact"
    kind: str = "graded"
    bounded: ClassVar[bool] = True

    def __call__(self, completion: str, problem: Problem) -> Score:
        answer = problem.answer
        if not isinstance(answer, Mapping) or not {"numbers", "target"} <= answer.keys():
            return unscorable("gold", "general_points needs an answer with `numbers` and `target`")
        formula = self.formula(completion)
        grade_, _ = grade(formula, answer["numbers"], answer["target"])
        correct = float(grade_ == CORRECT)
        return Score(
            grade_ if self.kind == "graded" else correct,
            Verdict.PASS if correct else Verdict.FAIL,
            {"correctness": correct, "grade": grade_},
            "",
            formula[:200],
        )

    def formula(self, completion: str) -> str:
        """The formula in a completion, without a `= value` at its end; a text that gives none is
        returned as it is and graded as illegal."""
        if self.style == "compact":
            text = completion.rpartition("|")[2]
        else:
            written = _FORMULA.findall(completion)
            text = written[-1] if written else final_answer(completion) or "none"
        return text.partition("=")[0].strip()
