"""Problems from JSONL or JSON files: question and answer, demonstrations, chat messages.

Hugging Face datasets are not read here.
"""

from __future__ import annotations

import json
import unicodedata
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from random import Random
from typing import Any

from interlace.tasks.base import Task, nearest, require, split_of, stable_hash
from interlace.types import Problem

ALIASES: Mapping[str, tuple[str, ...]] = {
    "prompt": ("prompt", "question", "problem", "query", "instruction"),
    "answer": ("answer", "gold", "ground_truth", "final_answer", "target"),
    "demonstration": ("demonstration", "solution", "completion", "response", "output"),
    "completion": ("reference", "reference_completion"),
}
"""Columns that are read as a field of `Problem`; of several in one row the first one is taken and the
others go to `meta`. An `input` beside an `instruction` is added to it."""

SPLIT_NAMES: Mapping[str, str] = {
    "training": "train",
    "val": "validation",
    "valid": "validation",
    "dev": "validation",
}
ROLES = ("system", "user", "assistant")


@dataclass(frozen=True)
class FileTask(Task):
    """Rows of a file, one problem each.

    A row holds a prompt (text or chat messages) and optionally an answer, a demonstration and a reference
    completion, or `messages`, whose last assistant message is the demonstration. The columns `id`,
    `split` and `reward` (the spec of the row's own verifier) are understood; all others are kept in
    `meta`. Without a `split` column a row's split is a stable hash of its prompt; with one, training
    rows whose prompt also stands in another split are dropped, with a warning.

    Attributes:
        path: File ending in .jsonl (one row per line) or .json (a list of rows); UTF-8.
        default_reward: Verifier of rows without their own, a spec for `interlace.rewards.load_reward`.
        prompt_key, answer_key, demonstration_key: Columns to read instead of the usual names.
        validation, test: Shares held out where there is no `split` column.

    Raises:
        FileNotFoundError: No such file.
        ValueError: A row that cannot be read; says which and what is accepted.
    """

    path: str
    default_reward: str = "math"
    prompt_key: str = ""
    answer_key: str = ""
    demonstration_key: str = ""
    validation: float = 0.05
    test: float = 0.05

    def __post_init__(self) -> None:
        shares = (self.validation, self.test)
        require(min(shares) >= 0 and sum(shares) < 1, self.name, "validation, test", shares, "shares below 1")
        if not Path(self.path).is_file():
            raise FileNotFoundError(f"no file {self.path}")
        self._rows  # noqa: B018  (errors are raised at load)

    @property
    def name(self) -> str:  # type: ignore[override]
        return Path(self.path).stem

    @property
    def summary(self) -> str:  # type: ignore[override]
        return f"rows of {self.path}"

    @property
    def reward(self) -> str:
        rows = (p for problems in self._rows.values() for p in problems)
        own = any(isinstance(p.meta.get("reward"), str) for p in rows)
        return f"row:{self.default_reward}" if own else self.default_reward

    @property
    def splits(self) -> tuple[str, ...]:
        usual = ("train", "validation", "test")
        return (*usual, *(s for s in self._rows if s not in usual))

    def problems(self, split: str = "train", n: int | None = None, seed: int = 0) -> list[Problem]:
        split = SPLIT_NAMES.get(split, split)
        self._require_split(split)
        rows = list(self._rows.get(split, ()))
        if n is not None and n > len(rows):
            held = ", ".join(f"{name} {len(self._rows.get(name, ()))}" for name in self.splits)
            raise ValueError(f"{self.path}: n={n}, but {split!r} has {len(rows)} rows; by split: {held}")
        Random(f"{self.name}|{split}|{seed}").shuffle(rows)
        return rows[:n]

    def count(self, split: str = "train") -> int | None:
        split = SPLIT_NAMES.get(split, split)
        self._require_split(split)
        return len(self._rows.get(split, ()))

    @cached_property
    def _rows(self) -> dict[str, list[Problem]]:
        problems = [self._problem(i, where, row) for i, (where, row) in enumerate(_read(Path(self.path)))]
        if not problems:
            raise ValueError(f"{self.path}: no rows")
        _require_distinct_ids(self.path, problems)
        splits: dict[str, list[Problem]] = {}
        for problem in problems:
            splits.setdefault(problem.meta["split"], []).append(problem)
        return _without_leaks(self.path, splits)

    def _problem(self, index: int, where: str, row: Any) -> Problem:
        where = f"{self.path}, {where}"
        if not isinstance(row, dict):
            raise ValueError(f"{where}: a row must be a JSON object, not {type(row).__name__}")
        columns = {field: self._column(where, row, field) for field in ALIASES}
        prompt: str | list[dict[str, str]]
        if "messages" in row and not self.prompt_key:
            columns.update(prompt="messages", demonstration="")
            prompt, demonstration = _split_messages(where, row["messages"])
        else:
            prompt = _prompt(where, row, columns["prompt"])
            demonstration = _text(where, row, columns["demonstration"])
        key = canonical_text(prompt)
        split = row.get("split")
        if split is None:
            split = split_of("file", key, self.validation, self.test)
        elif not isinstance(split, str) or not split:
            raise ValueError(f"{where}: split must be a name, not {split!r}")
        identity = row.get("id")
        fields = {"id", "split", *columns.values()}
        return Problem(
            id=f"{self.name}:{index}" if identity is None else str(identity),
            prompt=prompt,
            answer=row.get(columns["answer"]),
            completion=_text(where, row, columns["completion"]),
            demonstration=demonstration,
            task=self.name,
            meta={
                **{k: v for k, v in row.items() if k not in fields},
                "key": f"{stable_hash(key):016x}",
                "split": SPLIT_NAMES.get(split, split),
            },
        )

    def _column(self, where: str, row: Mapping[str, Any], field: str) -> str:
        """The column of a row that is read as a field; empty if there is none."""
        chosen = {
            "prompt": self.prompt_key,
            "answer": self.answer_key,
            "demonstration": self.demonstration_key,
        }.get(field)
        if chosen and chosen not in row:
            raise ValueError(f"{where}: no column {chosen!r}{nearest(chosen, row)}; it has {_columns(row)}")
        return chosen or next((alias for alias in ALIASES[field] if row.get(alias) is not None), "")


