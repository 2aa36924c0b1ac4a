"""`formula` tells every method's loss with the parameters that it is given."""

from __future__ import annotations

from typing import Any

import pytest

from interlace import explain
from interlace.analysis.formula import DIVISORS, formula
from interlace.methods import REGISTER, Method, MethodError, register
from interlace.methods._parameters import Parameters
from interlace.parts.stated import stated, text_of
from interlace.parts.terms import Term
from tests.analysis.rows import toy_rows

BESIDE: dict[tuple[str, str], dict[str, Any]] = {
    ("*", "kl_estimator"): {"kl": 0.3},
    ("*", "std_eps"): {"std": True},
    ("*", "std_correction"): {"std": True},
    ("*", "std_scope"): {"std": True},
    ("*", "max_length"): {"denominator": "length"},
    ("*", "overlong_buffer"): {"max_length": 8},
    ("*", "overlong_penalty"): {"overlong_buffer": 4, "max_length": 8},
    ("amft", "std"): {"advantage": "group"},
    ("amft", "std_eps"): {},
    ("amft", "std_correction"): {"advantage": "group"},
    ("amft", "std_scope"): {"advantage": "group"},
    ("ppo", "std_eps"): {},
    ("reinforce_pp", "std_eps"): {},
    ("irl_dense_reward", "std_eps"): {},
    ("chord", "top_entropy"): {"phi": "entropy_top"},
    ("chord", "cutoff"): {"phi": "is_clip"},
    ("chord", "gamma"): {"phi": "focal"},
    ("pear", "block"): {"level": "block"},
    ("cat", "k"): {"operator": "majority"},
    ("semi_offline_rl", "max_length"): {"sft_denominator": "length"},
    ("dph_rl", "alpha"): {"divergence": "alpha"},
    ("rloo", "clip_low"): {"ratio": "token"},
    ("rloo", "clip_high"): {"ratio": "token"},
    ("rloo", "dual_clip"): {"ratio": "token"},
    ("srft", "gamma"): {"shape": "shaped"},
}
"""What must be set for a parameter to matter."""


def alternatives(name: str, parameter: str) -> list[Any]:
    """Values other than the default to try, the accepted first where the type lists them."""
    schema = REGISTER[name].parameters.model_json_schema()["properties"][parameter]
    listed = [v for s in schema.get("anyOf", [schema]) for v in s.get("enum", [s.get("const")])]
    return [*filter(None, listed), True, False, 0.37, 0.71, 3, 7, "linear:0.5,0.1,10"]


def body(name: str, **settings: Any) -> str:
    """All but the first line, which repeats what was given."""
    return formula(name, **settings).split("\n", 1)[1]


def numbers(name: str, rows: list[dict[str, Any]], **settings: Any) -> list[Any]:
    stages = REGISTER[name](**settings).stages or [None]
    return [explain(name, rows, stage=stage, step=3, **settings) for stage in stages]


@pytest.mark.parametrize("name", sorted(REGISTER))
def test_every_parameter_that_changes_a_number_changes_the_text(name: str) -> None:
    rows, acting = toy_rows(2), 0
    fields = REGISTER[name].parameters.model_fields
    for parameter in fields:
        beside = BESIDE.get((name, parameter), BESIDE.get(("*", parameter), {}))
        beside = {k: v for k, v in beside.items() if k in fields}
        before, text = numbers(name, rows, **beside), body(name, **beside)
        for value in alternatives(name, parameter):
            settings = {**beside, parameter: value}
            try:
                after = numbers(name, rows, **settings)
            except MethodError:
                continue
            if after != before:
                acting += 1
                assert body(name, **settings) != text, f"{parameter}={value} is not in the text"
    assert acting >= 1, "nothing was tried"


