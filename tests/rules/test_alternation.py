"""Whose turn it is, with buffers and norms small enough to follow by hand."""

from __future__ import annotations

import json
import warnings
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from interlace.methods import REGISTER
from interlace.rules.alternation import FailureBuffer, FreezingBuffer, GradientNormSwitch, prompts_of
from interlace.rules.bench import Stateful, Turn
from interlace.rules.updates import Frozen
from interlace.training.collect import pack
from interlace.types import Problem, Sampling, Source, Trajectory, Verdict

PROBLEMS = [Problem(name, name, demonstration=name) for name in "abcdef"]


def group(problem: Problem, rewards: list[float | None], name: str | None = None) -> list[Trajectory]:
    """A group of rollouts of one token."""
    source = [Source.PROMPT, Source.ROLLOUT]
    verdicts = [None if r is None else Verdict.PASS if r == 1 else Verdict.FAIL for r in rewards]
    return [
        Trajectory(
            0, [0, 1], source, name or problem.id, problem, reward=r, verdict=verdict, sampling=Sampling()
        )
        for r, verdict in zip(rewards, verdicts, strict=True)
    ]


def bench(step: int = 0, steps: int = 100, **more) -> SimpleNamespace:
    return SimpleNamespace(step=step, steps=steps, seed=1, demonstrated=PROBLEMS, demos_per_step=2, **more)


def rl_step(rule, at, *groups: list[Trajectory]) -> None:
    rows = [row for g in groups for row in g]
    rule.observe(at, Turn("rl"), rows, pack(rows), [])


def relift(size: int) -> FailureBuffer:
    return REGISTER["relift"](buffer_size=size).alternation


A, B, C, D, E, F = PROBLEMS


def test_only_a_prompt_that_failed_throughout_is_trained_on_next() -> None:
    """Rewards all 0, mixed, all 1, with a buffer of 1."""
    rule, at = relift(1), bench()
    assert rule.turn(at) == Turn("rl", numbers={"waiting": 0, "imitated": 0})
    rl_step(rule, at, group(A, [0, 0, 0]), group(B, [0, 1, 0]), group(C, [1, 1, 1]))
    assert rule.waiting == ["a"]
    numbers = {"waiting": 0, "imitated": 1}
    assert rule.turn(at) == Turn("sft", [A], "sft", sample=False, numbers=numbers)
    assert rule.waiting == []


def test_another_failing_reward_and_rows_without_one_do_not_count() -> None:
    """A format score of -1 is not the fail reward; a group without any valid rollout is not known to fail."""
    rule, at = relift(1), bench()
    rl_step(rule, at, group(A, [-1, -1]), group(B, [None, None]), group(C, [0, None]))
    assert rule.waiting == ["c"]


def test_newest_first_twice_if_it_failed_twice_and_one_sft_step_for_each_rl_step() -> None:
    rule, at = relift(2), bench()
    rule.turn(at)
    rl_step(rule, at, group(A, [0]), group(B, [0]))
    rule.waiting += ["f"]  # one more from an earlier step
    assert rule.turn(at).demonstrations == [A, B]
    assert rule.turn(at).stage == "rl"
    rl_step(rule, at, group(C, [0]), group(D, [0]), group(C, [0], "again"))
    assert rule.waiting == ["c", "d", "c", "f"]
    assert rule.turn(at).demonstrations == [C, D]
    assert rule.turn(at).stage == "rl", "at most one SFT step after an RL step, whatever waits"
    assert rule.turn(at).demonstrations == [C, F]


def test_a_prompt_without_a_usable_demonstration_is_not_taken_in() -> None:
    rule, at = relift(1), bench()
    rl_step(rule, at, group(Problem("other", "other"), [0, 0]))
    assert rule.waiting == []


def test_relift_has_a_second_optimizer_at_its_own_rate() -> None:
    method = REGISTER["relift"](sft_lr=2e-5)
    assert method.alternation.optimizers == {"sft": 2e-5}
    assert REGISTER["mifo"]().alternation.optimizers == {"sft": None}


def test_buffers_come_back_from_plain_data() -> None:
    rule, at = relift(2), bench()
    rule.turn(at)
    rl_step(rule, at, group(A, [0]), group(B, [0]), group(C, [0]))
    again = relift(2)
    again.load_state_dict(json.loads(json.dumps(rule.state_dict())))
    assert isinstance(again, Stateful)
    assert again.turn(at) == rule.turn(at)
    assert again.state_dict() == rule.state_dict()


