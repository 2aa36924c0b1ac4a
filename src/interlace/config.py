"""One schema for every run: what a person writes, what is derived from it, and where each value came from.

A run is described by flat keys. A key belongs to the run (`model`, `task`, `seed`, ...), to every stage
(`lr`, `steps`, ...), to one stage (`stages.sft.lr`), or to the method (`kl`, `mu`, ...; `grpo.kl` where
the name alone is not clear). Anything else is an error that names the nearest key.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from interlace.methods import Entry, Method, get
from interlace.methods._parameters import Parameters
from interlace.rules.blocks import Blocks
from interlace.rules.controllers import parse_until

Count = Annotated[int, Field(ge=1)]
Whole = Annotated[int, Field(ge=0)]
NonNegative = Annotated[float, Field(ge=0)]


class ConfigError(ValueError):
    """A setting that is unknown, impossible, or in conflict; says what is accepted."""


class _Settings(BaseModel):
    model_config = ConfigDict(extra="forbid", allow_inf_nan=False, validate_assignment=True)

    @model_validator(mode="before")
    @classmethod
    def _none(cls, data: Any) -> Any:
        if isinstance(data, dict):
            return {
                k: None if isinstance(v, str) and v.strip().lower() in ("none", "null") else v
                for k, v in data.items()
            }
        return data


class StageSettings(_Settings):
    """How one stage trains. `None` where the default depends on the stage and the kind of model."""

    steps: Whole | None = Field(
        None, description="rollout steps (optimizer steps in a stage without rollouts)"
    )
    lr: NonNegative | None = Field(None, description="peak learning rate")
    lr_schedule: Literal["linear", "cosine", "constant"] = Field("linear", description="decay after warm-up")
    warmup_steps: Whole = Field(0, description="optimizer steps of linear warm-up")
    weight_decay: NonNegative = 0.01
    beta1: Annotated[float, Field(ge=0, lt=1)] = 0.9
    beta2: Annotated[float, Field(ge=0, lt=1)] = 0.95
    clip_grad: NonNegative | None = Field(1.0, description="largest gradient norm; none is off")
    critic_lr: NonNegative | None = Field(None, description="learning rate of the critic; default 5 x lr")
    prompts_per_step: Count = Field(16, description="problems sampled in a rollout step")
    group_size: Count = Field(8, description="rollouts per problem")
    demos_per_step: Whole | None = Field(None, description="demonstrations per step, from their own feed")
    epochs_per_rollout: Count = Field(1, description="passes over the rows of a rollout step")
    updates_per_epoch: Count = Field(1, description="optimizer steps of each pass")
    micro_batch_tokens: Count = Field(8192, description="tokens scored at once; never changes the gradient")
    temperature: NonNegative = Field(1.0, description="sampling temperature of rollouts")
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    max_new_tokens: Count | None = Field(None, description="limit of a completion; default the task's")
    stop: list[str] = Field(default_factory=list, description="texts that end a completion")
    max_prompt_tokens: Count | None = Field(None, description="longer prompts are dropped and counted")
    max_demo_tokens: Count | None = Field(None, description="longer demonstrations are dropped and counted")
    until: str | None = Field(
        None, description="ends the stage early: pass:0.3 (validation pass rate), loss:3 (no fall in 3 looks)"
    )
    eval_every: NonNegative = Field(
        0,
        description="steps between evaluations on validation problems, or a share of the stage; 0: never",
    )
    save_every: Whole = Field(100, description="steps between checkpoints; 0 is only at the stage's end")
    share: Annotated[float, Field(gt=0)] = Field(
        1.0, description="part of the budget, beside those of the stages that come after it"
    )
    keep: Literal["last", "best"] = Field(
        "last", description="weights that the stage ends with: the last, or the best of its evaluations"
    )

    @field_validator("until")
    @classmethod
    def _known_rule(cls, text: str | None) -> str | None:
        if text is not None:
            parse_until(text)
        return text

    @property
    def optimizer_steps_per_step(self) -> int:
        return self.epochs_per_rollout * self.updates_per_epoch


class RunSettings(_Settings):
    """What a run trains, on what, and where it is kept."""

    model: str = Field(
        "scratch:nano", description="scratch:SIZE, smollm2, a Hugging Face name or a directory"
    )
    precision: Literal["fp32", "bf16", "fp64"] = "fp32"
    device: str | None = None
    task: str | None = Field(None, description="a built-in task, gym:NAME, or a data file; default countdown")
    data: str | None = Field(None, description="a data file (the same as task=FILE)")
    reward: str | None = Field(None, description="default the task's")
    reward_timeout: Annotated[float, Field(gt=0)] = Field(10.0, description="seconds for one reward call")
    reward_workers: Count = 1
    problems: Count | None = Field(
        None, description="training problems; default as many as the task has, to 6000"
    )
    demonstrations: Whole | None = Field(
        None, description="how many of them have a demonstration that is used"
    )
    budget: Annotated[float, Field(gt=0)] | None = Field(
        None, description="floating-point operations of the run; its stages end, and rates decay, by it"
    )
    charged: NonNegative = Field(
        0.0, description="operations that the weights of init_from have cost; they are part of the budget"
    )
    seed: Whole = 0
    out: str | None = Field(None, description="run folder; default runs/METHOD-TASK-SEED")
    init_from: str | None = Field(None, description="weights to start from (a checkpoint or run folder)")
    threads: Count | None = Field(None, description="torch threads; default probed at the start")
    eval_problems: Count = Field(256, description="problems of each evaluation")
    eval_samples: Whole = Field(1, description="sampled completions per problem at evaluation temperature 1")
    eval_split: Literal["test", "validation"] = Field(
        "test", description="problems of the evaluations at the start and after each stage"
    )
    keep_checkpoints: Count = 2
    log_samples_every: Whole = Field(20, description="steps between samples written to the run folder")
    stop_dead_after: Whole = Field(50, description="stop after that many steps without any signal; 0 never")
    track: list[str] = Field(default_factory=list, description="tensorboard")


@dataclass(frozen=True)
class Stage:
    """One stage of a run: its rule and how it trains."""

    name: str
    method: Method
    settings: StageSettings
    samples: bool


@dataclass(frozen=True)
class Configuration:
    """A resolved run."""

    entry: Entry
    parameters: Parameters
    run: RunSettings
    stages: tuple[Stage, ...]
    method_spec: str

    def to_dict(self) -> dict[str, Any]:
        """Everything, derived values included, as plain data; `resolve` takes it back."""
        names = type(self.parameters).model_fields
        parameters = {name: _plain(getattr(self.parameters, name)) for name in names}
        return {
            "method": self.method_spec,
            "parameters": parameters,
            **self.run.model_dump(),
            "stages": {s.name: s.settings.model_dump() for s in self.stages},
        }

    @property
    def blocks(self) -> Blocks | None:
        """The tagged blocks that answers of this run are made of."""
        return next((s.method.blocks for s in self.stages if s.method.blocks is not None), None)

    def judge(self, scorer: Any) -> Any:
        """What scores whole answers, from a scorer of contents."""
        return scorer if self.blocks is None else self.blocks.scorer(scorer)

    def alphabet(self, characters: str | None) -> Any:
        """The characters of a model from scratch, from those of its task; `None` is open text."""
        return characters if self.blocks is None else self.blocks.alphabet(characters)

    def derived(self) -> dict[str, dict[str, Any]]:
        """What follows from the settings, per stage, for people."""
        out: dict[str, dict[str, Any]] = {}
        for stage in self.stages:
            s = stage.settings
            rows = s.prompts_per_step * s.group_size if stage.samples else 0
            out[stage.name] = {
                "rollouts per step": rows,
                "demonstrations per step": s.demos_per_step,
                "optimizer steps per step": s.optimizer_steps_per_step,
                "optimizer steps": "by budget" if s.steps is None else s.steps * s.optimizer_steps_per_step,
                "on-policy": "yes"
                if s.optimizer_steps_per_step == 1
                else "no (ratios differ after update 1)",
            }
        return out


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return list(value)
    return value if isinstance(value, str | int | float | bool | type(None) | list | dict) else str(value)


RUN_KEYS = tuple(RunSettings.model_fields)
STAGE_KEYS = tuple(StageSettings.model_fields)


def read_yaml(path: str | Path) -> dict[str, Any]:
    """Settings from a YAML file.

    Raises:
        ConfigError: there is no such file, or it does not hold a mapping.
    """
    try:
        loaded = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"config file {path}: {error.strerror}") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"config file {path} is not YAML: {error}") from None
    if not isinstance(loaded, dict):
        raise ConfigError(f"config file {path}: accepted is a mapping of settings")
    return loaded


def resolve(method: str | Entry, settings: Mapping[str, Any]) -> Configuration:
    """Sort settings into run, stages and method; fill in what depends on them.

    Args:
        method: A registered name, `FILE.py:NAME`, or what `register` returned.
        settings: Keys as described at the top of this file; nested or dotted stage and method keys.

    Raises:
        ConfigError: unknown or impossible settings.
    """
    entry = get(method)
    settings = {k: v for k, v in settings.items() if k != "method"}
    stage_overrides: dict[str, dict[str, Any]] = {
        k: dict(v) for k, v in dict(settings.pop("stages", {}) or {}).items()
    }
    parameters: dict[str, Any] = dict(settings.pop("parameters", {}) or {})
    parameters |= dict(settings.pop(entry.name, {}) or {})
    run_values: dict[str, Any] = {}
    shared: dict[str, Any] = {}
    method_keys = {*entry.parameters.model_fields, *(["variant"] if entry.variants else [])}
    for key, value in settings.items():
        if key in method_keys:
            parameters[key] = value
        elif key in RUN_KEYS:
            run_values[key] = value
        elif key in STAGE_KEYS:
            shared[key] = value
        else:
            known = [*RUN_KEYS, *STAGE_KEYS, *method_keys, "stages"]
            near = difflib.get_close_matches(key, known, 1)
            hint = f"; did you mean '{near[0]}'?" if near else f"; accepted are {', '.join(sorted(known))}"
            raise ConfigError(f"unknown setting '{key}'{hint}")
    validated = entry.validate(**parameters)
    built = entry.build(validated)
    run = _validate(RunSettings, run_values, "")
    if run.data is not None and run.task is not None and run.data != run.task:
        raise ConfigError("both task and data are given; give one of them")
    if run.budget is not None and run.charged >= run.budget:
        raise ConfigError(
            f"charged={run.charged:.4g} is the whole budget={run.budget:.4g}; nothing is left to train with"
        )
    run.task = run.data or run.task or "countdown"
    run.data = None
    graph = built.pipeline or ({} if built.alternation is not None else built.stages)
    names = list(graph) or ["train"]
    for name in stage_overrides:
        if name not in names:
            raise ConfigError(f"stages.{name}: accepted are {', '.join(names)}")
    scratch = run.model.startswith("scratch")
    stages = []
    for name in names:
        rule = graph.get(name, built)
        for key in stage_overrides.get(name, {}):
            if key not in STAGE_KEYS:
                near = difflib.get_close_matches(key, STAGE_KEYS, 1)
                hint = f"; did you mean '{near[0]}'?" if near else f"; accepted are {', '.join(STAGE_KEYS)}"
                raise ConfigError(f"unknown setting 'stages.{name}.{key}'{hint}")
        chosen = _validate(StageSettings, {**shared, **stage_overrides.get(name, {})}, f"stages.{name}.")
        samples = rule.sample is not False
        _defaults(chosen, rule, samples, scratch, built.stage_steps.get(name), run.budget is not None)
        _check_stage(name, chosen, samples)
        if chosen.until is not None:
            rule = replace(rule, finished=parse_until(chosen.until))
        stages.append(Stage(name, rule, chosen, samples))
    spec = method if isinstance(method, str) else entry.name
    return Configuration(entry, validated, run, tuple(stages), spec)


def _validate(model: type[Any], values: Mapping[str, Any], prefix: str) -> Any:
    values = dict(values)
    for key in ("stop", "track"):
        if isinstance(values.get(key), str):
            values[key] = [v for v in values[key].split(",") if v]
    try:
        return model(**values)
    except ValidationError as error:
        item = error.errors()[0]
        key = ".".join(map(str, item["loc"]))
        raise ConfigError(f"{prefix}{key}={item['input']!r}: {item['msg']}") from None


def _defaults(
    s: StageSettings, rule: Method, samples: bool, scratch: bool, limit: int | None, by_budget: bool
) -> None:
    """Fill in what depends on the stage and the kind of model."""
    if s.lr is None:
        s.lr = (3e-4 if samples else 3e-3) if scratch else (2e-6 if samples else 2e-5)
    s.group_size = getattr(rule.sample, "group_size", s.group_size)
    if s.critic_lr is None:
        s.critic_lr = 5 * s.lr
    if s.steps is None and rule.epochs is None:
        usual = (400 if samples else 900) if scratch else (50 if samples else 100)
        s.steps = limit or (None if by_budget else usual)
    if s.demos_per_step is None:
        s.demos_per_step = (
            0 if rule.demonstrations != "feed" else (16 if samples else (64 if scratch else 16))
        )


def _check_stage(name: str, s: StageSettings, samples: bool) -> None:
    if samples and s.temperature == 0:
        raise ConfigError(
            f"stage '{name}': temperature=0 has no log-probabilities to train on; accepted are numbers > 0"
        )
    if samples and s.updates_per_epoch > s.prompts_per_step:
        raise ConfigError(
            f"stage '{name}': updates_per_epoch={s.updates_per_epoch} is more than prompts_per_step="
            f"{s.prompts_per_step}; groups are never split between optimizer steps"
        )
    if s.keep == "best" and not s.eval_every:
        raise ConfigError(
            f"stage '{name}': keep=best chooses between evaluations; give eval_every=STEPS, or keep=last"
        )


def fingerprint(values: Any) -> str:
    """A short stable hash of plain data."""
    import hashlib

    return hashlib.sha256(json.dumps(values, sort_keys=True, default=str).encode()).hexdigest()[:16]
