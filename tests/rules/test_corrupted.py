"""Corrupted prompts and corrupted solutions."""

import random
from types import SimpleNamespace

from interlace.rules.corrupted import (
    CorruptedPrompts,
    corrupted_number,
    corruptions,
    flipped_operator,
    mixed_prompt,
    near_miss,
    swapped_words,
)
from interlace.types import Problem, Source, Trajectory

BOS, EOS = 90, 91


def row(name: str, prompt: list[int], answer: list[int], place: int = 0) -> Trajectory:
    source = [Source.PROMPT] * len(prompt) + [Source.DEMO] * len(answer)
    return Trajectory(place, [*prompt, *answer], source, f"demonstration#{place}", Problem(name, ""))


def bench(step: int = 0):
    policy = SimpleNamespace(tokenizer=SimpleNamespace(all_special_ids=[BOS, EOS]))
    return SimpleNamespace(seed=0, step=step, policies={"policy": policy})


A = row("a", [BOS, *range(10)], [50, 51, EOS])
B = row("b", [BOS, *range(20, 30)], [60, EOS], 1)


def test_a_share_of_the_prompt_is_replaced_from_the_same_place_of_another():
    """lambda = 0.7 of ten tokens: three replaced, each by its neighbour of the other prompt."""
    ids, kept = mixed_prompt(A, B, 0.7, frozenset({BOS, EOS}), random.Random(0))
    changed = [t for t in range(len(ids)) if ids[t] != A.ids[t]]
    assert kept == 0.7 and len(changed) == 3
    assert all(1 <= t <= 10 and ids[t] == B.ids[t] for t in changed)


def test_special_tokens_and_the_answer_stay():
    ids, kept = mixed_prompt(A, B, 0.0, frozenset({BOS, EOS}), random.Random(0))
    assert ids == [BOS, *range(20, 30), 50, 51, EOS] and kept == 0
    assert mixed_prompt(A, B, 1.0, frozenset({BOS, EOS}), random.Random(0)) == (A.ids, 1.0)


def test_each_demonstration_gets_a_twin_with_the_same_answer():
    rows = CorruptedPrompts().score_rows(bench(), [A, B])
    assert [r.extra["role"] for r in rows] == ["chosen", "rejected"] * 2
    assert [r.group for r in rows] == [A.group, A.group, B.group, B.group]
    assert [r.row for r in rows] == [0, 1, 2, 3]
    for clean, twin in ((rows[0], rows[1]), (rows[2], rows[3])):
        assert twin.ids[11:] == clean.ids[11:] and twin.source == clean.source
        left = sum(x == y for x, y in zip(clean.ids[1:11], twin.ids[1:11]))
        assert twin.extra["mix_lambda"] == left / 10 and "mix_lambda" not in clean.extra


def test_shares_are_uniform_and_drawn_anew():
    found = []
    for step in range(400):
        found += [r.extra["mix_lambda"] for r in CorruptedPrompts().score_rows(bench(step), [A, B])[1::2]]
    assert len(set(found)) == 11
    assert abs(sum(found) / len(found) - 0.5) < 5 * (1 / 12 / len(found)) ** 0.5
    again = CorruptedPrompts().score_rows(bench(3), [A, B])
    assert again == CorruptedPrompts().score_rows(bench(3), [A, B])


def test_a_row_without_partner_stays_alone():
    rows = CorruptedPrompts().score_rows(bench(), [A, row("a", A.ids[:11], [70], 1)])
    assert [r.extra["role"] for r in rows] == ["chosen", "chosen"]


def test_corruptions_of_a_chain():
    rng = random.Random(0)
    chain = "4+7=11,11+9=20"
    for _ in range(50):
        flipped = flipped_operator(chain, rng, "+-")
        assert flipped in ("4-7=11,11+9=20", "4+7=11,11-9=20")
        missed = near_miss(chain, rng, "")
        assert missed.startswith("4+7=11,11+9=") and 1 <= abs(int(missed.rpartition("=")[2]) - 20) <= 3
        assert corrupted_number(chain, rng, "") != chain
    assert flipped_operator("no numbers - here", rng, "+-") is None
    assert flipped_operator("4+7", rng, "+") is None
    assert near_miss("none", rng, "") is None


def test_numbers_never_become_negative():
    rng = random.Random(1)
    assert {near_miss("0", rng, "") for _ in range(60)} == {"1", "2", "3"}


def test_words_change_places_where_there_is_nothing_else():
    rng = random.Random(0)
    assert corruptions("a  b", 2, rng) == ["b  a"]
    assert swapped_words("same same", rng, "") is None
    assert corruptions("word", 2, rng) == []


def test_at_most_n_distinct_corruptions():
    for seed in range(20):
        found = corruptions("4+7=11,11+9=20", 2, random.Random(seed), "+-")
        assert len(found) == len(set(found)) == 2 and "4+7=11,11+9=20" not in found
