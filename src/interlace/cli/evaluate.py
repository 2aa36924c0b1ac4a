"""`interlace evaluate`: how well a model solves a task."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from interlace.cli.arguments import ArgumentsError, split_words

if TYPE_CHECKING:
    from interlace.evaluation.metrics import PairedDifference
    from interlace.evaluation.results import Evaluation


def evaluate(
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="MODEL|KEY=VALUE",
            help="A run folder, a checkpoint, a directory, a Hugging Face name, scratch:SIZE or smollm2, and "
            "settings: task= split= problems= samples= temperature= max_new_tokens= ks= seed= and more.",
        ),
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
    out: Annotated[str | None, typer.Option(metavar="FILE", help="Also write the JSON object here.")] = None,
    against: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Compare with an evaluation written by --out, problem by problem."),
    ] = None,
    show: Annotated[int, typer.Option(min=0, metavar="N", help="Show the first N answers.")] = 0,
) -> None:
    """Measure a model on a task: greedy and sampled accuracy, pass@k, majority@k, with intervals."""
    names, settings = split_words(words)
    if len(names) != 1:
        raise ArgumentsError(
            f"evaluate: one model, not {len(names)}; as in: interlace evaluate runs/my-run samples=8"
        )
    before = None if against is None else read_evaluation(against)
    from interlace.evaluation.model import evaluate_model

    with _Progress() as progress:
        result = evaluate_model(names[0], progress=progress.told, say=progress.say, **settings)
    differences = {} if before is None else _differences(before, result)
    data = result.to_dict()
    if before is not None:
        data["against"] = {"file": against, **{of: asdict(d) for of, d in differences.items()}}
    if out is not None:
        Path(out).parent.mkdir(parents=True, exist_ok=True)
        Path(out).write_text(json.dumps(data, indent=1, allow_nan=False), encoding="utf-8")
    if as_json:
        print(json.dumps(data, allow_nan=False))
        return
    _print(result, differences, show)


def read_evaluation(path: str) -> Evaluation:
    """An evaluation that `--out` wrote.

    Raises:
        ArgumentsError: the file is none.
    """
    from interlace.evaluation.results import Evaluation

    try:
        return Evaluation.from_dict(json.loads(Path(path).read_text(encoding="utf-8")))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ArgumentsError(
            f"{path}: not an evaluation written by interlace evaluate --out ({error!r})"
        ) from None


def _differences(before: Evaluation, after: Evaluation) -> dict[str, PairedDifference]:
    from interlace.evaluation.results import paired

    kinds: tuple[Literal["greedy", "sampled"], ...] = ("greedy", "sampled")
    both = [of for of in kinds if getattr(before, of) is not None and getattr(after, of) is not None]
    return {of: paired(before, after, of) for of in both}


def _print(result: Evaluation, differences: dict[str, PairedDifference], show: int) -> None:
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False, soft_wrap=True)
    for p in result.problems[:show]:
        verdict = "not scored" if p.greedy is None else ("right" if p.greedy else "wrong")
        read = "" if p.extracted is None else f", read as {p.extracted}"
        console.print(Text(f"{p.id} · {verdict}{read}", style="dim"))
        console.print(Text(p.text))
    s = result.settings
    console.print(result.table(f"{s['model']} on {s['task']} {s['split']}"))
    console.print(Text(result.summary()))
    for of, difference in differences.items():
        console.print(Text(f"{of}, compared with --against: {difference}"))


class _Progress:
    """A bar on standard error while answers are made; nothing where that is not a terminal."""

    def __enter__(self) -> _Progress:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        self._console = Console(stderr=True, highlight=False)
        columns = (TextColumn("answers"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        self._bar = Progress(
            *columns, console=self._console, transient=True, disable=not self._console.is_terminal
        )
        self._task = self._bar.add_task("answers", total=None)
        self._bar.start()
        return self

    def __exit__(self, *error: Any) -> None:
        self._bar.stop()

    def told(self, done: int, total: int) -> None:
        self._bar.update(self._task, completed=done, total=total)

    def say(self, message: str) -> None:
        from rich.text import Text

        self._console.print(Text(f"warning: {message}"))
