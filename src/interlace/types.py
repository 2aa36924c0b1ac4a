"""The words that everything else speaks.

A person who has read this file can read any room of the library. Data flows one way:

    Problem -> SampleRequest -> Completion -> Trajectory -> Batch -> Statistics
            -> cotangents (one number per decision) -> gradient -> update

Nothing here computes anything but shapes and checks.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:  # tasks and reward workers speak these words without importing torch
    import torch
    from torch import Tensor

# --------------------------------------------------------------------------------------
# Problems and verdicts
# --------------------------------------------------------------------------------------

Message = Mapping[str, str]
"""One chat message: `{"role": "system" | "user" | "assistant", "content": text}`."""


class Verdict(enum.StrEnum):
    """What a verifier says of one answer. An unscorable row leaves group statistics and loss."""

    PASS = "pass"
    FAIL = "fail"
    UNSCORABLE = "unscorable"


@dataclass(frozen=True)
class Problem:
    """One thing to solve, as a task or a data file gives it.

    Attributes:
        id: Stable and unique inside its feed.
        prompt: Plain text, or chat messages ending with the user's turn.
        answer: What the verifier needs (text, number, mapping); `None` if nothing verifies it.
        completion: A reference completion (text), never trained on; checks the verifier at load.
        demonstration: A worked solution (text, without end-of-sequence) to imitate, if there is one.
        task: Name of the task or data file that it comes from.
        meta: Every other column, kept (difficulty, split key, rules, ...).
    """

    id: str
    prompt: str | Sequence[Message]
    answer: Any = None
    completion: str | None = None
    demonstration: str | None = None
    task: str = ""
    meta: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Score:
    """What a reward gives for one completion.

    Attributes:
        reward: The number that methods see; `None` when unscorable.
        verdict: `pass` if and only if the correctness part is 1.
        parts: The named parts that the reward is made of, before weights.
        reason: Why it is unscorable, or empty.
        extracted: The answer that the verifier read from the text, for people to look at.
    """

    reward: float | None
    verdict: Verdict
    parts: Mapping[str, float] = field(default_factory=dict)
    reason: str = ""
    extracted: str | None = None


# --------------------------------------------------------------------------------------
# Sampling
# --------------------------------------------------------------------------------------


class Source(enum.IntEnum):
    """Where a token comes from. Everything but `PROMPT` and `OBSERVATION` is something to choose."""

    PROMPT = 0
    """Given text; never a decision."""
    ROLLOUT = 1
    """Sampled by the policy."""
    DEMO = 2
    """A complete demonstration, teacher-forced (also replayed or self-distilled rows)."""
    PREFIX = 3
    """Demonstration tokens at the start of a response that a rollout continues."""
    HINT = 4
    """Demonstration tokens placed in the prompt."""
    OBSERVATION = 5
    """What an environment or tool answered; a decision only if a term asks."""


SOURCE_NAMES: Mapping[str, Source] = {s.name.lower(): s for s in Source}


class Finish(enum.IntEnum):
    """Why a completion ended."""

    NONE = -1
    """Not said."""
    STOP = 0
    """The policy chose an end token or a stop string."""
    LENGTH = 1
    """It reached the token limit; its ids are left as they are, with no end token added."""


@dataclass(frozen=True)
class Sampling:
    """How to draw tokens.

    Attributes:
        temperature: 0 is greedy.
        top_p: Keep the smallest set of likeliest tokens whose probability reaches this; 1 is off.
        top_k: Keep the k likeliest tokens; 0 is off.
        min_p: Drop tokens below this share of the likeliest token's probability; 0 is off.
        max_tokens: Limit of new tokens (the end token counts).
        stop: Texts that end a completion as soon as they appear in it.
        stop_ids: Token ids that end a completion besides the model's end-of-sequence ids.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    max_tokens: int = 64
    stop: tuple[str, ...] = ()
    stop_ids: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not self.temperature >= 0:
            raise ValueError(f"temperature={self.temperature}: accepted are numbers >= 0 (0 is greedy)")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p={self.top_p}: accepted are numbers in (0, 1] (1 is off)")
        if self.top_k < 0:
            raise ValueError(f"top_k={self.top_k}: accepted are integers >= 0 (0 is off)")
        if not 0 <= self.min_p <= 1:
            raise ValueError(f"min_p={self.min_p}: accepted are numbers in [0, 1] (0 is off)")
        if self.max_tokens < 1:
            raise ValueError(f"max_tokens={self.max_tokens}: accepted are integers >= 1")

    @property
    def truncated(self) -> bool:
        """Whether tokens are drawn from less than the full distribution."""
        return self.top_p < 1 or self.top_k > 0 or self.min_p > 0


