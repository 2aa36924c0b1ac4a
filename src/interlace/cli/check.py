"""`interlace check`: try the laws of the library on one method."""

from __future__ import annotations

from typing import Annotated

import typer

from interlace.cli.arguments import ArgumentsError, split_words


def check(
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="METHOD [KEY=VALUE]...",
            help="A method (name or FILE.py:NAME) and its parameters.",
        ),
    ],
) -> None:
    """Try on a method what every method must keep: exact splits, gradients, degenerate steps and more."""
    names, settings = split_words(words)
    if len(names) != 1:
        raise ArgumentsError(
            f"check: one method, not {len(names)}" + (f" ({', '.join(names)})" if names else "")
        )
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from interlace.analysis import laws

    results = laws.check(names[0], **settings)
    console = Console(highlight=False)
    if not console.is_terminal:  # piped output keeps whole lines, so that it can be searched
        console.width = 400
    staged = any(result.stage for result in results)
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for column in (*(["stage"] if staged else []), "law", "", "what it says"):
        table.add_column(column)
    for result in results:
        verdict = Text("kept", style="blue") if result.kept else Text("BROKEN", style="bold")
        said = Text(result.meaning, style="dim") if result.kept else Text(str(result.broken))
        table.add_row(*([result.stage] if staged else []), result.law, verdict, said)
    console.print(table)
    broken = sum(not result.kept for result in results)
    console.print(f"{len(results) - broken} of {len(results)} laws kept")
    if broken:
        raise typer.Exit(1)
