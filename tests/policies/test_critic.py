import pytest
import torch

from interlace.policies import Critic, TextPolicy
from interlace.types import Policy
from tests.policies.build import batch_of, random_rows, tiny_policy

BATCH = batch_of(random_rows([(3, 6), (5, 2)]))
COTANGENT = {"value": torch.ones(8)}


@pytest.mark.parametrize("shared", [True, False])
def test_values_start_at_zero_and_learn(shared):
    critic = Critic(tiny_policy("llama"), shared=shared)
    assert isinstance(critic, Policy)
    assert critic.score(BATCH)["value"].tolist() == [0.0] * 8
    optimizer = torch.optim.Adam(critic.trainable(), lr=0.05)
    for _ in range(60):
        optimizer.zero_grad()
        value = critic.score(BATCH)
        critic.backward(value, {"value": 2 * (value["value"].detach() - 3.0)})
        optimizer.step()
    assert (critic.score(BATCH, grad=False)["value"] - 3).abs().max() < 0.5


def test_a_critic_of_its_own_leaves_the_policy_alone():
    policy = tiny_policy("llama")
    critic = Critic(policy)
    torch.nn.init.normal_(critic.text.value_head.weight)
    critic.backward(critic.score(BATCH), COTANGENT)
    assert all(p.grad is None for p in policy.model.parameters())
    assert policy.value_head is None
    assert set(critic.parameters_by_part()) == {"backbone", "value"}
    assert not {id(p) for p in critic.trainable()} & {id(p) for p in policy.trainable()}


def test_a_shared_critic_reads_and_moves_the_policy_s_trunk():
    policy = tiny_policy("llama")
    critic = Critic(policy, shared=True)
    torch.nn.init.normal_(policy.value_head.weight)
    both = policy.score(BATCH, ("logp", "value"))
    assert torch.equal(both["value"], critic.score(BATCH)["value"])
    critic.backward(critic.score(BATCH), COTANGENT)
    assert policy.model.model.layers[0].mlp.up_proj.weight.grad.abs().max() > 0
    assert set(critic.parameters_by_part()) == {"value"}


def test_a_critic_gives_values_only():
    with pytest.raises(ValueError, match="logp"):
        Critic(tiny_policy("llama")).score(BATCH, ("value", "logp"))


def test_a_saved_critic_starts_where_it_was(tmp_path):
    critic = Critic(tiny_policy("llama", precision="bf16"))
    torch.nn.init.normal_(critic.text.value_head.weight)
    critic.save(tmp_path / "critic")
    again = Critic(TextPolicy.load(tmp_path / "critic", precision="bf16", device="cpu"))
    assert torch.equal(again.score(BATCH)["value"], critic.score(BATCH)["value"])
    frozen = again.clone_frozen()
    assert torch.equal(frozen.score(BATCH)["value"], critic.score(BATCH)["value"])
    assert frozen.trainable() == []
