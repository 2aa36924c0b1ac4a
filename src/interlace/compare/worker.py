"""What does one job: train it as an ordinary run, measure it, write down how it ended."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import resource
import selectors
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TextIO

INTERRUPTED = 75
"""Exit status of a job that was asked to stop, and will go on where it is."""

LOCKED_SECONDS = 60.0
"""How long a run may still be held by a process of a comparison that was killed."""


class JobView:
    """Shows a run to whoever reads its folder: `status.json`, and what is said in a log."""

    def __init__(self, folder: Path, log: TextIO, shares: Mapping[str, tuple[float, float]]) -> None:
        self.folder, self.log, self.shares = folder, log, shares
        self.now: dict[str, Any] = {"phase": "starting", "share": 0.0}
        self._stage, self._written = "", 0.0

    def start(self, stage: str, steps: int | None, done: int, on_policy: bool) -> None:
        self._stage = stage
        self.say(f"stage {stage}, from step {done}")

    def step(self, done: int, metrics: Mapping[str, Any]) -> None:
        first, part = self.shares.get(self._stage, (0.0, 1.0))
        shown = ("reward/pass", "demo/nll", "groups/live", "entropy/sampled", "flops")
        numbers = {key: metrics[key] for key in shown if key in metrics}
        share = min(first + part * metrics.get("stage/share", 0.0), 1.0)
        self.tell(phase="training", stage=self._stage, step=done, share=share, **numbers)

    def say(self, text: str) -> None:
        self.log.write(f"{text}\n")
        self.log.flush()

    def stop(self) -> None: ...

    def tell(self, **facts: Any) -> None:
        from interlace.training.checkpoint import write_json

        fresh = facts.get("phase") != self.now.get("phase")
        self.now |= facts
        if fresh or time.monotonic() - self._written > 0.5:
            self._written = time.monotonic()
            write_json(self.folder / "status.json", self.now)


def work(root: Path, name: str) -> int:
    """Do one job; its outcome is in its folder. Nothing that goes wrong in it is raised.

    Returns:
        An exit status: 0 if it ended (well or not), `INTERRUPTED` if it was asked to stop.
    """
    from interlace.compare.jobs import read_job
    from interlace.training.checkpoint import write_json
    from interlace.training.metrics import DeadRun

    folder = root / name
    job = read_job(folder)
    began, cpu = time.monotonic(), _cpu_seconds()
    with open(folder / "log.txt", "a", encoding="utf-8") as log:
        view = JobView(folder, log, {})
        ended: dict[str, Any]
        try:
            with warnings.catch_warnings():
                warnings.showwarning = lambda message, *rest, **more: view.say(f"warning: {message}")
                facts = TASKS[job.kind](root, folder, job, view)
            if facts is None:
                return INTERRUPTED
            ended = {"state": "done", **facts}
        except DeadRun as error:
            diverged = str(error).startswith("the gradient was not finite")
            ended = {"state": "diverged" if diverged else "dead", "error": str(error)}
        except FloatingPointError as error:
            ended = {"state": "diverged", "error": str(error)}
        except KeyboardInterrupt:
            return INTERRUPTED
        except Exception as error:
            ended = {"state": "failed", "error": f"{type(error).__name__}: {error}"}
            log.write(traceback.format_exc())
    write_json(
        folder / "outcome.json",
        {**ended, "wall_seconds": time.monotonic() - began, "cpu_seconds": _cpu_seconds() - cpu},
    )
    return 0


def _cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def do_base(root: Path, folder: Path, job: Any, view: JobView) -> dict[str, Any]:
    """Measure the start model, and find out what an SFT step costs."""
    from interlace.compare.budget import sft_step_flops
    from interlace.config import resolve
    from interlace.policies import Renderer, load_policy
    from interlace.policies.meter import Size
    from interlace.rewards import Scorer, load_reward
    from interlace.tasks import load_task
    from interlace.training.data import load_data

    configuration = resolve("sft", {**job.settings, "task": job.task, "seed": job.seed, "steps": 1})
    run = configuration.run
    _set_threads(run.threads)
    task = load_task(job.task)
    policy = load_policy(
        run.model, precision=run.precision, device=run.device, alphabet=task.alphabet, seed=run.seed
    )
    renderer = Renderer(policy.tokenizer, policy.eos_ids)
    reward = load_reward(run.reward) if run.reward else task.reward
    with Scorer(reward, workers=run.reward_workers, timeout=run.reward_timeout) as scorer:
        try:
            data = load_data(configuration, renderer, scorer, task, policy.max_positions)
            demonstrations = data.demonstrations
        except ValueError as error:  # a task without demonstrations has no SFT
            view.say(f"no SFT on this task: {error}")
            demonstrations = []
        s = configuration.stages[0].settings
        rows = [(len(renderer.prompt_ids(p)), len(renderer.demonstration_ids(p))) for p in demonstrations]
        cost = sft_step_flops(Size.of(policy.model), rows, s.demos_per_step or 0) if rows else None
        limit = s.max_new_tokens or task.max_new_tokens or 64
        _measure(folder, job, view, "base", policy, task, scorer, limit)
    size = Size.of(policy.model)
    parameters = sum(p.numel() for p in policy.model.parameters())
    return {
        "sft_step_flops": cost,
        "demonstrations": len(rows),
        "untrained": run.model.startswith("scratch"),
        "parameters": parameters,
        "matrices": size.matrices + size.head,
        "environment": _environment(),
    }


def do_run(root: Path, folder: Path, job: Any, view: JobView) -> dict[str, Any] | None:
    """Train, or go on with it, and measure the weights at the end of every stage."""
    from interlace.compare.jobs import outcome
    from interlace.config import read_yaml, resolve
    from interlace.policies import load_policy
    from interlace.rewards import Scorer, load_reward
    from interlace.tasks import load_task
    from interlace.training.checkpoint import RunFolder
    from interlace.training.run import train

    run_folder = RunFolder(folder)
    charged = 0.0
    settings = {**job.settings, "task": job.task, "seed": job.seed, "out": str(folder)}
    if job.init is not None:
        before = outcome(root / job.init) or {}
        charged = before.get("flops", 0.0) + before.get("charged", 0.0)
        settings["init_from"] = str(root / job.init)
        if settings.get("budget") is not None:
            settings["charged"] = charged
    view.shares = _stage_shares(resolve(job.method, settings), charged)
    with _unlocked(run_folder):
        if run_folder.has_run():
            result = train(resume=folder, view=view)  # type: ignore[arg-type]
        else:
            result = train(job.method, view=view, **settings)  # type: ignore[arg-type]
    if not result.complete:
        return None
    saved = read_yaml(folder / "config.yaml")
    configuration = resolve(saved["method"], saved)
    run = configuration.run
    task = load_task(job.task)
    limit = max(s.settings.max_new_tokens or 64 for s in configuration.stages)
    ends = sorted((folder / "checkpoints").glob("*-end"))
    reward = load_reward(run.reward) if run.reward else task.reward
    with Scorer(reward, workers=run.reward_workers, timeout=run.reward_timeout) as scorer:
        for i, checkpoint in enumerate(ends):
            at = "final" if i == len(ends) - 1 else f"after {configuration.stages[i].name}"
            steps = int(checkpoint.name.split("-")[-2])
            if at != "final" and (not steps or job.kind == "tuning"):
                continue  # nothing was trained since the last look
            policy = load_policy(checkpoint / "policy", precision=run.precision, device=run.device)
            _measure(folder, job, view, at, policy, task, configuration.judge(scorer), limit, order=i)
    told = json.loads((folder / "result.json").read_text(encoding="utf-8"))
    return {
        "charged": charged,
        "flops": told["flops"],
        "work": told["work"],
        "seconds": told["seconds"],
        "looks": [
            {
                "at": e["at"],
                "stage": e["stage"],
                "flops": e["flops"],
                "greedy": (e["greedy"] or {}).get("value"),
                "sampled": (e["sampled"] or {}).get("value"),
                "entropy": e.get("entropy"),
                "length": e["mean_length"],
                "truncated": e["truncated"],
            }
            for e in told["evaluations"]
        ],
        "training": summarise(folder / "metrics.jsonl"),
    }


def do_batch(root: Path, folder: Path, job: Any, view: JobView) -> dict[str, Any]:
    """Rows for the token view, sampled from weights that solve some problems."""
    from interlace.analysis.batch import sample_batch
    from interlace.training.checkpoint import RunFolder, write_json

    settings = {**job.settings, "task": job.task, "seed": job.seed}
    if job.init is not None:
        latest = RunFolder(root / job.init).latest()
        settings["model"] = str(latest[0] / "policy") if latest else settings.get("model", "scratch:nano")
    _set_threads(settings.get("threads"))
    batch = sample_batch("grpo", **settings)
    write_json(folder / "batch.json", {"rows": batch.rows, "tokens": batch.tokens, "prompts": batch.prompts})
    return {}


TASKS = {"base": do_base, "shared": do_run, "tuning": do_run, "run": do_run, "batch": do_batch}


def _measure(
    folder: Path,
    job: Any,
    view: JobView,
    at: str,
    policy: Any,
    task: Any,
    judge: Any,
    limit: int,
    order: int = 0,
) -> None:
    """Measure one set of weights, once."""
    from interlace.compare.measure import Suite, measure
    from interlace.training.checkpoint import write_json

    path = folder / "measured" / f"{order}-{at.replace(' ', '-')}.json"
    if path.exists():
        return
    view.tell(phase="measuring", share=view.now["share"])
    found = measure(policy, task, judge, Suite(**job.measure), limit, view.say)
    write_json(path, {"at": at, **found})


def _stage_shares(configuration: Any, charged: float) -> dict[str, tuple[float, float]]:
    """Where each stage begins in the run's budget, and how much of it is its own."""
    run, stages = configuration.run, configuration.stages
    begin = charged / run.budget if run.budget else 0.0
    parts = [0.0 if s.settings.steps == 0 else s.settings.share for s in stages]
    out = {}
    for stage, part in zip(stages, parts, strict=True):
        own = (1 - (charged / run.budget if run.budget else 0.0)) * part / max(sum(parts), 1e-9)
        out[stage.name] = (begin, own)
        begin += own
    return out


