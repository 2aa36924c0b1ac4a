"""`interlace train`: start a run, continue one, or show what it would be."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from interlace.cli.arguments import ArgumentsError, merged, split_words

if TYPE_CHECKING:
    from interlace.config import Configuration
    from interlace.training.run import RunResult


def train(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="METHOD|KEY=VALUE",
            help="A method (name or FILE.py:NAME) and settings, as lr=1e-3 or stages.sft.steps=200.",
        ),
    ] = None,
    config: Annotated[
        str | None,
        typer.Option("--config", "-c", metavar="FILE", help="Settings in YAML; key=value wins over them."),
    ] = None,
    resume: Annotated[
        str | None,
        typer.Option(metavar="RUN", help="Continue the run in this folder exactly where it stopped."),
    ] = None,
    init_from: Annotated[
        str | None,
        typer.Option(metavar="RUN", help="Start a new run from the weights of a run or checkpoint."),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the resolved configuration as YAML and stop.")
    ] = False,
) -> None:
    """Train a model with a method; everything is kept in a run folder."""
    names, settings = split_words(words or [])
    if len(names) > 1:
        raise ArgumentsError(
            f"train: one method, not {len(names)} ({', '.join(names)}); settings are key=value"
        )
    method = names[0] if names else None
    if resume is not None:
        _refuse_with_resume(method, config, init_from, dry_run)
    from interlace.config import read_yaml, resolve

    if config is not None:
        settings = merged(read_yaml(config), settings)
    if init_from is not None:
        settings = merged({"init_from": init_from}, settings)
    written = settings.pop("method", None)
    method = method or written
    if resume is None:
        if method is None:
            raise ArgumentsError("train: name a method, as in: interlace train grpo task=countdown")
        configuration = resolve(method, settings)
        if dry_run:
            print(describe(configuration), end="")
            return
    from interlace.training.metrics import DeadRun
    from interlace.training.run import train as run

    try:
        result = run(method, resume=resume, **settings)
    except DeadRun as stopped:
        # No mistake of the command line: the run itself came to nothing.
        print(f"error: {stopped}", file=sys.stderr)
        raise typer.Exit(1) from None
    if os.environ.get("RANK", "0") == "0":
        _report(result)


def _refuse_with_resume(method: str | None, config: str | None, init_from: str | None, dry_run: bool) -> None:
    given = {"METHOD": method, "--config": config, "--init-from": init_from, "--dry-run": dry_run or None}
    for name, value in given.items():
        if value is not None:
            raise ArgumentsError(
                f"train: --resume continues a run with its own method and settings; leave out {name} "
                f"(to start a new run from its weights: --init-from RUN instead of --resume RUN)"
            )


def describe(configuration: Configuration) -> str:
    """The resolved configuration as YAML that `--config` takes back; comments say what follows from it."""
    import yaml

    lines = [yaml.safe_dump(configuration.to_dict(), sort_keys=False).rstrip()]
    for stage, derived in configuration.derived().items():
        lines.append(f"# stage {stage}: {_listed(derived)}")
    return "\n".join(lines) + "\n"


def _listed(derived: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in derived.items())


def _report(result: RunResult) -> None:
    print(f"run folder: {result.folder}")
    if result.complete:
        print(f"model: {result.checkpoint}")
    else:
        print(f"not complete; continue with: interlace train --resume {result.folder}")
