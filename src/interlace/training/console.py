"""The live view of a run: progress with rate and time left, and the numbers that matter, refreshed in place.

Where the output is not a terminal, one line every few seconds instead.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from rich.console import Console, Group
from rich.live import Live
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table

SHOWN = (
    ("reward/mean", "reward", "{:.3f}"),
    ("reward/pass", "pass rate", "{:.1%}"),
    ("groups/live", "live groups", "{:.0%}"),
    ("length/mean", "length", "{:.1f}"),
    ("length/truncated", "truncated", "{:.0%}"),
    ("rows/unscorable", "unscorable", "{:.0f}"),
    ("entropy/sampled", "entropy", "{:.3f}"),
    ("kl", "KL to reference", "{:.4f}"),
    ("demo/nll", "demo NLL", "{:.4f}"),
    ("grad_norm", "gradient norm", "{:.3f}"),
    ("ratio/max_abs_log", "max |log ratio|", "{:.2g}"),
    ("lr", "lr", "{:.2e}"),
    ("speed/tokens_per_s", "tokens/s", "{:.0f}"),
    ("speed/seconds", "s/step", "{:.2f}"),
    ("speed/generate_share", "sampling share", "{:.0%}"),
)


def describe(metrics: Mapping[str, float]) -> list[tuple[str, str]]:
    """Label and text of every shown number that is there."""
    return [(label, form.format(metrics[key])) for key, label, form in SHOWN if key in metrics]


@dataclass
class View:
    """Shows one stage at a time.

    Attributes:
        console: Where to; default standard error, so that results can be piped.
        every: Seconds between lines where the output is not a terminal.
    """

    console: Console = field(default_factory=lambda: Console(stderr=True))
    every: float = 10.0
    _live: Live | None = None
    _progress: Progress | None = None
    _said: float = 0.0

    def start(self, stage: str, steps: int | None, done: int, on_policy: bool | None) -> None:
        """Show a stage from its step `done` on; `steps` is `None` where its budget ends it."""
        says = {None: "", True: " · on-policy", False: " · off-policy after update 1"}
        self._title = stage + says[on_policy]
        self._steps, self._began, self._first = steps, time.monotonic(), done
        if self.console.is_terminal:
            self._progress = Progress(
                TextColumn("[bold]{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TimeElapsedColumn(),
                TextColumn("left"),
                TimeRemainingColumn(),
                console=self.console,
            )
            self._task = self._progress.add_task(self._title, total=steps, completed=done)
            self._live = Live(self._progress, console=self.console, refresh_per_second=4)
            self._live.start()
        else:
            end = "the end of its budget" if steps is None else steps
            self.console.print(f"{self._title}: steps {done}-{end}", highlight=False)

    def step(self, done: int, metrics: Mapping[str, float]) -> None:
        if self._live is not None and self._progress is not None:
            self._progress.update(self._task, completed=done)
            table = Table.grid(padding=(0, 2))
            numbers = describe(metrics)
            for i in range(0, len(numbers), 5):
                table.add_row(*[f"[dim]{label}[/] {text}" for label, text in numbers[i : i + 5]])
            self._live.update(Group(self._progress, table))
        elif time.monotonic() - self._said > self.every or done == self._steps:
            self._said = time.monotonic()
            rate = (time.monotonic() - self._began) / max(done - self._first, 1)
            share = metrics.get("stage/share", 0.0)
            steps = round(done / share) if self._steps is None and share else self._steps or done
            left = rate * max(steps - done, 0)
            shown = "  ".join(f"{label} {text}" for label, text in describe(metrics))
            self.console.print(
                f"  {done}/{steps}  left {left:.0f} s  {shown}", highlight=False, soft_wrap=True
            )

    def say(self, text: str) -> None:
        self.console.print(text, highlight=False, soft_wrap=True)

    def stop(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None
