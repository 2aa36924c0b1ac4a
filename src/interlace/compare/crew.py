"""Who does the jobs: child processes of one nursery, or this process itself."""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from interlace.compare.worker import INTERRUPTED, work

SAVE_SECONDS = 120.0
"""How long children may take to save and end when a comparison is stopped."""


class Crew(Protocol):
    """Does jobs; a context manager."""

    size: int

    def start(self, job: str, environment: Mapping[str, str]) -> None:
        """Begin a job."""
        ...

    def ended(self, seconds: float) -> list[tuple[str, int]]:
        """Jobs that have ended, with their exit status; waits a while for one if there is none."""
        ...

    def __enter__(self) -> Crew: ...

    def __exit__(self, *error: object) -> None: ...


class Here:
    """Does every job in this process, when it is started."""

    size = 1

    def __init__(self, root: Path) -> None:
        self.root = root
        self._done: list[tuple[str, int]] = []

    def start(self, job: str, environment: Mapping[str, str]) -> None:
        status = work(self.root, job)
        if status == INTERRUPTED:
            raise KeyboardInterrupt
        self._done.append((job, status))

    def ended(self, seconds: float) -> list[tuple[str, int]]:
        done, self._done = self._done, []
        return done

    def __enter__(self) -> Here:
        return self

    def __exit__(self, *error: object) -> None: ...


class Processes:
    """Does up to `size` jobs at once, each in a process of its own that ends with this one.

    Args:
        root: The comparison folder.
        size: Jobs at once.
        threads: Torch threads of each.
    """

    def __init__(self, root: Path, size: int, threads: int = 1) -> None:
        self.root, self.size = root, size
        environment = {
            **os.environ,
            "OMP_NUM_THREADS": str(threads),
            "MKL_NUM_THREADS": str(threads),
            "TOKENIZERS_PARALLELISM": "false",
            "PYTORCH_NVML_BASED_CUDA_CHECK": "1",  # looking for a device must not keep children from using it
        }
        self._log = open(root / "nursery.log", "ab")  # noqa: SIM115  (closed with the nursery)
        self._nursery = subprocess.Popen(
            [sys.executable, "-m", "interlace.compare.worker", str(root)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env=environment,
            start_new_session=True,  # Ctrl-C in the terminal reaches this process alone, which passes it on
        )
        assert self._nursery.stdout is not None
        os.set_blocking(self._nursery.stdout.fileno(), False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._nursery.stdout, selectors.EVENT_READ)
        self._pending = b""

    def start(self, job: str, environment: Mapping[str, str]) -> None:
        assert self._nursery.stdin is not None
        order = {"job": job, "environment": dict(environment)}
        self._nursery.stdin.write(json.dumps(order).encode() + b"\n")
        self._nursery.stdin.flush()

    def ended(self, seconds: float) -> list[tuple[str, int]]:
        assert self._nursery.stdout is not None
        if not self._selector.select(seconds):
            return []
        chunk = self._nursery.stdout.read() or b""
        if not chunk and self._nursery.poll() is not None:
            raise RuntimeError(
                f"the process that runs the jobs has ended with status {self._nursery.returncode}; "
                f"see {self.root / 'nursery.log'}"
            )
        *lines, self._pending = (self._pending + chunk).split(b"\n")
        told = [json.loads(line) for line in lines]
        return [(t["job"], t["status"]) for t in told]

    def __enter__(self) -> Processes:
        return self

    def __exit__(self, *error: object) -> None:
        """Ask whoever is at work to save and end, and wait for it."""
        assert self._nursery.stdin is not None and self._nursery.stdout is not None
        self._nursery.stdin.close()
        end = time.monotonic() + SAVE_SECONDS
        try:
            while self._nursery.poll() is None and time.monotonic() < end:
                self._nursery.stdout.read()
                time.sleep(0.05)
        finally:
            if self._nursery.poll() is None:
                os.killpg(self._nursery.pid, signal.SIGKILL)
                self._nursery.wait()
            self._nursery.stdout.close()
            self._selector.close()
            self._log.close()


def devices() -> list[str]:
    """Accelerators that jobs may be spread over, as values of CUDA_VISIBLE_DEVICES."""
    import torch

    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible:
        return visible.split(",")
    return [str(i) for i in range(torch.cuda.device_count())] if visible is None else []


def cores() -> int:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
