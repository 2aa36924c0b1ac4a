"""The laws that every method keeps, as functions that try them on one: a new method is checked in seconds.

A law takes a `Method` (one stage of it) and raises `LawBroken` with what to change. They run on a small exact
policy in float64 and on random rows with every source (`analysis/toy.py`); the tests of the library run the
same functions over every registered method.
"""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from interlace.analysis.toy import ToyPolicy, batch_of, trajectories
from interlace.methods import Entry, Method, get
from interlace.parts.segments import position_in_row
from interlace.parts.terms import MissingStatistic, TermReport, View
from interlace.training.distributed import Ranks
from interlace.training.objective import PreparedTerm, assign, evaluate, prepare, total
from interlace.training.step import accumulate
from interlace.types import Batch, Finish, Policy, Trajectory, Verdict


class LawBroken(AssertionError):
    """A method breaks a law; says where, and what to change."""


STEP = 3
"""Where schedules are read."""
EVERYTHING = 10**6
"""A token budget that puts the whole step into one micro-batch."""
EXACT = 1e-10


def gradient(
    method: Method, batch: Batch, budget: int, ranks: Ranks | None = None
) -> tuple[Tensor, list[TermReport]]:
    """Gradient of the whole objective and the term reports, on fresh copies of the same policies."""
    policies = policies_of(method)
    scoring = cast(Mapping[str, Policy], policies)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        prepared = prepare(assign(batch, method), method, step=STEP)
        reports, *_ = accumulate(prepared, scoring, micro_batch_tokens=budget, ranks=ranks or Ranks())
    return torch.cat([p.gradient() for p in policies.values()]), reports


def policies_of(method: Method) -> dict[str, ToyPolicy]:
    names = dict.fromkeys(["policy", "critic", *(term.policy for term in method.terms)])
    return {name: ToyPolicy(seed) for seed, name in enumerate(names)}


def assigned(method: Method, seed: int) -> Batch:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return assign(batch_of(trajectories(seed)), method)


def require(condition: bool, message: str) -> None:
    if not condition:
        raise LawBroken(message)


def difference(a: Tensor, b: Tensor) -> float:
    """Largest |a - b|; infinite where one of them is not finite."""
    gap = (a - b).abs()
    return float(torch.where(gap.isfinite(), gap, torch.inf).max()) if gap.numel() else 0.0


def split_invariance(method: Method) -> None:
    """No split into micro-batches and no row order changes the gradient or a denominator."""
    rows = trajectories(1)
    whole, reports = gradient(method, batch_of(rows), EVERYTHING)
    require(bool(torch.isfinite(whole).all()), "the gradient of an ordinary step is not finite")
    trains = whole.abs().max() > 0 or all(r.decisions == 0 for r in reports)
    require(bool(trains), "terms cover tokens, and yet the gradient is 0 everywhere: nothing is trained")
    for budget in (60, 25, 1):
        split, split_reports = gradient(method, batch_of(rows), budget)
        gap = difference(split, whole)
        require(gap <= EXACT, _depends_on_split(method, rows, budget, gap))
        for a, b in zip(split_reports, reports, strict=True):
            require(
                a.n == b.n, f"term {a.name}: its denominator is {a.n:g} in micro-batches and {b.n:g} whole"
            )
            near = abs(a.loss - b.loss) <= EXACT + 1e-6 * EXACT * abs(b.loss)
            require(near, f"term {a.name}: its loss is {a.loss} in micro-batches and {b.loss} whole")
    for seed in range(3):
        shuffled = random.Random(seed).sample(rows, len(rows))
        gap = difference(gradient(method, batch_of(shuffled), 40)[0], whole)
        require(
            gap <= EXACT,
            f"the gradient changes by {gap:.2g} with the order of the rows; groups go by batch.group and "
            f"ties by batch.row_id, never by position",
        )


def _depends_on_split(method: Method, rows: Sequence[Trajectory], budget: int, gap: float) -> str:
    guilty = []
    for term in method.terms:
        alone = replace(method, terms=(term,))
        whole, split = (gradient(alone, batch_of(rows), b)[0] for b in (EVERYTHING, budget))
        if difference(split, whole) > EXACT:
            guilty.append(f"{term.name} (pool={term.pool!r})")
    return (
        f"the gradient changes by {gap:.2g} when the step is split into micro-batches of {budget} tokens; "
        f"term {', '.join(guilty) or 'unknown'}: a loss that compares rows must declare pool='group' or "
        f"'step', and only the denominator may average over rows"
    )


