"""A method's loss as text, with its parameters filled in.

Everything printed comes from the method that training runs: its terms with their factors and denominators,
and the texts that its rules carry (`parts/stated.py`).
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Mapping
from typing import Any

from interlace.methods import Entry, Method, get
from interlace.parts.reducer import Denominator
from interlace.parts.stated import definitions_of, text_of
from interlace.parts.terms import Term

WIDTH = 100
INDENT = "    "

DIVISORS: Mapping[str, str] = {
    "tokens": "sum / the number of these tokens",
    "sequences": "sum / the number of rows with such a token",
    "sequence_means": "mean over these tokens of each row, then mean over rows",
    "length": "sum / (rows * {length})",
    "length_sum": "sum / {length}",
    "longest": "sum / (rows * tokens of the longest row)",
    "groups": "sum / the number of groups with such a token",
    "pairs": "sum / the number of pairs",
    "weights": "sum / the sum of the weights w",
}
"""How each denominator averages a term."""

GLOSSARY: Mapping[str, str] = {
    r"\blogp\b": "logp = log-probability of the token under the policy",
    r"\brho\b": "rho = exp(logp - old_logp), old_logp from the start of the update",
    r"\bp\b": "p = exp(logp)",
    r"\bref_logp\b": "ref_logp = logp under the frozen reference policy",
    r"\bbehaviour_logp\b": "behaviour_logp = logp under the policy that wrote the row",
    r"\btopk_mass\b": "topk_mass = probability of the k likeliest tokens",
    r"\bR\b": "R = reward of the row",
    r"\bk1\(": "k1(d) = d",
    r"\bk2\(": "k2(d) = d^2/2",
    r"\bk3\(": "k3(d) = exp(-d) - 1 + d",
    r"\bsg\[": "sg[.] = held fixed, not differentiated",
}
"""Symbols that formulas share, explained where they appear and the method does not define them itself."""


def formula(method: str | Entry, stage: str | None = None, **parameters: Any) -> str:
    """The loss of a method, term by term, with its advantages, masks, and what it reduces to.

    Args:
        method: A registered name, `FILE.py:NAME`, or what `register` returned.
        stage: One of its stages; default all of them, in running order.
        **parameters: The method's hyper-parameters, as values or as the command line's texts.

    Raises:
        MethodError: an unknown method, stage or parameter.
    """
    entry = get(method)
    built = entry(**parameters)
    if stage is not None:
        built.stage(stage)
    stages = {stage: built.stages[stage]} if stage else dict(built.stages)
    given = " ".join([entry.name, *(f"{k}={v}" for k, v in parameters.items())])
    source = ", ".join(filter(None, (entry.title, entry.arxiv and f"arXiv {entry.arxiv}")))
    lines = [f"{given}: {source}" if source else given]
    chosen = text_of(built.choose_stage)
    if chosen and not stage:
        lines += ["", *_wrapped(f"stage: {chosen}", "")]
    for name, rule in stages.items():
        lines += ["", f"stage {name}", *_rule(rule)]
    if not stages:
        lines += ["", *_rule(built)]
    if entry.reductions:
        lines += ["", "equals"]
        lines += [line for reduction in entry.reductions for line in _wrapped(reduction)]
    return "\n".join(lines)


def _rule(rule: Method) -> list[str]:
    if not rule.terms:
        return ["loss = 0, it trains nothing"]
    lines = _wrapped("loss = " + " + ".join(map(_signed, rule.terms)), "")
    definitions: list[str] = []
    for term in rule.terms:
        definitions += definitions_of(term.coefficient)
        lines += ["", *_wrapped(f"{term.name}, over {_covered(term)}", "")]
        # The formula itself and the definitions of its own symbols each start a line.
        pieces = [
            part for source in (term.formula or _docstring(term)).split("; ") for part in _split(source)
        ]
        lines += [line for piece in pieces for line in _wrapped(piece)]
        lines += _wrapped(f"reduced by {_divisor(term)}")
    advantage = text_of(rule.advantage)
    before = [text_of(apply) for apply in rule.regroup]
    after = [text_of(apply) for apply in rule.select]
    definitions = [advantage, *definitions_of(rule.advantage), *definitions]
    text = "\n".join([*lines, *definitions, *before, *after])
    definitions += [meaning for symbol, meaning in GLOSSARY.items() if _undefined(symbol, text)]
    lines += _section("where", definitions)
    lines += _section("before advantages", before)
    lines += _section("after advantages", after)
    return lines


def _section(name: str, texts: Iterable[str]) -> list[str]:
    told = [text for text in dict.fromkeys(texts) if text]
    return ["", name, *(line for text in told for line in _wrapped(text))] if told else []


def _undefined(symbol: str, text: str) -> bool:
    name = symbol.strip("\\b([")
    return bool(re.search(symbol, text)) and not re.search(rf"(?<!\S){re.escape(name)} = ", text)


def _split(text: str) -> list[str]:
    """A formula and, as pieces of their own, the definitions behind its commas."""
    return re.split(r",\s+(?=[A-Za-z]\w*'? = )", text)


def _signed(term: Term) -> str:
    factor = term.coefficient
    if callable(factor):
        return f"{text_of(factor) or 'factor'} * {term.name}"
    return term.name if factor == 1 else f"{factor:g} * {term.name}"


def _covered(term: Term) -> str:
    *others, last = term.sources
    sources = f"{', '.join(others)} and {last}" if others else last
    where = text_of(term.where)
    place = f" {where}" if where.startswith(("of ", "in ", "outside ")) else f" ({where})" if where else ""
    return f"{sources} tokens{place}{'' if term.explained else '; outside `explain`'}"


def _divisor(term: Term) -> str:
    name = term.denominator.name if isinstance(term.denominator, Denominator) else term.denominator
    length = "the run's completion limit" if term.max_length is None else str(term.max_length)
    return f"{name}: {DIVISORS.get(name, 'sum / its own count').format(length=length)}"


def _docstring(term: Term) -> str:
    texts = [text_of(loss) for loss in term.losses.values()]
    return "; ".join(filter(None, texts)) or "a loss without `formula`; its method file says which"


def _wrapped(text: str, indent: str = INDENT) -> list[str]:
    return textwrap.wrap(
        text,
        WIDTH,
        initial_indent=indent,
        subsequent_indent=indent + "  ",
        break_long_words=False,
        break_on_hyphens=False,
    )