@pytest.mark.parametrize(
    ("name", "parameter", "value"),
    [
        ("ppo", "value_coef", 0.37),
        ("ppo", "value_clip", 0.37),
        ("luffy", "entropy_bonus", 0.37),
        ("amft", "entropy_bonus", 0.37),
        ("superhf", "kl", 0.37),
        ("superhf", "kl_reduction", "sum"),
        ("semi_offline_rl", "label_smoothing", 0.37),
        ("sasr", "gamma", 0.37),
    ],
)
def test_what_explain_leaves_out_is_in_the_text_too(name: str, parameter: str, value: Any) -> None:
    assert body(name, **{parameter: value}) != body(name)


@pytest.mark.parametrize("name", sorted(REGISTER))
def test_every_method_tells_its_terms_their_reduction_and_what_it_equals(name: str) -> None:
    text, built = formula(name), REGISTER[name]()
    for rule in built.stages.values() or [built]:
        for term in rule.terms:
            assert f"{term.name}, over " in text
            divisor = term.denominator if isinstance(term.denominator, str) else term.denominator.name
            assert f"reduced by {divisor}: {DIVISORS[divisor].split('{')[0]}" in text
            if not term.likelihood and term.explained and rule.advantage is not None:
                assert "\n    A" in text, "what A is"
    for stage in built.stages:
        assert f"stage {stage}\n" in text
    for reduction in REGISTER[name].reductions:
        assert reduction.split()[0] in text.split("equals", 1)[1]
    assert len(text.splitlines()) >= 8


def test_grpo_reads_as_its_paper_writes_it() -> None:
    text = formula("grpo", clip_low=0.1, clip_high="none", kl="0.04", std_eps=1e-4)
    assert "-min(rho*A, clip(rho, 0.9, inf)*A) + 0.04*k3(logp - ref_logp)" in text
    assert "A = (R - mean)/(std + 0.0001)" in text
    assert "k3(d) = exp(-d) - 1 + d" in text
    assert "std=false denominator=length is dr_grpo" in text


def test_a_mixture_has_its_factors_and_where_mu_comes_from() -> None:
    text = formula("chord", mu="cosine:0.9,0.05,0,200", phi="p")
    assert "loss = (1 - mu) * policy + mu * sft" in text
    assert "mu = cosine:0.9,0.05,0,200; 0 in a step without demonstration tokens" in text
    assert "-sg[p]*logp" in text


def test_one_stage_can_be_asked_for() -> None:
    text = formula("relift", "sft", fail_reward=0.5)
    assert "groups whose rollouts all have reward 0.5" in text
    assert "stage rl\n" not in text
    with pytest.raises(MethodError, match="accepted are"):
        formula("relift", "warmup")
    with pytest.raises(MethodError, match="did you mean 'clip_low'"):
        formula("grpo", clip_lo=0.1)


def test_symbols_are_explained_once_and_only_where_they_appear() -> None:
    text = formula("sft")
    assert text.count("logp = ") == 1
    assert "rho = " not in text and "sg[" not in text
    # GSPO defines its own ratio s; rho does not appear
    assert "rho" not in formula("gspo")


def test_a_strangers_term_without_formula_falls_back_to_its_docstring() -> None:
    def squared(v: Any) -> Any:
        """The squared log-probability. And more."""
        return v.logp**2

    registered = dict(REGISTER)
    try:

        @register("toy_squared", Parameters)
        def toy(h: Parameters) -> Method:
            halved = stated("1/2")(lambda context: 0.5)
            return Method(terms=(Term("square", {"demo": squared}, "tokens", halved),))

        text = formula(toy)
    finally:
        REGISTER.clear()
        REGISTER.update(registered)
    assert "loss = 1/2 * square" in text
    assert "The squared log-probability" in text


def test_text_of_a_rule_is_what_was_stated_or_its_first_sentence() -> None:
    def rule() -> None:
        """bool [N]: decisions in the span guess. More."""

    assert text_of(rule) == "decisions in the span guess"
    assert text_of(stated("mu", "mu = 1")(lambda: None)) == "mu"
    assert text_of(lambda: None) == "" and text_of(None) == ""
