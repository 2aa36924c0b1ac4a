"""Tiny runs, and the same runs interrupted after a step and continued."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import interlace

SMALL: dict[str, Any] = {
    "task": "countdown:numbers=2",
    "model": "scratch:nano,layers=1,hidden=32,heads=2,ffn=32",
    "problems": 24,
    "prompts_per_step": 2,
    "group_size": 4,
    "demos_per_step": 4,
    "eval_problems": 1,
    "eval_samples": 0,
    "threads": 1,
    "save_every": 1,
    "keep_checkpoints": 99,
}
"""A run of well under a second."""

UNSTABLE = ("speed/", "entropy/sampled", "mismatch/")


class Quiet:
    """A view that keeps what it is told."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def say(self, message: str) -> None:
        self.said.append(message)

    def start(self, *_: Any) -> None: ...

    def stop(self) -> None: ...

    def step(self, *_: Any) -> None: ...


def run(method: str, out: Path, **settings: Any) -> list[dict[str, Any]]:
    """The metrics of a tiny run, one dict per step."""
    interlace.train(method, out=str(out), view=Quiet(), **{**SMALL, **settings})
    return metrics(out)


def metrics(out: Path) -> list[dict[str, Any]]:
    """What was logged, without times and without the engine's own log-probabilities.

    The latter are rounded differently where the engine's buffers have grown; nothing is trained on them.
    """
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in line.items() if not k.startswith(UNSTABLE)} for line in lines]


def weights(out: Path) -> bytes:
    """The last checkpoint's weights."""
    name = json.loads((out / "latest.json").read_text())["checkpoint"]
    return (out / "checkpoints" / name / "policy" / "model.safetensors").read_bytes()


def interrupted(out: Path, after: int, stage: int = 0) -> Path:
    """A copy of a run folder as it was after a step of a stage, then continued to its end."""
    copy = out.with_name(f"{out.name}-after-{after}")
    shutil.copytree(out, copy)
    names = sorted(p.name for p in (copy / "checkpoints").iterdir())
    chosen = next(n for n in names if n.startswith(f"{stage}-") and n.endswith(f"{after:06d}"))
    for name in names[names.index(chosen) + 1 :]:
        shutil.rmtree(copy / "checkpoints" / name)
    (copy / "latest.json").write_text(json.dumps({"checkpoint": chosen}))
    interlace.train(resume=str(copy), view=Quiet())
    return copy


def assert_resumes_exactly(out: Path, after: int = 1, stage: int = 0) -> None:
    """A run that was interrupted after a step ends with the same bits and the same log."""
    copy = interrupted(out, after, stage)
    assert weights(copy) == weights(out)
    assert metrics(copy) == metrics(out)
