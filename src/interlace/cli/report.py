"""`interlace report`: the report of comparisons that were made here or elsewhere, from their folders."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from interlace.cli.arguments import ArgumentsError, split_words
from interlace.cli.compare import show


def report(
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="FOLDER... [out=FOLDER]",
            help="Comparison folders, or parts of them from several machines; out= is where the report goes "
            "(default the first folder).",
        ),
    ],
) -> None:
    """Rebuild report.html, report.json, table.md and the CSV files from run folders."""
    folders, settings = split_words(words)
    unknown = [key for key in settings if key != "out"]
    if unknown:
        raise ArgumentsError(f"report: unknown setting '{unknown[0]}'; accepted is out=FOLDER")
    if not folders:
        raise ArgumentsError("report: name a folder, as in: interlace report runs/compare-countdown")
    from interlace.compare.tournament import write_reports

    results, path = write_reports([Path(f) for f in folders], Path(settings.get("out", folders[0])))
    show(results)
    print(f"report: {path}")
