"""Laws of the embedded engine, over decoders and architectures."""

from __future__ import annotations

import inspect
import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from transformers.generation.logits_process import MinPLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from interlace.rollout import LocalEngine, tape
from interlace.types import Finish
from tests.policies.build import tiny_policy
from tests.rollout.tiny import (
    PROMPTS,
    VOCABULARY,
    greedy_by_hand,
    request,
    teacher_forced_logits,
    tiny_model,
)

PATH_OF = {
    "llama": "fused",
    "llama-biased": "fused",
    "qwen2": "fused",
    "qwen3": "fused",
    "mistral": "fused",
    "gemma2": "generic",
    "gemma3": "generic",
    "gpt2": "generic",
    "mamba": "transformers",
}
EVERY_PATH = [("llama", "fused"), ("mistral", "fused"), ("llama", "generic"), ("gemma3", "generic")]
EVERY_PATH += [("gpt2", "generic"), ("llama", "transformers")]


def _ids(groups: Sequence[Sequence[Any]]) -> list[list[tuple[int, ...]]]:
    return [[completion.ids for completion in group] for group in groups]


@pytest.mark.parametrize("name", PATH_OF)
def test_greedy_equals_generate_of_transformers(name: str) -> None:
    model = tiny_model(name)
    engine = LocalEngine(model)
    assert engine.path == PATH_OF[name]
    requests = [request(p, [i], temperature=0, max_tokens=20) for i, p in enumerate(PROMPTS)]
    completions = engine.generate(requests, seed=0, step=0)
    for prompt, (completion,) in zip(PROMPTS, completions, strict=True):
        ids = torch.tensor([prompt])
        generated = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            max_new_tokens=20,
            eos_token_id=None,
            pad_token_id=0,
        )
        assert list(completion.ids) == generated[0, len(prompt) :].tolist()
        assert completion.logp == (0.0,) * 20 and completion.finish is Finish.LENGTH


@pytest.mark.parametrize(("name", "path"), EVERY_PATH)
def test_every_decoder_gives_the_same_greedy_completions(name: str, path: str) -> None:
    model = tiny_model(name)
    engine = LocalEngine(model, path=path, max_rows=2)
    requests = [request(p, [i], temperature=0, max_tokens=9 + i) for i, p in enumerate(PROMPTS)]
    found = _ids(engine.generate(requests, seed=0, step=0))
    assert found == [[tuple(greedy_by_hand(model, p, 9 + i))] for i, p in enumerate(PROMPTS)]


@pytest.mark.parametrize(("name", "path"), EVERY_PATH)
def test_completions_do_not_depend_on_the_batch(name: str, path: str) -> None:
    """Nor on the number of rows in flight, the order of requests, or what else is asked."""
    model = tiny_model(name)
    knobs: list[dict[str, Any]] = [
        {"temperature": 1.0, "max_tokens": 8},
        {"temperature": 0.6, "top_p": 0.9, "max_tokens": 5},
        {"temperature": 1.4, "top_k": 9, "min_p": 0.02, "max_tokens": 12},
        {"temperature": 0, "max_tokens": 4},
    ]
    requests = [
        request(PROMPTS[i % 3], range(10 * i, 10 * i + 3), stop_ids=(4, 5, 6, 7), **k)
        for i, k in enumerate(knobs)
    ]
    engine = LocalEngine(model, path=path)
    together = engine.generate(requests, seed=3, step=5)
    single = LocalEngine(model, path=path, max_rows=1)
    alone = [single.generate([r], seed=3, step=5)[0] for r in requests]
    backwards = LocalEngine(model, path=path, max_rows=5).generate(requests[::-1], seed=3, step=5)[::-1]
    assert len({c.ids for group in together[:3] for c in group}) > 5
    for other in (alone, backwards):
        assert _ids(other) == _ids(together)
        for group, other_group in zip(together, other, strict=True):
            for a, b in zip(group, other_group, strict=True):
                assert a.logp == pytest.approx(b.logp, abs=1e-10) and a.finish is b.finish


def test_a_group_may_be_split_into_requests() -> None:
    engine = LocalEngine(tiny_model("llama"))
    whole = engine.generate([request(PROMPTS[0], range(6))], seed=0, step=0)
    parts = engine.generate([request(PROMPTS[0], [4, 2]), request(PROMPTS[0], [0])], seed=0, step=0)
    assert _ids(parts) == [[whole[0][4].ids, whole[0][2].ids], [whole[0][0].ids]]


