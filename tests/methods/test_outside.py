"""Methods that live outside the library: a file, or a package's entry point."""

from __future__ import annotations

import importlib.metadata
import re
import sys
from pathlib import Path

import pytest

import interlace
from interlace.methods import REGISTER, MethodError, get

CONTRIBUTING = Path(__file__).parents[2] / "CONTRIBUTING.md"
ROWS = [{"logp": [-1.0, -0.5], "source": "demo"}]


def example(name: str) -> str:
    """The code block of CONTRIBUTING.md that registers this method, as a reader would paste it."""
    blocks = re.findall(r"```python\n(.*?)```", CONTRIBUTING.read_text(encoding="utf-8"), re.DOTALL)
    found = [block for block in blocks if f'@register("{name}"' in block]
    assert len(found) == 1
    return found[0]


@pytest.fixture
def damped(tmp_path: Path) -> Path:
    file = tmp_path / "my_idea.py"
    file.write_text(example("damped"), encoding="utf-8")
    return file


def points(**found: str):
    """A stand-in for installed packages that offer these entry points."""
    made = [importlib.metadata.EntryPoint(name, value, "interlace.methods") for name, value in found.items()]

    def entry_points(**selected: str):
        assert selected == {"group": "interlace.methods"}
        return importlib.metadata.EntryPoints(made)

    return entry_points


@pytest.mark.parametrize(("name", "settings"), [("damped", {"power": 2}), ("anchored", {"div_coef": 0.3})])
def test_the_examples_of_the_contributing_guide_keep_every_law(
    tmp_path: Path, name: str, settings: dict
) -> None:
    (tmp_path / "mine.py").write_text(example(name), encoding="utf-8")
    results = interlace.check(f"{tmp_path}/mine.py:{name}", **settings)
    assert {r.law: r.broken for r in results if not r.kept} == {}


def test_the_example_gives_the_numbers_that_its_formula_says(damped: Path) -> None:
    spec = f"{damped}:damped"
    # -(1/N) sum p^power logp with p^power held fixed: the coefficient of a token is p^power / N, N = 2
    found = interlace.explain(spec, ROWS, power=2)
    assert found["rows"][0]["coefficient"] == pytest.approx(
        [2.718281828459045**-2 / 2, 2.718281828459045**-1 / 2]
    )
    assert interlace.explain(spec, ROWS, power=0) == interlace.explain("sft", ROWS)
    assert "-sg[p^0.5]*logp" in interlace.formula(spec)


def test_a_reference_kl_with_its_own_denominator_is_the_one_inside_the_term(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(example("anchored"), encoding="utf-8")
    rows = [
        {"logp": [-1.0, -0.5], "ref_logp": [-0.7, -0.9], "source": "rollout", "reward": 1.0, "group": 0},
        {"logp": [-0.3], "ref_logp": [-0.2], "source": "rollout", "reward": 0.0, "group": 0},
    ]
    found = interlace.explain(f"{tmp_path}/mine.py:anchored", rows, div_coef=0.3)
    # both terms are token means of the same tokens, so it is GRPO with the KL inside
    expected = interlace.explain("grpo", rows, kl=0.3, denominator="tokens")
    for a, b in zip(found["rows"], expected["rows"], strict=True):
        assert a["coefficient"] == pytest.approx(b["coefficient"], abs=1e-15)


def test_a_file_does_not_replace_a_built_in_method(damped: Path) -> None:
    damped.write_text(damped.read_text(encoding="utf-8").replace('"damped"', '"sft"'), encoding="utf-8")
    before = REGISTER["sft"]
    assert get(f"{damped}:damped") is not before
    assert REGISTER["sft"] is before and "damped" not in REGISTER


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("nowhere.py:mine", "there is no file 'nowhere.py'"),
        ("{file}:dampd", "has no 'dampd'; it has damped"),
        ("{file}:Damped", "not made with @interlace.methods.register"),
    ],
)
def test_a_wrong_file_or_name_says_what_there_is(damped: Path, spec: str, says: str) -> None:
    with pytest.raises(MethodError, match=says):
        get(spec.format(file=damped))


def test_an_entry_point_is_a_name_like_any_other(monkeypatch: pytest.MonkeyPatch, damped: Path) -> None:
    monkeypatch.syspath_prepend(str(damped.parent))
    monkeypatch.setattr(importlib.metadata, "entry_points", points(damped="my_idea:damped"))
    monkeypatch.delitem(sys.modules, "my_idea", raising=False)
    try:
        assert interlace.explain("damped", ROWS, power=0) == interlace.explain("sft", ROWS)
        assert all(r.kept for r in interlace.check("damped"))
        with pytest.raises(MethodError, match="unknown parameter 'powr'; did you mean 'power'"):
            get("damped")(powr=1)
        with pytest.raises(MethodError, match="did you mean 'damped'"):
            get("dampd")
    finally:
        REGISTER.pop("damped", None)


def test_an_entry_point_that_is_no_method_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.metadata, "entry_points", points(pi="math:pi"))
    with pytest.raises(MethodError, match=r"not made with @interlace\.methods\.register, but a float"):
        get("pi")
