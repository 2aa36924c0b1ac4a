"""Problems with a verifier: built-in tasks, reasoning-gym datasets, JSONL files."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, get_type_hints

from interlace.tasks.arithmetic import Arithmetic
from interlace.tasks.base import PuzzleTask, Reward, Task, nearest, split_of
from interlace.tasks.check import CheckReport, Failure, check_problems, drop_failures
from interlace.tasks.countdown import Countdown
from interlace.tasks.files import FileTask
from interlace.tasks.general_points import GeneralPoints
from interlace.tasks.gym import GymTask, dataset_names
from interlace.tasks.knights_knaves import KnightsKnaves

BUILT_IN: dict[str, type[PuzzleTask]] = {
    task.name: task for task in (Countdown, GeneralPoints, KnightsKnaves, Arithmetic)
}

FILE_ENDINGS = (".jsonl", ".json")

__all__ = [
    "BUILT_IN",
    "CheckReport",
    "Failure",
    "FileTask",
    "GymTask",
    "PuzzleTask",
    "Reward",
    "Task",
    "TaskInfo",
    "check_problems",
    "dataset_names",
    "drop_failures",
    "load_task",
    "registry",
    "split_of",
]


@dataclass(frozen=True)
class TaskInfo:
    """What a listing of tasks shows: name, one line, knobs with their defaults, and splits."""

    name: str
    summary: str
    knobs: dict[str, Any]
    splits: tuple[str, ...]


def registry() -> list[TaskInfo]:
    """The built-in tasks, in order of their names (reasoning-gym's are in `dataset_names`)."""
    return [
        TaskInfo(
            name,
            task.summary,
            {f.name: f.default for f in dataclasses.fields(task)},
            task().splits,
        )
        for name, task in sorted(BUILT_IN.items())
    ]


def load_task(spec: str, **knobs: Any) -> Task:
    """The task that a spec names.

    Args:
        spec: A built-in name (`countdown`), `gym:NAME` or the bare name of a reasoning-gym dataset, or
            a path ending in .jsonl or .json; then, optionally, knobs: `countdown:numbers=4,high=9`.
        **knobs: The same as keywords; they win over those in the spec.

    Raises:
        ValueError: Unknown task or knob, or an impossible value.
        FileNotFoundError: No such file.
    """
    name, inline = _parse(spec)
    given = {**inline, **knobs}
    if name.endswith(FILE_ENDINGS):
        if "reward" in given:
            given["default_reward"] = given.pop("reward")
        return _construct(FileTask, name, given, path=name)
    if name in BUILT_IN:
        return _construct(BUILT_IN[name], name, given)
    dataset = name.removeprefix("gym:")
    datasets = dataset_names()
    if dataset in datasets:
        return GymTask(dataset, **given)
    accepted = [*BUILT_IN, *datasets, *(f"gym:{d}" for d in datasets)]
    raise ValueError(
        f"unknown task {name!r}{nearest(name, accepted)}; accepted: {', '.join(BUILT_IN)}, gym:NAME with one "
        f"of {len(datasets)} reasoning-gym datasets, or a file ending in .jsonl or .json"
    )


def _parse(spec: str) -> tuple[str, dict[str, str]]:
    """Name and inline knobs; the colon of `gym:` and colons inside paths belong to the name."""
    name, knobs_text = spec, ""
    head, colon, tail = spec.rpartition(":")
    if colon and "=" in tail and head:
        name, knobs_text = head, tail
    knobs = {}
    for part in knobs_text.split(",") if knobs_text else ():
        key, equals, value = part.partition("=")
        if not equals or not key.strip():
            raise ValueError(f"task {spec!r}: {part!r} is not a knob; accepted: key=value,key=value")
        knobs[key.strip()] = value.strip()
    return name, knobs


def _construct(kind: type, name: str, given: dict[str, Any], **fixed: Any) -> Task:
    types = get_type_hints(kind)
    known = [f.name for f in dataclasses.fields(kind) if f.name not in fixed and f.init]
    for key, value in given.items():
        if key not in known:
            raise ValueError(
                f"{name}: unknown knob {key!r}{nearest(key, known)}; accepted: {', '.join(known)}"
            )
        given[key] = _converted(name, key, value, types[key])
    return kind(**fixed, **given)


_BOOLEANS = {"true": True, "false": False, "1": True, "0": False, "yes": True, "no": False}


def _converted(name: str, key: str, value: Any, kind: Any) -> Any:
    if not isinstance(value, str) or kind not in (int, float, bool):
        if kind is int and (isinstance(value, bool) or not isinstance(value, int)):
            raise ValueError(f"{name}: {key}={value!r}; accepted: a whole number")
        return value
    if kind is bool:
        if value.lower() not in _BOOLEANS:
            raise ValueError(f"{name}: {key}={value!r}; accepted: true, false")
        return _BOOLEANS[value.lower()]
    try:
        return kind(value)
    except ValueError:
        what = "a whole number" if kind is int else "a number"
        raise ValueError(f"{name}: {key}={value!r}; accepted: {what}") from None