def first_step_ratio(method: Method) -> None:
    """At the start of an update the old log-probability is the leaf itself, whatever the batch carries."""
    if "old_logp" in method.needs:
        return  # the method reads it before the update: there it is annotated, and equal to the leaf
    batch = batch_of(trajectories(2))
    other = batch.with_arrays(old_logp=torch.full_like(batch.arrays["old_logp"], -1.0))
    a, _ = gradient(method, replace(batch, on_policy=True), EVERYTHING)
    b, _ = gradient(method, replace(other, on_policy=True), EVERYTHING)
    require(
        difference(a, b) == 0,
        "in the first optimizer step the gradient still depends on the array old_logp; take v.old_logp in a "
        "loss, and name old_logp in `needs` if an advantage reads it",
    )


def unused_numbers(method: Method) -> None:
    """NaN in every array of rows that are left out changes nothing."""
    batch = batch_of(trajectories(3))
    unscorable = (batch.verdict == -1)[batch.row]
    arrays = {k: torch.where(unscorable, torch.nan, v) for k, v in batch.arrays.items()}
    a, _ = gradient(method, batch, EVERYTHING)
    try:
        b, _ = gradient(method, replace(batch, arrays=arrays), EVERYTHING)
    except MissingStatistic:  # a NaN has spread into what a term reads
        b = torch.full_like(a, torch.nan)
    require(
        difference(a, b) == 0,
        "numbers of unscorable rows reach the gradient; statistics go over `has_reward(batch)` or the tokens "
        "of active rows (`batch.active`)",
    )


def declared_needs(method: Method) -> None:
    """Every array that the method reads is named in its `needs`, so that training annotates it."""
    if method.harvest is not None:
        return  # the rows that it makes carry arrays of their own
    batch = replace(batch_of(trajectories(8)), on_policy=True)
    named = {k: v for k, v in batch.arrays.items() if k in method.needs}
    whole, _ = gradient(method, batch, EVERYTHING)
    try:
        only_named, _ = gradient(method, replace(batch, arrays=named), EVERYTHING)
    except (MissingStatistic, KeyError, ValueError) as error:
        raise LawBroken(f"an array is read that `needs` does not name: {error}") from None
    require(
        difference(whole, only_named) == 0,
        f"the gradient changes with arrays that `needs` does not name, and training would not annotate them; "
        f"they are among {', '.join(sorted(batch.arrays))}",
    )


def _one_token(rows: Sequence[Trajectory]) -> list[Trajectory]:
    first = rows[0]
    extra = {**first.extra, "token_reward": [0.5]}
    unknown = float("nan")
    return [
        replace(first, ids=first.ids[:2], source=[0, 1], behaviour_logp=[unknown, -1.0], span=[], extra=extra)
    ]


DEGENERATE: Mapping[str, Callable[[Sequence[Trajectory]], list[Trajectory]]] = {
    "no rollouts": lambda rows: [r for r in rows if r.sampling is None],
    "no demonstrations": lambda rows: [r for r in rows if r.sampling is not None],
    "all rewards equal": lambda rows: [replace(r, reward=1.0, verdict=None) for r in rows],
    "all truncated": lambda rows: [replace(r, finish=Finish.LENGTH) for r in rows],
    "all unscorable": lambda rows: [replace(r, reward=None, verdict=Verdict.UNSCORABLE) for r in rows],
    "one row": lambda rows: list(rows[4:5]),
    "one token": _one_token,
    "nothing": lambda rows: [],
}
"""Steps in which something is missing."""


def degenerate_steps(method: Method) -> None:
    """A step without rollouts, demonstrations, reward differences or rows is defined; an empty term is 0."""
    for what in DEGENERATE:
        degenerate_step(method, what)


def degenerate_step(method: Method, what: str) -> None:
    """One of the steps in `DEGENERATE`."""
    found, reports = gradient(method, batch_of(DEGENERATE[what](trajectories(4))), 40)
    require(bool(torch.isfinite(found).all()), f"step with {what}: the gradient is not finite")
    for report in reports:
        require(report.loss == report.loss, f"step with {what}: the loss of term {report.name} is NaN")
        empty = report.decisions > 0 or report.loss == 0.0
        require(empty, f"step with {what}: term {report.name} covers no token but has loss {report.loss:g}")
    if what in ("all unscorable", "nothing"):
        require(bool((found == 0).all()), f"step with {what}: something is trained all the same")


