"""What a comparison is: contenders, tasks, seeds, one budget, and a declared search.

Keys belong to the comparison (`seeds`, `budget`, `search`, ...), to every run (`model`, `lr`, ...), or to one
contender (`chord.mu=0.3`, `sft.stages.train.lr=1e-3`, `dapo.search.lr=x0.3,x1`).
"""

from __future__ import annotations

import difflib
import importlib.resources
import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from interlace.compare.budget import Budget, parse_budget
from interlace.config import RUN_KEYS, STAGE_KEYS, ConfigError, Configuration, resolve
from interlace.methods import Entry, get

Count = Annotated[int, Field(ge=1)]
Whole = Annotated[int, Field(ge=0)]
Share = Annotated[float, Field(gt=0, lt=1)]

ALWAYS = "sft_then_rl"
"""The corrected baseline that every comparison holds unless it is taken out by name."""

OWN_KEYS = ("seed", "out", "init_from", "budget", "charged", "eval_split", "eval_every", "steps", "share")
"""What a comparison sets itself in every run."""

FIRST_TUNING_SEED = 1000
"""Seeds of the search; not among those of the table, however many are added to it later."""

PRESETS = ("laptop", "demo")


class Settings(BaseModel):
    """Settings of a comparison. Texts of the command line are converted."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    out: str | None = Field(None, description="comparison folder; default runs/compare-TASK")
    seeds: tuple[Whole, ...] = Field((0, 1, 2), description="a number of seeds, or a list as 0,3,7")
    budget: Budget = Field(
        Budget("sft", 600),
        description="of every run: operations as 2e12, sft:N (the cost of N SFT steps), or steps:N",
    )
    start: Literal["base", "sft"] = Field(
        "base", description="weights that methods which sample start from; sft is one shared SFT checkpoint"
    )
    start_share: Share = Field(0.5, description="part of the budget that the shared SFT checkpoint costs")
    switch: tuple[Share, ...] = Field(
        (0.25, 0.5, 0.75),
        description="parts of the budget after which sft_then_rl may switch; chosen on validation problems",
    )
    search: dict[str, tuple[str, ...]] = Field(
        default_factory=dict,
        description="settings tried for every method, as lr:1e-4,3e-4 or lr:x0.3,x1,x3 (times its default)",
    )
    search_seeds: Count = Field(1, description="seeds, apart from the others, on which settings are chosen")
    without: tuple[str, ...] = Field((), description="sft_then_rl, to leave the standing baseline out")
    metric: Literal["greedy", "sampled"] = Field("greedy", description="accuracy that the ranking goes by")
    test_problems: Count = Field(256, description="held-out problems, the same for every run")
    test_samples: Whole = Field(8, description="sampled answers to each of them, for pass@k and majority@k")
    ood_problems: Whole = Field(128, description="problems of each out-of-distribution variant; 0 is none")
    retention: str = Field("auto", description="other tasks whose loss is watched, as a,b; auto, or none")
    looks: Whole = Field(8, description="evaluations along each run, on validation problems")
    jobs: Whole | None = Field(None, description="runs at once; default one a core or accelerator; 0: here")
    level: Annotated[float, Field(gt=0.5, lt=1)] = Field(0.95, description="confidence of intervals")

    @field_validator("seeds", mode="before")
    @classmethod
    def _seeds(cls, value: Any) -> Any:
        items = value.split(",") if isinstance(value, str) else value
        if isinstance(items, int) or (isinstance(items, list) and isinstance(value, str) and len(items) == 1):
            n = int(items if isinstance(items, int) else items[0])
            if n < 1:
                raise ValueError("accepted is a number of seeds from 1, or a list as 0,3,7")
            return tuple(range(n))
        if len(set(map(int, items))) < len(items):
            raise ValueError("a seed is given twice")
        if max(map(int, items), default=FIRST_TUNING_SEED) >= FIRST_TUNING_SEED:
            raise ValueError(f"accepted are seeds below {FIRST_TUNING_SEED}; those above choose settings")
        return items

    @field_validator("budget", mode="before")
    @classmethod
    def _budget(cls, value: Any) -> Any:
        return value if isinstance(value, Budget) else parse_budget(value)

    @field_validator("switch", "without", mode="before")
    @classmethod
    def _list(cls, value: Any) -> Any:
        if isinstance(value, str):
            return [part for part in value.split(",") if part and part != "none"]
        return [value] if isinstance(value, int | float) else value

    @field_validator("without")
    @classmethod
    def _only_the_baseline(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for name in value:
            if name != ALWAYS:
                raise ValueError(f"accepted is {ALWAYS}; other methods are in only if they are named")
        return value

    @field_validator("search", mode="before")
    @classmethod
    def _search(cls, value: Any) -> Any:
        return parse_search(value)


KEYS = tuple(Settings.model_fields)
CONTENDER_KEYS = ("start", "start_share", "search", "switch")
"""Keys of the comparison that one contender may have for itself."""


def parse_search(value: Any) -> dict[str, list[str]]:
    """`lr:1e-4,3e-4`, several of them joined by `;`, or a mapping of names to values."""
    if isinstance(value, str):
        pairs = [part.partition(":") for part in value.split(";") if part and part != "none"]
        value = {name: values for name, _, values in pairs}
    out = {}
    for name, values in dict(value or {}).items():
        listed = values.split(",") if isinstance(values, str) else values
        out[name] = [str(v).strip() for v in listed if str(v).strip()]
        if not out[name] or len(set(out[name])) < len(out[name]):
            raise ValueError(f"search of {name}: accepted are different values, as {name}:1e-4,3e-4")
    return out


@dataclass(frozen=True)
class Choice:
    """One setting of a contender's search.

    Attributes:
        name: As it is shown, `lr=x3 switch=0.5`; empty where nothing is searched.
        values: The searched settings.
        switch: When sft_then_rl switches.
    """

    name: str
    values: Mapping[str, str]
    switch: float | None = None


@dataclass(frozen=True)
class Contender:
    """One line of the table.

    Attributes:
        label: How it was named: a method, with its parameters if it has some.
        method: The method's spec.
        settings: What its runs are given, as for `train`, without what the comparison sets itself.
        start_share: Part of the budget that its SFT start costs; `None` starts from the base.
        choices: The settings among which one is chosen on validation.
    """

    label: str
    method: str
    settings: Mapping[str, Any]
    start_share: float | None
    choices: tuple[Choice, ...]

    @property
    def entry(self) -> Entry:
        return get(self.method)

    @property
    def slug(self) -> str:
        """A name for its folder."""
        return slug(self.label)


def slug(text: str) -> str:
    """A text as the name of a folder."""
    return re.sub(r"[^\w.,=+-]+", "-", text).lstrip("-.")


@dataclass(frozen=True)
class Comparison:
    """A resolved comparison.

    Attributes:
        settings: The comparison's own.
        tasks: Specs of the tasks.
        contenders: In the order given, the standing baseline last unless it was named.
        sft: What a shared SFT checkpoint is trained with.
        common: Settings of every run.
    """

    settings: Settings
    tasks: tuple[str, ...]
    contenders: tuple[Contender, ...]
    sft: Mapping[str, Any]
    common: Mapping[str, Any] = field(default_factory=dict)

    @property
    def out(self) -> Path:
        return Path(self.settings.out or f"runs/compare-{slug(self.tasks[0].split(':')[0])}")

    @property
    def tuning_seeds(self) -> tuple[int, ...]:
        return tuple(range(FIRST_TUNING_SEED, FIRST_TUNING_SEED + self.settings.search_seeds))

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain data, for the comparison folder and the report."""
        plain = self.settings.model_dump(mode="json") | {"budget": str(self.settings.budget)}
        return {
            **plain,
            "tasks": list(self.tasks),
            "common": dict(self.common),
            "sft": dict(self.sft),
            "contenders": [
                {
                    "label": c.label,
                    "method": c.method,
                    "settings": dict(c.settings),
                    "start_share": c.start_share,
                    "choices": [{"name": x.name, "values": dict(x.values)} for x in c.choices],
                }
                for c in self.contenders
            ],
        }


