"""Samplers: what is asked for, which rows come back, and the numbers of the papers' schedules."""

from collections import Counter
from dataclasses import replace

import pytest

from interlace.rules.samplers import (
    FewShot,
    Groups,
    HintedPrompt,
    MicroGroups,
    PrefixedRollout,
    WithDemonstration,
    rewritten,
)
from interlace.types import Problem, Source
from tests.rules.collecting import EOS, Recorder, problems


def shape(rows):
    """(rollouts, demonstrations) of each group."""
    found: dict = {}
    for row in rows:
        counts = found.setdefault(row.group, [0, 0])
        counts[row.sampling is None] += 1
    return sorted(map(tuple, found.values()))


# -- demonstrations in the group ---------------------------------------------------------


@pytest.mark.parametrize("replaces, rollouts", [(1, 7), (0, 8)])
def test_a_demonstration_replaces_one_rollout_or_stands_beside_them(replaces, rollouts):
    recorder = Recorder(group_size=8)
    rows = recorder.run(WithDemonstration(replaces), problems(2))
    assert shape(rows) == [(rollouts, 1)] * 2
    demos = [row for row in rows if row.sampling is None]
    assert all(row.ids[-1] == EOS and set(row.source[2:]) == {Source.DEMO} for row in demos)
    assert len({row.row for row in rows}) == len(rows)


def test_a_demonstration_is_scored_like_a_rollout_and_may_be_wrong():
    recorder = Recorder(reward=lambda ids: 1.0 if 51 in ids else 0.0)
    rows = recorder.run(WithDemonstration(), problems(1))
    assert [row.reward for row in rows] == [0.0, 1.0, 0.0, 0.0, 0.0]
    assert recorder.collector.notes["reward/demonstration"] == 0.0


def test_without_a_demonstration_the_group_is_all_rollouts():
    mixed = [*problems(1), Problem("bare", "")]
    assert shape(Recorder().run(WithDemonstration(1), mixed)) == [(3, 1), (4, 0)]


def test_one_rollout_always_stays():
    assert shape(Recorder(group_size=1).run(WithDemonstration(1), problems(1))) == [(1, 1)]


def test_a_label_stands_in_the_place_of_the_demonstration():
    labelled = Problem("p", "", answer=7, demonstration="11 12", meta={"behaviour_logp": [0.0] * 3})
    rows = Recorder().run(WithDemonstration(label="5 {answer} 5"), [labelled])
    assert rows[-1].response_ids == [5, 7, 5, EOS]
    worked = replace(labelled, answer={"numbers": [1]})
    assert Recorder().run(WithDemonstration(label="{answer}"), [worked])[-1].response_ids == [11, 12, EOS]


def test_another_text_has_no_log_probabilities_of_its_author():
    given = Problem("p", "", demonstration="a", meta={"behaviour_logp": [-1.0], "kept": 1})
    assert rewritten(given, "b").meta == {"kept": 1}


def test_a_group_size_of_its_own():
    assert shape(Recorder(group_size=4).run(Groups(6), problems(1))) == [(6, 0)]


# -- a few shots, every step ------------------------------------------------------------


def test_every_step_sees_the_same_few_demonstrations_beside_fresh_prompts():
    pool = problems(5)
    fresh = [Problem("a", ""), Problem("b", "")]
    seen = []
    for step in (0, 7):
        recorder = Recorder(step=step, demonstrated=pool)
        rows = recorder.run(FewShot(3), fresh)
        assert shape(rows) == [(4, 0)] * 2 + [(4, 1)] * 3
        seen.append(sorted(row.problem.id for row in rows if row.sampling is None))
    assert seen == [["p0", "p1", "p2"]] * 2


def test_as_many_shots_as_fresh_prompts_by_default_and_no_more_than_there_are():
    fresh = [Problem("a", ""), Problem("b", "")]
    assert shape(Recorder(demonstrated=problems(5)).run(FewShot(), fresh)) == [(4, 0)] * 2 + [(4, 1)] * 2
    assert shape(Recorder(demonstrated=problems(1)).run(FewShot(9), fresh)) == [(4, 0)] * 2 + [(4, 1)]


# -- a demonstration prefix (Prefix-RFT) ------------------------------------------------