class HeldFixed(TorchFunctionMode):
    """Every `detach` gives the value it had on the first pass: finite differences see it as fixed."""

    def __init__(self) -> None:
        super().__init__()
        self.values: list[Tensor] = []
        self.at = 0
        self.recording = True

    def again(self) -> HeldFixed:
        """Another pass over the same computation, with the values of the first."""
        self.at, self.recording = 0, False
        return self

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func is not torch.Tensor.detach:
            return result
        if self.recording:
            self.values.append(result.clone())
        self.at += 1
        return self.values[self.at - 1]


def leaf_gradient(method: Method) -> None:
    """The gradient with respect to every statistic is the finite difference of the loss."""
    batch = assigned(method, 5)
    prepared = prepare(batch, method, step=STEP)
    generator = torch.Generator().manual_seed(0)
    for p in prepared.terms:
        if bool(p.live.any()):
            leaves = {
                s: -torch.rand(batch.n_decisions, generator=generator, dtype=torch.float64) - 0.05
                for s in ("logp", *p.term.statistics)
            }
            _compare_with_differences(_UnitLosses(prepared.batch, p), leaves)


class _UnitLosses:
    """A term's loss by unit: what its pool sees at once, so that one token of every unit moves at a time."""

    def __init__(self, batch: Batch, p: PreparedTerm) -> None:
        self.batch, self.p = batch, p
        everything = torch.zeros(batch.n_rows, dtype=torch.int64)
        of_row = {"row": torch.arange(batch.n_rows), "group": batch.group, "step": everything}
        self.unit = of_row[p.term.pool]
        self.held = HeldFixed()

    def __call__(self, leaves: Mapping[str, Tensor], mode: HeldFixed) -> Tensor:
        with mode:
            losses = self.p.term.evaluate(self.batch, self.p.covered, leaves)
        value = losses.value * self.p.scale[losses.row] / self.p.n
        return torch.zeros(self.batch.n_rows, dtype=value.dtype).index_add(0, self.unit[losses.row], value)

    def slopes(self, leaves: Mapping[str, Tensor], statistic: str, moved: Tensor, h: float) -> Tensor:
        """Five-point differences of fourth order by unit, each in the direction of its own token."""

        def at(distance: float) -> Tensor:
            values = leaves[statistic].index_add(0, moved, torch.full((moved.numel(),), distance).double())
            return self({**leaves, statistic: values}, self.held.again())

        return (8 * (at(h) - at(-h)) - (at(2 * h) - at(-2 * h))) / (12 * h)


def _compare_with_differences(losses: _UnitLosses, leaves: Mapping[str, Tensor]) -> None:
    name = losses.p.term.name
    cut = {s: v.clone().requires_grad_() for s, v in leaves.items()}
    value = losses(cut, losses.held)
    require(value.requires_grad, f"term {name}: its loss does not depend on v.logp or another leaf")
    found = torch.autograd.grad(value.sum(), list(cut.values()), allow_unused=True)
    size = value.detach().abs().clamp(min=1.0)
    covered = losses.p.covered.nonzero()[:, 0]
    unit = losses.unit[losses.batch.row[covered]]
    place = position_in_row(unit.sort().values, losses.batch.n_rows)
    covered = covered[unit.argsort(stable=True)]
    for statistic, g in zip(cut, found, strict=True):
        g = torch.zeros_like(leaves[statistic]) if g is None else g
        for k in range(int(place.max()) + 1):
            moved = covered[place == k]
            units = losses.unit[losses.batch.row[moved]]
            wrong = torch.ones(moved.numel(), dtype=torch.bool)
            # Smaller steps for the tokens that do not agree: the first may straddle the corner of a clip.
            for h in (1e-4, 1e-5, 1e-6):
                slope = losses.slopes(leaves, statistic, moved, h)[units]
                allowed = 1e-13 * size[units] / h + 1e-7 * g[moved].abs()
                wrong &= ~((slope - g[moved]).abs() <= allowed)
                if not bool(wrong.any()):
                    break
            else:
                i = int(wrong.nonzero()[0])
                raise LawBroken(
                    f"term {name}: d loss / d {statistic} of token {int(moved[i])} is {g[moved[i]]:.9g}, "
                    f"finite differences say {slope[i]:.9g}; within its pool ({losses.p.term.pool!r}) a loss "
                    f"is a smooth function of the leaves; what is not differentiated stands under .detach()"
                )


