"""Numbers and roles of `extra`: found, defaulted, or refused with the row and the key."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from interlace.analysis.explain import parse_rows
from interlace.parts.extras import (
    carries_prefix,
    extra_number,
    extra_per_token,
    has_extra,
    has_role,
)
from interlace.parts.terms import MissingStatistic
from interlace.types import Batch

ALL = torch.tensor([True, True])


def batch_of(*extras: dict[str, Any]) -> Batch:
    return parse_rows([{"logp": [-1.0], "source": "demo", "extra": extra} for extra in extras])


def test_numbers_of_the_rows_asked_for() -> None:
    batch = batch_of({"class_weight": 2}, {"class_weight": 0.5})
    assert extra_number(batch, "class_weight", ALL).tolist() == [2, 0.5]
    first = extra_number(batch, "class_weight", torch.tensor([True, False])).tolist()
    assert first[0] == 2 and math.isnan(first[1])


def test_default_where_the_key_is_absent() -> None:
    assert extra_number(batch_of({}, {"w": 3.0}), "w", ALL, default=1.0).tolist() == [1, 3]


def test_absent_without_default_names_row_and_key() -> None:
    with pytest.raises(MissingStatistic, match=r"row 1: 'extra\.w' is needed; accepted is a finite number"):
        extra_number(batch_of({"w": 1.0}, {}), "w", ALL)


@pytest.mark.parametrize("value", ["1", True, math.nan, math.inf, -0.1, 1.1, [1.0]])
def test_what_is_no_number_in_the_range_is_refused(value: Any) -> None:
    with pytest.raises(ValueError, match=r"row 0: 'extra\.w'=.*accepted is a finite number >= 0 and <= 1"):
        extra_number(batch_of({"w": value}, {"w": 1.0}), "w", ALL, low=0.0, high=1.0)


def test_rows_not_asked_for_may_hold_anything() -> None:
    batch = batch_of({"w": 1.0}, {"w": "free"})
    assert extra_number(batch, "w", torch.tensor([True, False])).tolist()[0] == 1


def test_roles() -> None:
    batch = batch_of({"role": "chosen"}, {"role": "rejected"}, {}, {"role": None})
    assert has_role(batch, "chosen").tolist() == [True, False, False, False]
    assert has_role(batch, "rejected").tolist() == [False, True, False, False]


def test_unknown_role_names_the_row_and_the_nearest() -> None:
    with pytest.raises(ValueError, match=r"row 1: 'extra\.role'='chose'; did you mean 'chosen'\?"):
        has_role(batch_of({}, {"role": "chose"}), "rejected")


def guided(tokens: int, group: str = "a", **extra: Any) -> dict[str, Any]:
    source = ["prefix"] * tokens + ["rollout"]
    return {"logp": [-1.0] * (tokens + 1), "source": source, "group": group, "extra": extra}


def test_the_first_of_the_rows_with_the_same_prefix_carries_it() -> None:
    rows = [guided(0), guided(2), guided(2), guided(3), guided(2, "b"), guided(2, prefix_id="x")]
    expected = [False, True, False, True, True, True]
    assert carries_prefix(parse_rows(rows)).tolist() == expected


def test_the_first_is_by_row_id_among_active_rows() -> None:
    batch = parse_rows([guided(2), guided(2), guided(2)])
    batch = replace(batch, row_id=torch.tensor([5, 4, 3]), active=torch.tensor([True, True, False]))
    assert carries_prefix(batch).tolist() == [False, True, False]


@pytest.mark.parametrize("value", [[1], 1.5, True])
def test_prefix_id_is_text_or_an_integer(value: Any) -> None:
    with pytest.raises(ValueError, match=r"row 0: 'extra\.prefix_id'"):
        carries_prefix(parse_rows([guided(1, prefix_id=value)]))


def test_numbers_per_token_of_active_rows() -> None:
    rows = [
        {"source": "rollout", "logp": [-1.0, -1.0], "extra": {"x": [1, 2.5]}},
        {"source": "rollout", "logp": [-1.0], "extra": {"y": [9]}},
        {"source": "rollout", "logp": [-1.0], "extra": {"x": "broken"}},
        {"source": "rollout", "logp": [], "extra": {"x": []}},
    ]
    batch = parse_rows(rows)
    batch = replace(batch, active=torch.tensor([True, True, False, True]))
    assert has_extra(batch, "x").tolist() == [True, False, False, True]
    values = extra_per_token(batch, "x")
    assert values[:2].tolist() == [1, 2.5]
    assert bool(values[2:].isnan().all())


@pytest.mark.parametrize("value", [[1.0], [1.0, None], [1.0, math.inf], [True, 1.0], 2.0, "ab"])
def test_numbers_per_token_are_finite_and_as_many_as_tokens(value: Any) -> None:
    batch = parse_rows([{"source": "demo", "logp": [-1.0, -1.0], "extra": {"x": value}}])
    with pytest.raises(ValueError, match=r"row 0: 'extra.x'=.*: accepted is a list of 2 finite numbers"):
        extra_per_token(batch, "x")