def test_smallest_share_falls_by_half_a_cosine():
    """The sheet: 0.95 -> 0.05 over 500 steps is 0.95, 0.8182, 0.5, 0.1818, 0.05 at 0/125/250/375/500."""
    sampler = PrefixedRollout(0.95, 0.05, 500)
    found = [sampler.low(step) for step in (0, 125, 250, 375, 500, 900)]
    assert found == pytest.approx([0.95, 0.8182, 0.5, 0.1818, 0.05, 0.05], abs=5e-5)


def test_one_rollout_of_the_group_starts_from_the_demonstration():
    """Share 0.5 of ten tokens (end token included) is five; both requests are one group of four rows."""
    recorder = Recorder(group_size=4)
    rows = recorder.run(PrefixedRollout(0.5, 0.5, 1), problems(1))
    assert [(r.n, r.prefix_ids) for r in recorder.asked[0]] == [(3, ()), (1, (11, 12, 13, 14, 15))]
    assert shape(rows) == [(4, 0)]
    assert recorder.asked[0][1].sampling.max_tokens == 15


def test_a_prefix_never_holds_the_last_token_nor_fills_the_limit():
    whole = Recorder()
    whole.run(PrefixedRollout(1.0, 1.0, 1), problems(1))
    assert whole.asked[0][1].prefix_ids == tuple(range(11, 20))
    short = Recorder(max_tokens=3)
    short.run(PrefixedRollout(1.0, 1.0, 1), problems(1))
    assert short.asked[0][1].prefix_ids == (11, 12)
    assert short.asked[0][1].sampling.max_tokens == 1


def test_without_prefix_it_is_an_ordinary_group():
    for sampler, some in (
        (PrefixedRollout(0.0, 0.0, 1), problems(1)),
        (PrefixedRollout(1, 1, 1), problems(1, None)),
    ):
        recorder = Recorder()
        recorder.run(sampler, some)
        assert [(r.n, r.prefix_ids) for r in recorder.asked[0]] == [(4, ())]


def test_prefix_lengths_are_uniform_between_low_and_high():
    """At the end of the window the share is uniform in (0.05, 0.95): floors of ten tokens 0..9."""
    recorder = Recorder(step=1)
    recorder.run(PrefixedRollout(0.95, 0.05, 1), problems(4000))
    lengths = Counter(len(r.prefix_ids) for r in recorder.asked[0] if r.prefix_ids)
    lengths[0] = 4000 - lengths.total()
    for length in range(10):
        expected = (0.05 if length in (0, 9) else 0.1) / 0.9 * 4000
        assert abs(lengths[length] - expected) < 5 * expected**0.5


def test_draws_are_a_function_of_seed_and_step():
    def drawn(seed, step):
        recorder = Recorder(seed=seed, step=step)
        recorder.run(PrefixedRollout(0.95, 0.05, 1), problems(20))
        return [r.prefix_ids for r in recorder.asked[0]]

    assert drawn(0, 5) == drawn(0, 5)
    assert drawn(0, 5) != drawn(0, 6) and drawn(0, 5) != drawn(1, 5)


# -- a hint in the prompt (UFT) ---------------------------------------------------------


def test_mean_share_of_the_hint_falls_by_half_a_cosine():
    """The sheet: 0.95, 0.8182, 0.5, 0.1818, 0.05 at 0/75/150/225/300, and no hint afterwards."""
    sampler = HintedPrompt(300, 0.05, 0.95, 5)
    found = [sampler.share(step) for step in (0, 75, 150, 225, 300, 301)]
    assert found == pytest.approx([0.95, 0.8182, 0.5, 0.1818, 0.05, 0.0], abs=5e-5)
    assert HintedPrompt(0, 0.05, 0.95, 5).share(0) == 0.0


def test_hint_is_binomial_over_the_buckets_and_shared_by_the_group():
    """At step 150 of 300 with 5 buckets E[l] = 2.5, of nine tokens 9 l // 5 = 0, 1, 3, 5, 7, 9."""
    recorder = Recorder(step=150)
    rows = recorder.run(HintedPrompt(300, 0.05, 0.95, 5), problems(3000))
    requests = recorder.asked[0]
    counts = Counter(len(r.hint_ids) for r in requests)
    assert set(counts) == {0, 1, 3, 5, 7, 9}
    for length, ways in zip((0, 1, 3, 5, 7, 9), (1, 5, 10, 10, 5, 1)):
        assert abs(counts[length] - 3000 * ways / 32) < 5 * (3000 * ways / 32) ** 0.5
    assert all(r.n == 4 and EOS not in r.hint_ids and not r.prefix_ids for r in requests)
    assert all(r.sampling.max_tokens == 20 - len(r.hint_ids) for r in requests)
    assert len(rows) == 12000