def read_preset(name: str) -> dict[str, Any]:
    """Settings of a preset that comes with the library.

    Raises:
        ConfigError: there is no such preset.
    """
    if name not in PRESETS:
        near = difflib.get_close_matches(name, PRESETS, 1)
        hint = f"did you mean '{near[0]}'? " if near else ""
        raise ConfigError(f"preset '{name}': {hint}accepted are {', '.join(PRESETS)}")
    text = importlib.resources.files("interlace.compare").joinpath(f"presets/{name}.yaml").read_text("utf-8")
    return yaml.safe_load(text)


def resolve_comparison(
    methods: Sequence[str] = (), settings: Mapping[str, Any] | None = None, preset: str | None = None
) -> Comparison:
    """Sort out who is compared, on what, and what every run is given; everything is checked here.

    Args:
        methods: Names, `FILE.py:NAME`, or either with parameters, as `"chord mu=0.3"`.
        settings: Keys as described at the top of this file; they win over those of the preset.
        preset: `laptop` or `demo`.

    Raises:
        ConfigError, MethodError: an unknown or impossible method or setting.
    """
    given = {} if preset is None else read_preset(preset)
    given = merged(given, settings or {})
    methods = list(methods) or list(given.pop("methods", ()))
    given.pop("methods", None)
    if not methods:
        raise ConfigError("name the methods to compare, as in: interlace compare sft grpo chord")
    own = _validated({key: given.pop(key) for key in KEYS if key in given})
    specs = [_split(word) for word in methods]
    if ALWAYS not in [name for name, _ in specs] and ALWAYS not in own.without:
        specs.append((ALWAYS, {}))
    if ALWAYS in own.without:
        specs = [(name, s) for name, s in specs if name != ALWAYS]
    labels = [_label(name, s) for name, s in specs]
    twice = next((label for label in labels if labels.count(label) > 1), None)
    if twice:
        raise ConfigError(f"'{twice}' is named twice; give one of them a name, as '{twice} as={twice}-2'")
    tasks = _tasks(given)
    for named in (tasks, labels):
        folders = [slug(name) for name in named]
        same = next(
            (name for name, folder in zip(named, folders, strict=True) if folders.count(folder) > 1), None
        )
        if same is not None:
            raise ConfigError(
                f"'{same}' and another one would have the same folder, {slug(same)}; give it as=NAME"
            )
    groups = {
        name: given.pop(name) for name in list(given) if isinstance(given[name], dict) and name != "stages"
    }
    _check_groups(groups, specs, labels)
    _check_keys(given, [get(name) for name, _ in specs])
    contenders = []
    for (name, settings_), label in zip(specs, labels, strict=True):
        mine = merged(merged(groups.get(get(name).name, {}), groups.get(label, {})), settings_)
        mine.pop("as", None)
        contenders.append(_contender(label, name, given, mine, own))
    _check_stages(given.get("stages", {}), contenders)
    common = {k: v for k, v in given.items() if k in (*RUN_KEYS, *STAGE_KEYS)}
    sft = merged(common, groups.get("sft", {}))
    sft = {k: v for k, v in sft.items() if k not in CONTENDER_KEYS}
    comparison = Comparison(own, tasks, tuple(contenders), sft, common)
    for contender in contenders:
        for choice in contender.choices:
            settings_for(contender, choice, task=tasks[0])
    return comparison


def merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """`below` with `above` laid over it, group by group."""
    out = dict(below)
    for key, value in above.items():
        under = out.get(key)
        nested = isinstance(under, Mapping) and isinstance(value, Mapping)
        out[key] = merged(under, value) if nested else value  # type: ignore[arg-type]
    return out


def settings_for(contender: Contender, choice: Choice, task: str, **more: Any) -> dict[str, Any]:
    """What a run of a contender with a choice of its search is given.

    Raises:
        ConfigError: impossible.
    """
    settings = {**contender.settings, "task": task, **more}
    searched = dict(choice.values)
    rate = searched.pop("lr", None)
    for name, value in searched.items():
        settings = merged(settings, nested(name, value))
    plain = resolve(contender.method, settings)
    if rate is None:
        return settings
    return merged(settings, {"stages": _rates(plain, rate)})


def _rates(plain: Configuration, value: str) -> dict[str, Any]:
    """Learning rates by stage: a multiple of what each has, or a rate for the stages that sample."""
    times = value.startswith("x")
    try:
        number = float(value.removeprefix("x"))
    except ValueError:
        raise ConfigError(
            f"search of lr: '{value}': accepted are rates, as 3e-4, or multiples, as x3"
        ) from None
    sampling = [s for s in plain.stages if s.samples]
    touched = plain.stages if times or not sampling else sampling
    if plain.entry.name == ALWAYS:  # its SFT stage is shared with others, and searched by `switch` alone
        touched = [s for s in touched if s.samples]
    return {s.name: {"lr": (s.settings.lr or 0.0) * number if times else number} for s in touched}


