import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from interlace.policies.head import STATISTICS, Head, head_statistics

DIFFERENTIABLE = [name for name in STATISTICS if name not in ("topk_mass", "argmax")]
TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-5}


def plain_statistics(hidden, head, slot, target, temperature, reference_hidden, reference_head, k):
    """The definitions, written over full logits."""

    def logits(states, layer):
        z = states @ layer.weight.T
        z = z if layer.bias is None else z + layer.bias
        z = z * layer.scale
        z = z if layer.softcap is None else layer.softcap * torch.tanh(z / layer.softcap)
        return z[slot]

    at_one = torch.log_softmax(logits(hidden, head), -1)
    logp = torch.log_softmax(logits(hidden, head) / temperature[:, None], -1)
    logq = torch.log_softmax(logits(reference_hidden, reference_head) / temperature[:, None], -1)
    each = torch.arange(len(slot))
    return {
        "logp": logp[each, target],
        "logp_t1": at_one[each, target],
        "entropy": -(logp.exp() * logp).sum(-1),
        "mean_logp": logp.mean(-1),
        "kl": (logp.exp() * (logp - logq)).sum(-1),
        "reverse_kl": (logq.exp() * (logq - logp)).sum(-1),
        "topk_mass": logp.exp().topk(k).values.sum(-1),
        "argmax": logp.argmax(-1).to(hidden.dtype),
    }


def problem(seed, dtype, *, bias=False, scale=1.0, softcap=None, warm=True, shared=True, n=6, V=23, H=5):
    g = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(*shape, dtype=torch.float64, generator=g).to(dtype)

    count = 14 if shared else n
    hidden, weight = normal(n, H).requires_grad_(), normal(V, H).requires_grad_()
    offset = normal(V).requires_grad_() if bias else None
    slot = torch.randint(n, (count,), generator=g) if shared else torch.arange(n)
    temperature = torch.tensor([0.5, 1.0, 2.0])[torch.randint(3, (count,), generator=g)]
    return {
        "hidden": hidden,
        "head": Head(weight, offset, scale, softcap),
        "slot": slot,
        "target": torch.randint(V, (count,), generator=g),
        "temperature": temperature.to(dtype) if warm else torch.ones(count, dtype=dtype),
        "reference_hidden": normal(n, H),
        "reference_head": Head(normal(V, H), None, scale, softcap),
        "k": 3,
    }


VARIANTS = {
    "plain": {"warm": False, "shared": False},
    "temperature": {"shared": False},
    "shared slots": {"warm": False},
    "shared slots at several temperatures": {},
    "bias, scale and soft cap": {"bias": True, "scale": 0.7, "softcap": 3.0},
    "soft cap at temperature 1": {"softcap": 2.0, "warm": False, "shared": False},
}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("tile_bytes", [64, 700, 1 << 20])
@pytest.mark.parametrize("variant", VARIANTS)
def test_statistics_and_gradients_equal_autograd_over_full_logits(variant, tile_bytes, dtype):
    p = problem(1, dtype, **VARIANTS[variant])
    tensors = [t for t in (p["hidden"], p["head"].weight, p["head"].bias) if t is not None]
    expected = plain_statistics(**p)
    got = head_statistics(**p, needs=STATISTICS, tile_bytes=tile_bytes)
    for name in STATISTICS:
        torch.testing.assert_close(got[name], expected[name], rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])
    weights = torch.linspace(-1, 2, len(p["slot"]), dtype=dtype)
    for name in DIFFERENTIABLE:
        wanted = torch.autograd.grad((expected[name] * weights).sum(), tensors, retain_graph=True)
        found = torch.autograd.grad((got[name] * weights).sum(), tensors, retain_graph=True)
        for a, b in zip(found, wanted):
            torch.testing.assert_close(a, b, rtol=10 * TOLERANCE[dtype], atol=10 * TOLERANCE[dtype])


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    needs=st.lists(st.sampled_from(DIFFERENTIABLE), min_size=1, unique=True),
    tile_bytes=st.integers(8, 4000),
    softcap=st.sampled_from([None, 1.5]),
)
def test_any_set_of_statistics_shares_one_exact_backward(seed, needs, tile_bytes, softcap):
    p = problem(seed, torch.float64, softcap=softcap)
    tensors = [p["hidden"], p["head"].weight]
    expected, got = plain_statistics(**p), head_statistics(**p, needs=needs, tile_bytes=tile_bytes)
    assert list(got) == needs
    g = torch.Generator().manual_seed(seed)
    cotangents = {name: torch.randn(len(p["slot"]), dtype=torch.float64, generator=g) for name in needs}
    wanted = torch.autograd.grad([expected[n] for n in needs], tensors, [cotangents[n] for n in needs])
    found = torch.autograd.grad([got[n] for n in needs], tensors, [cotangents[n] for n in needs])
    for a, b in zip(found, wanted):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)


