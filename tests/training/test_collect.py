"""Collecting: the one shift, feeds, samplers, annotations."""

import math
from collections.abc import Sequence

import pytest
import torch

from interlace.rules.samplers import DynamicSampling
from interlace.training.collect import Feed, Rollouts, annotate, collect, pack
from interlace.types import (
    Batch,
    Completion,
    Finish,
    Problem,
    Sampling,
    Score,
    Source,
    Trajectory,
    Verdict,
)
from tests.training.toy import ToyPolicy, batch_of, trajectories

EOS = 9


class Echo:
    """Prompt ids are the digits of the prompt; demonstrations end with EOS."""

    def prompt_ids(self, problem: Problem) -> list[int]:
        return [int(c) for c in problem.prompt]

    def demonstration_ids(self, problem: Problem) -> list[int]:
        return [int(c) for c in problem.demonstration] + [EOS]

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(str(i) for i in ids if i != EOS)


class Digits:
    """Completion of row r is [r % 10, EOS]."""

    def __init__(self) -> None:
        self.requests = []

    def generate(self, requests, *, seed, step):
        self.requests += requests
        return [[Completion((r % 10, EOS), (-0.5, -0.1), Finish.STOP) for r in q.rows] for q in requests]

    def refresh(self) -> None:
        pass


class Even:
    def score(self, items):
        return [
            Score(float(int(text or 1) % 2 == 0), Verdict.PASS if int(text or 1) % 2 == 0 else Verdict.FAIL)
            for text, _ in items
        ]


def rollouts() -> Rollouts:
    return Rollouts(Digits(), Echo(), Even(), Sampling(max_tokens=2), seed=0)


def test_supervised_targets_are_the_completion_and_eos() -> None:
    """Reports C1, C2: prompt [1,2,3], completion [4,5,EOS]: decisions are 4, 5, EOS, one slot earlier."""
    row = rollouts().demonstration(Problem("p", "123", demonstration="45"), 0, "g")
    batch = pack([row])
    s = batch.slots
    assert s.target.tolist() == [4, 5, EOS]
    assert s.input[s.slot].tolist() == [3, 4, 5]
    assert s.input.tolist() == [1, 2, 3, 4, 5]
    assert s.position.tolist() == [0, 1, 2, 3, 4]


def test_rollouts_and_demonstrations_are_shifted_alike() -> None:
    demo = Trajectory(0, [1, 4, EOS], [Source.PROMPT, Source.DEMO, Source.DEMO], "g", Problem("p", ""))
    roll = Trajectory(
        1,
        [1, 4, EOS],
        [Source.PROMPT, Source.ROLLOUT, Source.ROLLOUT],
        "g",
        Problem("p", ""),
        sampling=Sampling(),
    )
    batch = pack([demo, roll])
    for array in (batch.slots.target, batch.slots.input[batch.slots.slot]):
        assert array[:2].tolist() == array[2:].tolist()
    assert batch.is_rollout.tolist() == [False, True]


def test_observations_and_prompts_are_no_decisions() -> None:
    source = [Source.PROMPT, Source.ROLLOUT, Source.OBSERVATION, Source.ROLLOUT]
    batch = pack([Trajectory(0, [1, 2, 3, 4], source, "g", Problem("p", ""), sampling=Sampling())])
    assert batch.slots.target.tolist() == [2, 4]
    assert batch.slots.slot.tolist() == [0, 2]


def test_ids_are_as_sampled_and_finish_is_carried() -> None:
    """Report C4: a completion without EOS stays so, with finish=length."""

    class Unfinished(Digits):
        def generate(self, requests, *, seed, step):
            return [[Completion((5, 6), (-1.0, -1.0), Finish.LENGTH) for _ in q.rows] for q in requests]

    made = rollouts()
    made.engine = Unfinished()
    rows = collect(made, None, [Problem("p", "12")], step=0, group_size=2).rows
    assert all(r.ids == [1, 2, 5, 6] and r.finish == Finish.LENGTH for r in rows)


def test_groups_go_by_id_and_a_problem_drawn_twice_is_two_groups() -> None:
    problem = Problem("p", "1")
    rows = collect(rollouts(), None, [problem, problem], step=0, group_size=3).rows
    batch = pack(rows)
    assert batch.group.tolist() == [0, 0, 0, 1, 1, 1]
    assert batch.row_id.tolist() == list(range(6))


