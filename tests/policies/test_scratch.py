import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, AutoTokenizer

from interlace.policies.scratch import (
    ARCHITECTURES,
    PRINTABLE,
    SIZES,
    build_model,
    character_tokenizer,
    parse_spec,
)

TOKENIZER = character_tokenizer()


def make(spec, seed=0, vocabulary=64):
    return build_model(parse_spec(spec), vocabulary, 1, 0, seed)


@given(st.text(alphabet=PRINTABLE))
def test_text_survives_encoding_and_decoding(text):
    ids = TOKENIZER(text).input_ids
    assert len(ids) == len(text)
    assert TOKENIZER.decode(ids) == text


def test_every_character_has_its_own_id_after_the_two_special_ones():
    tokenizer = character_tokenizer("ba\né a")
    assert len(tokenizer) == 2 + 5
    assert (tokenizer.pad_token_id, tokenizer.eos_token_id, tokenizer.unk_token_id) == (0, 1, None)
    assert tokenizer("\n abé").input_ids == [2, 3, 4, 5, 6]
    assert tokenizer.decode([4, 1, 0, 5], skip_special_tokens=True) == "ab"


def test_a_character_outside_the_alphabet_is_an_error_also_after_saving(tmp_path):
    tokenizer = character_tokenizer("abc")
    tokenizer.save_pretrained(tmp_path)
    for each in (tokenizer, AutoTokenizer.from_pretrained(tmp_path)):
        assert each("cab").input_ids == [4, 2, 3]
        with pytest.raises(Exception, match="UNK"):
            each("abx")


def test_an_alphabet_of_words_is_refused():
    with pytest.raises(ValueError, match="single characters"):
        character_tokenizer(["a", "bc"])
    with pytest.raises(ValueError, match="at least one"):
        character_tokenizer("")


@pytest.mark.parametrize(("size", "parameters"), [("nano", 0.37e6), ("1m", 1.06e6), ("5m", 5.13e6)])
def test_sizes_have_the_parameters_they_are_named_for(size, parameters):
    count = sum(p.numel() for p in make(f"scratch:{size}").parameters())
    assert count == pytest.approx(parameters, rel=0.02)


def test_weights_are_a_function_of_the_seed_alone():
    torch.manual_seed(5)
    before = torch.get_rng_state()
    first, second, other = make("scratch:nano", 3), make("scratch:nano", 3), make("scratch:nano", 4)
    assert torch.equal(torch.get_rng_state(), before)
    for a, b in zip(first.parameters(), second.parameters()):
        assert torch.equal(a, b)
    assert not torch.equal(first.lm_head.weight, other.lm_head.weight)


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_every_architecture_saves_and_loads_with_transformers(arch, tmp_path):
    model = make(f"scratch:nano,arch={arch},layers=2,hidden=32,positions=48")
    model.save_pretrained(tmp_path)
    again = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert again.config.max_position_embeddings == 48
    assert again.get_input_embeddings().weight is again.get_output_embeddings().weight
    ids = torch.arange(2, 12)[None]
    with torch.no_grad():
        assert torch.equal(again(input_ids=ids).logits, model(input_ids=ids).logits)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("scratch:nanno", "did you mean 'nano'"),
        ("scratch:nano,archs=gpt2", "did you mean 'arch'"),
        ("scratch:nano,arch=lama", "did you mean 'llama'"),
        ("scratch:nano,layers=0", "positive integer"),
        ("scratch:nano,layers=two", "positive integer"),
        ("scratch:nano,hidden=97", "multiple of heads"),
    ],
)
def test_malformed_specs_name_what_is_accepted(spec, message):
    with pytest.raises(ValueError, match=message):
        parse_spec(spec)


@pytest.mark.parametrize(
    ("spec", "message"),
    [("scratch:nano,window=4", "sliding window"), ("scratch:nano,kv_heads=3", "multiple")],
)
def test_impossible_shapes_are_refused(spec, message):
    with pytest.raises(ValueError, match=message):
        make(spec)


def test_sizes_are_listed_from_small_to_large():
    assert list(SIZES) == ["nano", "1m", "5m"]