@contextlib.contextmanager
def _unlocked(folder: Any) -> Iterator[None]:
    """Wait until no process of a comparison that was killed holds the run any more."""
    from interlace.training.checkpoint import RunFolderError

    end = time.monotonic() + LOCKED_SECONDS
    while True:
        try:
            with folder.locked():
                break
        except RunFolderError:
            if time.monotonic() > end:
                raise
            time.sleep(0.2)
    yield


SERIES = (
    "groups/live",
    "length/truncated",
    "length/mean",
    "rows/unscorable",
    "entropy/sampled",
    "reward/pass",
    "grad_norm",
    "kl",
)
POINTS = 60
"""Numbers that are kept of a series, each a mean over as many steps."""


def summarise(path: Path) -> dict[str, Any]:
    """Totals and thinned series of a run's metrics."""
    totals = dict.fromkeys(("steps", "rows/rollout", "rows/demo", "rows/unscorable"), 0.0)
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in SERIES}
    tokens: list[tuple[float, float]] = []
    read = 0.0
    with open(path, encoding="utf-8") as file:
        for line in file:
            m = json.loads(line)
            totals["steps"] += 1
            for name in list(totals)[1:]:
                totals[name] += m.get(name, 0.0)
            read += m["tokens/generated"] + m["tokens/trained"] + m.get("tokens/read", 0)
            tokens.append((m["flops"], read))
            for name in SERIES:
                if isinstance(m.get(name), int | float):
                    found[name].append((m["flops"], float(m[name])))
    series = {name: _thinned(points) for name, points in found.items() if points}
    return {"totals": totals, "series": series, "tokens": _thinned(tokens, last=True)}


