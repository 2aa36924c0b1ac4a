"""Run folders and checkpoints: everything is written beside its place and moved into it, or not at all.

RUN/config.yaml        the resolved configuration
RUN/environment.json   versions, threads, data fingerprint
RUN/metrics.jsonl      one line per step
RUN/samples/           rollouts of some steps
RUN/checkpoints/NAME/  policy/ (loads in transformers as it is), trainer.pt, progress.json
RUN/latest.json        the newest complete checkpoint
RUN/result.json        evaluations so far, final once the run is complete
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from interlace.policies.files import save_whole


class RunFolderError(ValueError):
    """A run folder that cannot be used; says why and what to do."""


def write_text(path: Path, text: str) -> None:
    """Write a file beside its place, flush it, and move it into place."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.draft")
    with open(draft, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(draft, path)


def write_json(path: Path, value: Any) -> None:
    """Write plain data as JSON, atomically."""
    write_text(path, json.dumps(value, indent=1, default=str))


class RunFolder:
    """One run's files. A second process in the same folder is refused."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the folder for this process.

        Raises:
            RunFolderError: another process holds it.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        with open(self.path / ".lock", "w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise RunFolderError(
                    f"{self.path} is in use by another run; give another out=FOLDER"
                ) from None
            yield

    @property
    def metrics(self) -> Path:
        return self.path / "metrics.jsonl"

    def has_run(self) -> bool:
        """Whether a run was started here."""
        return (self.path / "config.yaml").exists()

    def save(self, name: str, write: Callable[[Path], None], progress: Mapping[str, Any], keep: int) -> None:
        """Write a checkpoint, make it the latest, and remove older ones beyond `keep`.

        Names sort in order of time; those that end in `-end` close a stage and are never removed. One that
        was written right before a kill, and is not the latest, is written again: its place in the metrics is
        that of the killed run.
        """

        def draft(folder: Path) -> None:
            write(folder)
            text = json.dumps(dict(progress), indent=1)
            (folder / "progress.json").write_text(text, encoding="utf-8")

        root = self.path / "checkpoints"
        latest = self.latest()
        if latest is None or latest[0].name != name:
            save_whole(root / name, draft)
        write_json(self.path / "latest.json", {"checkpoint": name})
        older = sorted(
            p for p in root.iterdir() if p.name < name and p.name[0] not in "." and p.name[-4:] != "-end"
        )
        for old in older[: max(len(older) - (keep - 1), 0)]:
            shutil.rmtree(old)

    def latest(self) -> tuple[Path, dict[str, Any]] | None:
        """The newest complete checkpoint and its progress.

        Raises:
            RunFolderError: it is named but broken.
        """
        pointer = self.path / "latest.json"
        if not pointer.exists():
            return None
        name = json.loads(pointer.read_text(encoding="utf-8"))["checkpoint"]
        folder = self.path / "checkpoints" / name
        try:
            progress = json.loads((folder / "progress.json").read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise RunFolderError(f"checkpoint {folder} cannot be read: {error}") from None
        return folder, progress

    def sweep(self) -> None:
        """Remove what a killed run left half written. Only for who holds the folder."""
        for draft in (*self.path.glob("*/.*"), *self.path.glob("references/*/.*")):
            shutil.rmtree(draft) if draft.is_dir() else draft.unlink()

    def truncate_metrics(self, size: int) -> None:
        """Forget lines of steps that were not saved, so that a resumed run writes each step once."""
        if self.metrics.exists():
            with open(self.metrics, "r+b") as file:
                file.truncate(min(size, self.metrics.stat().st_size))

    def log(self, line: Mapping[str, Any]) -> None:
        """Append one line to the metrics."""
        with open(self.metrics, "a", encoding="utf-8") as file:
            file.write(json.dumps(dict(line)) + "\n")


def save_tensors(path: Path, value: Any) -> None:
    torch.save(value, path)


def load_tensors(path: Path) -> Any:
    return torch.load(path, map_location="cpu", weights_only=True)