@dataclass(frozen=True)
class SampleRequest:
    """What a method's sampler yields: n continuations of one prompt.

    Attributes:
        problem: The problem.
        n: How many continuations.
        sampling: How to draw them; `None` takes the run's.
        prefix_ids: Demonstration tokens that every continuation starts with (source `prefix`).
        hint_ids: Demonstration tokens at the end of the prompt (source `hint`).
        group: Group id of the resulting rows; `None` takes the problem's id.
        prompt_ids: Filled in by the collector from the one prompt renderer.
        rows: Row ids, one per continuation, filled in by the collector. The randomness of a sampled
            token is a function of (seed, step, row, position in the response), so a row's text
            does not depend on what else is in flight.
    """

    problem: Problem
    n: int = 1
    sampling: Sampling | None = None
    prefix_ids: tuple[int, ...] = ()
    hint_ids: tuple[int, ...] = ()
    group: str | int | None = None
    prompt_ids: tuple[int, ...] = ()
    rows: tuple[int, ...] = ()


@dataclass(frozen=True)
class Completion:
    """One continuation, exactly as sampled.

    Attributes:
        ids: New token ids, including the end token if the policy chose one. Never altered.
        logp: For each of them the log-probability under the distribution it was drawn from
            (temperature, top-p, top-k and min-p included; 0 for greedy).
        finish: Why it ended.
    """

    ids: tuple[int, ...]
    logp: tuple[float, ...]
    finish: Finish


class Engine(Protocol):
    """Fulfils sample requests; knows nothing of methods or rewards."""

    def generate(self, requests: Sequence[SampleRequest], *, seed: int, step: int) -> list[list[Completion]]:
        """Continue each request's `prompt_ids + hint_ids + prefix_ids` `n` times.

        Returns:
            One list of `n` completions per request, in request order.
        """
        ...

    def refresh(self) -> None:
        """Called after the weights changed."""
        ...


@dataclass
class Trajectory:
    """One row: ids as sampled (never re-tokenised, never altered) and what is known of each token.

    Attributes:
        row: Stable id inside its rollout step; ties and "first in input order" go by it.
        ids: All token ids, prompt included.
        source: One `Source` per token.
        group: Rows of a group share a baseline. Groups go by id, never by position.
        problem: The problem it answers.
        behaviour_logp: Log-probability under the policy that wrote the token, or `None`; as long as
            `ids` (NaN where unknown).
        reward, verdict, parts: Filled in by the reward; a demonstration may have none.
        finish: Why it ended.
        temperature: Sampling temperature of its rollout tokens.
        episode: Rows of one multi-turn rollout share it; default its own.
        policy_version: Version of the weights that sampled it.
        span: Structured spans as `(start, end, name)` over `ids`, names `guess`, `think`, `answer`.
        extra: Free per-row numbers that some methods read (`class_weight`, `role`, ...).
        inputs: What the model reads instead of `ids` (masked inputs), as long as they are; targets stay.
    """

    row: int
    ids: Sequence[int]
    source: Sequence[int]
    group: str | int
    problem: Problem
    behaviour_logp: Sequence[float] | None = None
    reward: float | None = None
    verdict: Verdict | None = None
    parts: Mapping[str, float] = field(default_factory=dict)
    finish: Finish = Finish.NONE
    temperature: float = 1.0
    episode: int | None = None
    policy_version: int = 0
    span: Sequence[tuple[int, int, str]] = ()
    extra: Mapping[str, Any] = field(default_factory=dict)
    sampling: Sampling | None = None
    inputs: Sequence[int] | None = None

    @property
    def response_ids(self) -> list[int]:
        """Every token that is not prompt or hint."""
        return [
            i for i, s in zip(self.ids, self.source, strict=True) if s not in (Source.PROMPT, Source.HINT)
        ]