def nested(name: str, value: Any) -> dict[str, Any]:
    """`stages.sft.lr` and a value as nested mappings."""
    *groups, last = name.split(".")
    out: dict[str, Any] = {last: value}
    for group in reversed(groups):
        out = {group: out}
    return out


def _validated(values: Mapping[str, Any]) -> Settings:
    values = {
        k: v
        for k, v in values.items()
        if not (isinstance(v, str) and v.lower() == "none" and k != "retention")
    }
    start = values.get("start")
    if isinstance(start, str) and start.startswith("sft:"):
        values |= {"start": "sft", "start_share": start.removeprefix("sft:")}
    try:
        return Settings(**values)
    except ValidationError as error:
        item = error.errors()[0]
        key = ".".join(map(str, item["loc"]))
        raise ConfigError(f"{key}={item['input']!r}: {item['msg'].removeprefix('Value error, ')}") from None


def _split(word: str) -> tuple[str, dict[str, Any]]:
    """`chord mu=0.3` as a name and its settings."""
    words = word.split()
    first = next((i for i, w in enumerate(words) if "=" in w), len(words))
    settings: dict[str, Any] = {}
    for pair in words[first:]:
        key, equals, value = pair.partition("=")
        if not equals:
            raise ConfigError(f"method '{word}': '{pair}' is not key=value, as in 'chord mu=0.3'")
        settings = merged(settings, nested(key, value))
    return " ".join(words[:first]), settings


def _label(name: str, settings: Mapping[str, Any]) -> str:
    if "as" in settings:
        return str(settings["as"])
    return " ".join([get(name).name, *(f"{k}={_short(v)}" for k, v in settings.items())])


def _short(value: Any) -> str:
    return (
        ",".join(f"{k}={_short(v)}" for k, v in value.items()) if isinstance(value, Mapping) else str(value)
    )


def _tasks(given: dict[str, Any]) -> tuple[str, ...]:
    """Specs of the tasks; a piece without a colon that holds `=` belongs to the one before it."""
    named = [key for key in ("task", "tasks", "data") if given.get(key) is not None]
    if len(named) > 1:
        raise ConfigError(f"{named[0]} and {named[1]} are both given; give one of them")
    value = given.pop(named[0]) if named else "countdown"
    if not named or named[0] != "tasks":
        return (str(value),)
    if not isinstance(value, str):
        return tuple(map(str, value))
    tasks: list[str] = []
    for piece in value.split(","):
        if tasks and "=" in piece and ":" not in piece:
            tasks[-1] += f",{piece}"
        else:
            tasks.append(piece)
    if len(set(tasks)) < len(tasks):
        raise ConfigError("tasks: one is named twice")
    return tuple(tasks)


def _check_groups(groups: Mapping[str, Any], specs: Sequence[tuple[str, Any]], labels: Sequence[str]) -> None:
    accepted = list(dict.fromkeys([*(get(name).name for name, _ in specs), *labels, "sft"]))
    for name, values in groups.items():
        if name not in accepted:
            near = difflib.get_close_matches(name, accepted, 1)
            hint = f"did you mean '{near[0]}'? " if near else ""
            known = ", ".join(["search", *accepted])
            raise ConfigError(f"'{name}.{next(iter(values))}': {hint}accepted before the dot are {known}")


