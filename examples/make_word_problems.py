"""Write grade-school word problems with worked solutions: the file `word_problems.jsonl` beside this one.

    python examples/make_word_problems.py [rows] [seed]

Every row has `question`, `answer` (a number as text) and `demonstration`, which ends in `#### answer`. No
two rows ask the same question.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Callable
from pathlib import Path

NAMES = (
    "Ada",
    "Ben",
    "Chloe",
    "Dev",
    "Ella",
    "Farid",
    "Grace",
    "Hugo",
    "Ines",
    "Jun",
    "Kofi",
    "Lena",
    "Mateo",
    "Nora",
)
THINGS = ("apples", "books", "marbles", "stickers", "coins", "pencils", "shells", "cards", "stamps", "beads")
PLACES = ("shop", "market", "school fair", "library", "bakery", "garden")

Made = tuple[str, str, int]


def gains_and_losses(r: random.Random) -> Made:
    name, thing = r.choice(NAMES), r.choice(THINGS)
    a, b = r.randint(5, 40), r.randint(2, 30)
    c = r.randint(1, a + b - 1)
    q = f"{name} has {a} {thing}, finds {b} more and gives {c} away. How many {thing} does {name} have now?"
    return q, f"{a} + {b} = {a + b}. {a + b} - {c} = {a + b - c}.", a + b - c


def price(r: random.Random) -> Made:
    name, thing, place = r.choice(NAMES), r.choice(THINGS), r.choice(PLACES)
    n, p, paid_extra = r.randint(2, 9), r.randint(2, 12), r.randint(1, 20)
    paid = n * p + paid_extra
    q = (
        f"At the {place}, {name} buys {n} {thing} for {p} dollars each and pays with {paid} dollars. "
        "How much change is there?"
    )
    return q, f"{n} * {p} = {n * p}. {paid} - {n * p} = {paid_extra}.", paid_extra


def sharing(r: random.Random) -> Made:
    thing = r.choice(THINGS)
    boxes, each, friends = r.randint(2, 8), r.randint(3, 12), r.choice((2, 3, 4, 6))
    total = boxes * each * friends
    q = (
        f"There are {boxes * friends} boxes with {each} {thing} each. {friends} friends share them equally. "
        f"How many {thing} does each friend get?"
    )
    return (
        q,
        f"{boxes * friends} * {each} = {total}. {total} / {friends} = {total // friends}.",
        total // friends,
    )


def twice_as_many(r: random.Random) -> Made:
    first, second = r.sample(NAMES, 2)
    thing, a, k = r.choice(THINGS), r.randint(3, 25), r.randint(2, 5)
    q = f"{first} has {a} {thing}. {second} has {k} times as many. How many {thing} do they have together?"
    return q, f"{k} * {a} = {k * a}. {a} + {k * a} = {a + k * a}.", a + k * a


def weeks(r: random.Random) -> Made:
    name, thing = r.choice(NAMES), r.choice(THINGS)
    daily, n, lost = r.randint(2, 9), r.randint(2, 5), r.randint(1, 10)
    total = daily * 7 * n
    q = f"{name} finds {daily} {thing} a day for {n} weeks and then loses {lost}. How many {thing} are left?"
    return (
        q,
        f"{n} * 7 = {7 * n}. {7 * n} * {daily} = {total}. {total} - {lost} = {total - lost}.",
        total - lost,
    )


KINDS: tuple[Callable[[random.Random], Made], ...] = (gains_and_losses, price, sharing, twice_as_many, weeks)


def problems(rows: int, seed: int) -> list[dict[str, str]]:
    """That many distinct problems, the kinds in turn."""
    rng = random.Random(seed)
    found: dict[str, dict[str, str]] = {}
    while len(found) < rows:
        kind = KINDS[len(found) % len(KINDS)]
        question, steps, answer = kind(rng)
        row = {"question": question, "answer": str(answer), "demonstration": f"{steps} #### {answer}"}
        found.setdefault(question, {**row, "kind": kind.__name__})
    return list(found.values())


def main(arguments: list[str]) -> None:
    rows, seed = map(int, (arguments + ["600", "0"][len(arguments) :])[:2])
    path = Path(__file__).with_name("word_problems.jsonl")
    path.write_text("".join(json.dumps(row) + "\n" for row in problems(rows, seed)), encoding="utf-8")
    print(f"{rows} problems in {path}")


if __name__ == "__main__":
    main(sys.argv[1:])
