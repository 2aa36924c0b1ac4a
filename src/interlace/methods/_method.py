"""What a method is, and the register of their names."""

from __future__ import annotations

import difflib
import importlib
import importlib.metadata
import importlib.util
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError
from torch import Tensor

from interlace.methods._parameters import Parameters
from interlace.parts.masks import has_reward
from interlace.parts.terms import Term
from interlace.types import Batch

BatchRule = Callable[[Batch], Batch]


class MethodError(ValueError):
    """An unknown method, an unknown parameter, or an impossible value; says what is accepted."""


@dataclass(frozen=True)
class Method:
    """Everything a method does in one stage; what it does not need is absent.

    Attributes:
        terms: Its losses.
        advantage: Sets the array `advantage` [N] of the scored batch (and what else its terms read).
        regroup: Before advantages: substitute, gate by pass rate, adjust a label's reward.
        select: After advantages: drop truncated rows, dead groups.
        scored: bool [R]: the active rows that carry what the method takes for a reward. Rollout rows
            without it are left out.
        sample: Turns the problems of one step into sample requests (`training/collect.py`); `None` is one
            request per problem, `False` no sampling at all.
        needs: Detached per-decision arrays that advantages, masks and terms read, to be annotated.
        demonstrations: Where demonstrations come from: none, their own feed, or the prompt's group.
        controllers: Objects that move numbers which coefficients read (`rules/controllers.py`).
        update: How terms' gradients become an update (`rules/updates.py`); `None` is their sum.
        row_scorer: Changes the rows of a step before they are packed: a learned reward, a corrupted twin
            (`rules/bench.py`).
        blocks: The tagged blocks that answers are made of (`rules/blocks.py`).
        alternation: Chooses one of the stages for every step; the stages are then no stages of the run.
        pipeline: The stages of a run where they are not `stages`, in running order.
        harvest: Makes the rows that this stage is trained on, before it starts (`rules/harvest.py`).
        start: Which weights this stage starts from: those of the `previous` stage or the run's `base`.
        finished: Asked after every step with the bench; true ends the stage before its last step.
        topk: How many tokens the annotation `topk_mass` counts.
        mix: Share of the model's own prediction in the input embeddings of demonstrations, by step.
        stages: The named stages that `explain` knows, in running order; each is a method of its own.
        explain_stage: The stage that `explain` shows unless told otherwise.
        epochs: Passes over the demonstrations that the stage takes where `steps` is not given.
        stage_steps: Limits of rollout steps that a stage's method itself sets.
        choose_stage: Picks a stage from the numbers that controllers hold, where a method alternates.
    """

    terms: tuple[Term, ...] = ()
    advantage: BatchRule | None = None
    regroup: tuple[BatchRule, ...] = ()
    select: tuple[BatchRule, ...] = ()
    scored: Callable[[Batch], Tensor] = has_reward
    sample: Any = None
    needs: frozenset[str] = frozenset()
    demonstrations: Literal["none", "feed", "group"] = "none"
    controllers: tuple[Any, ...] = ()
    update: Any = None
    row_scorer: Any = None
    blocks: Any = None
    alternation: Any = None
    pipeline: Mapping[str, Method] = field(default_factory=dict)
    harvest: Any = None
    start: Literal["previous", "base"] = "previous"
    finished: Callable[[Any], bool] | None = None
    topk: int = 2
    mix: Any = None
    stages: Mapping[str, Method] = field(default_factory=dict)
    explain_stage: str | None = None
    epochs: int | None = None
    stage_steps: Mapping[str, int | None] = field(default_factory=dict)
    choose_stage: Callable[[Mapping[str, float]], str | None] | None = None

    def stage(
        self, name: str | None = None, state: Mapping[str, float] | None = None
    ) -> tuple[str | None, Method]:
        """A stage by name (default: the one `explain` shows, or what the state chooses) and its method.

        Raises:
            MethodError: there is no such stage.
        """
        if not self.stages:
            if name is not None:
                raise MethodError(f"stage={name!r}: this method has no stages; leave 'stage' out")
            return None, self
        if name is None and self.choose_stage is not None and state:
            name = self.choose_stage(state)
        name = name or self.explain_stage or next(iter(self.stages))
        if name not in self.stages:
            raise MethodError(f"stage={name!r}: accepted are {', '.join(self.stages)}")
        return name, self.stages[name]


