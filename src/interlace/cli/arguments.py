"""Names and `key=value` settings from the words of a command line."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

_KEY = re.compile(r"[A-Za-z_][\w-]*(\.[A-Za-z_][\w-]*)*")


class ArgumentsError(ValueError):
    """Words of a command line that cannot be read; says how they are written."""


def is_setting(word: str) -> bool:
    """Whether a word is `key=value` and not a name or a path that happens to hold `=`."""
    key, equals, _ = word.partition("=")
    return bool(equals) and _KEY.fullmatch(key) is not None


def split_words(words: Sequence[str]) -> tuple[list[str], dict[str, Any]]:
    """Names (methods, models) and settings, in whatever order they were written."""
    return [w for w in words if not is_setting(w)], split_settings([w for w in words if is_setting(w)])


def split_settings(words: Sequence[str]) -> dict[str, Any]:
    """Settings from `key=value` words. Values stay texts; whoever owns a key converts its value.

    Args:
        words: As `lr=1e-3`, `mu=cosine:0.9,0.05,0,200`, `stages.sft.lr=1e-3` (dots nest). Everything
            after the first `=` is the value, further `=` and `:` included.

    Raises:
        ArgumentsError: a word without a key, a key given twice, or one that is both a value and a group.
    """
    settings: dict[str, Any] = {}
    for word in words:
        if not is_setting(word):
            raise ArgumentsError(f"'{word}' is not key=value, as in lr=1e-3 or stages.sft.lr=1e-3")
        key, _, value = word.partition("=")
        *groups, name = key.split(".")
        place = settings
        for depth, group in enumerate(groups):
            place = place.setdefault(group, {})
            if not isinstance(place, dict):
                whole = ".".join(groups[: depth + 1])
                raise ArgumentsError(f"'{whole}' is given a value and '{key}' too; give one of them")
        if name in place:
            given = "a group of settings" if isinstance(place[name], dict) else f"{key}={place[name]}"
            raise ArgumentsError(f"'{key}' is given twice: {given} and {word}")
        place[name] = value
    return settings


def merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """`below` with `above` laid over it, group by group."""
    out = dict(below)
    for key, value in above.items():
        under = out.get(key)
        nested = isinstance(under, Mapping) and isinstance(value, Mapping)
        out[key] = merged(under, value) if nested else value  # type: ignore[arg-type]
    return out
