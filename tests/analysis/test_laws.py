"""Each law catches the mistake that it is there for, and says what to change."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from interlace.analysis import laws
from interlace.analysis.laws import LAWS, LawBroken, check
from interlace.methods import REGISTER, Method, MethodError
from interlace.parts.masks import has_reward
from interlace.parts.terms import Term
from interlace.types import Batch


def method(loss: Callable[[Any], Any], **more: Any) -> Method:
    of_term = {k: more.pop(k) for k in list(more) if k in ("pool", "silent_without_advantage", "where")}
    return Method(terms=(Term("mine", {"rollout": loss}, "tokens", **of_term),), **more)


def mean_reward(batch: Batch) -> Batch:
    """An advantage that forgets groups: R minus the mean of everything that has a reward."""
    a = torch.where(has_reward(batch), batch.reward - batch.reward[has_reward(batch)].mean(), 0.0)
    return batch.with_arrays(advantage=a[batch.row].nan_to_num())


def test_a_loss_that_compares_rows_must_say_so() -> None:
    with pytest.raises(LawBroken, match=r"mine \(pool='row'\).*must declare pool='group' or 'step'"):
        laws.split_invariance(method(lambda v: (v.logp - v.logp.mean()) ** 2))
    laws.split_invariance(method(lambda v: (v.logp - v.logp.mean()) ** 2, pool="step"))


def test_a_mean_inside_a_loss_is_a_mistake_of_the_denominator() -> None:
    with pytest.raises(LawBroken, match="only the denominator may average"):
        laws.split_invariance(method(lambda v: -v.logp / max(1, v.logp.numel())))


def test_the_place_of_a_row_in_the_batch_must_not_matter() -> None:
    def neighbours(batch: Batch) -> Batch:
        """Every four rows in a row are taken for a group."""
        blocks = batch.reward.nan_to_num().split(4)
        centred = torch.cat([block - block.mean() for block in blocks])
        return batch.with_arrays(advantage=centred[batch.row])

    with pytest.raises(LawBroken, match=r"order of the rows; groups go by batch\.group"):
        laws.split_invariance(method(lambda v: -v.advantage * v.logp, advantage=neighbours))


def test_a_method_that_trains_nothing_is_told() -> None:
    with pytest.raises(LawBroken, match="nothing is trained"):
        laws.split_invariance(method(lambda v: 0.0 * v.logp))
    # where no token is covered there is nothing to train
    laws.split_invariance(method(lambda v: -v.logp, where=lambda b: b.row < 0))


def test_old_logp_is_taken_from_the_view() -> None:
    def ratio(v: Any) -> Any:
        return -(v.logp - v.batch.arrays["old_logp"][v.index]).exp()

    with pytest.raises(LawBroken, match=r"take v\.old_logp"):
        laws.first_step_ratio(method(ratio))
    laws.first_step_ratio(method(ratio, needs=frozenset({"old_logp"})))
    laws.first_step_ratio(method(lambda v: -(v.logp - v.old_logp).exp()))


def test_statistics_leave_out_rows_without_reward() -> None:
    def of_all_entropies(batch: Batch) -> Batch:
        return batch.with_arrays(
            advantage=torch.full_like(batch.arrays["entropy"], batch.arrays["entropy"].mean())
        )

    with pytest.raises(LawBroken, match="unscorable rows reach the gradient"):
        laws.unused_numbers(method(lambda v: -v.advantage * v.logp, advantage=of_all_entropies))


def test_an_array_that_is_read_must_be_named_in_needs() -> None:
    def kl(v: Any) -> Any:
        return v.logp * 0.1 * (v.logp - v.ref_logp)

    def damped_by_values(batch: Batch) -> Batch:
        values = batch.arrays.get("values", torch.zeros(batch.n_decisions).double())
        return batch.with_arrays(advantage=1 - values)

    with pytest.raises(LawBroken, match=r"`needs` does not name: .*'ref_logp'"):
        laws.declared_needs(method(kl))
    laws.declared_needs(method(kl, needs=frozenset({"ref_logp"})))
    # where an absent array has a default, nothing raises, and training would still differ from explain
    with pytest.raises(LawBroken, match="changes with arrays that `needs` does not name"):
        laws.declared_needs(method(lambda v: -v.advantage * v.logp, advantage=damped_by_values))


def test_a_step_without_rows_must_be_defined() -> None:
    with pytest.raises(LawBroken, match=r"step with .*(not finite|NaN)"):
        laws.degenerate_steps(
            method(lambda v: -v.logp / v.advantage.std(), advantage=mean_reward, pool="step")
        )


def test_a_gradient_must_be_that_of_the_loss() -> None:
    class Wrong(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
            return g * 3

    with pytest.raises(LawBroken, match=r"d loss / d logp of token \d+ is 0\.0\d+, finite differences say"):
        laws.leaf_gradient(method(lambda v: Wrong.apply(v.logp)))
    with pytest.raises(LawBroken, match="does not depend on"):
        laws.leaf_gradient(method(lambda v: v.old_logp))


def test_a_stop_gradient_is_held_fixed_by_the_finite_differences() -> None:
    # d/dl of -sg[p] l is -p; a difference that moved p would find -p(1 + l)
    laws.leaf_gradient(method(lambda v: -v.p * v.logp))
    laws.leaf_gradient(method(lambda v: -v.logp.exp().detach() * v.logp))
    with pytest.raises(LawBroken):
        laws.leaf_gradient(method(lambda v: -torch.tensor(v.logp.exp().tolist()) * v.logp))


def test_a_large_ratio_is_no_reason_to_fail() -> None:
    # loss values of 1e8: differences are judged relative to what rounding allows
    laws.leaf_gradient(method(lambda v: (v.logp - v.old_logp + 20).exp()))


def test_arrays_of_a_batch_carry_no_gradient() -> None:
    def attached(batch: Batch) -> Batch:
        return batch.with_arrays(advantage=torch.ones(batch.n_decisions).double().requires_grad_())

    with pytest.raises(LawBroken, match=r"advantage carry a gradient"):
        laws.detached_inputs(method(lambda v: -v.advantage * v.logp, advantage=attached))


def test_a_term_that_acts_without_advantage_must_not_be_called_silent() -> None:
    entropic = method(
        lambda v: -v.advantage * v.logp + v.logp**2, advantage=mean_reward, silent_without_advantage=True
    )
    grouped = REGISTER["grpo"]().advantage
    with pytest.raises(LawBroken, match="silent_without_advantage is wrong"):
        laws.one_objective(Method(terms=entropic.terms, advantage=grouped))


def test_check_tries_every_law_on_every_stage() -> None:
    results = check("relift", fail_reward=0.5)
    assert [(r.stage, r.law) for r in results] == [(s, law) for s in ("rl", "sft") for law in LAWS]
    assert all(r.kept for r in results)
    assert all(r.meaning.endswith(".") for r in results)
    with pytest.raises(MethodError, match="unknown parameter 'fail'"):
        check("relift", fail=1)


def test_what_a_method_raises_is_a_result_of_the_check(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "from interlace.methods import Method, register\n"
        "from interlace.methods._parameters import Length\n"
        "from interlace.parts.terms import Term\n"
        "@register('mine', Length)\n"
        "def mine(h):\n"
        "    return Method(terms=(Term('mine', {'demo': lambda v: -v.logpp}, 'tokens'),))\n"
    )
    results = check(f"{file}:mine")
    broken = {r.law: r.broken for r in results if not r.kept}
    assert "AttributeError" in broken["split invariance"] and "logpp" in broken["split invariance"]
    assert "detached inputs" not in broken


def test_a_strangers_policy_name_gets_a_policy_of_its_own() -> None:
    term = Term("teacher", {"demo": lambda v: -v.logp}, "tokens", policy="teacher")
    laws.split_invariance(Method(terms=(term,)))
    laws.one_objective(Method(terms=(term,)))
