"""`interlace.explain` gives the numbers that TRL, verl and Trinity-RFT computed with their own code."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import interlace

FILES = sorted(Path(__file__).parent.glob("*.json"))
GOLDENS = {file.stem: json.loads(file.read_text()) for file in FILES}
CASES = [
    pytest.param(golden["batches"][case["batch"]], case, id=f"{library}-{case['name']}")
    for library, golden in GOLDENS.items()
    for case in golden["cases"]
]


def flat(rows: list[list[float]]) -> np.ndarray:
    return np.array([x for row in rows for x in row])


@pytest.mark.parametrize(("rows", "case"), CASES)
def test_loss_gradient_and_advantage_equal_the_peers(
    rows: list[dict[str, Any]], case: dict[str, Any]
) -> None:
    ours = interlace.explain(case["method"], rows, step=case.get("step", 0), **case["parameters"])
    near = {"rtol": case["tolerance"], "atol": case["tolerance"]}
    np.testing.assert_allclose(ours["loss"], case["factor"] * case["loss"], **near)
    gradient = -flat([row["coefficient"] for row in ours["rows"]])
    np.testing.assert_allclose(gradient, case["factor"] * flat(case["gradient"]), **near)
    if "advantages" in case:
        advantage = flat([row["advantage"] for row in ours["rows"]])
        np.testing.assert_allclose(advantage, flat(case["advantages"]), **near)


def test_all_three_peers_are_compared() -> None:
    assert {golden["library"] for golden in GOLDENS.values()} == {"trl", "verl", "trinity-rft"}


@pytest.mark.parametrize("library", GOLDENS)
def test_case_names_are_unique(library: str) -> None:
    case_names = [case["name"] for case in GOLDENS[library]["cases"]]
    assert len(set(case_names)) == len(case_names)


def test_fixture_reaches_every_branch_of_the_clipped_loss() -> None:
    golden = GOLDENS["verl"]
    (case,) = (c for c in golden["cases"] if c["name"] == "dapo_clip_higher")
    rows = golden["batches"][case["batch"]]
    ratio = np.exp(flat([row["logp"] for row in rows]) - flat([row["old_logp"] for row in rows]))
    advantage, gradient = flat(case["advantages"]), flat(case["gradient"])
    clipped = {
        "above": (advantage > 0) & (ratio > 1.28),
        "below": (advantage < 0) & (ratio < 0.8),
        "dual": (advantage < 0) & (ratio > 3),
        "equal rewards": advantage == 0,
    }
    inside = ~np.logical_or.reduce(list(clipped.values()))
    for name, where in clipped.items():
        assert where.sum() >= 2, name
        assert (gradient[where] == 0).all(), name
    assert (advantage[inside] > 0).any() and (advantage[inside] < 0).any()
    assert (gradient[inside] != 0).all()