def canonical_text(prompt: str | Sequence[Mapping[str, str]]) -> str:
    """What two wordings of one prompt share: text without case, width of characters and white space."""
    if not isinstance(prompt, str):
        prompt = "\n".join(f"{m['role']}: {m['content']}" for m in prompt)
    return " ".join(unicodedata.normalize("NFKC", prompt).casefold().split())


def _read(path: Path) -> Iterator[tuple[str, Any]]:
    """Rows with where they stand: rows count from 0, lines of the file from 1."""
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: not UTF-8 at byte {error.start}; save the file as UTF-8") from None
    if path.suffix == ".json":
        try:
            rows = json.loads(text)
        except json.JSONDecodeError as error:
            raise ValueError(f"{path}, line {error.lineno}: not JSON: {error.msg}") from None
        if not isinstance(rows, list):
            raise ValueError(f"{path}: a .json file must hold a list of rows, not {type(rows).__name__}")
        yield from ((f"row {i}", row) for i, row in enumerate(rows))
        return
    # Only \n ends a line: JSON strings may hold other characters that `splitlines` breaks at.
    index = 0
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            try:
                row = json.loads(line)
            except json.JSONDecodeError as error:
                raise ValueError(f"{path}, line {number}: not JSON: {error.msg}") from None
            yield f"row {index} (line {number})", row
            index += 1


def _columns(row: Mapping[str, Any]) -> str:
    return ", ".join(map(repr, row)) or "no columns"


def _text(where: str, row: Mapping[str, Any], column: str) -> str | None:
    value = row.get(column)
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, list) and len(value) == 1:
        return _messages(where, value)[0]["content"]
    raise ValueError(f"{where}: {column!r} must be text, not {type(value).__name__}")


def _prompt(where: str, row: Mapping[str, Any], column: str) -> str | list[dict[str, str]]:
    if not column:
        raise ValueError(
            f"{where}: no prompt; accepted columns: {', '.join(ALIASES['prompt'])}, messages; "
            f"it has {_columns(row)}"
        )
    value = row[column]
    if isinstance(value, list):
        messages = _messages(where, value)
        if messages[-1]["role"] != "user":
            role = messages[-1]["role"]
            raise ValueError(f"{where}: the prompt must end with the user's message, not {role!r}")
        return messages
    if not isinstance(value, str):
        kind = type(value).__name__
        raise ValueError(f"{where}: {column!r} must be text or chat messages, not {kind}")
    extra = row.get("input")
    return f"{value}\n\n{extra}" if column == "instruction" and isinstance(extra, str) and extra else value


def _messages(where: str, value: Any) -> list[dict[str, str]]:
    if not isinstance(value, list) or not value:
        raise ValueError(f"{where}: messages must be a list of at least one message")
    for i, message in enumerate(value):
        if not isinstance(message, dict) or not isinstance(message.get("content"), str):
            raise ValueError(f"{where}: message {i} must be an object with texts `role` and `content`")
        role = message.get("role")
        if role not in ROLES:
            raise ValueError(f"{where}: message {i} has role {role!r}; accepted: {', '.join(ROLES)}")
    return [{"role": m["role"], "content": m["content"]} for m in value]


def _split_messages(where: str, value: Any) -> tuple[list[dict[str, str]], str | None]:
    messages = _messages(where, value)
    demonstration = messages.pop()["content"] if messages[-1]["role"] == "assistant" else None
    if not messages or messages[-1]["role"] != "user":
        raise ValueError(f"{where}: messages must end with a user's turn, or with the assistant's reply")
    return messages, demonstration


def _require_distinct_ids(path: str, problems: Sequence[Problem]) -> None:
    repeated = [identity for identity, count in Counter(p.id for p in problems).items() if count > 1]
    if repeated:
        raise ValueError(f"{path}: {len(repeated)} ids stand on several rows, first {repeated[0]!r}")


def _without_leaks(path: str, splits: dict[str, list[Problem]]) -> dict[str, list[Problem]]:
    held_out = {p.meta["key"] for name, rows in splits.items() if name != "train" for p in rows}
    train = splits.get("train", [])
    kept = [p for p in train if p.meta["key"] not in held_out]
    if len(kept) < len(train):
        first = next(p.id for p in train if p.meta["key"] in held_out)
        warnings.warn(
            f"{path}: dropped {len(train) - len(kept)} training rows whose prompt is also in another split "
            f"(the first is {first!r})",
            stacklevel=2,
        )
    return {**splits, "train": kept}
