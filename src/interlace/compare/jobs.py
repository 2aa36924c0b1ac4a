"""Jobs are folders: what one is asked to hold stands in it, beside what came of it.

COMPARISON/comparison.yaml          settings
COMPARISON/base/TASK                the start model, measured; the cost of an SFT step
COMPARISON/shared/TASK/sft-*/seed-* SFT checkpoints that several runs start from
COMPARISON/tuning/TASK/LABEL/*      runs of the declared search, on seeds of their own
COMPARISON/runs/TASK/LABEL/seed-*   the runs of the table
COMPARISON/batch/TASK               rows for the token view

JOB/job.json       what it is asked to hold
JOB/status.json    where it is while it works
JOB/outcome.json   how it ended
JOB/measured/      what was measured of its weights, one file for each stage's end
and, where it trains, an ordinary run folder
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from interlace.config import ConfigError, fingerprint
from interlace.training.checkpoint import write_json

Kind = Literal["base", "shared", "tuning", "run", "batch"]
State = Literal["waiting", "blocked", "running", "done", "diverged", "dead", "failed"]

ENDED: tuple[State, ...] = ("done", "diverged", "dead", "failed")
FINAL: tuple[State, ...] = ("done", "diverged", "dead")
"""What is not tried again when the command is issued again: the same run would end the same."""


@dataclass(frozen=True)
class Job:
    """One folder of a comparison.

    Attributes:
        id: Its path in the comparison folder.
        kind: What it is for.
        label: The contender, or what it is.
        method: The method's spec, where it trains.
        task: Spec of the task.
        seed: Of everything in it.
        settings: For `train`.
        choice: Name of the setting of the search.
        init: Id of the job whose weights it starts from, and is charged for.
        needs: Ids of the jobs that must be done before.
        measure: What is measured (`measure.Suite`).
    """

    id: str
    kind: Kind
    label: str
    method: str
    task: str
    seed: int
    settings: Mapping[str, Any] = field(default_factory=dict)
    choice: str = ""
    init: str | None = None
    needs: tuple[str, ...] = ()
    measure: Mapping[str, Any] = field(default_factory=dict)

    @property
    def fingerprint(self) -> str:
        """A hash of everything that its result depends on."""
        plain = asdict(self)
        return fingerprint({k: v for k, v in plain.items() if k not in ("id", "needs")})


def write_job(root: Path, job: Job) -> None:
    """Say in its folder what a job is.

    Raises:
        ConfigError: the folder holds one with other settings.
    """
    folder = root / job.id
    path = folder / "job.json"
    if path.exists():
        there = json.loads(path.read_text(encoding="utf-8"))
        if there["fingerprint"] != job.fingerprint:
            changed = ", ".join(_changed(there, asdict(job))) or "something"
            raise ConfigError(
                f"{folder} holds a run with other settings ({changed}); give another out=FOLDER, or delete "
                f"that folder to have this run made anew"
            )
        return
    folder.mkdir(parents=True, exist_ok=True)
    write_json(path, {**asdict(job), "fingerprint": job.fingerprint})


def _changed(old: Mapping[str, Any], new: Mapping[str, Any], under: str = "") -> list[str]:
    names = []
    for key in sorted({*old, *new} - {"fingerprint", "id", "needs"}):
        a, b = old.get(key), new.get(key)
        if isinstance(a, Mapping) and isinstance(b, Mapping):
            names += _changed(a, b, f"{key}.")
        elif json.dumps(a, default=str) != json.dumps(b, default=str):
            names.append(f"{under}{key}")
    return names


def read_job(folder: Path) -> Job:
    """The job that a folder is asked to hold."""
    plain = json.loads((folder / "job.json").read_text(encoding="utf-8"))
    plain.pop("fingerprint")
    return Job(**{**plain, "needs": tuple(plain["needs"])})


def outcome(folder: Path) -> dict[str, Any] | None:
    """How a job ended, `None` if it has not."""
    return _read(folder / "outcome.json")


def status(folder: Path) -> dict[str, Any]:
    """Where a job is."""
    return _read(folder / "status.json") or {}


def _read(path: Path) -> dict[str, Any] | None:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def measured(folder: Path) -> dict[str, dict[str, Any]]:
    """What was measured of its weights, by where, in order."""
    found = {}
    for path in sorted((folder / "measured").glob("*.json")):
        record = json.loads(path.read_text(encoding="utf-8"))
        found[record["at"]] = record
    return found


def forget_failure(folder: Path) -> None:
    """Let a job that failed for no reason of its own be tried again."""
    (folder / "outcome.json").unlink(missing_ok=True)
