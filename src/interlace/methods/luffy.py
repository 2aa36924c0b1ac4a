"""LUFFY: one demonstration joins each group of rollouts, and imitation is shaped towards unlikely tokens.

    A = (R - mean) / (std + std_eps) over the mixed group, the demonstration scored like a rollout
    rollout token:        PG(A)
    demonstration token:  -A f(p),  f(p) = p / (p + gamma)       coefficient A gamma p / (p + gamma)^2
    loss = sum over both / the number of their tokens

The demonstration's behaviour probability counts as 1, so its ratio is p itself; f is differentiated. Its
coefficient is largest, A/4, at p = gamma: where every rollout fails, A = 1 - 1/n and imitation switches on.
`shape`: identity p, sqrt, log (-A logp), teacher p / (p_teacher + 1e-6).

Evidence: official code read. Deviations: `variant=code` is the released run (no std, no clip, a constant
length); its sum is divided by the rows too. Prefix tokens count as demonstration.
Reference: Yan et al., arXiv 2504.14945.
"""

from collections.abc import Callable, Mapping
from typing import Any, Literal

from torch import Tensor

from interlace.methods._method import Method, register
from interlace.methods._parameters import Clip, DenominatorName, GroupBaseline, Length, NonNegative, Positive
from interlace.methods._policy_gradient import (
    entropy_bonus_terms,
    mixed_advantage,
    policy_gradient,
    policy_gradient_formula,
    rewarded,
    warn_unrewarded,
)
from interlace.parts.terms import LossFunction, Term, View
from interlace.parts.token_weights import own_probability, root_probability, shaped_probability, teacher_ratio
from interlace.rules.samplers import WithDemonstration


class LUFFY(GroupBaseline, Clip, Length):
    gamma: Positive = 0.1
    shape: Literal["shaped", "identity", "sqrt", "log", "teacher"] = "shaped"
    denominator: DenominatorName = "tokens"
    entropy_bonus: NonNegative = 0.001


SHAPES: Mapping[str, Callable[[Any, View], Tensor]] = {
    "shaped": lambda h, v: shaped_probability(v.logp, h.gamma),
    "identity": lambda h, v: own_probability(v.logp, v.row, v.n_rows),
    "sqrt": lambda h, v: root_probability(v.logp),
    "log": lambda h, v: v.logp,
    "teacher": lambda h, v: teacher_ratio(v.logp, v.array("behaviour_logp")),
}
"""f of a demonstration token, differentiated."""


SHAPE_FORMULAS = {
    "shaped": "p/(p + {gamma:g})",
    "identity": "p",
    "sqrt": "sqrt(p)",
    "log": "logp",
    "teacher": "p/(exp(behaviour_logp) + 1e-06)",
}


def shaped_demonstration(h: Any, shape: str) -> LossFunction:
    """-A f(p)."""
    return lambda v: -v.advantage * SHAPES[shape](h, v)


def shape_formula(h: Any, shape: str) -> str:
    """-A f(p) as text."""
    return "-A*" + SHAPE_FORMULAS[shape].format(gamma=h.gamma)


@register("luffy", LUFFY, paper="x01", title="LUFFY (2025)", arxiv="2504.14945", family="mixed",
          evidence="official code", data=("prompts", "demonstrations"),
          variants={"code": {"std": False, "clip_low": None, "clip_high": None, "denominator": "length"}},
          reductions=("variant=code without demonstrations is dr_grpo with no clip bounds",))  # fmt: skip
def luffy(h: LUFFY) -> Method:
    losses = {"rollout": policy_gradient(h), "demo+prefix": shaped_demonstration(h, h.shape)}
    term = Term("policy", losses, h.denominator, where=rewarded, max_length=h.max_length,
                silent_without_advantage=True, formula=f"rollout: {policy_gradient_formula(h)}; "
                f"demo, prefix: {shape_formula(h, h.shape)}")  # fmt: skip
    return Method(
        terms=(term, *entropy_bonus_terms(h, "rollout+demo+prefix", rewarded)),
        regroup=(warn_unrewarded,),
        advantage=mixed_advantage(h),
        needs=frozenset({"behaviour_logp"} if h.shape == "teacher" else ()),
        demonstrations="group",
        sample=WithDemonstration(replaces=1),
    )
