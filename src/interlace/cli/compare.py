"""`interlace compare`: methods against each other at one budget, and a report of which is better."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from interlace.cli.arguments import ArgumentsError, merged, split_words

if TYPE_CHECKING:
    from interlace.compare.results import Results
    from interlace.compare.settings import Comparison


def compare(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[METHOD]... [KEY=VALUE]...",
            help="Methods (names or FILE.py:NAME, with parameters as 'chord mu=0.3') and settings: budget= "
            "seeds= start= search= switch= without= test_problems= looks= jobs= out=, and those of train, "
            "for all or as chord.mu=0.2 for one.",
        ),
    ] = None,
    preset: Annotated[
        str | None, typer.Option(metavar="NAME", help="Methods and settings of a preset: laptop, demo.")
    ] = None,
    config: Annotated[
        str | None,
        typer.Option("--config", "-c", metavar="FILE", help="Settings in YAML; key=value wins over them."),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the resolved comparison as YAML and stop.")
    ] = False,
) -> None:
    """Compare methods on the same data at the same budget; the same command again goes on with it."""
    methods, settings = split_words(words or [])
    from interlace.compare.settings import read_preset, resolve_comparison
    from interlace.config import read_yaml

    below = {} if preset is None else read_preset(preset)
    if config is not None:
        below = merged(below, read_yaml(config))
    settings = merged(below, settings)
    named = settings.pop("methods", [])
    methods = methods or list(named)
    if not methods:
        raise ArgumentsError("compare: name methods, as in: interlace compare sft grpo chord task=countdown")
    comparison = resolve_comparison(methods, settings)
    if dry_run:
        _print_plan(comparison)
        return
    from interlace.compare.tournament import compare as run

    outcome = run(methods, **settings)
    show(outcome.results)
    print(f"report: {outcome.report}")
    if not outcome.complete:
        print("not complete; the same command goes on with it")
        raise typer.Exit(130)


def _print_plan(comparison: Comparison) -> None:
    import yaml

    print(yaml.safe_dump(comparison.to_dict(), sort_keys=False, allow_unicode=True), end="")
    s = comparison.settings
    tuned = sum(len(c.choices) for c in comparison.contenders if len(c.choices) > 1) * s.search_seeds
    runs = len(comparison.contenders) * len(s.seeds)
    tasks = len(comparison.tasks)
    print(f"# {runs * tasks} runs in the table, {tuned * tasks} more to choose settings, in {comparison.out}")


def show(results: Results) -> None:
    """The ranking of every task, for a terminal."""
    from rich.console import Console
    from rich.table import Table

    from interlace.compare.results import BASELINE
    from interlace.compare.summary import sentences
    from interlace.compare.tables import interval, percent, signed

    console = Console(highlight=False)
    for t in results.tasks:
        table = Table(title=f"{t.task}: {t.metric} accuracy in %", title_justify="left")
        for head in ("method", "mean [interval]", "group", f"against {BASELINE}", "sampled", "setting"):
            table.add_column(head)
        for s in t.ranking:
            choice = t.searches[s.label].choice
            sampled = percent(s.numbers.get("sampled"))
            table.add_row(s.label, interval(s.accuracy), s.letters, signed(s.against), sampled, choice)
        for label, seeds in t.absent.items():
            why = sorted({reason.split(":")[0] for reason in seeds.values()}) or ["not run"]
            table.add_row(label, ", ".join(why), style="dim")
        console.print(table)
    for line in sentences(results):
        console.print(f"- {line}", markup=False, soft_wrap=True)