def test_numbers_of_a_two_token_vocabulary_by_hand():
    # Logits 0 and ln 3: p = (1/4, 3/4); at temperature 2, p is proportional to (1, sqrt 3).
    hidden = torch.tensor([[1.0]], dtype=torch.float64)
    head = Head(torch.tensor([[0.0], [math.log(3)]], dtype=torch.float64))
    uniform = Head(torch.zeros(2, 1, dtype=torch.float64))
    got = head_statistics(
        hidden,
        head,
        slot=torch.tensor([0, 0]),
        target=torch.tensor([1, 0]),
        temperature=torch.tensor([1.0, 2.0]),
        needs=STATISTICS,
        reference_hidden=hidden,
        reference_head=uniform,
        k=1,
    )
    assert got["logp"][0].item() == pytest.approx(math.log(0.75))
    assert got["logp"][1].item() == pytest.approx(-math.log(1 + math.sqrt(3)))
    assert got["logp_t1"][1].item() == pytest.approx(math.log(0.25))
    entropy = -0.25 * math.log(0.25) - 0.75 * math.log(0.75)
    assert got["entropy"][0].item() == pytest.approx(entropy)
    assert got["mean_logp"][0].item() == pytest.approx((math.log(0.25) + math.log(0.75)) / 2)
    assert got["kl"][0].item() == pytest.approx(math.log(2) - entropy)
    assert got["reverse_kl"][0].item() == pytest.approx(-math.log(2) - (math.log(0.25) + math.log(0.75)) / 2)
    assert got["topk_mass"][0].item() == pytest.approx(0.75)
    assert got["argmax"].tolist() == [1.0, 1.0]


def test_a_tied_weight_receives_the_gradient_of_both_of_its_uses():
    weight = torch.randn(
        11, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0)
    ).requires_grad_()
    ids, target = torch.tensor([3, 7, 3]), torch.tensor([1, 3, 7])
    hidden = torch.tanh(weight[ids])
    got = head_statistics(hidden, Head(weight), torch.arange(3), target, torch.ones(3))["logp"].sum()
    expected = torch.log_softmax(torch.tanh(weight[ids]) @ weight.T, -1)[torch.arange(3), target].sum()
    a, b = torch.autograd.grad(got, weight)[0], torch.autograd.grad(expected, weight)[0]
    torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


def test_kl_of_a_policy_with_itself_is_exactly_zero():
    p = problem(2, torch.float32)
    p |= {"reference_hidden": p["hidden"], "reference_head": p["head"]}
    got = head_statistics(**p, needs=("kl", "reverse_kl"), tile_bytes=256)
    assert got["kl"].tolist() == [0.0] * len(p["slot"])
    assert got["reverse_kl"].tolist() == [0.0] * len(p["slot"])


