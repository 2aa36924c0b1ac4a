"""Laws of drawing: good random numbers, exact filters, exact quantiles."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from scipy import stats
from transformers.generation.logits_process import MinPLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from interlace.rollout.sampling import (
    _GOLDEN,
    _mix,
    _quantile,
    _signed,
    draw,
    filter_logits,
    row_keys,
    uniforms,
    uniforms_at,
)

N = 20_000


def _range(n: int = N) -> torch.Tensor:
    return torch.arange(n)


def test_mixing_function_is_that_of_splitmix64() -> None:
    # First outputs of SplitMix64 from seed 0, as published with its reference implementation.
    counters = torch.tensor([_signed(_GOLDEN * k) for k in (1, 2, 3)])
    expected = [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]
    assert [z & (2**64 - 1) for z in _mix(counters).tolist()] == expected


AXES = {
    "rows": lambda n: uniforms(7, 3, _range(n), torch.tensor(0)),
    "positions": lambda n: uniforms(7, 3, torch.tensor(5), _range(n)),
    "steps": lambda n: torch.stack([uniforms(7, s, torch.tensor(5), torch.tensor(2)) for s in range(n)]),
    "seeds": lambda n: torch.stack([uniforms(s, 3, torch.tensor(5), torch.tensor(2)) for s in range(n)]),
    "rows and positions": lambda n: uniforms(0, 0, _range(n // 100)[:, None], _range(100)).flatten(),
}


@pytest.mark.parametrize("axis", AXES)
def test_uniforms_are_uniform_along_every_counter(axis: str) -> None:
    u = AXES[axis](2000 if axis in ("steps", "seeds") else N).numpy()
    assert u.min() >= 0 and u.max() < 1
    assert stats.kstest(u, "uniform").pvalue > 1e-3
    lagged = np.corrcoef(u[:-1], u[1:])[0, 1]
    assert abs(lagged) < 4 / np.sqrt(len(u))
    # Neighbours fall into the 64 cells of a square equally often.
    cells = np.histogram2d(u[:-1], u[1:], bins=8, range=[[0, 1], [0, 1]])[0].ravel()
    assert stats.chisquare(cells).pvalue > 1e-3


def test_uniforms_of_neighbouring_counters_do_not_correlate() -> None:
    row = _range()
    u = uniforms(1, 1, row, torch.tensor(4))
    others = (
        uniforms(1, 1, row + 1, torch.tensor(4)),
        uniforms(1, 1, row, torch.tensor(5)),
        uniforms(1, 2, row, torch.tensor(4)),
        uniforms(2, 1, row, torch.tensor(4)),
        uniforms(1, 1, row + 1, torch.tensor(3)),
    )
    for other in others:
        assert abs(np.corrcoef(u.numpy(), other.numpy())[0, 1]) < 4 / np.sqrt(N)


def test_no_two_counters_share_a_uniform() -> None:
    grid = [uniforms(seed, step, _range(64)[:, None], _range(64)) for seed in (0, 1) for step in (0, 1)]
    assert torch.stack(grid).unique().numel() == 4 * 64 * 64


def test_a_uniform_does_not_depend_on_what_is_computed_beside_it() -> None:
    together = uniforms(5, 6, _range(50)[:, None], _range(50))
    assert uniforms(5, 6, torch.tensor([17]), torch.tensor([31])).item() == together[17, 31].item()
    keys = row_keys(5, 6, torch.tensor([17, 3]))
    assert uniforms_at(keys, torch.tensor([31, 2])).tolist() == [
        together[17, 31].item(),
        together[3, 2].item(),
    ]


@pytest.mark.parametrize("vocabulary", [50, 3000])
@pytest.mark.parametrize(
    ("top_k", "top_p", "min_p"),
    [k for k in itertools.product((0, 1, 7), (1.0, 0.9, 0.3), (0.0, 0.05, 0.5)) if k != (0, 1.0, 0.0)],
)
def test_filters_equal_those_of_transformers(vocabulary: int, top_k: int, top_p: float, min_p: float) -> None:
    generator = torch.Generator().manual_seed(vocabulary + top_k)
    logits = 3 * torch.randn(6, vocabulary, generator=generator, dtype=torch.float64)
    expected = logits
    if top_k:
        expected = TopKLogitsWarper(top_k)(None, expected)
    if top_p < 1:
        expected = TopPLogitsWarper(top_p)(None, expected)
    if min_p:
        expected = MinPLogitsWarper(min_p)(None, expected)
    assert torch.equal(filter_logits(logits, top_k, top_p, min_p), expected)


def test_flat_logits_keep_the_whole_nucleus() -> None:
    # 4000 nearly equal tokens: 0.9 of the mass is 3600 of them, far more than are sorted at first.
    logits = torch.linspace(0, 1e-6, 4000, dtype=torch.float64).repeat(2, 1)
    assert filter_logits(logits, top_p=0.9).isfinite().sum(-1).tolist() == [3600, 3600]


def test_equal_logits_stay_or_go_together() -> None:
    logits = torch.tensor([[2.0, 1.0, 1.0, 0.0]])
    assert filter_logits(logits, top_k=2).isfinite().tolist() == [[True, True, True, False]]
    # Probabilities are .53, .20, .20, .07: 0.6 is reached inside the tie.
    assert filter_logits(logits, top_p=0.6).isfinite().tolist() == [[True, True, True, False]]


def test_rows_with_their_own_parameters_equal_rows_drawn_alone() -> None:
    generator = torch.Generator().manual_seed(1)
    logits = 2 * torch.randn(5, 40, generator=generator)
    u = torch.rand(5, generator=generator, dtype=torch.float64)
    knobs = [
        (0.0, 0, 1.0, 0.0),
        (1.0, 0, 1.0, 0.0),
        (0.7, 5, 1.0, 0.0),
        (1.3, 0, 0.8, 0.0),
        (0.9, 9, 0.9, 0.2),
    ]
    t, k, p, m = (torch.tensor(column) for column in zip(*knobs, strict=True))
    ids, logp = draw(logits, u, temperature=t, top_k=k, top_p=p, min_p=m)
    for i, (temperature, top_k, top_p, min_p) in enumerate(knobs):
        one, one_logp = draw(
            logits[i : i + 1], u[i : i + 1], temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p
        )
        assert ids[i] == one[0]
        assert logp[i].item() == pytest.approx(one_logp[0].item(), abs=1e-6)


def test_draws_are_distributed_as_the_softmax() -> None:
    logits = torch.tensor([0.3, -1.0, 2.0, 0.0, 1.2, -3.0, 0.7])
    u = uniforms(3, 1, _range(200_000), torch.tensor(0))
    ids, logp = draw(logits.expand(len(u), -1), u, temperature=0.7)
    p = (logits.double() / 0.7).softmax(-1)
    counts = torch.bincount(ids, minlength=7).numpy()
    assert stats.chisquare(counts, (p * len(u)).numpy()).pvalue > 1e-3
    assert torch.allclose(logp, p[ids].log(), atol=1e-6)


def test_draws_from_a_large_vocabulary_are_distributed_as_the_softmax() -> None:
    vocabulary = 5003
    logits = torch.randn(vocabulary, generator=torch.Generator().manual_seed(0))
    u = uniforms(3, 1, _range(4096), torch.tensor(0))
    ids = torch.cat([draw(logits.expand(512, -1), part)[0] for part in u.split(512)])
    p = logits.double().softmax(-1)
    bins = torch.arange(vocabulary) % 37
    expected = torch.zeros(37, dtype=torch.float64).index_add_(0, bins, p) * len(u)
    counts = torch.bincount(bins[ids], minlength=37)
    assert stats.chisquare(counts.numpy(), expected.numpy()).pvalue > 1e-3


@pytest.mark.parametrize("vocabulary", [64, 1024, 1025, 4096, 5003])
def test_quantile_equals_the_plain_search_over_the_running_sum(vocabulary: int) -> None:
    generator = torch.Generator().manual_seed(vocabulary)
    weights = torch.rand(32, vocabulary, generator=generator, dtype=torch.float64) ** 8
    u = torch.rand(32, generator=generator, dtype=torch.float64)
    found, total = _quantile(weights.clone(), u)
    for row, uniform, index, mass in zip(weights.numpy(), u.tolist(), found.tolist(), total.tolist()):
        running = np.cumsum(row)
        assert index == int(np.searchsorted(running, uniform * running[-1], side="right"))
        assert mass == pytest.approx(running[-1], rel=1e-12)


@pytest.mark.parametrize("vocabulary", [16, 3000])
@pytest.mark.parametrize("uniform", [0.0, 0.5, 1 - 2.0**-53])
def test_a_dropped_token_is_never_drawn(vocabulary: int, uniform: float) -> None:
    logits = torch.randn(64, vocabulary, generator=torch.Generator().manual_seed(2))
    logits[:, :3] = -torch.inf
    logits[:, -5:] = -torch.inf
    u = torch.full((64,), uniform, dtype=torch.float64)
    ids, logp = draw(logits, u)
    assert int(ids.min()) >= 3 and int(ids.max()) < vocabulary - 5
    assert bool(logp.isfinite().all())


def test_log_probability_is_that_of_the_truncated_distribution() -> None:
    logits = torch.tensor([[2.0, 1.0, 0.0, -1.0]], dtype=torch.float64)
    u = torch.tensor([0.99], dtype=torch.float64)
    ids, logp = draw(logits, u, temperature=0.5, top_k=2)
    # Of exp(4) and exp(2), the second: 1 / (1 + e^2) = 0.1192.
    assert ids.item() == 1
    assert logp.item() == pytest.approx(-np.log(1 + np.exp(2.0)), abs=1e-12)


def test_greedy_is_the_argmax_with_log_probability_zero() -> None:
    logits = torch.tensor([[0.0, 3.0, 1.0], [5.0, 3.0, 1.0]])
    ids, logp = draw(logits, torch.tensor([0.9, 0.9], dtype=torch.float64), temperature=0)
    assert ids.tolist() == [1, 0] and logp.tolist() == [0.0, 0.0]


@pytest.mark.parametrize("temperature", [0, 1.0])
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_logits_that_are_not_finite_show_in_the_log_probability(temperature: float, bad: float) -> None:
    logits = torch.zeros(1, 9)
    logits[0, 4] = bad
    assert draw(logits, torch.tensor([0.5], dtype=torch.float64), temperature=temperature)[1].isnan().all()
