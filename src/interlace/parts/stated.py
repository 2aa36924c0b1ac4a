"""A rule's meaning as text, kept beside the rule: what `interlace.formula` prints."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Any, TypeVar

Rule = TypeVar("Rule", bound=Callable[..., Any])


def stated(text: str, *where: str) -> Callable[[Rule], Rule]:
    """Attach to a function what it computes, with its parameters filled in.

    Args:
        text: The formula or condition, as `A = R - mean of the group`; empty if it is not worth telling.
        where: Definitions of symbols in it, as `mu = 0.1`.
    """

    def attach(rule: Rule) -> Rule:
        rule.stated = (text, *where)  # type: ignore[attr-defined]
        return rule

    return attach


def text_of(rule: Any) -> str:
    """What was attached, or the first sentence of the rule's docstring; empty where there is neither."""
    while isinstance(rule, functools.partial) and not hasattr(rule, "stated"):
        rule = rule.func
    if hasattr(rule, "stated"):
        return rule.stated[0]
    named = callable(rule) and getattr(rule, "__name__", "<lambda>") != "<lambda>"
    text = " ".join((rule.__doc__ or "").split()) if named else ""
    first = re.split(r"(?<=[.;])\s", text, maxsplit=1)[0].rstrip(".;")
    return re.sub(r"^\w+ \[\w+\](, [\w\s]+)?: ", "", first)


def definitions_of(rule: Any) -> tuple[str, ...]:
    """The definitions that were attached with its text."""
    return tuple(getattr(rule, "stated", ("",))[1:])