def test_prompts_of_groups_keep_the_order_of_the_batch() -> None:
    rows = [*group(B, [0, 0]), *group(A, [0]), *group(C, [1])]
    assert prompts_of(torch.tensor([True, True, True, False]), rows, pack(rows)) == [B, A]


class Weights(SimpleNamespace):
    """A bench with four weights."""

    def trainable(self) -> list[torch.Tensor]:
        return [self.weights]


def mifo(weights: list[float], **options) -> tuple[FreezingBuffer, Weights]:
    rule = REGISTER["mifo"](buffer_size=1, threshold=0.5, **options).alternation
    return rule, Weights(**vars(bench()), weights=torch.tensor(weights))


def test_importance_is_the_change_of_the_rl_phase_and_the_top_share_is_frozen() -> None:
    """Changes (0.5, 0.1, 0.02, 0.3) with freeze 0.5 freeze entries 0 and 3."""
    rule, at = mifo([0, 0, 0, 0])
    assert rule.turn(at).stage == "rl"
    at.weights = torch.tensor([0.4, 0.1, 0.02, 0.1])
    rl_step(rule, at, group(A, [1, 1]))
    assert rule.turn(at).stage == "rl", "the phase goes on until the buffer is full"
    at.weights = torch.tensor([0.5, -0.1, 0.02, 0.3])
    rl_step(rule, at, group(B, [0, 1]))
    assert replace(rule.turn(at), numbers={}) == Turn("sft", [B], "sft", sample=False)
    assert rule.frozen.masks[0].tolist() == [True, False, False, True]
    assert rule.start == []


def test_importance_keeps_a_share_of_earlier_cycles() -> None:
    """alpha = 0.5: C = 0.5 (0, 0.8, 0, 0) + 0.5 (0.5, 0.1, 0.02, 0.3) = (0.25, 0.45, 0.01, 0.15)."""
    rule, at = mifo([0, 0, 0, 0], alpha=0.5)
    rule.importance = [torch.tensor([0.0, 0.8, 0.0, 0.0])]
    rule.turn(at)
    at.weights = torch.tensor([0.5, 0.1, 0.02, 0.3])
    rl_step(rule, at, group(A, [0, 0]))
    rule.turn(at)
    assert rule.importance[0].tolist() == pytest.approx([0.25, 0.45, 0.01, 0.15])
    assert rule.frozen.masks[0].tolist() == [True, True, False, False]


def test_a_cycle_ends_when_the_buffer_no_longer_holds_a_batch() -> None:
    """Oldest first, each prompt once; the next RL phase starts from the weights after SFT."""
    rule, at = mifo([0, 0, 0, 0])
    rule.turn(at)
    rl_step(rule, at, group(A, [0]), group(B, [0]), group(A, [0], "again"), group(C, [1]))
    assert rule.waiting == ["a", "b"]
    at.weights = torch.tensor([1.0, 0, 0, 0])
    assert [rule.turn(at).demonstrations for _ in range(2)] == [[A], [B]]
    at.weights = torch.tensor([1.0, 5, 0, 0])
    assert rule.turn(at).stage == "rl"
    assert rule.start[0].tolist() == [1, 5, 0, 0]
    rl_step(rule, at, group(C, [0]), group(D, [0]))
    rule.take_in(["c"])
    assert rule.waiting == ["d", "c"], "a prompt that comes again is the newest"


def test_without_freezing_no_copy_of_the_weights_is_kept() -> None:
    rule, at = mifo([0, 0, 0, 0], freeze=0)
    rule.turn(at)
    rl_step(rule, at, group(A, [0]))
    assert rule.turn(at).stage == "sft"
    assert (rule.start, rule.importance, rule.frozen.masks) == ([], [], [])


def test_a_cycle_comes_back_in_its_middle() -> None:
    rule, at = mifo([1, 2, 3, 4], alpha=0.5)
    rule.turn(at)
    rl_step(rule, at, group(A, [0]))
    again = FreezingBuffer(rule.hard, 1, frozen=Frozen(), alpha=0.5)
    again.load_state_dict(rule.state_dict())
    at.weights = torch.tensor([2.0, 2, 3, 6])
    for r in (rule, again):
        assert r.turn(at).stage == "sft"
    assert torch.equal(again.frozen.masks[0], rule.frozen.masks[0])
    assert again.importance[0].tolist() == [0.5, 0, 0, 1]


def sasr(**options) -> GradientNormSwitch:
    return REGISTER["sasr"](**options).alternation


