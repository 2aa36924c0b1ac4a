"""`interlace.compare`: which way of combining SFT and RL is best for a model and its data."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from interlace.compare.crew import Crew, Here, Processes, cores, devices
from interlace.compare.jobs import FINAL, Job, forget_failure, outcome, write_job
from interlace.compare.live import LiveView
from interlace.compare.plan import Planner
from interlace.compare.results import Results, load_results
from interlace.compare.settings import Comparison, resolve_comparison
from interlace.compare.worker import INTERRUPTED
from interlace.config import ConfigError
from interlace.training.checkpoint import write_json, write_text


@dataclass(frozen=True)
class Outcome:
    """What a comparison came to.

    Attributes:
        folder: The comparison folder.
        results: Everything that was found.
        report: The report, one HTML file.
        complete: False if it was stopped; the same call goes on.
    """

    folder: Path
    results: Results
    report: Path
    complete: bool


def compare(
    methods: Sequence[str] = (),
    *,
    preset: str | None = None,
    view: LiveView | None = None,
    **settings: Any,
) -> Outcome:
    """Run methods on the same data at the same budget, and report which is better and how sure that is.

    Args:
        methods: Names, `FILE.py:NAME`, or either with parameters, as `"chord mu=0.3"`.
        preset: `laptop` or `demo`: methods and settings that come with the library.
        view: Where progress is shown.
        **settings: Fields of `compare.settings.Settings`; settings of runs (`model`, `task`, `lr`, ...); and
            those of one contender by its name, as `chord={"mu": 0.3}`.

    Issued again, it goes on where it was: ended runs are kept, stopped ones resumed, failed ones tried again.

    Raises:
        ValueError: bad settings, before any training time is spent.
    """
    comparison = resolve_comparison(methods, settings, preset)
    root = comparison.out
    view = view or LiveView()
    with _held(root):
        text = yaml.safe_dump(comparison.to_dict(), sort_keys=False, allow_unicode=True)
        write_text(root / "comparison.yaml", text)
        complete = _run(comparison, root, view)
        results, report = write_reports([root], root)
    return Outcome(root, results, report, complete)


def write_reports(folders: Sequence[Path], out: Path) -> tuple[Results, Path]:
    """Read run folders and write `report.html`, `report.json`, `table.md` and CSV files into `out`.

    Raises:
        ConfigError: nothing to report in the folders.
    """
    from interlace.compare.report.page import page
    from interlace.compare.tables import markdown, write_csv

    results = load_results(folders)
    out.mkdir(parents=True, exist_ok=True)
    write_json(out / "report.json", results.to_dict())
    write_text(out / "table.md", markdown(results))
    write_csv(results, out)
    write_text(out / "report.html", page(results))
    return results, out / "report.html"


@contextmanager
def _held(root: Path) -> Iterator[None]:
    """Hold the comparison folder for this process."""
    root.mkdir(parents=True, exist_ok=True)
    with open(root / ".lock", "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise ConfigError(f"{root} is in use by another comparison; give another out=FOLDER") from None
        yield


def _run(comparison: Comparison, root: Path, view: LiveView) -> bool:
    """Do jobs until there is none left; false if the person stopped it."""
    planner = Planner(comparison, root)
    work = Schedule(planner, root)
    work.prepare()
    try:
        with _crew(comparison, root, len(work.open())) as crew, view.watching(root, work):
            work.run(crew, view, devices())
    except KeyboardInterrupt:
        view.say(f"stopped; the same command goes on with {root}")
        return False
    return True


def _crew(comparison: Comparison, root: Path, open_jobs: int) -> Crew:
    jobs = comparison.settings.jobs
    if jobs == 0 or not open_jobs:
        return Here(root)
    threads = int(comparison.common.get("threads", 1) or 1)
    usual = len(devices()) or max(cores() // threads, 1)
    return Processes(root, jobs or usual, threads)


class Schedule:
    """The jobs of a comparison, and who is at work.

    Attributes:
        jobs: Those that are known by now.
        running: By id, when it was started as the n-th.
        tried: Ids started in this session.
    """

    def __init__(self, planner: Planner, root: Path) -> None:
        self.planner, self.root = planner, root
        self.jobs: list[Job] = []
        self.running: dict[str, str | None] = {}
        self.tried: set[str] = set()

    def prepare(self) -> None:
        """Look at what is there; failures of an earlier session are forgotten."""
        self._plan()
        for job in self.jobs:
            ended = outcome(self.root / job.id)
            if ended is not None and ended["state"] not in FINAL:
                forget_failure(self.root / job.id)
        self._plan()

    def _plan(self) -> None:
        self.jobs = self.planner.jobs()
        for job in self.jobs:
            write_job(self.root, job)

    def state(self, job: Job) -> str:
        """Where a job is, in the words of `jobs.State`."""
        ended = outcome(self.root / job.id)
        if ended is not None:
            return ended["state"]
        if job.id in self.running:
            return "running"
        return "blocked" if self.planner.is_blocked(job) else "waiting"

    def open(self) -> list[Job]:
        """Jobs that have not ended and can still be done."""
        return [job for job in self.jobs if self.state(job) in ("waiting", "running")]

    def ready(self) -> list[Job]:
        """Jobs that could be started now, those first that others wait for."""
        waiting = [job for job in self.jobs if self.state(job) == "waiting" and job.id not in self.tried]
        can = [
            j for j in waiting if all((outcome(self.root / n) or {}).get("state") == "done" for n in j.needs)
        ]
        return sorted(can, key=lambda job: ("base", "shared", "tuning", "run", "batch").index(job.kind))

    def run(self, crew: Crew, view: LiveView, accelerators: Sequence[str]) -> None:
        """Do every job that can be done."""
        while True:
            for job in self.ready():
                if len(self.running) == crew.size:
                    break
                self._start(job, crew, accelerators)
                if crew.size == 1:
                    break
            if not self.running:
                return
            ended = crew.ended(0.5)
            for name, status in ended:
                del self.running[name]
                self._end(name, status, view)
            if ended:
                self._plan()
            view.refresh()

    def _start(self, job: Job, crew: Crew, accelerators: Sequence[str]) -> None:
        free = [d for d in accelerators if d not in self.running.values()] or list(accelerators)
        device = free[len(self.running) % len(free)] if free else None
        self.tried.add(job.id)
        self.running[job.id] = device
        crew.start(job.id, {} if device is None else {"CUDA_VISIBLE_DEVICES": device})

    def _end(self, name: str, status: int, view: LiveView) -> None:
        folder = self.root / name
        if outcome(folder) is None and status != INTERRUPTED:
            how = f"signal {-status}" if status < 0 else f"status {status}"
            error = f"its process ended with {how} (out of memory?); see {folder / 'log.txt'}"
            write_json(folder / "outcome.json", {"state": "failed", "error": error})
        ended = outcome(folder)
        if ended is not None and ended["state"] != "done":
            view.say(f"{name}: {ended['state']}: {ended['error']}")
        elif ended is not None:
            view.ended(name)