@pytest.mark.parametrize("change", [{"seed": 1}, {"step": 1}, {"row": 1}])
def test_completions_change_with_seed_step_and_row(change: dict[str, int]) -> None:
    engine = LocalEngine(tiny_model("llama"))

    def sample(seed: int = 0, step: int = 0, row: int = 0) -> tuple[int, ...]:
        return engine.generate([request(PROMPTS[0], [row])], seed=seed, step=step)[0][0].ids

    assert sample() == sample() != sample(**change)


@pytest.mark.parametrize("path", ["fused", "generic"])
def test_a_row_continued_from_its_own_prefix_says_the_same(path: str) -> None:
    """Positions count from the start of the response, prefix included."""
    engine = LocalEngine(tiny_model("llama"), path=path)
    whole = engine.generate([request(PROMPTS[0], [7], max_tokens=12)], seed=2, step=1)[0][0]
    rest = engine.generate([request(PROMPTS[0], [7], prefix=whole.ids[:5], max_tokens=7)], seed=2, step=1)
    assert rest[0][0].ids == whole.ids[5:]
    assert rest[0][0].logp == pytest.approx(whole.logp[5:], abs=1e-10)


def test_prompt_hint_and_prefix_are_read_in_this_order() -> None:
    model = tiny_model("llama")
    asked = request((3, 14), [0], hint=(15, 9), prefix=(26, 5), temperature=0, max_tokens=6)
    found = LocalEngine(model).generate([asked], seed=0, step=0)[0][0]
    assert list(found.ids) == greedy_by_hand(model, (3, 14, 15, 9, 26, 5), 6)


@pytest.mark.parametrize(("name", "path"), EVERY_PATH)
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_scores_right_after_sampling_equal_the_sampler(name: str, path: str, temperature: float) -> None:
    model = tiny_model(name, torch.float32, initializer_range=0.1)
    engine = LocalEngine(model, path=path, max_rows=4)
    requests = [
        request(p, [10 * i, 10 * i + 1], temperature=temperature, max_tokens=24)
        for i, p in enumerate(PROMPTS)
    ]
    for prompt, group in zip(PROMPTS, engine.generate(requests, seed=0, step=0), strict=True):
        for completion in group:
            logits = teacher_forced_logits(model, prompt, completion) / temperature
            expected = logits.log_softmax(-1).gather(-1, torch.tensor(completion.ids)[:, None])[:, 0]
            assert completion.logp == pytest.approx(expected.tolist(), abs=1e-5)


def test_log_probabilities_are_those_of_the_truncated_distribution() -> None:
    model = tiny_model("llama")
    asked = request(PROMPTS[0], range(8), temperature=1.5, top_k=20, top_p=0.8, min_p=0.05, max_tokens=16)
    for completion in LocalEngine(model).generate([asked], seed=0, step=0)[0]:
        logits = teacher_forced_logits(model, PROMPTS[0], completion) / 1.5
        for warper in (TopKLogitsWarper(20), TopPLogitsWarper(0.8), MinPLogitsWarper(0.05)):
            logits = warper(None, logits)
        expected = logits.log_softmax(-1).gather(-1, torch.tensor(completion.ids)[:, None])[:, 0]
        assert completion.logp == pytest.approx(expected.tolist(), abs=1e-10)


def test_an_end_token_ends_the_row_and_is_kept() -> None:
    model = tiny_model("llama")
    free = LocalEngine(model).generate([request(PROMPTS[0], [0], temperature=0)], seed=0, step=0)[0][0]
    end = free.ids[4]
    first = free.ids.index(end)
    for engine, asked in (
        (LocalEngine(model, eos_ids=[end]), request(PROMPTS[0], [0], temperature=0)),
        (LocalEngine(model), request(PROMPTS[0], [0], temperature=0, stop_ids=(end,))),
    ):
        ended = engine.generate([asked], seed=0, step=0)[0][0]
        assert ended.ids == free.ids[: first + 1] and ended.finish is Finish.STOP
        assert len(ended.logp) == first + 1


