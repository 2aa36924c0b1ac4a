"""Evaluating a model by name: from a spec or a run folder and a task to an `Evaluation`."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from interlace.config import ConfigError, read_yaml, resolve
from interlace.evaluation.evaluate import evaluate
from interlace.evaluation.results import Evaluation
from interlace.policies import Renderer, load_policy
from interlace.rewards import Scorer, load_reward
from interlace.rollout import LocalEngine
from interlace.tasks import Task, load_task
from interlace.training.checkpoint import RunFolder
from interlace.types import Sampling

Count = Annotated[int, Field(ge=1)]
Whole = Annotated[int, Field(ge=0)]

FROM_RUN = {
    "task": "task",
    "reward": "reward",
    "reward_timeout": "reward_timeout",
    "reward_workers": "reward_workers",
    "precision": "precision",
    "seed": "seed",
    "eval_problems": "problems",
}
"""What a run folder's configuration supplies, and as which setting, unless another value is given."""


class EvaluationSettings(BaseModel):
    """What a model is evaluated on and how. Texts of the command line are converted; `none` is None."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    task: str = Field(description="a built-in task, gym:NAME, or a data file; default the run's")
    split: str = Field("test", description="which of the task's splits")
    problems: Count = Field(256, description="how many problems")
    seed: Whole = Field(0, description="chooses the problems and the samples")
    greedy: bool = Field(True, description="answer each problem once at temperature 0")
    samples: Whole = Field(0, description="sampled answers per problem")
    temperature: Annotated[float, Field(ge=0)] = Field(1.0, description="of the samples")
    top_p: float = Field(1.0, description="1 is off")
    top_k: int = Field(0, description="0 is off")
    min_p: float = Field(0.0, description="0 is off")
    max_new_tokens: Count | None = Field(
        None, description="limit of an answer; default the run's or the task's"
    )
    max_prompt_tokens: Count | None = Field(None, description="longer prompts are left out and counted")
    stop: tuple[str, ...] = Field((), description="texts that end an answer")
    ks: tuple[Count, ...] | None = Field(
        None, description="k of pass@k and majority@k; default 1, 2, 4, ... samples"
    )
    reward: str | None = Field(None, description="the verifier; default the task's")
    reward_timeout: Annotated[float, Field(gt=0)] = Field(10.0, description="seconds for one answer")
    reward_workers: Count = Field(1, description="processes that verify")
    precision: Literal["fp32", "bf16", "fp64"] = Field("fp32", description="of the model")
    device: str | None = Field(None, description="where the model runs")
    threads: Count | None = Field(None, description="torch threads")

    @model_validator(mode="before")
    @classmethod
    def _texts(cls, data: Any) -> Any:
        out = {}
        for key, value in dict(data).items():
            if isinstance(value, str) and value.strip().lower() in ("none", "null"):
                continue
            out[key] = value.split(",") if key in ("stop", "ks") and isinstance(value, str) else value
        return out


def evaluate_model(
    model: str | Path,
    *,
    progress: Callable[[int, int], None] | None = None,
    say: Callable[[str], None] = lambda message: None,
    **settings: Any,
) -> Evaluation:
    """Accuracy of a model on a task.

    Args:
        model: A run folder, a checkpoint, a directory, a Hugging Face name, `scratch:SIZE` or `smollm2`.
        progress: Told (answers so far, answers in all).
        say: Told of warnings, one line each.
        **settings: Fields of `EvaluationSettings`, as values or texts. A run folder supplies its task,
            problems, verifier, seed and token limit, so that the numbers are those of the run's own
            evaluation.

    Raises:
        ValueError: unknown or impossible settings, a model or task that does not exist.
    """
    chosen = resolve_settings({**run_settings(model, settings.get("task")), **settings})
    task = load_task(chosen.task)
    if chosen.threads is not None:
        import torch

        torch.set_num_threads(chosen.threads)
    policy = load_policy(
        str(weights_of(model)),
        precision=chosen.precision,
        device=chosen.device,
        alphabet=task.alphabet,
        seed=chosen.seed,
    )
    for warning in policy.warnings:
        say(warning)
    limit = chosen.max_new_tokens or task.max_new_tokens or 64
    how = Sampling(
        chosen.temperature, chosen.top_p, chosen.top_k, chosen.min_p, limit, tuple(filter(None, chosen.stop))
    )
    problems = task.problems(chosen.split, _how_many(task, chosen.split, chosen.problems), seed=chosen.seed)
    reward = load_reward(chosen.reward) if chosen.reward else task.reward
    with Scorer(reward, workers=chosen.reward_workers, timeout=chosen.reward_timeout) as scorer:
        return evaluate(
            LocalEngine.for_policy(policy),
            Renderer(policy.tokenizer, policy.eos_ids),
            problems,
            judge_of(model, scorer),
            samples=chosen.samples,
            sampling=how,
            greedy=chosen.greedy,
            ks=chosen.ks,
            prompt_limit=_prompt_limit(chosen.max_prompt_tokens, policy.max_positions, limit),
            seed=chosen.seed + 1_000_003,
            progress=progress,
            settings={"model": str(model), **chosen.model_dump(mode="json"), "max_new_tokens": limit},
        )


def resolve_settings(settings: Mapping[str, Any]) -> EvaluationSettings:
    """Checked settings.

    Raises:
        ConfigError: an unknown one, with the nearest name, or an impossible value.
    """
    known = list(EvaluationSettings.model_fields)
    for key in settings:
        if key not in known:
            near = difflib.get_close_matches(key, known, 1)
            hint = f"; did you mean '{near[0]}'?" if near else ""
            raise ConfigError(f"unknown setting '{key}'{hint or '.'} Accepted are {', '.join(known)}")
    if settings.get("task") is None:
        raise ConfigError("task: name what to evaluate on, as in task=countdown (interlace tasks lists them)")
    try:
        return EvaluationSettings(**settings)
    except ValidationError as error:
        item = error.errors()[0]
        key = ".".join(map(str, item["loc"]))
        raise ConfigError(f"{key}={item['input']!r}: {item['msg']}") from None


def run_settings(model: str | Path, task: str | None = None) -> dict[str, Any]:
    """What the run that `model` names was configured with; empty if it names no run.

    Args:
        task: Where this is another task than the run's, the run's verifier and token limit are not for it.
    """
    if not Path(model).is_dir() or not RunFolder(model).has_run():
        return {}
    saved = read_yaml(Path(model) / "config.yaml")
    out = {setting: saved[key] for key, setting in FROM_RUN.items() if saved.get(key) is not None}
    if task not in (None, saved.get("task")):
        return {key: value for key, value in out.items() if key != "reward"}
    limits = [s["max_new_tokens"] for s in saved.get("stages", {}).values() if s.get("max_new_tokens")]
    return {**out, "max_new_tokens": max(limits)} if limits else out


def judge_of(model: str | Path, scorer: Scorer) -> Any:
    """What scores the answers of a run's model: the scorer itself, or its look into the answers' blocks."""
    if not Path(model).is_dir() or not RunFolder(model).has_run():
        return scorer
    saved = read_yaml(Path(model) / "config.yaml")
    return resolve(saved["method"], saved).judge(scorer)


def weights_of(model: str | Path) -> str | Path:
    """Where the weights are: the newest checkpoint of a run folder, the policy of a checkpoint, or `model`.

    Raises:
        ConfigError: a run folder without a checkpoint.
    """
    folder = Path(model)
    if folder.is_dir() and RunFolder(folder).has_run():
        latest = RunFolder(folder).latest()
        if latest is None:
            raise ConfigError(f"{model} holds a run without a checkpoint yet")
        return latest[0] / "policy"
    return folder / "policy" if (folder / "policy").is_dir() else model


def _how_many(task: Task, split: str, wanted: int) -> int:
    available = task.count(split)
    return wanted if available is None else min(wanted, available)


def _prompt_limit(given: int | None, positions: int | None, answer: int) -> int | None:
    """Tokens that a prompt may have: what was asked for, and what leaves room for the answer."""
    limits = [n for n in (given, None if positions is None else positions - answer) if n is not None]
    return min(limits) if limits else None
