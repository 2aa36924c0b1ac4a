"""Numbers, roles and names that rows carry in `extra`."""

from __future__ import annotations

import difflib
import math

import torch
from torch import Tensor

from interlace.parts.segments import row_count
from interlace.parts.terms import MissingStatistic
from interlace.types import Batch

ROLES = ("chosen", "rejected")


def extra_number(
    batch: Batch,
    key: str,
    rows: Tensor,
    *,
    default: float | None = None,
    low: float = -math.inf,
    high: float = math.inf,
) -> Tensor:
    """`extra[key]` of each of `rows` (bool [R]), NaN on the others, float64 [R].

    Args:
        default: Taken where the row has no such key; `None` is an error there.
        low, high: Accepted are finite numbers from `low` to `high`.

    Raises:
        MissingStatistic: absent without default.
        ValueError: not a number in the accepted range. Both name the row and the key.
    """
    bounds = [f" >= {low:g}"] * math.isfinite(low) + [f" <= {high:g}"] * math.isfinite(high)
    accepted = "a finite number" + " and".join(bounds)
    values = torch.full((batch.n_rows,), math.nan, dtype=torch.float64)
    for i in rows.nonzero()[:, 0].tolist():
        value = batch.extra[i].get(key, default)
        where = f"row {int(batch.row_id[i])}: 'extra.{key}'"
        if value is None:
            raise MissingStatistic(f"{where} is needed; accepted is {accepted}")
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not (number and math.isfinite(value) and low <= value <= high):
            raise ValueError(f"{where}={value!r}: accepted is {accepted}")
        values[i] = float(value)
    return values


def has_extra(batch: Batch, key: str) -> Tensor:
    """bool [R]: active rows that carry `extra[key]`."""
    present = [extra.get(key) is not None for extra in batch.extra]
    return batch.active & torch.tensor(present, dtype=torch.bool)


def extra_per_token(batch: Batch, key: str) -> Tensor:
    """`extra[key]`, one number per token, of every active row that has it; NaN on the others, float64 [N].

    Raises:
        ValueError: not a list of finite numbers as long as the row; names the row and the key.
    """
    values = torch.full((batch.n_decisions,), math.nan, dtype=torch.float64)
    length = batch.length.tolist()
    for i in has_extra(batch, key).nonzero()[:, 0].tolist():
        given = batch.extra[i][key]
        given = given.tolist() if isinstance(given, Tensor) else given
        if not (isinstance(given, list | tuple) and len(given) == length[i] and all(map(_finite, given))):
            raise ValueError(
                f"row {int(batch.row_id[i])}: 'extra.{key}'={given!r:.80}: accepted is a list of {length[i]} "
                f"finite numbers, one per token"
            )
        values[batch.row == i] = torch.tensor(given, dtype=torch.float64)
    return values


def _finite(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def has_role(batch: Batch, role: str) -> Tensor:
    """bool [R]: active rows whose `extra.role` is `role`; rows without a role have none.

    Raises:
        ValueError: a row's role is none of `ROLES`; names the row and the nearest.
    """
    found = torch.zeros(batch.n_rows, dtype=torch.bool)
    for i, extra in enumerate(batch.extra):
        value = extra.get("role")
        if value is not None and value not in ROLES:
            near = difflib.get_close_matches(str(value), ROLES, 1)
            hint = f"; did you mean '{near[0]}'?" if near else ""
            raise ValueError(
                f"row {int(batch.row_id[i])}: 'extra.role'={value!r}{hint or '.'} "
                f"Accepted are {', '.join(ROLES)}"
            )
        found[i] = value == role
    return found & batch.active


def carries_prefix(batch: Batch) -> Tensor:
    """bool [R]: of the active rows of a group that share a demonstration prefix the first, by row id.

    Rows share it if their `extra.prefix_id` is equal, or, where absent, if they have the same number of
    prefix and demonstration tokens. A row without such tokens carries none.

    Raises:
        ValueError: `prefix_id` is neither text nor an integer; names the row.
    """
    tokens = row_count(batch.row[batch.is_source("prefix", "demo")], batch.n_rows).tolist()
    carrier = torch.zeros(batch.n_rows, dtype=torch.bool)
    seen = set()
    for i in batch.row_id.argsort().tolist():
        name = batch.extra[i].get("prefix_id")
        if isinstance(name, bool) or not isinstance(name, str | int | None):
            raise ValueError(
                f"row {int(batch.row_id[i])}: 'extra.prefix_id'={name!r}: accepted is a string or an integer"
            )
        named = ("tokens", tokens[i]) if name is None else ("id", name)
        prefix = (int(batch.group[i]), *named)
        if bool(batch.active[i]) and tokens[i] and prefix not in seen:
            seen.add(prefix)
            carrier[i] = True
    return carrier