def test_a_row_at_its_limit_gets_no_end_token() -> None:
    model = tiny_model("llama")
    asked = request(PROMPTS[0], range(20), max_tokens=2)
    for completion in LocalEngine(model, eos_ids=[VOCABULARY - 1]).generate([asked], seed=0, step=0)[0]:
        assert completion.finish is (Finish.STOP if VOCABULARY - 1 in completion.ids else Finish.LENGTH)
        assert len(completion.ids) == 2 or completion.ids[-1] == VOCABULARY - 1


def test_an_end_token_as_the_last_allowed_token_is_a_stop() -> None:
    model = tiny_model("llama")
    first = greedy_by_hand(model, PROMPTS[0], 1)
    asked = request(PROMPTS[0], [0], temperature=0, max_tokens=1)
    completion = LocalEngine(model, eos_ids=first).generate([asked], seed=0, step=0)[0][0]
    assert completion.ids == tuple(first) and completion.finish is Finish.STOP


class _Letters:
    """Token i is the i-th letter, cyclically."""

    def decode(self, ids: Sequence[int], **_: Any) -> str:
        return "".join("abcdefghijklmnopqrstuvwxyz"[i % 26] for i in ids)


def test_a_stop_string_ends_the_row_at_the_token_that_completes_it() -> None:
    model, letters = tiny_model("llama"), _Letters()
    free = greedy_by_hand(model, PROMPTS[0], 12)
    text = letters.decode(free)
    stop = text[3:6]
    asked = request(PROMPTS[0], [0], temperature=0, stop=("never said", stop))
    stopped = LocalEngine(model, letters).generate([asked], seed=0, step=0)[0][0]
    assert stopped.ids == tuple(free[: text.index(stop) + 3]) and stopped.finish is Finish.STOP


def test_a_stop_string_in_the_prefix_does_not_end_the_row() -> None:
    model = tiny_model("llama")
    asked = request(PROMPTS[0], [0], prefix=(0, 1, 2), temperature=0, max_tokens=3, stop=("abc",))
    completion = LocalEngine(model, _Letters()).generate([asked], seed=0, step=0)[0][0]
    assert list(completion.ids) == greedy_by_hand(model, (*PROMPTS[0], 0, 1, 2), 3)


