"""`interlace explain`: every token's number, as JSON or as colours."""

from __future__ import annotations

import difflib
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from interlace.cli.arguments import ArgumentsError, split_words

if TYPE_CHECKING:
    from interlace.analysis.batch import SampledBatch
    from interlace.analysis.side_by_side import SideBySide

PLACES = ("step", "stage", "state")
"""Keys of the input that may be given on the command line too, where they win."""

Explained = dict[str, dict[str, Any]]


def explain(
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="METHOD|KEY=VALUE",
            help="Methods (names or FILE.py:NAME) and their parameters; chord.mu=0.2 is for one of several. "
            "step=, stage= and state.NAME= place the method in a run; task=, model=, seed= and the like "
            "choose the batch that is sampled where there is no --input.",
        ),
    ],
    input: Annotated[
        str | None, typer.Option("--input", "-i", metavar="FILE", help="Rows as JSON; - is standard input.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
    html: Annotated[
        str | None, typer.Option("--html", metavar="FILE", help="Write the methods side by side as one page.")
    ] = None,
    as_formula: Annotated[
        bool, typer.Option("--formula", help="Print the losses as text, with their parameters filled in.")
    ] = False,
) -> None:
    """Show what every token's log-probability is multiplied by in the update."""
    names, settings = split_words(words)
    if not names:
        raise ArgumentsError("explain: name a method, as in: interlace explain grpo --input rows.json")
    if len(set(names)) < len(names):
        raise ArgumentsError("explain: a method is named twice")
    if as_formula:
        _print_formulas(names, settings)
        return
    given: Mapping[str, Any]
    if input is None:
        settings, batch = _sampled_batch(names, settings)
        given, texts, prompts, about = {"rows": batch.rows}, batch.tokens, batch.prompts, batch.about
    else:
        given, texts, prompts, about = read_input(input), None, None, {"rows of": input}
    if html is not None or (len(names) > 1 and not as_json):
        compared = _side_by_side(names, settings, given, tokens=texts, prompts=prompts, about=about)
        if html is not None:
            compared.to_html(html)
            print(f"written: {html}", file=sys.stderr)
        elif not as_json:
            compared.show()
        if not as_json:
            return
    explained = _from_rows(names, settings, given)
    if as_json:
        _write_json(explained)
        return
    from interlace.cli.tokens import show

    show(explained, given["rows"], texts, prompts)


def _print_formulas(names: Sequence[str], settings: Mapping[str, Any]) -> None:
    from interlace.analysis.formula import formula

    stage = settings.get("stage")
    own = {key: value for key, value in settings.items() if key not in PLACES}
    parameters = parameters_by_method(names, own)
    texts = [formula(name, **{"stage": stage, **parameters[name]}) for name in names]
    print(f"\n\n{'-' * 100}\n\n".join(texts))


def _side_by_side(
    names: Sequence[str], settings: Mapping[str, Any], given: Mapping[str, Any], **shown: Any
) -> SideBySide:
    from interlace.analysis.side_by_side import side_by_side

    places = {key: given[key] for key in PLACES if key in given} | _placed(settings, given)
    own = {key: value for key, value in settings.items() if key not in PLACES}
    stage = {} if places.get("stage") is None else {"stage": places["stage"]}
    parameters = parameters_by_method(names, own)
    methods = [(name, {**stage, **parameters[name]}) for name in names]
    return side_by_side(
        methods, given["rows"], step=places.get("step", 0), state=places.get("state"), **shown
    )


def read_input(path: str) -> dict[str, Any]:
    """The JSON object of a file or of standard input.

    Raises:
        ArgumentsError: it is not a JSON object with finite numbers and the accepted keys.
    """
    where = "standard input" if path == "-" else path
    raw = sys.stdin.buffer.read() if path == "-" else Path(path).read_bytes()
    try:
        given = json.loads(raw.decode("utf-8-sig"), parse_constant=_refuse_constant)
    except UnicodeDecodeError as error:
        raise ArgumentsError(f"{where}: not UTF-8 text ({error.reason} at byte {error.start})") from None
    except RecursionError:
        raise ArgumentsError(f"{where}: nested too deeply to be rows") from None
    except ValueError as error:
        raise ArgumentsError(f"{where}: not JSON: {error}") from None
    accepted = ("rows", *PLACES)
    if not isinstance(given, dict):
        raise ArgumentsError(
            f"{where}: a {type(given).__name__}; accepted is an object with the keys {', '.join(accepted)}"
        )
    for key in given:
        if key not in accepted:
            near = difflib.get_close_matches(key, accepted, 1)
            hint = f"did you mean '{near[0]}'? " if near else ""
            raise ArgumentsError(f"{where}: unknown key '{key}': {hint}accepted are {', '.join(accepted)}")
    if "rows" not in given:
        raise ArgumentsError(f"{where}: 'rows' is required, a list of objects with 'logp' and 'source'")
    for key, kind, name in (("stage", str, "a text"), ("state", dict, "an object of numbers")):
        if given.get(key) is not None and not isinstance(given[key], kind):
            raise ArgumentsError(f"{where}: '{key}': {given[key]!r:.80} is not accepted; accepted is {name}")
    return given


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is not a JSON number; accepted are finite numbers and null")


def _sampled_batch(names: Sequence[str], settings: Mapping[str, Any]) -> tuple[dict[str, Any], SampledBatch]:
    """The settings of the methods alone, and what they would train on: a batch of the task and model."""
    import interlace
    from interlace.config import RUN_KEYS, STAGE_KEYS
    from interlace.methods import get

    of_methods = {key for name in names for key in get(name).parameters.model_fields}
    of_run = [key for key in (*RUN_KEYS, *STAGE_KEYS) if key not in of_methods]
    own = {key: value for key, value in settings.items() if key not in of_run}
    _placed(settings, {})
    plain = {key: value for key, value in own.items() if key not in PLACES}
    for name, parameters in parameters_by_method(names, plain, also=of_run).items():
        get(name).validate(
            **{k: v for k, v in parameters.items() if k != "stage"}
        )  # before sampling takes time
    return own, interlace.sample_batch(names[0], **{k: v for k, v in settings.items() if k in of_run})


def _from_rows(names: Sequence[str], settings: Mapping[str, Any], given: Mapping[str, Any]) -> Explained:
    import interlace

    places = {key: given[key] for key in PLACES if key in given} | _placed(settings, given)
    own = {key: value for key, value in settings.items() if key not in PLACES}
    parameters = parameters_by_method(names, own)
    return {
        name: interlace.explain(name, given["rows"], **{**places, **parameters[name]})  # type: ignore[operator]
        for name in names
    }


def _placed(settings: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """`step`, `stage` and `state` from the command line's texts."""
    placed = {key: settings[key] for key in PLACES if key in settings}
    if "step" in placed:
        text = placed["step"]
        if not isinstance(text, str) or not text.isdecimal():
            raise ArgumentsError(f"step={text}: accepted are integers >= 0")
        placed["step"] = int(text)
    if placed.get("stage") == "none":
        placed["stage"] = None
    if "state" in placed:
        if not isinstance(placed["state"], dict):
            raise ArgumentsError(f"state={placed['state']}: give its numbers by name, as in state.u=0.3")
        numbers = {}
        for key, text in placed["state"].items():
            try:
                numbers[key] = float(text)
            except (TypeError, ValueError):
                raise ArgumentsError(f"state.{key}={text}: accepted are finite numbers") from None
        below = given.get("state") or {}
        placed["state"] = {**below, **numbers} if isinstance(below, Mapping) else numbers
    return placed


def parameters_by_method(
    names: Sequence[str], settings: Mapping[str, Any], also: Sequence[str] = ()
) -> dict[str, dict[str, Any]]:
    """Each method's share of the settings: `chord.mu=` is for one, `mu=` for every method that has a `mu`.

    Args:
        also: What else is accepted beside them, for the message.

    Raises:
        ArgumentsError: a setting that none of the methods knows, with the nearest name.
    """
    from interlace.methods import get

    entries = {name: get(name) for name in names}
    known = {name: {*e.parameters.model_fields, "variant"} for name, e in entries.items()}
    parameters: dict[str, dict[str, Any]] = {name: {} for name in names}
    grouped = {k: v for k, v in settings.items() if isinstance(v, dict)}
    for key, value in settings.items():
        if key in grouped:
            continue
        owners = [name for name in names if key in known[name]]
        if len(names) == 1 and not also:
            owners = list(names)  # the method itself says what it accepts
        elif not owners:
            accepted = sorted({*also, *set().union(*known.values())})
            near = difflib.get_close_matches(key, accepted, 1)
            hint = f"did you mean '{near[0]}'?" if near else f"accepted are {', '.join(accepted)}"
            raise ArgumentsError(f"unknown parameter '{key}': {hint}")
        for name in owners:
            parameters[name][key] = value
    for key, group in grouped.items():
        by_name = {e.name: name for name, e in entries.items()}
        if key not in by_name:
            near = difflib.get_close_matches(key, list(by_name), 1)
            hint = f"did you mean '{near[0]}'? " if near else ""
            raise ArgumentsError(
                f"'{key}.{next(iter(group))}': {hint}accepted before the dot are {', '.join(by_name)}"
            )
        parameters[by_name[key]] |= group
    return parameters


def _write_json(explained: Explained) -> None:
    # One method is the object itself, several are one object by name.
    out = next(iter(explained.values())) if len(explained) == 1 else explained
    try:
        text = json.dumps(out, allow_nan=False)
    except ValueError:
        raise ArgumentsError(
            "a result is too large for a number; look for extreme rewards, log-ratios or parameters"
        ) from None
    print(text)