def _thinned(points: list[tuple[float, float]], last: bool = False) -> list[list[float]]:
    size = -(-len(points) // POINTS) or 1
    parts = [points[i : i + size] for i in range(0, len(points), size)]
    return [[p[-1][0], p[-1][1] if last else sum(y for _, y in p) / len(p)] for p in parts]


def _set_threads(threads: Any) -> None:
    import torch

    if threads is not None:
        torch.set_num_threads(int(threads))


def _environment() -> dict[str, Any]:
    """Versions and machine, for the report."""
    import platform

    import torch

    from interlace.training.run import versions

    accelerator = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    return {
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
        "cores": os.cpu_count(),
        "accelerator": accelerator,
        "versions": versions(),
    }


def nursery() -> None:
    """Fork a child for every job that is asked for on standard input; tell on standard output when it ends.

    One process imports everything once, a child costs milliseconds, and whatever happens in a child happens
    to one job. When the input ends (the comparison was stopped or killed), children are asked to save and
    end, as by Ctrl-C.
    """
    _follow_parent()
    import interlace.compare.measure
    import interlace.training.run  # noqa: F401

    answers = os.dup(1)
    os.dup2(2, 1)
    root = Path(sys.argv[-1])
    children: dict[int, str] = {}
    pending = b""
    with selectors.DefaultSelector() as selector:
        selector.register(0, selectors.EVENT_READ)
        open_ = True
        while open_ or children:
            if selector.select(0.05) and open_:
                chunk = os.read(0, 65536)
                open_ = bool(chunk)
                *lines, pending = (pending + chunk).split(b"\n")
                for line in lines:
                    order = json.loads(line)
                    children[_child(root, order)] = order["job"]
                if not open_:
                    selector.unregister(0)
                    for pid in children:
                        os.kill(pid, signal.SIGTERM)
            for pid in list(children):
                done, status = os.waitpid(pid, os.WNOHANG)
                if done:
                    told = {"job": children.pop(pid), "status": os.waitstatus_to_exitcode(status)}
                    with contextlib.suppress(OSError):
                        os.write(answers, json.dumps(told).encode() + b"\n")


def _child(root: Path, order: Mapping[str, Any]) -> int:
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        _follow_parent()
        os.setpgid(0, 0)
        os.environ |= order.get("environment", {})
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        with open(os.devnull) as nothing:
            os.dup2(nothing.fileno(), 0)
        log = os.open(root / order["job"] / "log.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(log, 1)
        os.dup2(log, 2)
        status = work(root, order["job"])
    except KeyboardInterrupt:
        status = INTERRUPTED
    finally:
        os._exit(status)


def _follow_parent() -> None:
    """On Linux: be asked to stop when the parent dies, however it dies."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(1, signal.SIGTERM)


if __name__ == "__main__":
    nursery()
