import json

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from interlace.policies import TextPolicy
from interlace.policies import text as text_module
from interlace.policies.scratch import character_tokenizer
from interlace.types import Policy
from tests.policies.build import (
    ALPHABET,
    FAMILIES,
    batch_of,
    gradients,
    plain_logp,
    random_rows,
    relative_gap,
    tiny_model,
    tiny_policy,
)

ROWS = random_rows([(3, 6), (20, 1), (1, 14), (8, 8), (2, 21)])
EVERY = ("logp", "logp_t1", "entropy", "mean_logp", "kl", "reverse_kl", "value")


def ones(statistics):
    return {name: torch.ones_like(value) for name, value in statistics.items()}


@pytest.mark.parametrize("arch", FAMILIES)
@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_scores_and_gradients_equal_the_plain_model_row_by_row(arch, temperature):
    policy = tiny_policy(arch)
    expected = plain_logp(policy.model, ROWS, temperature)
    weights = torch.linspace(-1, 1, len(expected))
    expected.backward(weights)
    wanted = gradients(policy.model)
    policy.model.zero_grad()
    statistics = policy.score(batch_of(ROWS, temperature))
    torch.testing.assert_close(statistics["logp"], expected, rtol=1e-5, atol=1e-5)
    policy.backward(statistics, {"logp": weights})
    assert relative_gap(gradients(policy.model), wanted) < 1e-5


@pytest.mark.parametrize("arch", ["llama", "gemma2", "gpt2"])
def test_in_float64_any_split_of_the_rows_gives_the_same_gradient(arch):
    policy = tiny_policy(arch, precision="fp64")
    policy.reference = tiny_policy(arch, precision="fp64", seed=1).clone_frozen()
    policy.add_value_head()
    batch = batch_of(ROWS, 0.8)
    found = []
    for split in ([[0, 1, 2, 3, 4]], [[4], [2], [0], [1], [3]], [[3, 0], [4, 1, 2]]):
        for parameter in policy.trainable():
            parameter.grad = None
        for rows in split:
            statistics = policy.score(batch.subset(torch.tensor(rows)), EVERY)
            policy.backward(statistics, ones(statistics))
        found.append({name: p.grad.clone() for name, p in policy.named_trainable().items()})
    assert relative_gap(found[1], found[0]) < 1e-10
    assert relative_gap(found[2], found[0]) < 1e-10


def test_two_scores_of_the_same_weights_are_the_same_bits():
    policy, batch = tiny_policy("qwen3"), batch_of(ROWS)
    first, second = (policy.score(batch, ("logp", "entropy")) for _ in range(2))
    no_grad = policy.score(batch, ("logp", "entropy"), grad=False)
    for name in first:
        assert torch.equal(first[name], second[name]) and torch.equal(first[name], no_grad[name])
        assert not no_grad[name].requires_grad


def test_likelihoods_at_temperature_one_are_given_beside_those_of_the_sampler():
    policy = tiny_policy("llama")
    statistics = policy.score(batch_of(ROWS, 0.5), ("logp", "logp_t1"), grad=False)
    torch.testing.assert_close(statistics["logp_t1"], policy.score(batch_of(ROWS), grad=False)["logp"])
    assert (statistics["logp"] - statistics["logp_t1"]).abs().max() > 0.1


@pytest.mark.parametrize("arch", FAMILIES)
def test_mixed_inputs_equal_the_model_on_mixed_embeddings(arch):
    policy = tiny_policy(arch)
    batch = batch_of(ROWS)
    slots = batch.slots
    second = (slots.input + 5) % 20

    def score(ids, other=None, weight=None):
        changed = {"input": ids, "second_input": other, "second_weight": weight}
        return policy.score(replaced(batch, **changed), grad=False)["logp"]

    unmixed = score(slots.input)
    zero, one = torch.zeros(len(second)), torch.ones(len(second))
    few = torch.where(torch.arange(len(second)) % 7 == 3, 0.3, 0.0)
    assert torch.equal(score(slots.input, torch.full_like(second, -1), zero), unmixed)
    torch.testing.assert_close(score(slots.input, second, one), score(second), rtol=1e-5, atol=1e-5)
    mixed = score(slots.input, torch.where(few > 0, second, -1), few)
    assert (mixed - unmixed).abs().max() > 1e-3
    embed = policy.model.get_input_embeddings()
    with torch.no_grad():
        table = (1 - few[:, None]) * embed(slots.input) + few[:, None] * embed(second)
        rows = [slots.row == r for r in range(len(ROWS))]
        logits = torch.cat([policy.model(inputs_embeds=table[r][None]).logits[0] for r in rows])
        expected = logits.log_softmax(-1)[slots.slot, slots.target]
    torch.testing.assert_close(mixed, expected, rtol=1e-5, atol=1e-5)


