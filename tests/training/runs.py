"""Tiny runs: a reward that a random model earns half of the time, crashes, and what two runs must share."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

from rich.console import Console

from interlace.tasks.base import judged
from interlace.training.console import View
from interlace.training.run import RunResult
from interlace.training.run import train as train_aloud

TINY = {
    "task": "countdown",
    "model": "scratch:nano,layers=1,hidden=16,heads=2,ffn=32",
    "problems": 12,
    "prompts_per_step": 2,
    "group_size": 4,
    "demos_per_step": 4,
    "eval_problems": 4,
    "eval_samples": 0,
    "threads": 1,
    "steps": 2,
}


class Parity:
    """Right if the text has an even length, or is the demonstration."""

    bounded = True

    def __call__(self, completion, problem):
        return judged(len(completion) % 2 == 0 or completion == problem.demonstration)


class Crash(Exception):
    """What a killed run ends with here."""


class Told(View):
    """Keeps what is said; crashes at the n-th step shown, or when a text is said."""

    def __init__(self, crash_at: int | str | None = None) -> None:
        super().__init__(Console(file=io.StringIO(), width=1000))
        self.crash_at, self.steps = crash_at, 0

    @property
    def text(self) -> str:
        return self.console.file.getvalue()

    def step(self, done: int, metrics: Any) -> None:
        super().step(done, metrics)
        self.steps += 1
        if self.steps == self.crash_at:
            raise Crash

    def say(self, text: str) -> None:
        super().say(text)
        if isinstance(self.crash_at, str) and self.crash_at in text:
            raise Crash


def train(method: str, out: Path, view: View | None = None, **settings: Any) -> RunResult:
    """A tiny run with these settings over `TINY`."""
    return train_aloud(method, out=str(out), view=view or Told(), **{**TINY, **settings})


def crashed_and_resumed(method: str, out: Path, crash_at: int | str, **settings: Any) -> RunResult:
    """A run that saves after every step, dies, and is resumed."""
    try:
        train(method, out, Told(crash_at), save_every=1, **settings)
    except Crash:
        return train_aloud(resume=out, view=Told())
    raise AssertionError(f"the run never came to {crash_at!r}")


def lines(run: RunResult | Path) -> list[dict[str, Any]]:
    """The metrics of every step, without what the clock says."""
    path = Path(getattr(run, "folder", run)) / "metrics.jsonl"
    found = [json.loads(line) for line in path.read_text().splitlines()]
    return [{k: v for k, v in line.items() if not k.startswith("speed/")} for line in found]


def result(run: RunResult) -> dict[str, Any]:
    """The run's result.json, without what the clock says."""
    found = json.loads((run.folder / "result.json").read_text())
    return {k: v for k, v in found.items() if k != "seconds"}


def weights(run: RunResult | Path) -> bytes:
    """The trained weights, as they are written."""
    folder = run.checkpoint if isinstance(run, RunResult) else run
    return (folder / "model.safetensors").read_bytes()


def assert_same_run(one: RunResult, other: RunResult) -> None:
    """Bit-identical weights, the same numbers of every step, the same results.

    The engine's own log-probabilities, on which nothing is trained, may be rounded differently.
    """
    engine = ("entropy/sampled", "mismatch/")
    ours, theirs = (
        [{k: v for k, v in line.items() if not k.startswith(engine)} for line in lines(run)]
        for run in (one, other)
    )
    assert ours == theirs
    assert result(one) == result(other)
    assert weights(one) == weights(other)
