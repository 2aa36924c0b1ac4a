"""A term: one of a method's losses, as its paper writes it, on leaf statistics.

A term's loss function receives a `View` of the decisions it covers and returns losses that are not
averaged. Only the leaves (`view.logp`, `view.leaf(name)`) can be differentiated; every other array is
detached, and asking autograd for its gradient raises. The reducer divides by the named denominator.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from interlace.parts.reducer import Denominator
from interlace.types import Batch


class MissingStatistic(ValueError):
    """A term needs a number that a row does not have."""


@dataclass(frozen=True)
class Losses:
    """Unreduced losses: `value` [K] and the row (index into the batch) that each belongs to, int64 [K]."""

    value: Tensor
    row: Tensor


def annotated(batch: Batch, name: str, index: Tensor) -> Tensor:
    """The detached array `name` of the decisions `index` (int64 [n]), [n].

    Raises:
        MissingStatistic: it is absent on one of them; names the row and the key.
    """
    if index.numel() == 0:
        return torch.zeros(0, dtype=torch.float64)
    values = batch.arrays.get(name)
    values = torch.full((index.numel(),), torch.nan) if values is None else values[index]
    absent = values.isnan()
    if bool(absent.any()):
        row = int(batch.row[index[absent][0]])
        raise MissingStatistic(
            f"row {int(batch.row_id[row])}: '{name}' is needed on every token that this term covers; "
            + (
                "accepted is a list of finite numbers as long as 'logp'"
                if batch.slots is None
                else f"the method's `needs` must name '{name}', so that training annotates it"
            )
        )
    return values


class View:
    """What a loss function sees: the covered decisions, flat, in batch order.

    Attributes:
        logp: float64 [n], the leaf.
        p: exp(logp), detached.
        row: int64 [n], index into the rows of `batch`.
        n_rows: number of rows of `batch`.
        batch: row-level facts (`reward`, `group`, `extra`, ...).
        index: int64 [n], the covered decisions in `batch`.
    """

    def __init__(self, batch: Batch, index: Tensor, leaves: Mapping[str, Tensor]) -> None:
        self.batch = batch
        self.index = index
        self.row = batch.row[index]
        self.n_rows = batch.n_rows
        self._leaves = leaves

    @property
    def logp(self) -> Tensor:
        return self.leaf("logp")

    @property
    def p(self) -> Tensor:
        return self.logp.detach().exp()

    def leaf(self, name: str) -> Tensor:
        """Another leaf statistic of the covered decisions (`entropy`, `value`, `logp_t1`, ...), [n]."""
        return self._leaves[name][self.index]

    def array(self, name: str) -> Tensor:
        """A detached per-decision array of the covered decisions, [n].

        Raises:
            MissingStatistic: it is absent on a covered decision; names the row and the key.
        """
        if name == "old_logp" and self.batch.on_policy:
            return self.logp.detach()
        return annotated(self.batch, name, self.index)

    @property
    def old_logp(self) -> Tensor:
        """Log-probability at the start of the update; where absent the detached leaf (the ratio is 1)."""
        old = self.batch.arrays.get("old_logp")
        if old is None or self.batch.on_policy:
            return self.logp.detach()
        old = old[self.index]
        return torch.where(old.isnan(), self.logp.detach(), old)

    @property
    def ref_logp(self) -> Tensor:
        return self.array("ref_logp")

    @property
    def advantage(self) -> Tensor:
        return self.array("advantage")

    @property
    def entropy(self) -> Tensor:
        """Entropy at the start of the rollout step, detached (the leaf is `leaf("entropy")`)."""
        return self.array("entropy")

    @property
    def group(self) -> Tensor:
        """int64 [n]: group of each covered decision."""
        return self.batch.group[self.row]

    def row_losses(self, per_row: Tensor) -> Losses:
        """One loss for each row with a covered decision, from a vector over all rows [n_rows]."""
        rows = torch.unique(self.row)
        return Losses(per_row[rows], rows)


LossFunction = Callable[[View], "Tensor | Losses"]
Coefficient = float | Callable[["Context"], float]


@dataclass(frozen=True)
class Context:
    """What a coefficient may depend on.

    Attributes:
        step: Optimizer steps or rollout steps so far, whatever the run counts schedules in.
        state: Numbers that controllers hold (`mu`, `g_last`, ...).
        batch: The scored batch of this step, after select.
    """

    step: int
    state: Mapping[str, float]
    batch: Batch


@dataclass(frozen=True)
class Term:
    """One loss with one denominator.

    Attributes:
        name: Shown in metrics and `explain`.
        losses: For each source (or several joined by `+`) the loss of its decisions. All of them share
            the denominator, taken over every decision the term covers.
        denominator: A standard name or a `Denominator` with its own count.
        coefficient: The factor in front.
        where: bool [N] of the batch; which decisions of those sources are covered (default all).
        max_length: L of the `length` and `length_sum` denominators; `None` takes the run's limit.
        pool: What the loss function must see at once: the rows of a micro-batch (`row`), whole groups
            (`group`) or the whole optimizer step (`step`).
        likelihood: True for a pure likelihood term (advantage shown as 1), False for a reward-driven one.
        silent_without_advantage: The loss has no gradient where the advantage is 0, so such rows
            need not be scored.
        statistics: Leaf statistics that the loss differentiates.
        policy: Which named policy it trains.
        ratio: False for likelihood and pair terms on sampled rows, which read temperature 1.
        explained: False for what is not a function of the chosen tokens' log-probabilities
            (entropy bonus, value loss, label smoothing): outside `explain`.
        formula: The loss per token as text, parameters by name.
    """

    name: str
    losses: Mapping[str, LossFunction]
    denominator: str | Denominator
    coefficient: Coefficient = 1.0
    where: Callable[[Batch], Tensor] | None = None
    max_length: int | None = None
    pool: Literal["row", "group", "step"] = "row"
    likelihood: bool = False
    silent_without_advantage: bool = False
    statistics: tuple[str, ...] = ("logp",)
    policy: str = "policy"
    ratio: bool = True
    explained: bool = True
    formula: str = ""

    @property
    def at_temperature_one(self) -> bool:
        return self.likelihood or not self.ratio

    @property
    def sources(self) -> tuple[str, ...]:
        return tuple(name for joined in self.losses for name in joined.split("+"))

    def reads(self, batch: Batch) -> dict[str, str]:
        """Leaf names of the loss function and the statistic each is taken from.

        Ratio terms read log-probabilities at the sampling temperature, likelihood and pair terms at
        temperature 1, wherever the two differ in this batch.
        """
        names = {name: name for name in self.statistics}
        if "logp" in names and self.at_temperature_one and batch.tempered:
            names["logp"] = "logp_t1"
        return names

    def covers(self, batch: Batch) -> Tensor:
        """bool [N]: the decisions in this term (and in its denominator)."""
        mask = batch.is_source(*self.sources) & batch.active[batch.row]
        if self.where is not None:
            mask &= self.where(batch)
        return mask

    def evaluate(self, batch: Batch, covered: Tensor, leaves: Mapping[str, Tensor]) -> Losses:
        """Unreduced losses of all covered decisions.

        Args:
            covered: bool [N] from `covers`.
            leaves: float64 [N] per statistic.
        """
        values, rows = [], []
        for joined, function in self.losses.items():
            index = (covered & batch.is_source(*joined.split("+"))).nonzero()[:, 0]
            view = View(batch, index, leaves)
            result = function(view)
            if isinstance(result, Tensor):
                result = Losses(result, view.row)
            values.append(result.value)
            rows.append(result.row)
        return Losses(torch.cat(values), torch.cat(rows))


@dataclass(frozen=True)
class TermReport:
    """What one term contributed to one optimizer step.

    Attributes:
        loss: coefficient times the reduced loss.
        coefficient: the factor in front.
        denominator: its name.
        n: its value.
        decisions: how many decisions it covers; 0 for an empty term.
    """

    name: str
    loss: float
    coefficient: float
    denominator: str
    n: float
    decisions: int
    extra: Mapping[str, float] = field(default_factory=dict)