# --------------------------------------------------------------------------------------
# Batches: slots and decisions
# --------------------------------------------------------------------------------------

SPANS: tuple[str, ...] = ("guess", "think", "answer")
"""Names of structured spans; `Batch.span` holds an index into this, -1 for none."""


@dataclass(frozen=True)
class Slots:
    """What the policy reads: M input positions, packed row after row without padding.

    Attributes:
        input: int64 [M], input token ids.
        position: int64 [M], position ids, restarting at 0 in every row.
        row: int64 [M], index of the row each slot belongs to (non-decreasing).
        slot: int64 [N], for each decision the slot whose output distribution it is read from.
        target: int64 [N], for each decision the token id that was chosen.
        temperature: float32 [N], the temperature its log-probability is read at.
        second_input, second_weight: optional int64 [M] and float32 [M]: the slot's input embedding is
            (1 - weight) * E[input] + weight * E[second_input].
    """

    input: Tensor
    position: Tensor
    row: Tensor
    slot: Tensor
    target: Tensor
    temperature: Tensor
    second_input: Tensor | None = None
    second_weight: Tensor | None = None


@dataclass(frozen=True)
class Batch:
    """R rows and their N decisions, in one flat order; no padding exists anywhere.

    Rows, shape [R]:
        row_id: int64, stable ids.
        group, episode: int64, dense from 0. Statistics of a group count each episode once.
        reward: float64, NaN where there is none.
        verdict: int8, 1 pass, 0 fail, -1 unscorable, 2 not given.
        finish: int8, a `Finish`.
        is_rollout: bool, the row holds (or, when empty, stands for) a rollout.
        active: bool, false once the row is left out of every term and denominator.
        extra: one mapping per row.
    Decisions, shape [N]:
        row: int64, index of the decision's row (non-decreasing).
        source: int8, a `Source`.
        span: int8, index into `SPANS` or -1.
        arrays: named float64 arrays, NaN where a number is absent: `old_logp`, `ref_logp`,
            `behaviour_logp`, `entropy`, `values`, `topk_mass`, `advantage`, ... All detached.
    Others:
        slots: what the policy reads; `None` in `explain`, where log-probabilities are given.
        on_policy: the weights are those at the start of the rollout step, so that the leaf itself, detached,
            is the old log-probability and the ratio is exactly 1.
        completion_limit: the run's limit of response tokens, `None` without a run.
        group_names: the ids that `group` indexes.
        step: the rollout step it belongs to; places schedules that reach into masks.
    """

    row_id: Tensor
    group: Tensor
    episode: Tensor
    reward: Tensor
    verdict: Tensor
    finish: Tensor
    is_rollout: Tensor
    active: Tensor
    extra: tuple[Mapping[str, Any], ...]
    row: Tensor
    source: Tensor
    span: Tensor
    arrays: Mapping[str, Tensor]
    slots: Slots | None = None
    on_policy: bool = False
    completion_limit: int | None = None
    group_names: tuple[str | int, ...] = ()
    step: int = 0

    @property
    def n_rows(self) -> int:
        return self.row_id.numel()

    @property
    def n_decisions(self) -> int:
        return self.row.numel()

    @property
    def length(self) -> Tensor:
        """int64 [R]: decisions per row."""
        return self.row.bincount(minlength=self.n_rows)

    @property
    def tempered(self) -> bool:
        """Whether some decision is read at a temperature other than 1."""
        return self.slots is not None and bool((self.slots.temperature != 1).any())

    def with_arrays(self, **arrays: Tensor) -> Batch:
        """A copy with some per-decision arrays set (each float64 [N])."""
        return replace(self, arrays={**self.arrays, **arrays})

    def is_source(self, *names: str) -> Tensor:
        """bool [N]: decisions whose source is one of `names`."""
        mask = self.active.new_zeros(self.n_decisions)
        for name in names:
            mask |= self.source == SOURCE_NAMES[name]
        return mask

    def subset(self, rows: Tensor) -> Batch:
        """The batch of only these rows (int64 [r], in the order given), with groups kept by id."""
        decisions, row = _gather_rows(self.length, rows)
        slots = None
        if self.slots is not None:
            s = self.slots
            lengths = s.row.bincount(minlength=self.n_rows)
            taken, slot_row = _gather_rows(lengths, rows)
            moved = _starts(lengths[rows]) - _starts(lengths)[rows]
            slots = Slots(
                input=s.input[taken],
                position=s.position[taken],
                row=slot_row,
                slot=s.slot[decisions] + moved[row],
                target=s.target[decisions],
                temperature=s.temperature[decisions],
                second_input=None if s.second_input is None else s.second_input[taken],
                second_weight=None if s.second_weight is None else s.second_weight[taken],
            )
        return replace(
            self,
            row_id=self.row_id[rows],
            group=self.group[rows],
            episode=self.episode[rows],
            reward=self.reward[rows],
            verdict=self.verdict[rows],
            finish=self.finish[rows],
            is_rollout=self.is_rollout[rows],
            active=self.active[rows],
            extra=tuple(self.extra[i] for i in rows.tolist()),
            row=row,
            source=self.source[decisions],
            span=self.span[decisions],
            arrays={k: v[decisions] for k, v in self.arrays.items()},
            slots=slots,
        )

    def decisions_of(self, rows: Tensor) -> Tensor:
        """int64: indices of the decisions of `rows`, in that order (as `subset` orders them)."""
        return _gather_rows(self.length, rows)[0]


