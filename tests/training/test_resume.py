"""Killed at any moment, stopped by Ctrl-C, or never: a run ends with the same bits.

Runs are processes of their own, forked from a server that has imported the library once. Some kill themselves
at a chosen line (what it does not finish is lost); others are killed from outside at whatever moment it is.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from interlace.config import ConfigError, read_yaml
from interlace.training.checkpoint import RunFolder
from interlace.training.run import RunResult
from tests.training.runs import Parity, assert_same_run, lines, result, train, weights

PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["interlace.training.run", "tests.training.runs"])

CHORD = {"mu": "cosine:0.9,0.1,1,4", "steps": 5, "problems": 5, "updates_per_epoch": 2, "eval_every": 2}
"""Epochs of both feeds end within steps 3 and 2 (5 problems, 2 and 4 a step); ratios differ from 1."""
TWO_STAGES = {"stages": {"sft": {"steps": 3}, "rl": {"steps": 3}}, "kl": 0.1}


def work(method: str | None, out: str, settings: dict[str, Any], wound: str | None) -> None:
    """One process of a run; `wound` names where it kills itself."""
    from interlace.rewards import REWARDS
    from interlace.training.run import train as train_aloud
    from tests.training.runs import TINY, Told

    torch.set_num_threads(1)
    REWARDS["parity"] = Parity
    if wound:
        place, _, times = wound.partition(" ")
        WOUNDS[place](int(times))
    if method is None:
        train_aloud(resume=out, view=Told())
    else:
        train_aloud(method, out=out, view=Told(), **{**TINY, "reward": "parity", "save_every": 2, **settings})


def after_calls(module: Any, name: str, times: int, before: Callable[..., None] | None = None) -> None:
    """Kill this process at the given call of a function, at its start or after something of it was done."""
    original, calls = getattr(module, name), 0

    def counted(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == times:
            if before is not None:
                before(*args, **kwargs)
            os.kill(os.getpid(), signal.SIGKILL)
        return original(*args, **kwargs)

    setattr(module, name, counted)


def half_a_step(times: int) -> None:
    """Sampled, and no update yet."""
    from interlace.training import loop

    after_calls(loop, "update", times)


def half_a_line(times: int) -> None:
    """In the middle of a line of the metrics."""

    def write(folder: RunFolder, line: dict[str, Any]) -> None:
        with open(folder.metrics, "a") as file:
            file.write(json.dumps(dict(line))[:40])

    after_calls(RunFolder, "log", times, write)


def half_a_checkpoint(times: int) -> None:
    """The weights are written, the optimizer is half written."""
    from interlace.training import stages

    after_calls(stages, "save_tensors", times, lambda path, value: path.write_bytes(b"PK half"))


def checkpoint_without_pointer(times: int) -> None:
    """The checkpoint is whole and in its place, and `latest.json` does not name it yet."""
    from interlace.training import checkpoint

    after_calls(checkpoint, "write_json", times)  # there it writes the pointer only


def half_a_reference(times: int) -> None:
    """While the weights that a KL is measured against are written."""
    from interlace.training import stages

    after_calls(stages, "keep_reference", times)


def half_an_evaluation(times: int) -> None:
    from interlace.training import run

    after_calls(run, "evaluate", times)


WOUNDS: dict[str, Callable[[int], None]] = {
    f.__name__: f
    for f in (
        half_a_step,
        half_a_line,
        half_a_checkpoint,
        checkpoint_without_pointer,
        half_a_reference,
        half_an_evaluation,
    )
}


def process(method: str | None, out: Path, settings: dict[str, Any] | None = None, wound: str | None = None):
    worker = PROCESSES.Process(target=work, args=(method, str(out), settings or {}, wound))
    worker.start()
    return worker


def ended(folder: Path) -> RunResult:
    """A run that is over, wherever it ran."""
    return RunResult(folder, True, [])


def finished(method: str | None, out: Path, settings: dict[str, Any] | None = None) -> RunResult:
    worker = process(method, out, settings)
    worker.join()
    assert worker.exitcode == 0
    return ended(out)


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Callable[..., RunResult]:
    """A run that nothing interrupts, made once."""
    made: dict[str, RunResult] = {}

    def get(method: str, settings: dict[str, Any]) -> RunResult:
        if method not in made:
            made[method] = finished(method, tmp_path_factory.mktemp("whole") / method, settings)
        return made[method]

    return get


RUNS = {"chord": CHORD, "sft_then_rl": TWO_STAGES}


@pytest.mark.parametrize(
    ("method", "wound"),
    [
        ("chord", "half_a_step 1"),
        ("chord", "half_a_step 8"),
        ("chord", "half_a_line 4"),
        ("chord", "half_a_checkpoint 2"),
        ("chord", "checkpoint_without_pointer 2"),
        ("chord", "half_an_evaluation 3"),
        ("sft_then_rl", "half_a_step 4"),
        ("sft_then_rl", "half_a_checkpoint 2"),
        ("sft_then_rl", "checkpoint_without_pointer 2"),
        ("sft_then_rl", "half_a_reference 1"),
        ("sft_then_rl", "half_a_line 5"),
    ],
)
def test_a_run_that_kills_itself_resumes_to_the_same_bits(method, wound, whole, tmp_path) -> None:
    """Chord saves after steps 2 and 4, sft_then_rl after step 2 of each stage and at the end of each."""
    worker = process(method, tmp_path / "run", RUNS[method], wound)
    worker.join()
    assert worker.exitcode == -signal.SIGKILL
    assert_same_run(finished(None, tmp_path / "run"), whole(method, RUNS[method]))


def files(folder: Path) -> set[tuple[str, int]]:
    """Names and sizes of everything in a folder, as far as it holds still."""
    found = set()
    for path in folder.rglob("*"):
        with contextlib.suppress(FileNotFoundError):
            found.add((str(path), path.stat().st_size))
    return found


def test_killed_again_and_again_at_any_moment(whole, tmp_path) -> None:
    """Six processes of one run die some time after something new is in its folder, the seventh lives."""
    rng, out = random.Random(0), tmp_path / "run"
    worker = process("sft_then_rl", out, TWO_STAGES)
    for kill in range(6):
        if kill:
            worker = process(None, out)
        before = files(out)
        while worker.exitcode is None and (files(out) <= before or not (out / "config.yaml").exists()):
            worker.join(0.005)
        worker.join(rng.uniform(0, 0.2))
        if worker.exitcode is None:
            os.kill(worker.pid, signal.SIGKILL)
            worker.join()
        assert worker.exitcode in (0, -signal.SIGKILL)
    finished(None, out)
    steps = [(line["stage"], line["step"]) for line in lines(out)]
    assert steps == [(stage, step) for stage in ("sft", "rl") for step in (1, 2, 3)]
    assert_same_run(ended(out), whole("sft_then_rl", TWO_STAGES))


def test_ctrl_c_finishes_the_step_saves_and_continues(whole, tmp_path) -> None:
    out = tmp_path / "run"
    worker = process("chord", out, CHORD)
    while not (out / "metrics.jsonl").exists() or not (out / "metrics.jsonl").read_text().count("\n"):
        time.sleep(0.005)
        assert worker.is_alive()
    os.kill(worker.pid, signal.SIGINT)
    worker.join()
    assert worker.exitcode == 0
    path, progress = RunFolder(out).latest()
    assert progress["step"] == len(lines(out)) >= 1
    assert not json.loads((out / "result.json").read_text())["final"] or progress["stage"] == 1
    assert path.is_dir()
    assert_same_run(finished(None, out), whole("chord", CHORD))


def test_a_run_stopped_at_its_very_end_is_complete(whole, tmp_path) -> None:
    """Resuming it trains nothing and changes nothing."""
    done = whole("chord", CHORD)
    before = (weights(done), lines(done.folder), result(done))
    assert_same_run(finished(None, done.folder), done)
    assert (weights(done), lines(done.folder), result(done)) == before


def test_init_from_takes_the_weights_and_nothing_else(whole, tmp_path) -> None:
    """Step 0, an empty optimizer, its own schedule; `resume` is everything."""
    start = whole("sft_then_rl", TWO_STAGES)
    sft = next(p for p in (start.folder / "checkpoints").iterdir() if p.name.startswith("0-sft"))
    settings = {**TWO_STAGES["stages"]["rl"], "kl": 0.1, "clip_low": 0.2, "clip_high": 0.2, "save_every": 0}
    from interlace.rewards import REWARDS

    REWARDS["parity"] = Parity
    train("dr_grpo", tmp_path / "rl", init_from=str(sft / "policy"), reward="parity", **settings)
    log = lines(tmp_path / "rl")
    assert [line["step"] for line in log] == [1, 2, 3]
    assert log[0]["lr"] == 3e-4
    # RL in its own run is the second stage of one run: same weights to start from, same problems and draws.
    assert weights(ended(tmp_path / "rl")) == weights(start)
    whole_run = ("stage", "flops")  # what counts from the start of the run
    one, other = (
        [{k: v for k, v in line.items() if k not in whole_run} for line in found]
        for found in (log, lines(start.folder)[3:])
    )
    assert one == other
    with pytest.raises(ConfigError, match="already holds a run"):
        train("dr_grpo", tmp_path / "rl")


def test_init_from_a_run_is_not_resume(whole, tmp_path) -> None:
    """A run folder stands for its latest weights; the moments of its optimizer stay behind."""
    start = whole("chord", CHORD)
    train("sft", tmp_path / "a", init_from=str(start.folder), steps=1, lr=1e-3)
    train("sft", tmp_path / "b", init_from=str(start.checkpoint), steps=1, lr=1e-3)
    assert weights(ended(tmp_path / "a")) == weights(ended(tmp_path / "b"))
    saved = torch.load(ended(tmp_path / "a").checkpoint.parent / "trainer.pt", weights_only=True)
    assert {int(s["step"]) for s in saved["optimizers"]["policy"]["state"].values()} == {1}
    assert read_yaml(tmp_path / "a" / "config.yaml")["init_from"] == str(start.folder)


@pytest.mark.parametrize("setting", [{"lr": 1e-2}, {"steps": 9}, {"mu": 0.5}])
def test_a_resumed_run_keeps_its_settings(setting, whole) -> None:
    from interlace.training.run import train as train_aloud

    with pytest.raises(ConfigError, match="cannot change"):
        train_aloud(resume=whole("chord", CHORD).folder, **setting)
