import pytest
import torch
from transformers import (
    BloomConfig,
    BloomForCausalLM,
    CohereConfig,
    CohereForCausalLM,
    GraniteConfig,
    GraniteForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MambaConfig,
    MambaForCausalLM,
)

from interlace.policies import TextPolicy, packing
from interlace.policies.probe import UnsupportedModel, probe
from interlace.policies.scratch import character_tokenizer
from tests.policies.build import ALPHABET, FAMILIES, batch_of, plain_logp, random_rows, tiny_model

SMALL = {"vocab_size": 20, "hidden_size": 16, "num_hidden_layers": 2, "eos_token_id": 1, "pad_token_id": 0}
ATTENTION = {"num_attention_heads": 2, "num_key_value_heads": 1, "intermediate_size": 24}
ROWS = random_rows([(3, 4), (7, 2), (1, 9)])


def loud(model):
    """Weights large enough that every part of the model matters."""
    g = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim == 2 and "A_log" not in name:
                parameter.normal_(0, 0.3, generator=g)
    return model.eval()


def policy_of(model):
    return TextPolicy(model, character_tokenizer(ALPHABET), device="cpu")


def assert_scores_as_plain(policy):
    with torch.no_grad():
        expected = plain_logp(policy.model, ROWS)
    got = policy.score(batch_of(ROWS), grad=False)["logp"]
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("arch", FAMILIES)
def test_common_families_are_packed(arch):
    found = probe(tiny_model(arch))
    assert (found.path, found.warning) == ("packed", "")


def test_recurrent_models_go_row_by_row_with_a_warning():
    with pytest.warns(UserWarning, match="MambaForCausalLM is scored one_by_one"):
        policy = policy_of(loud(MambaForCausalLM(MambaConfig(**SMALL, state_size=4))))
    assert policy.scoring_path == "one_by_one" and "recurrent" in policy.warnings[0]
    assert_scores_as_plain(policy)


def test_models_with_their_own_attention_are_padded():
    with pytest.warns(UserWarning, match="BloomForCausalLM is scored padded"):
        policy = policy_of(loud(BloomForCausalLM(BloomConfig(**SMALL, n_head=2))))
    assert policy.scoring_path == "padded"
    assert_scores_as_plain(policy)


def test_rotary_scaling_that_depends_on_the_batch_goes_row_by_row():
    rope = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}
    config = LlamaConfig(**SMALL, **ATTENTION, max_position_embeddings=64, rope_scaling=rope)
    with pytest.warns(UserWarning, match="rotary scaling"):
        assert policy_of(loud(LlamaForCausalLM(config))).scoring_path == "one_by_one"


@pytest.mark.parametrize(
    ("config", "model", "scale"),
    [
        (GraniteConfig(**SMALL, **ATTENTION, logits_scaling=4.0), GraniteForCausalLM, 0.25),
        (CohereConfig(**SMALL, **ATTENTION, logit_scale=0.5), CohereForCausalLM, 0.5),
    ],
)
def test_scaled_logits_are_found(config, model, scale):
    policy = policy_of(loud(model(config)))
    assert policy.head.scale == scale and policy.scoring_path == "packed"
    assert_scores_as_plain(policy)


def test_the_soft_cap_of_the_logits_is_found():
    model = tiny_model("gemma2")
    model.config.final_logit_softcapping = 1.5
    assert probe(model).softcap == 1.5
    assert_scores_as_plain(policy_of(model))


def test_a_packed_path_that_disagrees_is_not_taken(monkeypatch):
    attend = packing._attend
    monkeypatch.setattr(packing, "_attend", lambda q, k, v, *rest: attend(q, k.flip(2), v, *rest))
    found = probe(tiny_model("llama"))
    assert found.path == "padded" and "packed rows differ from single ones" in found.warning


def test_a_head_that_is_not_linear_is_refused(monkeypatch):
    model = tiny_model("llama")
    forward = model.forward

    def squared(*args, **kwargs):
        out = forward(*args, **kwargs)
        out.logits = out.logits.square()
        return out

    monkeypatch.setattr(model, "forward", squared)
    with pytest.raises(UnsupportedModel, match="not a scaled or soft-capped linear map"):
        probe(model)