def _check_keys(given: Mapping[str, Any], entries: Sequence[Entry]) -> None:
    of_methods = {key for e in entries for key in (*e.parameters.model_fields, "variant")}
    accepted = [*KEYS, *RUN_KEYS, *STAGE_KEYS, *sorted(of_methods), "stages", "tasks"]
    for key in given:
        if key in OWN_KEYS:
            raise ConfigError(f"'{key}' is set by the comparison; {_INSTEAD.get(key, 'leave it out')}")
        if key not in accepted:
            near = difflib.get_close_matches(key, accepted, 1)
            hint = f"did you mean '{near[0]}'?" if near else f"accepted are {', '.join(accepted)}"
            raise ConfigError(f"unknown setting '{key}': {hint}")


def _check_stages(stages: Mapping[str, Any], contenders: Sequence[Contender]) -> None:
    known = {s.name for c in contenders for s in resolve(c.method, c.settings).stages}
    for name in stages:
        if name not in known:
            raise ConfigError(f"stages.{name}: no contender has it; accepted are {', '.join(sorted(known))}")


_INSTEAD = {
    "seed": "give seeds=3 or seeds=0,1,2",
    "steps": "give budget=steps:N",
    "init_from": "give model=DIRECTORY",
    "eval_every": "give looks=N",
}


def _contender(
    label: str, name: str, common: Mapping[str, Any], mine: Mapping[str, Any], own: Settings
) -> Contender:
    entry = get(name)
    parameters = {*entry.parameters.model_fields, "variant"}
    special = {key: mine[key] for key in CONTENDER_KEYS if key in mine}
    mine = {key: value for key, value in mine.items() if key not in special}
    for key in mine:
        if key in OWN_KEYS:
            raise ConfigError(
                f"'{label}': '{key}' is set by the comparison; {_INSTEAD.get(key, 'leave it out')}"
            )
    shared = {k: v for k, v in common.items() if k in (*RUN_KEYS, *STAGE_KEYS, *parameters)}
    settings = merged(shared, mine)
    plain = resolve(name, settings)  # unknown keys of the contender are found here
    if "stages" in common:
        stages = {k: v for k, v in common["stages"].items() if k in [s.name for s in plain.stages]}
        settings = merged({**shared, "stages": stages} if stages else shared, mine)
        plain = resolve(name, settings)
    chosen = replace_settings(own, special)
    starts = chosen.start == "sft" and ("start" in special or _may_start_from_sft(plain))
    share = chosen.start_share if starts and entry.name != ALWAYS else None
    return Contender(label, name, settings, share, _choices(plain, chosen))


def replace_settings(own: Settings, changed: Mapping[str, Any]) -> Settings:
    """The comparison's settings with those of one contender over them."""
    kept = own.model_dump() | {"budget": own.budget}
    return _validated(kept | dict(changed)) if changed else own


def _may_start_from_sft(plain: Configuration) -> bool:
    return plain.stages[0].samples and plain.entry.family != "pipeline"


def _choices(plain: Configuration, own: Settings) -> tuple[Choice, ...]:
    known = {*RUN_KEYS, *STAGE_KEYS, *plain.entry.parameters.model_fields, "variant"}
    searched = {k: v for k, v in own.search.items() if k.split(".")[0] in {*known, "stages"}}
    grid: list[tuple[dict[str, str], float | None]] = [
        (dict(zip(searched, values, strict=True)), None) for values in itertools.product(*searched.values())
    ]
    if plain.entry.name == ALWAYS:
        grid = [(values, share) for values, _ in grid for share in own.switch]
    named = []
    for values, share in grid:
        parts = [f"{k}={v}" for k, v in values.items()] if len(grid) > 1 or values else []
        parts += [f"switch={share:g}"] if share is not None else []
        named.append(Choice(" ".join(parts), values, share))
    return tuple(named)