def replaced(batch, **changes):
    from dataclasses import replace

    return replace(batch, slots=replace(batch.slots, **changes))


def test_a_frozen_clone_stays_and_kl_to_it_starts_at_exactly_zero():
    policy, batch = tiny_policy("llama"), batch_of(ROWS)
    policy.reference = policy.clone_frozen()
    at_start = policy.score(batch, ("logp", "kl", "reverse_kl"))
    assert not at_start["kl"].any() and not at_start["reverse_kl"].any()
    policy.backward(at_start, {"logp": torch.ones(batch.n_decisions)})
    torch.optim.SGD(policy.trainable(), lr=0.01).step()
    policy.publish()
    moved = policy.score(batch, ("kl", "reverse_kl"), grad=False)
    assert (moved["kl"] > 0).all() and (moved["reverse_kl"] > 0).all()
    assert torch.equal(policy.reference.score(batch, grad=False)["logp"], at_start["logp"])
    assert not policy.reference.trainable()


def test_kl_equals_the_definition_over_two_plain_models():
    policy = tiny_policy("gemma2", seed=3)
    policy.reference = tiny_policy("gemma2", seed=4).clone_frozen()
    got = policy.score(batch_of(ROWS, 0.7), ("kl", "reverse_kl"), grad=False)

    def whole(model):
        rows = [model(input_ids=torch.tensor([p + r])).logits[0, len(p) - 1 : -1] for p, r in ROWS]
        return (torch.cat(rows) / 0.7).log_softmax(-1)

    with torch.no_grad():
        p, q = whole(policy.model), whole(policy.reference.model)
    torch.testing.assert_close(got["kl"], (p.exp() * (p - q)).sum(-1), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(got["reverse_kl"], (q.exp() * (q - p)).sum(-1), rtol=1e-4, atol=1e-5)


def test_backward_adds_to_gradients_and_takes_only_what_carries_one():
    policy, batch = tiny_policy("llama"), batch_of(ROWS)
    cotangent = {"logp": torch.linspace(-1, 1, batch.n_decisions, dtype=torch.float64)}
    policy.backward(policy.score(batch), cotangent)
    once = gradients(policy.model)
    policy.backward(policy.score(batch), cotangent)
    assert relative_gap(gradients(policy.model), {k: 2 * v for k, v in once.items()}) < 1e-6
    statistics = policy.score(batch, ("logp", "topk_mass"))
    with pytest.raises(ValueError, match="topk_mass"):
        policy.backward(statistics, {"topk_mass": torch.ones(batch.n_decisions)})
    with pytest.raises(ValueError, match="'entropy'"):
        policy.backward(statistics, {"entropy": torch.ones(batch.n_decisions)})
    with pytest.raises(ValueError, match="grad=True"):
        policy.backward(policy.score(batch, grad=False), {"logp": torch.ones(batch.n_decisions)})


def test_one_graph_serves_two_terms_when_it_is_kept():
    policy, batch = tiny_policy("llama"), batch_of(ROWS)
    statistics = policy.score(batch, ("logp", "entropy"))
    policy.backward(statistics, {"logp": torch.ones(batch.n_decisions)}, retain_graph=True)
    policy.backward(statistics, {"entropy": torch.ones(batch.n_decisions)})
    apart = gradients(policy.model)
    policy.model.zero_grad()
    statistics = policy.score(batch, ("logp", "entropy"))
    policy.backward(statistics, ones(statistics))
    assert relative_gap(apart, gradients(policy.model)) < 1e-5


def test_what_cannot_be_scored_is_refused_with_the_reason():
    policy, batch = tiny_policy("gpt2"), batch_of(ROWS)
    with pytest.raises(ValueError, match=r"policy\.reference"):
        policy.score(batch, ("kl",))
    with pytest.raises(ValueError, match="value head"):
        policy.score(batch, ("value",))
    with pytest.raises(ValueError, match="'entrpy'"):
        policy.score(batch, ("entrpy",))
    with pytest.raises(ValueError, match=r"row 1 has 69 input tokens, but the model reads at most 64"):
        policy.score(batch_of(random_rows([(3, 2), (60, 10)])))


def test_the_last_position_of_the_model_can_be_read():
    policy = tiny_policy("gpt2")
    assert policy.score(batch_of(random_rows([(60, 5)])))["logp"].shape == (5,)


@pytest.mark.parametrize("arch", ["llama", "gemma3", "gpt2"])
def test_a_saved_policy_loads_with_transformers_alone_and_gives_the_same_logits(arch, tmp_path):
    policy = tiny_policy(arch)
    policy.save(tmp_path / "p")
    ids = torch.tensor([[2, 5, 9, 11, 3]])
    with torch.no_grad():
        expected = policy.model(input_ids=ids).logits
        plain = AutoModelForCausalLM.from_pretrained(tmp_path / "p")
        assert torch.equal(plain(input_ids=ids).logits, expected)
        assert torch.equal(TextPolicy.load(tmp_path / "p").model(input_ids=ids).logits, expected)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "p")
    assert tokenizer.decode(tokenizer("1+2=3").input_ids) == "1+2=3"
    assert plain.generation_config.eos_token_id == [1]
    assert json.loads((tmp_path / "p" / "config.json").read_text())["dtype"] == "float32"


