"""The conformance suite of the corrected SFT baseline (paper [044]): exact gradients, SGD, no clipping.

A `TablePolicy` has one scalar parameter per token, its log-probability, so a gradient shows the weight
of every token. Bugs these numbers catch: micro-batches dropped by an offloaded optimizer (only the first and
last, or the last, survive) and the mean of micro-batch means.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
import torch.multiprocessing as mp

from interlace.analysis.laws import policies_of
from interlace.methods import REGISTER
from interlace.rules.updates import UpdateRule
from interlace.training.collect import pack
from interlace.training.distributed import Ranks, connect
from interlace.training.objective import assign
from interlace.training.step import update
from interlace.types import Batch, Problem, Source, Trajectory
from tests.training.test_laws import IDS, METHODS
from tests.training.toy import ToyPolicy, batch_of, trajectories


class TablePolicy:
    """logp of a decision whose target is k is the parameter k."""

    def __init__(self, losses: Sequence[float]) -> None:
        self.table = torch.nn.Parameter(-torch.tensor(losses, dtype=torch.float32))

    def score(self, batch: Batch, needs: Sequence[str] = ("logp",), *, grad: bool = True) -> dict:
        with torch.set_grad_enabled(grad):
            return {"logp": self.table[batch.slots.target]}

    def backward(self, statistics: dict, cotangents: dict) -> None:
        statistics["logp"].backward(cotangents["logp"])

    def trainable(self) -> list:
        return [self.table]

    def publish(self) -> None:
        pass


def demonstrations(lengths: Sequence[int]) -> Batch:
    """One demonstration per length; its tokens are 0, 1, 2, ... counted through all rows."""
    rows, token = [], 0
    for i, n in enumerate(lengths):
        ids = [0, *range(token, token + n)]
        rows.append(Trajectory(i, ids, [Source.PROMPT] + [Source.DEMO] * n, str(i), Problem(str(i), "")))
        token += n
    return pack(rows)


def sft_step(lengths: Sequence[int], losses: Sequence[float], *, denominator="tokens", budget=1):
    """One SGD step with learning rate 1; returns the gradient per token, the loss and the reported norm."""
    policy = TablePolicy(losses)
    before = policy.table.detach().clone()
    method = REGISTER["sft"](denominator=denominator)
    optimizer = torch.optim.SGD(policy.trainable(), lr=1.0)
    batch = assign(demonstrations(lengths), method)
    result = update(
        batch, method, {"policy": policy}, {"policy": optimizer}, micro_batch_tokens=budget, clip_grad=None
    )
    return policy.table.detach() - before, result.terms[0].loss, result.grad_norm["policy"]


@pytest.mark.parametrize("n", [2, 4, 8])
def test_1_one_hot_every_micro_batch_weighs_the_same(n: int) -> None:
    moved, _, _ = sft_step([1] * n, [0.0] * n, denominator="sequences")
    assert moved.tolist() == pytest.approx([1 / n] * n)


def test_1_scalar_form() -> None:
    """Gradients 1, 2, 3, 4 of four micro-batches accumulate to 2.5; dropping the middle two gives 1.25."""
    for g, mean in (([1, 2, 3, 4], 2.5), (list(range(1, 9)), 4.5)):
        _, loss, _ = sft_step([1] * len(g), [float(x) for x in g])
        assert loss == pytest.approx(mean)


def test_2_token_fingerprint() -> None:
    """Micro-batches of 1 and 3 tokens: 1/4 on each token; a mean of means gives 1/2 and 1/6."""
    moved, _, _ = sft_step([1, 3], [0.0] * 4)
    assert moved.tolist() == pytest.approx([0.25] * 4)


@pytest.mark.parametrize(
    ("lengths", "losses", "expected"),
    [([1, 3], [4, 1, 1, 1], 1.75), ([2, 5], [1, 2, 3, 4, 5, 6, 7], 4.0), ([4, 1], [2, 2, 2, 2, 6], 2.8)],
)
def test_2_loss_form(lengths, losses, expected) -> None:
    """Mean of means would give 2.5, 3.25 and 4.0."""
    for budget in (1, 3, 100):
        assert sft_step(lengths, losses, budget=budget)[1] == pytest.approx(expected)


def _rank(rank: int, port: int, queue) -> None:
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.set_num_threads(1)
    ranks = connect()
    moved = {}
    for name, lengths in {"tokens": [8, 1], "one row": [3], "trailing": [5, 1, 9]}.items():
        policy = TablePolicy([0.0] * sum(lengths))
        method = REGISTER["sft"]()
        optimizer = torch.optim.SGD(policy.trainable(), lr=1.0)
        update(
            assign(demonstrations(lengths), method), method, {"policy": policy}, {"policy": optimizer},
            micro_batch_tokens=1, clip_grad=None, ranks=ranks,
        )  # fmt: skip
        moved[name] = policy.table.detach().tolist()
    gradients = all_gradients(30, ranks)
    if rank == 0:
        queue.put((moved, {name: g.tolist() for name, g in gradients.items()}))
    ranks.barrier()


class Apart(UpdateRule):
    """Adds gradients up, and remembers each."""

    per_term = True

    def combine(self, gradients, batch):
        self.seen = {name: torch.cat([g.reshape(-1) for g in parts]) for name, parts in gradients.items()}
        return super().combine(gradients, batch)


def all_gradients(budget: int, ranks: Ranks) -> dict[str, torch.Tensor]:
    """By registered method and stage, and by term, the gradient of an ordinary step and of a lopsided one.

    In the lopsided step one row is a demonstration, so terms on demonstrations are empty on one rank; so are
    gated terms.
    """
    ordinary = trajectories(1)
    lone = [r for r in ordinary if r.sampling is not None or r.group == "alone"]
    found = {}
    for name, method in zip(IDS, METHODS, strict=True):
        for step, rows in (("ordinary", ordinary), ("lopsided", lone)):
            apart = Apart()
            for kind, rule in (("whole", method.update), ("apart", apart)):
                policies = policies_of(method)
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    update(
                        assign(batch_of(rows), method), replace(method, update=rule), policies,
                        {k: torch.optim.SGD(p.trainable(), lr=0.0) for k, p in policies.items()},
                        micro_batch_tokens=budget, clip_grad=None, ranks=ranks,
                    )  # fmt: skip
                found[f"{name} {step} {kind}"] = torch.cat([p.gradient() for p in policies.values()])
            found |= {f"{name} {step} term {term}": g for term, g in apart.seen.items()}
    return found


def test_3_ranks_share_one_denominator() -> None:
    """Two processes, 8 and 1 target tokens: every token weighs 1/9; no method's gradient is another."""
    context = mp.get_context("forkserver")
    context.set_forkserver_preload(["tests.training.test_fingerprints"])
    queue = context.Queue()
    port = 29500 + os.getpid() % 2000
    workers = [context.Process(target=_rank, args=(r, port, queue)) for r in range(2)]
    for worker in workers:
        worker.start()
    one = all_gradients(10**6, Ranks())
    moved, two = queue.get(timeout=300)
    for worker in workers:
        worker.join(timeout=60)
    assert moved["tokens"] == pytest.approx([1 / 9] * 9)
    assert moved["one row"] == pytest.approx([1 / 3] * 3)
    assert moved["trailing"] == pytest.approx([1 / 15] * 15)
    assert two.keys() == one.keys()
    assert {name.split()[0].split("-")[0] for name in one} == set(REGISTER)
    for name, found in two.items():
        gap = (torch.tensor(found, dtype=torch.float64) - one[name]).abs().max()
        assert gap <= 1e-9, name


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_4_split_invariance_of_parameters(optimizer: str) -> None:
    """A batch of 8 as 1x8, 2x4, 4x2 and 8x1 ends in the same parameters after 1 SGD or 3 AdamW steps."""
    ends = []
    for budget in (10**6, 40, 20, 1):
        policy = ToyPolicy(3)
        made = (
            torch.optim.SGD(policy.trainable(), lr=1.0)
            if optimizer == "sgd"
            else torch.optim.AdamW(policy.trainable(), lr=0.1)
        )
        method = REGISTER["sft"]()
        batch = assign(batch_of([r for r in trajectories(5, groups=8) if r.sampling is None]), method)
        for _ in range(1 if optimizer == "sgd" else 3):
            update(
                batch, method, {"policy": policy}, {"policy": made}, micro_batch_tokens=budget, clip_grad=None
            )
        ends.append(torch.cat([p.detach().reshape(-1) for p in policy.trainable()]))
    for end in ends[1:]:
        torch.testing.assert_close(end, ends[0], rtol=0, atol=1e-9)


