import ast
from pathlib import Path

import pytest

import interlace.tasks
from interlace.tasks import BUILT_IN, Countdown, load_task, registry


def test_knobs_are_read_from_the_spec_and_keywords_win():
    spec = "countdown:numbers=4,high=9,ops=+-"
    assert load_task(spec) == Countdown(numbers=4, high=9, ops="+-")
    assert load_task(spec, high="7", numbers=3) == Countdown(numbers=3, high=7, ops="+-")


def test_the_registry_lists_every_built_in_task_with_its_knobs_and_splits():
    listed = {info.name: info for info in registry()}
    assert listed.keys() == BUILT_IN.keys()
    assert listed["countdown"].knobs["target_high"] == 50
    assert listed["general_points"].splits[-2:] == ("ood_rule", "ood_cards")
    assert all(info.summary for info in listed.values())


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("countdwon", "nearest: countdown"),
        ("countdown:number=3", r"unknown knob 'number' \(nearest: numbers\); accepted: numbers, low"),
        ("countdown:numbers=three", "numbers='three'; accepted: a whole number"),
        ("countdown:numbers=9", "numbers=9; accepted: 2 to 6"),
        ("countdown:ops=+^", "accepted: some of"),
        ("countdown:style=fancy", "accepted: compact, text"),
        ("countdown:numbers=3,high", "'high' is not a knob"),
        ("knights_knaves:people=1", "accepted: 2 to 6"),
        ("arithmetic:operands=1", "accepted: 2 to 12"),
        ("general_points:faces=5", "accepted: 0 to 4"),
    ],
)
def test_errors_name_what_is_accepted(spec, message):
    with pytest.raises(ValueError, match=message):
        load_task(spec)


def test_a_knob_of_the_wrong_type_is_refused():
    with pytest.raises(ValueError, match="a whole number"):
        load_task("countdown", numbers=3.5)


@pytest.mark.parametrize("room", ["tasks", "rewards"])
def test_large_libraries_are_imported_on_first_use_only(room):
    folder = Path(interlace.tasks.__file__).parents[1] / room
    for path in folder.glob("*.py"):
        for node in ast.parse(path.read_text()).body:
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            roots = {name.split(".")[0] for name in names}
            assert not roots & {"reasoning_gym", "math_verify", "sympy", "transformers", "torch"}, path