def test_subset_keeps_slots_and_targets_of_the_rows() -> None:
    whole = batch_of(trajectories(1))
    rows = torch.tensor([5, 0, 3])
    part = whole.subset(rows)
    index = whole.decisions_of(rows)
    assert part.slots.target.tolist() == whole.slots.target[index].tolist()
    assert part.slots.input[part.slots.slot].tolist() == whole.slots.input[whole.slots.slot[index]].tolist()
    assert (
        part.slots.position[part.slots.slot].tolist()
        == whole.slots.position[whole.slots.slot[index]].tolist()
    )
    assert part.arrays["ref_logp"].tolist() == whole.arrays["ref_logp"][index].tolist()


def test_order_of_a_feed_is_a_function_of_seed_and_epoch() -> None:
    feed = Feed(list(range(7)), seed=3)
    everything = feed.take(21)
    assert all(sorted(everything[i : i + 7]) == list(range(7)) for i in (0, 7, 14))
    assert everything[:7] != everything[7:14]
    for drawn in (0, 5, 7, 13):
        resumed = Feed(list(range(7)), seed=3, drawn=drawn)
        assert resumed.take(21 - drawn) == everything[drawn:]
    assert Feed(list(range(7)), seed=4).take(21) != everything


def test_dynamic_sampling_refills_until_enough_groups_have_signal() -> None:
    """Group size 1 never has two rewards, so every problem is tried once; group size 2 always has."""
    problems = [Problem(str(i), "1") for i in range(6)]
    feed = Feed(problems, seed=0)
    done = collect(rollouts(), DynamicSampling(), feed.take(2), step=0, group_size=2, feed=feed)
    assert len({r.group for r in done.rows}) == 2
    assert done.notes == {"sampling/rounds": 1, "sampling/live_groups": 1.0}
    feed = Feed(problems, seed=0)
    dead = collect(rollouts(), DynamicSampling(), feed.take(2), step=0, group_size=1, feed=feed)
    assert dead.rows == []
    assert dead.notes["sampling/rounds"] == 3
    feed = Feed(problems, seed=0)
    limited = collect(rollouts(), DynamicSampling(2), feed.take(2), step=0, group_size=1, feed=feed)
    assert limited.notes["sampling/rounds"] == 2


def test_rows_of_the_demonstration_feed_are_groups_of_their_own() -> None:
    demos = [Problem("a", "1", demonstration="2"), Problem("a", "1", demonstration="2")]
    rows = collect(rollouts(), None, [Problem("p", "1")], step=0, group_size=2, demonstrations=demos).rows
    batch = pack(rows)
    assert batch.group.tolist() == [0, 0, 1, 2]
    assert batch.is_rollout.tolist() == [True, True, False, False]
    assert len(set(batch.row_id.tolist())) == 4


@pytest.mark.parametrize("budget", [5, 10**6])
def test_annotations_are_the_policies_statistics(budget: int) -> None:
    batch = pack(trajectories(2))
    policies = {"policy": ToyPolicy(0), "reference": ToyPolicy(1), "critic": ToyPolicy(2)}
    needs = ["old_logp", "ref_logp", "values", "entropy"]
    found = annotate(batch, needs, policies, micro_batch_tokens=budget)
    direct = policies["policy"].score(batch, ("logp", "entropy"), grad=False)
    torch.testing.assert_close(found.arrays["old_logp"], direct["logp"])
    torch.testing.assert_close(found.arrays["entropy"], direct["entropy"])
    torch.testing.assert_close(
        found.arrays["ref_logp"], policies["reference"].score(batch, grad=False)["logp"]
    )
    assert not any(v.requires_grad for v in found.arrays.values())


def test_annotating_some_rows_leaves_the_others() -> None:
    batch = pack(trajectories(2))
    found = annotate(
        batch, ["old_logp"], {"policy": ToyPolicy()}, micro_batch_tokens=50, rows=torch.tensor([1, 2])
    )
    filled = torch.zeros(batch.n_decisions, dtype=torch.bool)
    filled[batch.decisions_of(torch.tensor([1, 2]))] = True
    assert torch.equal(~found.arrays["old_logp"].isnan(), filled)


def test_behaviour_log_probabilities_stand_on_their_tokens() -> None:
    rows = collect(rollouts(), None, [Problem("p", "12")], step=0, group_size=1).rows
    assert math.isnan(rows[0].behaviour_logp[0])
    batch: Batch = pack(rows)
    assert batch.arrays["behaviour_logp"].tolist() == [-0.5, -0.1]
