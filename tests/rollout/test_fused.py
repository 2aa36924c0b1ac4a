"""The hand-written loop equals the model's own forward."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from interlace.rollout import LocalEngine
from interlace.rollout.decoders import Unsupported, prefill_chunks
from interlace.rollout.fused import FusedDecoder
from tests.rollout.tiny import PROMPTS, greedy_by_hand, request, teacher_forced_logits, tiny_model

ROPES: dict[str, dict[str, Any]] = {
    "linear": {"rope_type": "linear", "factor": 4.0, "rope_theta": 10000.0},
    "llama3": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 32,
        "rope_theta": 10000.0,
    },
    "yarn": {
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 32,
        "rope_theta": 10000.0,
    },
}


@pytest.mark.parametrize("rope", ROPES)
def test_scaled_rotary_embeddings_are_the_models_own(rope: str) -> None:
    model = tiny_model("llama", rope_parameters=ROPES[rope])
    engine = LocalEngine(model, path="fused")
    asked = [request(p, [i], temperature=0, max_tokens=20) for i, p in enumerate(PROMPTS)]
    for prompt, (completion,) in zip(PROMPTS, engine.generate(asked, seed=0, step=0), strict=True):
        assert list(completion.ids) == greedy_by_hand(model, prompt, 20)


def test_rotary_embeddings_that_change_with_the_length_are_left_to_the_model() -> None:
    model = tiny_model(
        "llama", rope_parameters={"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}
    )
    with pytest.raises(Unsupported, match="'dynamic'"):
        FusedDecoder(model)
    assert LocalEngine(model).path == "generic"


def test_layers_with_and_without_a_window_are_told_apart() -> None:
    model = tiny_model(
        "qwen3",
        use_sliding_window=True,
        sliding_window=4,
        layer_types=["full_attention", "sliding_attention", "full_attention"],
    )
    engine = LocalEngine(model, path="fused")
    asked = [request(p, [i], temperature=0, max_tokens=15) for i, p in enumerate(PROMPTS)]
    for prompt, (completion,) in zip(PROMPTS, engine.generate(asked, seed=0, step=0), strict=True):
        assert list(completion.ids) == greedy_by_hand(model, prompt, 15)


def test_long_prompts_are_prefilled_in_several_forwards(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model("llama")
    asked = [request(p, [i], temperature=0) for i, p in enumerate(PROMPTS)]
    expected = LocalEngine(model).generate(asked, seed=0, step=0)
    monkeypatch.setattr("interlace.rollout.decoders.PREFILL_TOKENS", 10)
    # Prompts of 3, 5 and 10 tokens: two of them are 2 x 5, all three would be 3 x 10.
    by_length = sorted(PROMPTS, key=len)
    assert [by_length[c] for c in prefill_chunks(by_length)] == [by_length[:2], by_length[2:]]
    for path in ("fused", "generic"):
        assert LocalEngine(model, path=path).generate(asked, seed=0, step=0) == expected


def test_bfloat16_stays_near_the_model_in_bfloat16() -> None:
    model = tiny_model("llama", torch.bfloat16, initializer_range=0.1)
    engine = LocalEngine(model)
    assert engine.path == "fused" and engine.dtype == torch.bfloat16
    asked = request(PROMPTS[0], range(4), max_tokens=8)
    for completion in engine.generate([asked], seed=0, step=0)[0]:
        logp = teacher_forced_logits(model, PROMPTS[0], completion).float().log_softmax(-1)
        found = torch.tensor(completion.logp)
        expected = logp.gather(-1, torch.tensor(completion.ids)[:, None])[:, 0]
        assert torch.allclose(found, expected, atol=0.05)


def test_a_lower_precision_can_be_asked_for() -> None:
    model = tiny_model("llama", torch.float32, initializer_range=0.1)
    exact = LocalEngine(model)
    rough = LocalEngine(model, dtype=torch.bfloat16)
    assert rough.dtype == torch.bfloat16 and exact.dtype == torch.float32
    asked = request(PROMPTS[0], [0], max_tokens=1)
    a, b = (e.generate([asked], seed=0, step=0)[0][0] for e in (exact, rough))
    assert a.ids == b.ids and a.logp != b.logp
    assert a.logp == pytest.approx(b.logp, abs=0.05)


@pytest.mark.parametrize("merged", [False, True])
def test_a_lora_adapter_is_part_of_the_weights(merged: bool) -> None:
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(
        r=4, target_modules=["q_proj", "v_proj", "up_proj", "o_proj"], init_lora_weights=False
    )
    model = peft.get_peft_model(tiny_model("llama"), config).double().eval()
    if merged:
        model.merge_adapter()
    engine = LocalEngine(model)
    assert engine.path == "fused"
    asked = request(PROMPTS[0], [0], temperature=0)
    found = engine.generate([asked], seed=0, step=0)[0][0]
    assert list(found.ids) == greedy_by_hand(model, PROMPTS[0], 12)
    with model.disable_adapter():
        without = engine.generate([asked], seed=0, step=0)[0][0]
        assert list(without.ids) == greedy_by_hand(model, PROMPTS[0], 12)
    assert without != found
    assert engine.generate([asked], seed=0, step=0)[0][0] == found


def test_an_updated_lora_adapter_is_noticed() -> None:
    peft = pytest.importorskip("peft")
    model = peft.get_peft_model(
        tiny_model("llama"), peft.LoraConfig(r=4, target_modules="all-linear")
    ).double()
    engine = LocalEngine(model)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=0.3)
    for _ in range(2):
        model(input_ids=torch.tensor([PROMPTS[2]]), labels=torch.tensor([PROMPTS[2]])).loss.backward()
        optimizer.step()
    found = engine.generate([request(PROMPTS[0], [0], temperature=0)], seed=0, step=0)[0][0]
    model.eval()
    assert list(found.ids) == greedy_by_hand(model, PROMPTS[0], 12)


def test_an_adapter_that_is_no_sum_is_left_to_the_model() -> None:
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(r=4, target_modules=["q_proj"], use_dora=True, init_lora_weights=False)
    model = peft.get_peft_model(tiny_model("llama"), config).double().eval()
    engine = LocalEngine(model)
    assert engine.path == "generic"
    found = engine.generate([request(PROMPTS[0], [0], temperature=0)], seed=0, step=0)[0][0]
    assert list(found.ids) == greedy_by_hand(model, PROMPTS[0], 12)