def sft_step(rule: GradientNormSwitch, step: int, norm: float) -> None:
    rule.observe(bench(step), Turn("sft"), [], None, [SimpleNamespace(grad_norm={"policy": norm})])


def adaptive(step: int, **more) -> SimpleNamespace:
    return bench(step, renew_reference=more.pop("renew", lambda: None), **more)


def test_warm_up_steps_are_sft_and_the_last_one_sets_the_norm() -> None:
    renewed = []
    rule = sasr(warmup_steps=3)
    for step, norm in enumerate([5.0, 3.0, 2.0]):
        assert rule.turn(bench(step)) == Turn("sft")
        sft_step(rule, step, norm)
    assert (rule.g_last, rule.g_warmup) == (2.0, 2.0)
    numbers = rule.turn(adaptive(3, renew=lambda: renewed.append(3))).numbers
    assert (numbers["g_last"], numbers["g_warmup"]) == (2.0, 2.0)
    assert 0 <= numbers["u"] < 1
    rule.turn(adaptive(4, renew=lambda: renewed.append(4)))
    assert renewed == [3], "the reference becomes the policy after the warm-up, once"


@pytest.mark.parametrize(
    ("gamma", "g_last", "p"),
    [
        (1, 2, 1 / 2),
        (1, 1, 1 / 3),
        (1, 0.5, 0.2),
        (0.5, 2, 2 / 3),
        (0.5, 1, 0.5),
        (0.5, 0.5, 1 / 3),
        (0, 2, 1),
    ],
)
def test_the_share_of_sft_steps_follows_the_norm(gamma: float, g_last: float, p: float) -> None:
    """p = g_last / (g_last + gamma 2), over 10 000 draws."""
    rule = sasr(gamma=gamma, warmup_steps=1)
    rule.g_last, rule.g_warmup = g_last, 2.0
    drawn = [rule.turn(adaptive(step)).stage == "sft" for step in range(2, 10_002)]
    assert sum(drawn) / 10_000 == pytest.approx(p, abs=0.015)
    assert rule.g_last == g_last


def test_an_rl_step_leaves_the_norm_and_an_sft_step_measures_it() -> None:
    rule = sasr(warmup_steps=1)
    sft_step(rule, 0, 2.0)
    rule.observe(bench(1), Turn("rl"), [], None, [SimpleNamespace(grad_norm={"policy": 9.0})])
    assert rule.g_last == 2.0
    sft_step(rule, 2, 0.5)
    assert (rule.g_last, rule.g_warmup) == (0.5, 2.0)
    sft_step(rule, 3, float("inf"))
    assert rule.g_last == 0.5, "a step that was not taken measures nothing"


def test_the_draw_is_the_same_on_every_rank_and_after_a_resume() -> None:
    one, other = sasr(warmup_steps=1), sasr(warmup_steps=1)
    sft_step(one, 0, 2.0)
    other.load_state_dict(json.loads(json.dumps(one.state_dict())))
    assert [one.turn(adaptive(s)) for s in range(1, 50)] == [other.turn(adaptive(s)) for s in range(1, 50)]
    assert len({one.turn(adaptive(s)).numbers["u"] for s in range(1, 50)}) == 49


def test_the_norm_is_refreshed_without_a_step_after_a_run_of_rl() -> None:
    """Gradients (3) and (4) have norm 5; the batch holds the demonstrations of the feed."""
    asked = []

    def batch(rows, method):
        asked.append(([r.problem.id for r in rows], method))
        return "batch"

    at = adaptive(
        5,
        demonstrations=lambda n: PROBLEMS[:n],
        demonstration_row=lambda p: group(p, [1])[0],
        batch=batch,
        gradient=lambda method, rows: [torch.tensor([3.0]), torch.tensor([4.0])],
    )
    rule = sasr(warmup_steps=1, refresh_every=2)
    rule.g_last, rule.g_warmup = 1.0, 5.0
    rule.since = 1
    assert rule.turn(at).numbers["g_last"] == 1.0
    rule.observe(at, Turn("rl"), [], None, [])
    assert rule.turn(at).numbers["g_last"] == 5.0
    assert asked == [(["a", "b"], rule.supervised)]
    assert rule.since == 0


def test_a_run_that_is_all_warm_up_warns() -> None:
    with pytest.warns(UserWarning, match="warmup_steps=100"):
        sasr().turn(bench(steps=50))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        sasr().turn(bench(steps=101))
