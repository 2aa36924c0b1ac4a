"""The live view of a comparison: every run's state, how far it is, its latest numbers, and the time left.

Where the output is not a terminal, a line when something ends and one every now and then.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from interlace.compare.jobs import Job, outcome, status

if TYPE_CHECKING:
    from interlace.compare.tournament import Schedule

STYLE: Mapping[str, str] = {
    "done": "green",
    "running": "bold",
    "waiting": "dim",
    "blocked": "dim",
    "diverged": "red",
    "dead": "yellow",
    "failed": "red",
}
BAR = 16
MEASURING = 0.15
"""Part of a job's time that measuring takes, as long as nothing is known."""


@dataclass
class LiveView:
    """Shows one comparison.

    Attributes:
        console: Where to; default standard error.
        every: Seconds between lines where the output is not a terminal.
    """

    console: Console = field(default_factory=lambda: Console(stderr=True, highlight=False))
    every: float = 30.0
    _live: Live | None = None
    _said: float = 0.0

    @contextmanager
    def watching(self, root: Path, work: Schedule) -> Iterator[None]:
        """Show a schedule while it is worked on."""
        self._root, self._work = root, work
        self._began, self._at_start = time.monotonic(), self._amount()[0]
        done, all_ = len([j for j in work.jobs if outcome(root / j.id)]), len(work.jobs)
        self.say(f"comparison folder: {root} ({done} of {all_} jobs known so far are done)")
        if self.console.is_terminal:
            self._live = Live(self._table(), console=self.console, refresh_per_second=2, transient=True)
            self._live.start()
        try:
            yield
        finally:
            if self._live is not None:
                self._live.stop()
                self._live = None

    def say(self, text: str) -> None:
        self.console.print(Text(text), soft_wrap=True)

    def ended(self, name: str) -> None:
        """A job has ended well."""
        if self._live is None:
            numbers = self._numbers(self._root / name)
            self.say(f"{name}: done{', ' + numbers if numbers else ''}; {self._left()}")

    def refresh(self) -> None:
        """Show how things are now."""
        if self._live is not None:
            self._live.update(self._table())
        elif time.monotonic() - self._said > self.every:
            self._said = time.monotonic()
            for name in self._work.running:
                now = status(self._root / name)
                self.say(f"  {name}: {100 * now.get('share', 0):.0f} %, {_doing(now)}")

    def _table(self) -> Group:
        work, root = self._work, self._root
        table = Table(box=None, padding=(0, 2), header_style="dim")
        for head in ("", "state", "", "budget", "latest"):
            table.add_column(head, no_wrap=True)
        rows: dict[str, list[Job]] = {}
        for job in work.jobs:
            rows.setdefault(_line(job), []).append(job)
        for name, jobs in rows.items():
            states = [work.state(job) for job in jobs]
            shares = [self._share(job, state) for job, state in zip(jobs, states, strict=True)]
            text = Text()
            for state in dict.fromkeys(states):
                n = states.count(state)
                text.append(f"{state}{f' {n}' if len(states) > 1 else ''} ", STYLE.get(state, ""))
            done = sum(shares) / len(shares)
            running = [j for j, s in zip(jobs, states, strict=True) if s == "running"]
            last = [j for j, s in zip(jobs, states, strict=True) if s == "done"]
            latest = _doing(status(root / running[0].id)) if running else ""
            latest = latest or (self._numbers(root / last[-1].id) if last else "")
            bar = "━" * round(BAR * done)
            table.add_row(name, text, Text(bar.ljust(BAR, "─"), "cyan"), f"{100 * done:3.0f} %", latest)
        return Group(table, Text(self._left(), "dim"))

    def _share(self, job: Job, state: str) -> float:
        if state in ("waiting", "blocked"):
            return 0.0
        if state != "running":
            return 1.0
        now = status(self._root / job.id)
        return now.get("share", 0.0) * (1 - MEASURING) + (
            MEASURING / 2 if now.get("phase") == "measuring" else 0
        )

    def _amount(self) -> tuple[float, float]:
        """Work done and work to do, in whole runs. Runs that a search has not chosen yet are expected too."""
        done = sum(self._share(job, self._work.state(job)) * _weight(job) for job in self._work.jobs)
        planner = self._work.planner
        expected = sum(_weight(job) for job in self._work.jobs if self._work.state(job) != "blocked")
        for task in planner.c.tasks:
            for contender in planner.c.contenders:
                known = any(
                    j.kind == "run" and j.task == task and j.label == contender.label for j in self._work.jobs
                )
                if not known:
                    expected += len(planner.c.settings.seeds)
        return done, expected

    def _left(self) -> str:
        done, expected = self._amount()
        spent = time.monotonic() - self._began
        gained = done - self._at_start
        if gained <= 0.02 or spent < 2:
            return f"{_clock(spent)} so far"
        left = spent / gained * max(expected - done, 0)
        return f"{_clock(spent)} so far, about {_clock(left)} left"

    def _numbers(self, folder: Path) -> str:
        ended = outcome(folder) or {}
        looks = [x for x in ended.get("looks", []) if x["greedy"] is not None]
        return f"validation {100 * looks[-1]['greedy']:.1f} %" if looks else ""


def _line(job: Job) -> str:
    if job.kind == "run":
        return job.label
    if job.kind == "tuning":
        return f"{job.label} · {job.choice}"
    return {"base": "start model", "batch": "rows for the token view"}.get(job.kind, job.label)


def _weight(job: Job) -> float:
    """How long a job takes, in whole runs."""
    return {"base": 0.1, "batch": 0.02, "shared": 0.5}.get(job.kind, 1.0)


def _doing(now: Mapping[str, Any]) -> str:
    parts = [now.get("phase", "starting")]
    if parts[0] == "training":
        parts = [f"{now.get('stage', '')} step {now.get('step', 0)}"]
        if "reward/pass" in now:
            parts.append(f"pass {100 * now['reward/pass']:.0f} %")
        if "demo/nll" in now:
            parts.append(f"NLL {now['demo/nll']:.3f}")
    return ", ".join(parts)


def _clock(seconds: float) -> str:
    minutes, s = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{s:02d}" if hours else f"{minutes}:{s:02d}"