@pytest.mark.parametrize("path", ["fused", "generic"])
def test_a_prompt_is_prefilled_once_and_finished_rows_are_not_computed(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = LocalEngine(tiny_model("llama"), eos_ids=[4, 5, 6, 7, 8], path=path)
    prefilled: list[int] = []
    stepped: list[int] = []
    admit, step = engine._decoder.admit, engine._decoder.step

    def count_prompts(prompts: Any, copies: Any) -> torch.Tensor:
        prefilled.append(len(prompts))
        return admit(prompts, copies)

    def count_rows(tokens: torch.Tensor) -> torch.Tensor:
        stepped.append(len(tokens))
        return step(tokens)

    monkeypatch.setattr(engine._decoder, "admit", count_prompts)
    monkeypatch.setattr(engine._decoder, "step", count_rows)
    requests = [request(p, range(8 * i, 8 * i + 8), max_tokens=30) for i, p in enumerate(PROMPTS)]
    completions = engine.generate(requests, seed=0, step=0)
    assert prefilled == [3]
    lengths = [len(c.ids) for group in completions for c in group]
    assert len(set(lengths)) > 5
    # Every token but a row's last is fed exactly once.
    assert sum(stepped) == sum(lengths) - len(lengths)


@pytest.mark.parametrize("path", ["fused", "generic"])
def test_the_cache_slides_and_grows_without_changing_anything(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny_model("mistral")
    requests = [request(PROMPTS[i % 3], [i], max_tokens=4 + 7 * (i % 4), stop_ids=(4, 5)) for i in range(14)]
    expected = _ids(LocalEngine(model, path=path).generate(requests, seed=1, step=1))
    monkeypatch.setattr(tape, "BLOCK", 3)
    engine = LocalEngine(model, path=path, max_rows=4)
    assert _ids(engine.generate(requests, seed=1, step=1)) == expected
    assert _ids(engine.generate(requests, seed=1, step=1)) == expected


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_new_weights_are_used_after_an_optimizer_step(name: str) -> None:
    model = tiny_model(name)
    engine = LocalEngine(model)
    asked = request(PROMPTS[0], [0], temperature=0)
    before = engine.generate([asked], seed=0, step=0)[0][0].ids
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    model(input_ids=torch.tensor([PROMPTS[2]]), labels=torch.tensor([PROMPTS[2]])).loss.backward()
    optimizer.step()
    after = engine.generate([asked], seed=0, step=0)[0][0].ids
    assert list(after) == greedy_by_hand(model, PROMPTS[0], 12)
    assert after != before


def test_refresh_reads_weights_that_were_changed_behind_autograd() -> None:
    model = tiny_model("llama")
    engine = LocalEngine(model)
    asked = request(PROMPTS[0], [0], temperature=0)
    before = engine.generate([asked], seed=0, step=0)[0][0].ids
    for parameter in model.parameters():
        parameter.data.mul_(-1.3)
    engine.refresh()
    after = engine.generate([asked], seed=0, step=0)[0][0].ids
    assert list(after) == greedy_by_hand(model, PROMPTS[0], 12)
    assert after != before


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_sampling_leaves_the_model_as_it_was(name: str) -> None:
    model = tiny_model(name)
    engine = LocalEngine(model)
    expected = greedy_by_hand(model, PROMPTS[0], 12)
    model.train()
    next(m for m in model.modules() if isinstance(m, torch.nn.LayerNorm | torch.nn.Linear)).eval()
    flags = [m.training for m in model.modules()]
    model(input_ids=torch.tensor([PROMPTS[1]]), labels=torch.tensor([PROMPTS[1]])).loss.backward()
    gradients = [p.grad.clone() for p in model.parameters()]
    found = engine.generate([request(PROMPTS[0], [0], temperature=0)], seed=0, step=0)[0][0]
    # GPT-2 has dropout: in training mode its argmax would wander.
    assert list(found.ids) == expected
    assert [m.training for m in model.modules()] == flags
    assert all(torch.equal(p.grad, g) for p, g in zip(model.parameters(), gradients, strict=True))
    assert torch.is_grad_enabled()
    model(input_ids=torch.tensor([PROMPTS[1]]), labels=torch.tensor([PROMPTS[1]])).loss.backward()


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_weights_that_are_not_finite_raise_and_leave_no_trace(name: str) -> None:
    model = tiny_model(name)
    engine = LocalEngine(model, max_rows=3)
    # The long prompt enters beside two short ones that are still going on, and reaches further back.
    requests = [request(PROMPTS[1], [i], temperature=0, max_tokens=n) for i, n in enumerate((2, 20, 20))]
    requests.append(request(PROMPTS[2], [3], temperature=0, max_tokens=4))
    expected = engine.generate(requests, seed=0, step=0)
    embedding = model.get_input_embeddings().weight
    good = embedding.detach().clone()
    with torch.no_grad():
        embedding.fill_(math.nan)
    model.train()
    with pytest.raises(FloatingPointError, match="diverged"):
        engine.generate([request(PROMPTS[2], [0, 1, 2])], seed=0, step=0)
    assert model.training
    with torch.no_grad():
        embedding.copy_(good)
    # The broken run wrote what is not a number into the columns before the short prompts.
    assert engine.generate(requests, seed=0, step=0) == expected


def test_the_model_with_other_arithmetic_is_not_taken_for_a_llama() -> None:
    """A fast path must agree with the plain forward, or the next one is taken."""
    model = tiny_model("llama")
    plain = type(model).forward

    class Capped(type(model)):  # type: ignore[misc]
        def forward(self, *args: Any, **kwargs: Any) -> Any:
            out = plain(self, *args, **kwargs)
            out.logits = 2.0 * torch.tanh(out.logits / 2.0)
            return out

    Capped.forward.__signature__ = inspect.signature(plain)  # type: ignore[attr-defined]
    model.__class__ = Capped
    engine = LocalEngine(model)
    assert engine.path == "generic"
    with pytest.raises(ValueError, match=r"fused: differs from the model's forward by"):
        LocalEngine(model, path="fused")
    asked = request(PROMPTS[0], [0], max_tokens=6)
    completion = engine.generate([asked], seed=0, step=0)[0][0]
    logp = teacher_forced_logits(model, PROMPTS[0], completion).log_softmax(-1)
    assert completion.logp == pytest.approx(
        [logp[i, t].item() for i, t in enumerate(completion.ids)], abs=1e-6
    )


def test_an_unsupported_request_is_refused_before_anything_is_sampled() -> None:
    engine = LocalEngine(tiny_model("llama"), eos_ids=[2])
    good = request(PROMPTS[0], [0])
    for bad, message in (
        (
            request([3] * 129, [1]),
            r"request 1 \(problem 'p1'\): 129 prompt tokens.*the prompt alone is too long",
        ),
        (request([3] * 120, [1]), r"120 prompt tokens and max_tokens=12 need 131 positions.*at most 9"),
        (request([], [1]), "empty prompt"),
        (request([VOCABULARY], [1]), rf"token id {VOCABULARY} .* 0 \.\. {VOCABULARY - 1}"),
        (request([-1], [1]), "token id -1"),
        (request(PROMPTS[0], [0]), "row id 0 is used twice"),
        (request(PROMPTS[0], [1], stop=("x",)), "stop strings need a tokenizer"),
    ):
        with pytest.raises(ValueError, match=message):
            engine.generate([good, bad], seed=0, step=0)
    with pytest.raises(ValueError, match="2 continuations but 1 row ids"):
        engine.generate([type(good)(**{**good.__dict__, "n": 2})], seed=0, step=0)
    with pytest.raises(ValueError, match="has no sampling"):
        engine.generate([type(good)(**{**good.__dict__, "sampling": None})], seed=0, step=0)


def test_a_row_may_fill_every_position() -> None:
    for name in ("llama", "gpt2"):
        model = tiny_model(name)
        asked = request([3] * 120, [0], temperature=0, max_tokens=9)
        assert len(LocalEngine(model).generate([asked], seed=0, step=0)[0][0].ids) == 9


def test_options_are_checked() -> None:
    model = tiny_model("llama")
    with pytest.raises(ValueError, match="accepted are fused, generic, transformers"):
        LocalEngine(model, path="vllm")
    with pytest.raises(ValueError, match="max_rows=0"):
        LocalEngine(model, max_rows=0)
    with pytest.raises(ValueError, match="'gpt2' is not one of"):
        LocalEngine(tiny_model("gpt2"), path="fused")
    with pytest.warns(UserWarning, match="runs in the model's own"):
        LocalEngine(tiny_model("gpt2"), dtype=torch.bfloat16)


def test_an_engine_for_a_policy_takes_its_model_tokenizer_and_end_tokens() -> None:
    policy = tiny_policy("llama")
    engine = LocalEngine.for_policy(policy, max_rows=3)
    assert engine.path == "fused" and engine.max_rows == 3
    assert engine.eos_ids == frozenset(policy.eos_ids)
    free = greedy_by_hand(policy.model, PROMPTS[1][:1], 5)
    stop = policy.tokenizer.decode(free[1:3])
    asked = request(PROMPTS[1][:1], [0], temperature=0, max_tokens=5, stop=(stop,))
    found = engine.generate([asked], seed=0, step=0)[0][0]
    assert list(found.ids) == free[: len(found.ids)] and stop in policy.tokenizer.decode(found.ids)
    assert len(found.ids) <= 3


def test_no_requests_and_no_rows_are_fine() -> None:
    engine = LocalEngine(tiny_model("llama"))
    assert engine.generate([], seed=0, step=0) == []
    assert engine.generate([request(PROMPTS[0], [])], seed=0, step=0) == [[]]


@pytest.mark.slow
def test_greedy_equals_generate_of_transformers_on_smollm2() -> None:
    transformers = pytest.importorskip("transformers")
    from interlace.policies.smollm2 import cached_smollm2

    directory = cached_smollm2()
    if directory is None:
        pytest.skip("SmolLM2 has not been downloaded")
    model = transformers.AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
    engine = LocalEngine(model, tokenizer)
    assert engine.path == "fused"
    prompts = [
        tokenizer.encode(t) for t in ("The capital of France is", "1, 2, 3, 4,", "def add(a, b):\n    ")
    ]
    requests = [request(p, [i], temperature=0, max_tokens=24) for i, p in enumerate(prompts)]
    for prompt, (completion,) in zip(prompts, engine.generate(requests, seed=0, step=0), strict=True):
        ids = torch.tensor([prompt])
        out = model.generate(
            ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=24, eos_token_id=None
        )
        assert list(completion.ids) == out[0, len(prompt) :].tolist()
