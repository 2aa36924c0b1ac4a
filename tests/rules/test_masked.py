"""Masked texts: what is masked, what the policy reads, and what is taught."""

import random

from interlace.rules.masked import MaskedFills, equal_neighbours, masked_positions
from interlace.rules.samplers import MaskedText
from interlace.types import Problem, Source
from tests.rules.collecting import EOS, MASK, Recorder, problems


def test_positions_are_masked_independently_and_special_tokens_never():
    rng = random.Random(0)
    ids = [1, 2, *([5] * 1000), EOS]
    found = masked_positions(ids, 2, frozenset({EOS}), 0.4, rng)
    assert abs(len(found) - 400) < 5 * (1000 * 0.4 * 0.6) ** 0.5
    assert min(found) >= 2 and max(found) < 1002
    assert masked_positions(ids, 2, frozenset({EOS}), 1.0, rng) == tuple(range(2, 1002))
    assert masked_positions(ids, 2, frozenset({EOS}), 0.0, rng) == ()


def test_the_policy_reads_masks_and_the_text_stays():
    text = MaskedText(Problem("p", ""), "g", (1, 2, 3, 4, 5), 2, (2, 4), MASK, 3)
    assert text.inputs == (1, 2, MASK, 4, MASK)


def test_one_request_per_text_whatever_the_number_of_fills():
    recorder = Recorder()
    rows = recorder.run(MaskedFills(0.4, 64), problems(3))
    (asked,) = recorder.asked
    assert [(text.n, text.ids) for text in asked] == [(64, (1, 2, *range(11, 20), EOS))] * 3
    fills = [row for row in rows if row.sampling is not None]
    assert len(fills) == 3 * 64
    assert {row.group for row in fills} == {text.group for text in asked}


def test_the_demonstration_is_taught_whole_under_a_mask_of_its_own():
    recorder = Recorder()
    rows = recorder.run(MaskedFills(0.4, 2), problems(8))
    taught = [row for row in rows if row.sampling is None]
    masks = [[t for t, i in enumerate(row.inputs) if i == MASK] for row in taught]
    assert all(set(row.source[2:]) == {Source.DEMO} for row in taught)
    assert all(row.ids == [1, 2, *range(11, 20), EOS] for row in taught)
    filled = {text.group: list(text.masked) for text in recorder.asked[0]}
    assert [filled.get(row.group) for row in taught] != masks
    assert any(masks) and all(2 <= t < 11 for mask in masks for t in mask)


def test_mask_rate_zero_only_teaches():
    recorder = Recorder()
    rows = recorder.run(MaskedFills(0.0, 4), problems(2))
    assert recorder.asked == [] and [row.sampling for row in rows] == [None, None]
    assert all(list(row.inputs) == row.ids for row in rows)


def test_a_problem_without_demonstration_has_no_static_text():
    assert Recorder().run(MaskedFills(0.4, 4), problems(2, None)) == []


def test_share_of_equal_neighbours():
    """Positions 2, 3 and 5 are masked: one neighbouring pair, equal in one of two fills."""
    text = MaskedText(Problem("p", ""), "g", (1, 2, 3, 4, 5, 6), 2, (2, 3, 5), MASK, 2)
    recorder = Recorder()
    fills = recorder.fulfil(text)
    fills[0].ids[2:4] = [7, 7]
    assert equal_neighbours([text], fills) == 0.5
