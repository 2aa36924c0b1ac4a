"""A run in two processes is the run of one: same rollouts, same numbers, same weights."""

from __future__ import annotations

import multiprocessing
import os
import socket
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from interlace.rewards import REWARDS
from interlace.training.checkpoint import RunFolder
from tests.training.runs import Parity, Told, lines, train
from tests.training.runs import train_aloud as start

RUNS: dict[str, dict[str, Any]] = {
    "chord": {"prompts_per_step": 3, "eval_every": 1, "micro_batch_tokens": 40},
    "amft": {"every": 1, "stages": {"sft": {"steps": 1}}},
    "bridge": {"lr": 1e-3, "updates_per_epoch": 2, "kl": 0.1},
    "sasr": {"warmup_steps": 1, "steps": 4, "refresh_every": 1, "kl": 0.1},
    "gta": {"conflict": "project"},
    "relift": {"buffer_size": 2, "steps": 4, "reward": "countdown"},
}
SHARED = {"reward": "parity", "steps": 2, "log_samples_every": 1, "precision": "fp64", "save_every": 2}


def everything(folder: Path) -> None:
    REWARDS["parity"] = Parity
    for method, settings in RUNS.items():
        train(method, folder / method, Told(), **{**SHARED, **settings})
    train("chord", folder / "fp32", Told(), **{**SHARED, "precision": "fp32"})


def rank(number: int, port: int, folder: str) -> None:
    os.environ |= {"RANK": str(number), "WORLD_SIZE": "2"}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.set_num_threads(1)
    everything(Path(folder))


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


@pytest.fixture(scope="module")
def both(tmp_path_factory) -> tuple[Path, Path]:
    """Folders of the runs of one process, and of those of two."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.training.test_ranks"])
    one, two = (tmp_path_factory.mktemp(name) for name in ("one", "two"))
    port = free_port()
    ranks = [context.Process(target=rank, args=(i, port, str(two))) for i in range(2)]
    for process in ranks:
        process.start()
    everything(one)
    for process in ranks:
        process.join()
        assert process.exitcode == 0
    del REWARDS["parity"]
    return one, two


@pytest.mark.parametrize("method", RUNS)
def test_two_processes_train_as_one(method: str, both: tuple[Path, Path]) -> None:
    one, two = (folder / method for folder in both)
    for name in sorted(p.name for p in (one / "samples").iterdir()):
        assert (two / "samples" / name).read_text() == (one / "samples" / name).read_text()
    for a, b in zip(lines(one), lines(two), strict=True):
        assert a.keys() == b.keys()
        for key, value in a.items():
            same = pytest.approx(value, rel=1e-7, abs=1e-9) if isinstance(value, float) else value
            assert b[key] == same, key
    assert distance(one, two) < 1e-9


def test_two_processes_train_as_one_in_float32(both: tuple[Path, Path]) -> None:
    assert distance(*(folder / "fp32" for folder in both)) < 1e-6


def distance(one: Path, two: Path) -> float:
    """The largest difference between the weights of two runs."""
    a, b = (load_file(RunFolder(f).latest()[0] / "policy" / "model.safetensors") for f in (one, two))
    return max(float((a[name] - b[name]).abs().max()) for name in a)


def test_one_process_continues_what_two_began(both: tuple[Path, Path]) -> None:
    """Sanity of the folder that two ranks wrote: it is whole, and resuming a complete run changes nothing."""
    REWARDS["parity"] = Parity
    before = lines(both[1] / "chord")
    assert start(resume=both[1] / "chord", view=Told()).complete
    assert lines(both[1] / "chord") == before