def detached_inputs(method: Method) -> None:
    """Only leaves can be differentiated: asking for the gradient of a detached input of a term raises."""
    batch = assigned(method, 6)
    attached = [name for name, values in batch.arrays.items() if values.requires_grad]
    require(not attached, f"the arrays {', '.join(attached)} carry a gradient; set them with .detach()")
    leaf = torch.full((batch.n_decisions,), -0.5, dtype=torch.float64, requires_grad=True)
    view = View(batch, torch.arange(batch.n_decisions)[batch.active[batch.row]], {"logp": leaf})
    for array in (view.p, view.old_logp, *(view.array(k) for k in ("ref_logp", "entropy"))):
        try:
            torch.autograd.grad(array.sum(), leaf)
        except RuntimeError:
            continue
        raise LawBroken("a detached input of the terms can be differentiated")


def one_objective(method: Method) -> None:
    """Training accumulates exactly the gradient of the terms on the policy's statistics."""
    rows = trajectories(7)
    batch = assigned(method, 7)
    prepared = prepare(batch, method, step=STEP)
    policies = policies_of(method)
    needs = ("logp", "logp_t1", "entropy", "mean_logp", "kl", "reverse_kl", "value")
    scored = {name: policy.score(batch, needs) for name, policy in policies.items()}
    results = evaluate(prepared, scored)
    for policy_name, policy in policies.items():
        mine = [g for p, (_, g) in zip(prepared.terms, results, strict=True) if p.term.policy == policy_name]
        policy.backward(scored[policy_name], total(mine, batch.n_decisions))
    direct = torch.cat([p.gradient() for p in policies.values()])
    gap = difference(gradient(method, batch_of(rows), 30)[0], direct)
    silent = [term.name for term in method.terms if term.silent_without_advantage]
    require(
        gap <= EXACT,
        f"what training accumulates differs by {gap:.2g} from the gradient of the terms"
        + (
            f"; do {', '.join(silent)} have a gradient where A = 0? Then silent_without_advantage is wrong"
            * bool(silent)
        ),
    )


LAWS: Mapping[str, Callable[[Method], None]] = {
    "split invariance": split_invariance,
    "ratio 1 in the first step": first_step_ratio,
    "unused numbers": unused_numbers,
    "declared needs": declared_needs,
    "degenerate steps": degenerate_steps,
    "leaf gradient": leaf_gradient,
    "detached inputs": detached_inputs,
    "one objective": one_objective,
}


@dataclass(frozen=True)
class LawResult:
    """Whether a stage of a method keeps a law.

    Attributes:
        law: A name of `LAWS`.
        meaning: The law in one sentence.
        stage: The stage tried, `None` where the method has none.
        broken: What is wrong and what to change; `None` if the law is kept.
    """

    law: str
    meaning: str
    stage: str | None
    broken: str | None = None

    @property
    def kept(self) -> bool:
        return self.broken is None


def check(method: str | Entry, **parameters: Any) -> list[LawResult]:
    """Try every law on every stage of a method.

    Args:
        method: A registered name, `FILE.py:NAME`, or what `register` returned.
        **parameters: The method's hyper-parameters.

    Returns:
        One result per stage and law, in order.

    Raises:
        MethodError: an unknown method or parameter.
    """
    built = get(method)(**parameters)
    results = []
    stages: Sequence[str | None] = list(built.stages) or [None]
    for stage in stages:
        rule = built.stage(stage)[1]
        for name, law in LAWS.items():
            meaning = (law.__doc__ or "").splitlines()[0]
            results.append(LawResult(name, meaning, stage, _broken(law, rule)))
    return results


def _broken(law: Callable[[Method], None], method: Method) -> str | None:
    try:
        law(method)
    except LawBroken as broken:
        return str(broken)
    except Exception as error:  # whatever a stranger's method raises is a result, not a crash of the check
        return f"{type(error).__name__}: {error}"
    return None