def _starts(lengths: Tensor) -> Tensor:
    """Where each row of a flat layout begins."""
    return lengths.cumsum(0) - lengths


def _gather_rows(lengths: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Indices of the elements of `rows` in a flat layout of rows of these lengths, and their new row."""
    taken = lengths[rows]
    new_row = (taken.new_ones(taken.numel()).cumsum(0) - 1).repeat_interleave(taken)
    place = taken.new_ones(new_row.numel()).cumsum(0) - 1 - _starts(taken)[new_row]
    return _starts(lengths)[rows][new_row] + place, new_row


# --------------------------------------------------------------------------------------
# Policies
# --------------------------------------------------------------------------------------

Statistics = Mapping[str, "Tensor"]
"""One value per decision and statistic, float32 or float64 [N], attached to the policy's graph when
scored with `grad=True`. Names:

    logp            log pi(target) at the decision's temperature, full softmax
    logp_t1         the same at temperature 1 (equal to `logp` where the temperature is 1)
    entropy         nats, full vocabulary, at the decision's temperature
    mean_logp       mean over the vocabulary of log pi (label smoothing)
    kl              KL(pi || reference), full vocabulary
    reverse_kl      KL(reference || pi), full vocabulary
    topk_mass       probability of the k likeliest tokens (no gradient)
    argmax          id of the likeliest token (no gradient)
    value           the critic's estimate
"""


@runtime_checkable
class Policy(Protocol):
    """Whatever takes decisions with a log-probability. The step sees nothing else of a model."""

    def score(self, batch: Batch, needs: Sequence[str] = ("logp",), *, grad: bool = True) -> Statistics:
        """Statistics of every decision of `batch`, deterministic (dropout off)."""
        ...

    def backward(self, statistics: Statistics, cotangents: Statistics) -> None:
        """Add the gradient of sum_s <cotangents[s], statistics[s]> to the parameters' `.grad`."""
        ...

    def clone_frozen(self) -> Policy:
        """A copy whose parameters never change (a reference)."""
        ...

    def parameters_by_part(self) -> Mapping[str, list[torch.nn.Parameter]]:
        """Trainable parameters by part (`backbone`, `head`, `value`, ...)."""
        ...

    def save(self, directory: Any) -> None: ...
