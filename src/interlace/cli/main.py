"""The command `interlace`: thin over the Python API.

Everything heavy is imported inside the commands, so that help and mistakes are answered at once. What is
wrong with the input is told in one line on standard error with exit status 2; `INTERLACE_DEBUG=1` shows
where it was raised.
"""

from __future__ import annotations

import difflib
import os
import sys
import warnings
from typing import Any

import typer
from typer.core import TyperGroup

from interlace.cli.catalogue import methods, models, tasks
from interlace.cli.check import check
from interlace.cli.compare import compare
from interlace.cli.evaluate import evaluate
from interlace.cli.explain import explain
from interlace.cli.report import report
from interlace.cli.train import train

MISTAKE = 2
"""Exit status for input that cannot be used."""


class Commands(TyperGroup):
    """The commands, with every mistake told in one line."""

    def main(self, args: Any = None, *rest: Any, **extra: Any) -> Any:
        words = list(sys.argv[1:] if args is None else args) or ["--help"]
        extra["standalone_mode"] = False
        before = warnings.showwarning
        warnings.showwarning = _show_warning
        try:
            status = super().main(words, *rest, **extra)
        except (KeyboardInterrupt, typer.Abort):
            status = 130
        except Exception as error:
            if os.environ.get("INTERLACE_DEBUG") == "1" or not _is_mistake(error):
                raise
            print(f"error: {_describe(error)}", file=sys.stderr)
            status = MISTAKE
        finally:
            warnings.showwarning = before
        sys.exit(status if isinstance(status, int) else 0)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and not args[0].startswith("-") and self.get_command(ctx, args[0]) is None:
            names = self.list_commands(ctx)
            near = difflib.get_close_matches(args[0], names, 1)
            hint = f"did you mean '{near[0]}'? " if near else ""
            raise ValueError(f"unknown command '{args[0]}': {hint}accepted are {', '.join(names)}")
        return super().resolve_command(ctx, args)


def _is_mistake(error: Exception) -> bool:
    of_input = ValueError | OverflowError | FloatingPointError | OSError | ModuleNotFoundError
    return isinstance(error, of_input) or hasattr(error, "format_message")


def _describe(error: Exception) -> str:
    if hasattr(error, "format_message"):  # an error of the command line itself
        text = error.format_message()
        option = getattr(error, "option_name", None)
        if type(error).__name__ == "NoSuchOption" and option:
            near = difflib.get_close_matches(option, getattr(error, "possibilities", None) or (), 1, 0.75)
            plain = f"settings are written without dashes, as {option.lstrip('-')}=VALUE"
            text = f"unknown option {option}: " + (f"did you mean {near[0]}?" if near else plain)
    elif isinstance(error, OSError) and error.filename is not None:
        text = f"{error.filename}: {error.strerror}"
    else:
        text = str(error) or type(error).__name__
    return " ".join(text.split())


def _show_warning(message: Any, category: Any, *where: Any, **more: Any) -> None:
    print(f"warning: {' '.join(str(message).split())}", file=sys.stderr)


app = typer.Typer(
    cls=Commands,
    name="interlace",
    help="Post-train language models with SFT and RL together, on one exact training step.",
    no_args_is_help=False,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(asked: bool) -> None:
    if asked:
        from interlace import __version__

        print(f"interlace {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: bool = typer.Option(
        False, "--version", callback=_version, is_eager=True, help="Show the version."
    ),
) -> None:
    pass


app.command()(train)
app.command()(compare)
app.command()(report)
app.command()(evaluate)
app.command()(explain)
app.command()(check)
app.command()(methods)
app.command()(tasks)
app.command()(models)


def main() -> None:
    """Entry point of the command `interlace`."""
    app(prog_name="interlace")