@dataclass(frozen=True)
class Entry:
    """A registered method: how to build it and what is known of it.

    Attributes:
        name: Registered name.
        build: From validated hyper-parameters to a `Method`.
        parameters: The pydantic model of its hyper-parameters.
        paper: Number in the project's paper index, `-` for a standard objective.
        title: Name and year of the paper.
        arxiv: arXiv id, or empty.
        family: `sft`, `rl`, `mixed`, or `pipeline`.
        evidence: How well the definition is known: `official code`, `paper`, or `derived`.
        data: What it trains on: `prompts`, `demonstrations`.
        cost: What it costs beyond a plain step.
        variants: Tables of parameter values by variant name.
        reductions: Settings under which it equals another method, as text.
    """

    name: str
    build: Callable[[Any], Method]
    parameters: type[Parameters]
    paper: str
    title: str
    arxiv: str
    family: str
    evidence: str
    data: tuple[str, ...]
    cost: tuple[str, ...]
    variants: Mapping[str, Mapping[str, Any]]
    reductions: tuple[str, ...]

    def __call__(self, **parameters: Any) -> Method:
        """Build the method. Unknown or impossible parameters raise `MethodError`."""
        return self.build(self.validate(**parameters))

    def validate(self, **parameters: Any) -> Parameters:
        """Hyper-parameters with defaults, the variant's table and the explicit values, in that order."""
        variant = parameters.pop("variant", "paper")
        accepted = ["paper", *self.variants]
        if variant not in accepted:
            raise MethodError(f"{self.name}: variant={variant!r}: accepted are {', '.join(accepted)}")
        known = list(self.parameters.model_fields)
        for key in parameters:
            if key not in known:
                near = difflib.get_close_matches(key, known, 1)
                hint = f"; did you mean '{near[0]}'?" if near else ""
                names = ", ".join([*known, "variant"]) if self.variants else ", ".join(known)
                raise MethodError(f"{self.name}: unknown parameter '{key}'{hint or '.'} Accepted are {names}")
        try:
            return self.parameters(**{**self.variants.get(variant, {}), **parameters})
        except ValidationError as error:
            raise MethodError(f"{self.name}: {_explain_validation(error)}") from None


def _explain_validation(error: ValidationError) -> str:
    parts = []
    for item in error.errors():
        where = str(item["loc"][0]) if item["loc"] else "parameters"
        shown = item.get("input")
        message = item["msg"].removeprefix("Value error, ")
        text = f"{where}={shown!r}: {message}" if item["loc"] else message
        if text not in parts:
            parts.append(text)
    return "; ".join(parts)


REGISTER: dict[str, Entry] = {}


def register(
    name: str,
    parameters: type[Parameters],
    *,
    paper: str = "-",
    title: str = "",
    arxiv: str = "",
    family: Literal["sft", "rl", "mixed", "pipeline"] = "rl",
    evidence: Literal["official code", "third-party code", "paper", "derived"] = "paper",
    data: tuple[str, ...] = ("prompts",),
    cost: tuple[str, ...] = (),
    variants: Mapping[str, Mapping[str, Any]] | None = None,
    reductions: tuple[str, ...] = (),
) -> Callable[[Callable[[Any], Method]], Entry]:
    """Register a function from hyper-parameters to a `Method` under its name."""

    def wrap(build: Callable[[Any], Method]) -> Entry:
        entry = Entry(
            name,
            build,
            parameters,
            paper,
            title,
            arxiv,
            family,
            evidence,
            data,
            cost,
            variants or {},
            reductions,
        )
        entry_doc = build.__doc__ or sys.modules[build.__module__].__doc__
        object.__setattr__(entry, "__doc__", entry_doc)
        REGISTER[name] = entry
        return entry

    return wrap


def get(spec: str | Entry) -> Entry:
    """A method by registered name, by `file.py:name`, or from a package's entry point `interlace.methods`.

    Raises:
        MethodError: nothing of that name; names the nearest.
    """
    if isinstance(spec, Entry):
        return spec
    if spec in REGISTER:
        return REGISTER[spec]
    if ":" in spec:
        return _from_file(spec)
    points = {p.name: p for p in importlib.metadata.entry_points(group="interlace.methods")}
    if spec in points:
        return _checked(points[spec].load(), spec)
    known = sorted({*REGISTER, *points})
    near = difflib.get_close_matches(spec, known, 1)
    hint = f"did you mean '{near[0]}'? " if near else ""
    raise MethodError(f"unknown method '{spec}': {hint}accepted are {', '.join(known)}, or FILE.py:NAME")


def _from_file(spec: str) -> Entry:
    path_text, _, name = spec.rpartition(":")
    path = Path(path_text)
    if not path.is_file():
        raise MethodError(f"method '{spec}': there is no file '{path_text}'")
    module_spec = importlib.util.spec_from_file_location(f"interlace_method_{path.stem}", path)
    assert module_spec is not None and module_spec.loader is not None
    module = importlib.util.module_from_spec(module_spec)
    before = dict(REGISTER)
    sys.modules[module_spec.name] = module
    module_spec.loader.exec_module(module)
    made = {k: v for k, v in REGISTER.items() if before.get(k) is not v}
    # A file must not silently replace a built-in method of the same name.
    REGISTER.clear()
    REGISTER.update(before)
    found = getattr(module, name, None) or made.get(name)
    if found is None:
        raise MethodError(
            f"method '{spec}': '{path_text}' has no '{name}'; it has {', '.join(made) or 'none'}"
        )
    return _checked(found, spec)


def _checked(found: object, spec: str) -> Entry:
    if not isinstance(found, Entry):
        raise MethodError(
            f"method '{spec}': not made with @interlace.methods.register, but a {type(found).__name__}"
        )
    return found