def test_bfloat16_states_give_probabilities_that_sum_to_one_in_float32():
    g = torch.Generator().manual_seed(0)
    hidden = torch.randn(1, 16, generator=g).bfloat16()
    head = Head(torch.randn(3000, 16, generator=g).bfloat16())
    every = torch.arange(3000)
    got = head_statistics(hidden, head, torch.zeros_like(every), every, torch.ones(3000))["logp"]
    assert got.dtype == torch.float32
    assert got.double().exp().sum().item() == pytest.approx(1, abs=1e-5)


def test_the_weight_gradient_of_bfloat16_is_summed_in_float32():
    # One decision gives 256 and 63 more give 1/2 each, one tile after the other. bfloat16 has steps of 2
    # there, so it would stay at 256; the float32 sum 287.5 is rounded once.
    n = 64
    hidden = torch.ones(n, 1, dtype=torch.bfloat16)
    weight = torch.zeros(2, 1, dtype=torch.bfloat16, requires_grad=True)
    got = head_statistics(
        hidden, Head(weight), torch.arange(n), torch.zeros(n).long(), torch.ones(n), tile_bytes=8
    )
    got["logp"].backward(torch.tensor([512.0] + [1.0] * (n - 1)))
    assert weight.grad.flatten().tolist() == [288.0, -288.0]


class Largest(TorchDispatchMode):
    """Elements of the largest tensor that any operation returns."""

    def __init__(self, allowed):
        super().__init__()
        self.elements, self.allowed = 0, allowed

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, tuple | list) else [out]:
            if isinstance(tensor, torch.Tensor) and tensor.shape != self.allowed:
                self.elements = max(self.elements, tensor.numel())
        return out


@pytest.mark.parametrize("vocabulary", [49152, 151936])
def test_no_tensor_grows_with_decisions_times_vocabulary(vocabulary):
    tile = 1 << 16

    def largest(n):
        g = torch.Generator().manual_seed(0)
        hidden = torch.randn(n, 2, generator=g).requires_grad_()
        weight = torch.randn(vocabulary, 2, generator=g).requires_grad_()
        target = torch.randint(vocabulary, (n,), generator=g)
        # What has the weight's shape is the weight, its gradient, or a view of them.
        with Largest(weight.shape) as seen:
            got = head_statistics(
                hidden,
                Head(weight),
                torch.arange(n),
                target,
                torch.ones(n),
                ("logp", "entropy"),
                tile_bytes=4 * tile,
            )
            torch.autograd.backward(list(got.values()), [torch.ones(n)] * 2)
        return seen.elements

    assert largest(16) <= 2 * tile < 16 * vocabulary
    assert largest(128) <= 2 * tile


def test_no_decisions_give_empty_statistics_and_no_gradient():
    hidden, weight = torch.randn(3, 4, requires_grad=True), torch.randn(9, 4, requires_grad=True)
    none = torch.zeros(0, dtype=torch.int64)
    got = head_statistics(hidden, Head(weight), none, none, torch.ones(0), ("logp", "entropy"))
    assert got["logp"].shape == (0,)
    got["logp"].sum().backward()
    assert not weight.grad.any() and not hidden.grad.any()


@pytest.mark.parametrize("temperature", [0.0, -1.0, float("nan")])
def test_temperatures_without_a_distribution_are_refused(temperature):
    p = problem(0, torch.float32, shared=False)
    p["temperature"][2] = temperature
    with pytest.raises(ValueError, match="temperature"):
        head_statistics(**p)


def test_what_cannot_be_given_is_refused_with_the_reason():
    p = problem(0, torch.float32)
    with pytest.raises(ValueError, match=r"'entropi'; did you mean 'entropy'"):
        head_statistics(**p, needs=("entropi",))
    with pytest.raises(ValueError, match="need a reference"):
        head_statistics(**(p | {"reference_hidden": None}), needs=("kl",))
    with pytest.raises(ValueError, match="k=24"):
        head_statistics(**(p | {"k": 24}), needs=("topk_mass",))
    assert not head_statistics(**p, needs=("topk_mass",))["topk_mass"].requires_grad