def test_weights_can_be_saved_in_another_type(tmp_path):
    policy = tiny_policy("llama")
    policy.save(tmp_path / "p", dtype=torch.bfloat16)
    plain = AutoModelForCausalLM.from_pretrained(tmp_path / "p", dtype="auto")
    assert plain.dtype == torch.bfloat16
    weight = policy.model.model.layers[0].mlp.up_proj.weight
    assert torch.equal(plain.model.layers[0].mlp.up_proj.weight, weight.bfloat16())


def test_a_value_head_is_saved_and_loaded(tmp_path):
    policy, batch = tiny_policy("llama"), batch_of(ROWS)
    torch.nn.init.normal_(policy.add_value_head().weight)
    policy.save(tmp_path / "p")
    again = TextPolicy.load(tmp_path / "p")
    assert torch.equal(again.score(batch, ("value",))["value"], policy.score(batch, ("value",))["value"])


def test_a_save_that_fails_leaves_the_old_checkpoint(tmp_path, monkeypatch):
    policy = tiny_policy("llama")
    policy.save(tmp_path / "p")
    before = sorted((f.name, f.read_bytes()) for f in (tmp_path / "p").iterdir())

    def killed(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr(policy.tokenizer, "save_pretrained", killed)
    with pytest.raises(KeyboardInterrupt):
        policy.save(tmp_path / "p")
    assert sorted((f.name, f.read_bytes()) for f in (tmp_path / "p").iterdir()) == before
    assert [f.name for f in tmp_path.iterdir()] == ["p"]


@pytest.mark.parametrize("tied", [True, False])
def test_parts_hold_every_trained_parameter_once(tied):
    model = tiny_model("llama")
    if not tied:
        model.config.tie_word_embeddings = False
        model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().clone())
    policy = TextPolicy(model, character_tokenizer(ALPHABET), device="cpu")
    policy.add_value_head()
    parts = policy.parameters_by_part()
    assert set(parts) == ({"backbone", "value"} if tied else {"backbone", "head", "value"})
    listed = [id(p) for parameters in parts.values() for p in parameters]
    assert sorted(listed) == sorted(id(p) for p in policy.trainable())
    assert len(set(listed)) == len(listed)
    assert isinstance(policy, Policy)


def test_dropout_is_named_and_off():
    model = tiny_model("gpt2")
    model.config.resid_pdrop = 0.1
    for block in model.transformer.h:
        block.attn.resid_dropout.p = 0.1
    with pytest.warns(UserWarning, match=r"resid_pdrop=0\.1"):
        policy = TextPolicy(model.train(), character_tokenizer(ALPHABET), device="cpu")
    batch = batch_of(ROWS)
    assert torch.equal(policy.score(batch)["logp"], policy.score(batch)["logp"])


def test_end_tokens_come_from_tokenizer_generation_settings_and_chat_template():
    model = tiny_model("llama")
    tokenizer = character_tokenizer(ALPHABET)
    assert text_module.end_ids(model, tokenizer) == ((1,), "")
    model.generation_config.eos_token_id = [5, 1]
    assert text_module.end_ids(model, tokenizer)[0] == (1, 5)
    tokenizer.add_special_tokens({"additional_special_tokens": ["<turn>"]})
    tokenizer.chat_template = "{% for m in messages %}{{ m['content'] + '<turn>' }}{% endfor %}"
    # Its letters are not in the alphabet, so the probe conversation cannot be encoded but the end can.
    ids, warning = text_module.end_ids(model, tokenizer)
    assert ids == (1, 5, tokenizer.convert_tokens_to_ids("<turn>")) and "<turn>" in warning
