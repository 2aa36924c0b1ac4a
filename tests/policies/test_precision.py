import pytest
import torch
from safetensors.torch import load_file

from interlace.policies import TextPolicy
from interlace.policies.precision import MasterWeights, to_precision
from tests.policies.build import batch_of, random_rows, tiny_policy

ROWS = random_rows([(3, 6), (5, 2)])


def test_masters_keep_updates_that_bfloat16_loses():
    # 1000 steps of 1e-3 from 1: bfloat16 has steps of 2^-7 above 1, so each of them alone is lost.
    model = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.ones_(model.weight)
    masters = MasterWeights(model)
    alone = model.weight.detach().clone()
    _, master = masters.pairs[0]
    for _ in range(1000):
        with torch.no_grad():
            master += 1e-3
            alone += 1e-3
        masters.publish()
    assert alone.item() == 1.0
    assert master.item() == pytest.approx(2.0, abs=1e-3)
    assert model.weight.item() == pytest.approx(2.0, abs=1e-2)
    assert model.weight.dtype == torch.bfloat16


def test_gradients_of_many_micro_batches_are_added_in_float32():
    model = torch.nn.Linear(1, 1, bias=False)
    masters = MasterWeights(model)
    for amount in [256.0] + [0.5] * 64:
        model.weight.grad = torch.full((1, 1), amount, dtype=torch.bfloat16)
        masters.collect()
        assert model.weight.grad is None
    assert masters.of(model.weight).grad.item() == 288.0


def test_fp32_trains_the_model_s_own_parameters():
    policy = tiny_policy("llama")
    own = {id(p) for p in policy.model.parameters()}
    assert {id(p) for p in policy.trainable()} == own
    policy.backward(policy.score(batch_of(ROWS)), {"logp": torch.ones(8)})
    before = [p.grad for p in policy.trainable()]
    policy.collect_gradients()
    policy.publish()
    assert all(a is p.grad for a, p in zip(before, policy.trainable()))


def test_bf16_trains_float32_masters_and_publishes_them_rounded(tmp_path):
    policy = tiny_policy("llama", precision="bf16")
    exact = tiny_policy("llama")
    assert all(p.dtype == torch.float32 for p in policy.trainable())
    assert all(p.dtype == torch.bfloat16 for p in policy.model.parameters())
    rotary = policy.model.model.rotary_emb.inv_freq
    assert rotary.dtype == torch.float32
    batch, cotangent = batch_of(ROWS), {"logp": torch.ones(8)}
    for each in (policy, exact):
        each.backward(each.score(batch), cotangent)
    named = exact.named_trainable()
    for name, master in policy.named_trainable().items():
        assert (master.grad - named[name].grad).norm() < 0.1 * named[name].grad.norm()
    torch.optim.SGD(policy.trainable(), lr=1e-5).step()
    stale = [p.clone() for p in policy.model.parameters()]
    policy.publish()
    changed = [not torch.equal(a, b) for a, b in zip(stale, policy.model.parameters())]
    assert any(changed)
    for name, parameter in policy.model.named_parameters():
        assert torch.equal(parameter, policy.named_trainable()[name].bfloat16())
    policy.save(tmp_path / "p")
    saved = load_file(tmp_path / "p" / "model.safetensors")
    for name, master in policy.named_trainable().items():
        assert torch.equal(saved[name], master)
    again = TextPolicy.load(tmp_path / "p", precision="bf16", device="cpu")
    assert torch.equal(again.score(batch)["logp"], policy.score(batch)["logp"])


def test_a_copy_trains_apart_and_a_frozen_clone_has_no_masters():
    policy = tiny_policy("llama", precision="bf16")
    twin, frozen = policy.copy(), policy.clone_frozen()
    with torch.no_grad():
        twin.trainable()[0].add_(1.0)
    twin.publish()
    batch = batch_of(ROWS)
    logp = policy.score(batch, grad=False)["logp"]
    assert torch.equal(frozen.score(batch)["logp"], logp)
    assert not torch.equal(twin.score(batch)["logp"], logp)
    assert frozen.trainable() == []


def test_unknown_precision_names_what_is_accepted():
    with pytest.raises(ValueError, match="fp32, bf16, fp64"):
        to_precision(torch.nn.Linear(1, 1), "fp8")
