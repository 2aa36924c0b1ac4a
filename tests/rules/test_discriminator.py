"""The token discriminator: its loss and gradient by hand, what it reads, and its memory."""

import copy
import math
from dataclasses import replace

import pytest
import torch

from interlace.policies import Renderer
from interlace.rules.discriminator import TokenDiscriminator, read_after
from interlace.training.collect import pack
from interlace.types import Problem, Sampling, Source, Trajectory
from tests.policies.build import ALPHABET, tiny_policy

PROBLEMS = [Problem(f"p{i}", f"{i}+2=", demonstration=f"{i}+2={i + 2}") for i in range(3)]


class Bench:
    seed, step = 0, 0

    def __init__(self) -> None:
        self.policies = {"policy": tiny_policy()}
        policy = self.policies["policy"]
        self.renderer = Renderer(policy.tokenizer, policy.eos_ids)

    def demonstration_row(self, problem):
        if problem.demonstration is None:
            return None
        prompt, ids = self.renderer.prompt_ids(problem), self.renderer.demonstration_ids(problem)
        source = [Source.PROMPT] * len(prompt) + [Source.DEMO] * len(ids)
        return Trajectory(0, prompt + ids, source, problem.id, problem)

    def packed(self, rows):
        return pack([replace(row, row=i) for i, row in enumerate(rows)])

    def rollouts(self, text: str = "9/9", problems=PROBLEMS):
        rows = []
        for problem in problems:
            row = self.demonstration_row(replace(problem, demonstration=text))
            source = [Source.ROLLOUT if s == Source.DEMO else s for s in row.source]
            rows.append(replace(row, source=source, problem=problem, sampling=Sampling()))
        return rows


def test_what_is_read_for_a_token_is_the_state_after_it():
    source = [Source.PROMPT, Source.ROLLOUT, Source.ROLLOUT]
    batch = pack([read_after(Trajectory(0, [5, 6, 7], source, "g", Problem("p", "")))])
    assert batch.slots.input.tolist() == [5, 6, 7]
    assert batch.slots.slot.tolist() == [1, 2]


def test_untrained_it_says_nothing_and_its_loss_is_log_two():
    """BCE of a zero logit is 0.69315 for any smoothing; classes weigh the same whatever their sizes."""
    bench, scorer = Bench(), TokenDiscriminator(lr=0.0)
    rows = scorer.score_rows(bench, [*bench.rollouts(), *bench.rollouts("8*8")])
    assert scorer.notes["discriminator/loss"] == pytest.approx(math.log(2))
    assert all(row.extra["token_reward"] == [0.0] * 4 for row in rows)
    assert all(len(row.extra["token_reward"]) == sum(s == Source.ROLLOUT for s in row.source) for row in rows)


def test_gradient_of_the_bias_by_hand():
    """At zero logits dL/df = (1/2 - y) w: experts (1/2 - 0.95)/2, others (1/2 - 0.05)/2, in all 0."""
    bench, scorer = Bench(), TokenDiscriminator(lr=0.0, corrupted=0)
    scorer._prepare(bench)
    found = {}
    scorer._model.backward = lambda statistics, cotangents: found.update(cotangents)
    experts, others = scorer.classes(bench, bench.rollouts())
    scorer.update(bench, experts, others)
    lengths = [len(row.response_ids) for row in (*experts, *others)]
    expected = [w / n for w, n in zip([-0.225 / 3] * 3 + [0.225 / 3] * 3, lengths) for _ in range(n)]
    assert found["value"].tolist() == pytest.approx(expected)


def test_it_learns_to_tell_experts_from_the_policy_and_leaves_the_policy_alone():
    bench, scorer = Bench(), TokenDiscriminator(lr=3e-3)
    before = copy.deepcopy(bench.policies["policy"].model.state_dict())
    for bench.step in range(25):
        rows = scorer.score_rows(bench, [*bench.rollouts(), *map(bench.demonstration_row, PROBLEMS)])
    assert scorer.notes["discriminator/loss"] < 0.6
    own, expert = rows[:3], rows[3:]
    mean = lambda some: sum(sum(r.extra["token_reward"]) for r in some) / len(some)  # noqa: E731
    assert mean(expert) > mean(own) + 1
    after = bench.policies["policy"].model.state_dict()
    assert all(torch.equal(after[name], value) for name, value in before.items())


def test_each_expert_once_and_corrupted_twins_among_the_others():
    bench, scorer = Bench(), TokenDiscriminator(corrupted=2)
    experts, others = scorer.classes(bench, bench.rollouts() * 4)
    assert len(experts) == 3
    twins = others[12:]
    assert len(twins) >= 3 and all(row.sampling is None for row in twins)
    shown = {bench.renderer.decode(row.response_ids) for row in twins}
    assert not shown & {p.demonstration for p in PROBLEMS}
    assert set("".join(shown)) <= set(ALPHABET)


def test_without_experts_it_is_not_updated():
    bench, scorer = Bench(), TokenDiscriminator(lr=1.0)
    bare = [replace(p, demonstration=None) for p in PROBLEMS]
    rows = [replace(row, problem=p) for row, p in zip(bench.rollouts(), bare)]
    scored = scorer.score_rows(bench, rows)
    assert scorer.notes == {} and all(set(row.extra["token_reward"]) == {0.0} for row in scored)


def test_its_memory_continues_to_the_bit(tmp_path):
    def step(scorer, bench):
        return [row.extra["token_reward"] for row in scorer.score_rows(bench, bench.rollouts())]

    bench, whole = Bench(), TokenDiscriminator(lr=1e-2)
    step(whole, bench)
    torch.save(whole.state_dict(), tmp_path / "memory.pt")
    expected = [step(whole, bench) for _ in range(2)]
    resumed = TokenDiscriminator(lr=1e-2)
    resumed.load_state_dict(torch.load(tmp_path / "memory.pt", weights_only=True))
    assert resumed.state_dict().keys() == whole.state_dict().keys()
    assert [step(resumed, Bench()) for _ in range(2)] == expected


def test_untouched_memory_is_empty():
    scorer = TokenDiscriminator()
    assert scorer.state_dict() == {}
    scorer.load_state_dict({})
    assert scorer.state_dict() == {}