def test_after_the_hints_it_is_plain_sampling():
    recorder = Recorder(step=301)
    recorder.run(HintedPrompt(300, 0.05, 0.95, 5), problems(3))
    assert [(r.n, r.hint_ids) for r in recorder.asked[0]] == [(4, ())] * 3


def test_a_short_demonstration_has_fewer_buckets():
    """Two tokens before the end: a share of 1 shows both, never the end token."""
    recorder = Recorder()
    recorder.run(HintedPrompt(1, 1.0, 1.0, 5), problems(1, "11 12"))
    assert recorder.asked[0][0].hint_ids == (11, 12)


# -- micro-groups (TRAPO) ---------------------------------------------------------------

TURNS = MicroGroups((4, 2, 1, 1), (0.0, 0.2, 0.5, 1.0), (-1.0, 0.5, 0.7, 0.9))


def scripted(rewards):
    """Rewards in the order of scoring."""
    given = iter(rewards)
    return lambda ids: next(given)


def test_more_of_the_demonstration_is_shown_where_the_group_does_badly():
    """Rewards (0,0,0,0 | 0,1 | 1 | 1): 0 < 0.5, 1/6 < 0.7, 2/7 < 0.9, so 20 %, 50 % and the whole is shown.

    A = R - 3/8: -0.375 for the zeros, 0.625 for the ones.
    """
    recorder = Recorder(scripted([0, 0, 0, 0, 0, 1, 1, 1]))
    rows = recorder.run(TURNS, problems(1))
    assert [[(r.n, len(r.prefix_ids)) for r in turn] for turn in recorder.asked] == [
        [(4, 0)],
        [(2, 2)],
        [(1, 5)],
    ]
    assert [row.reward for row in rows] == [0, 0, 0, 0, 0, 1, 1, 1]
    assert [row.extra.get("prefix_id") for row in rows] == [None] * 4 + [2, 2, 5, 10]
    assert shape(rows) == [(7, 1)]
    assert rows[-1].response_ids == [*range(11, 20), EOS]
    mean = sum(row.reward for row in rows) / 8
    assert [row.reward - mean for row in rows] == [-0.375] * 5 + [0.625] * 3


def test_a_group_that_does_well_is_never_guided():
    """All eight right: 1 is never below a threshold."""
    recorder = Recorder(lambda ids: 1.0)
    rows = recorder.run(TURNS, problems(1))
    assert [(r.n, r.prefix_ids) for turn in recorder.asked for r in turn] == [(n, ()) for n in (4, 2, 1, 1)]
    assert shape(rows) == [(8, 0)] and not any(row.extra for row in rows)


def test_four_of_six_right_is_guided_by_the_paper():
    """0.667 < 0.7 (the official code's sum of four is not below its threshold)."""
    recorder = Recorder(scripted([1, 1, 1, 0, 1, 0, 1, 1]))
    recorder.run(TURNS, problems(1))
    assert [[len(r.prefix_ids) for r in turn] for turn in recorder.asked] == [[0], [0], [5]]


def test_without_demonstration_all_turns_are_plain():
    rows = Recorder().run(TURNS, problems(2, None))
    assert shape(rows) == [(8, 0)] * 2


def test_problems_are_guided_each_by_its_own_rewards():
    """p0 is always right, p1 never; rows are scored by their problem's turn, unscorable ones do not count."""
    recorder = Recorder()

    def score(rows):
        for row in rows:
            row.reward = 1.0 if row.problem.id == "p0" else None

    recorder.score = score
    recorder.collector.score = score
    recorder.run(TURNS, problems(2))
    assert [[len(r.prefix_ids) for r in turn] for turn in recorder.asked] == [[0, 0], [0, 2], [0, 5], [0]]


def test_group_size_is_that_of_the_turns():
    assert TURNS.group_size == 8