def test_5_a_step_of_two_objectives_has_the_sum_of_their_gradients() -> None:
    """SFT on demonstrations and a policy gradient on rollouts, micro-batched, in one step."""
    rows = trajectories(6)
    chosen = REGISTER["chord"](mu=0.3, phi="1")
    sums = []
    grpo = REGISTER["grpo"](denominator="tokens")
    for method, weight in ((chosen, 1.0), (REGISTER["sft"](), 0.3), (grpo, 0.7)):
        policy = ToyPolicy(0)
        optimizer = torch.optim.SGD(policy.trainable(), lr=0.0)
        update(
            assign(batch_of(rows), method), method, {"policy": policy}, {"policy": optimizer},
            micro_batch_tokens=25, clip_grad=None,
        )  # fmt: skip
        sums.append(weight * policy.gradient())
    torch.testing.assert_close(sums[0], sums[1] + sums[2], rtol=0, atol=1e-10)


def test_6_reported_norm_is_that_of_the_gradient() -> None:
    moved, _, norm = sft_step([1, 3, 2], [0.0] * 6)
    assert norm == pytest.approx(float(moved.norm()))
    assert norm == pytest.approx((6 * (1 / 6) ** 2) ** 0.5)


def test_7_a_trailing_window_is_normalised_by_its_own_tokens() -> None:
    """3 samples of 5, 1 and 9 tokens, one at a time: 1/15 each."""
    moved, _, _ = sft_step([5, 1, 9], [0.0] * 15)
    assert moved.tolist() == pytest.approx([1 / 15] * 15)


def test_8_an_empty_row_adds_nothing() -> None:
    with_empty, loss, _ = sft_step([2, 0, 1], [1.0, 2.0, 6.0])
    assert with_empty.tolist() == pytest.approx([1 / 3] * 3)
    assert loss == pytest.approx(3.0)
    nothing, loss, norm = sft_step([0, 0], [1.0])
    assert (nothing.tolist(), loss, norm) == ([0.0], 0.0, 0.0)
