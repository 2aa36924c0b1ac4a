"""The meter against costs counted by hand."""

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from interlace.policies import load_policy, meter
from interlace.policies.meter import Size, Work, sampling
from interlace.rollout import LocalEngine
from interlace.training.collect import pack
from interlace.types import Problem, SampleRequest, Sampling, Source, Trajectory

MODEL = "scratch:nano,layers=2,hidden=8,heads=2,ffn=12"
# A layer: q, k, v, o of 8x8 and gate, up, down of 8x12: 4 * 64 + 3 * 96 = 544. Two layers.
MATRICES, ATTENTION, HEAD = 1088, 16, 8 * 12


@pytest.fixture
def policy():
    return load_policy(MODEL, alphabet="0123456789", seed=0)  # with <pad> and <eos>: 12 tokens


def row(prompt, response, i=0):
    source = [Source.PROMPT] * prompt + [Source.DEMO] * response
    return Trajectory(i, [2 + k % 5 for k in range(prompt + response)], source, i, Problem(str(i), ""))


def spent(act):
    before = meter.done()
    act()
    return meter.done() - before


def test_a_model_is_sized_by_its_linear_layers(policy) -> None:
    assert Size.of(policy.model) == Size(MATRICES, MATRICES, ATTENTION, HEAD, True)


def test_a_forward_pass_costs_two_operations_a_weight_and_four_a_pair_and_head_dimension(policy) -> None:
    # Rows of 5 and 4 tokens: 4 + 3 are read, attending to 1+2+3+4 and 1+2+3 tokens; 3 + 2 are chosen.
    batch = pack([row(2, 3), row(2, 2, 1)])
    work = spent(lambda: policy.score(batch, grad=False))
    forward = 2 * MATRICES * 7 + 4 * ATTENTION * (10 + 6) + 2 * HEAD * 5
    assert work == Work(score=forward, scored=7)


def test_training_a_token_costs_three_forward_passes(policy) -> None:
    batch = pack([row(2, 3)])

    def step():
        statistics = policy.score(batch)
        policy.backward(statistics, {"logp": torch.ones(3)})

    assert spent(step) == Work(train=3 * (2 * MATRICES * 4 + 4 * ATTENTION * 10 + 2 * HEAD * 3), trained=4)


def test_what_is_frozen_costs_no_gradient_of_weights(policy) -> None:
    for name, p in policy.model.named_parameters():
        p.requires_grad_("mlp" in name)
    size = Size.of(policy.model)
    assert (size.trained, size.head_trained) == (2 * 3 * 96, False)
    assert size.backward(1, 0, 0) == 2 * MATRICES + 2 * 576


def test_sampling_reads_a_prompt_once_and_the_last_token_never(policy) -> None:
    engine = LocalEngine.for_policy(policy)
    how = Sampling(1.0, max_tokens=6)
    request = SampleRequest(Problem("a", ""), 3, how, prompt_ids=(2, 3, 4), rows=(0, 1, 2))
    found = []
    work = spent(lambda: found.extend(engine.generate([request], seed=0, step=0)[0]))
    lengths = [len(c.ids) for c in found]
    read = 3 + sum(n - 1 for n in lengths)
    attended = 6 + sum(3 + j for n in lengths for j in range(1, n))
    assert work.generated == sum(lengths)
    assert work.generate == 2 * MATRICES * read + 4 * ATTENTION * attended + 2 * HEAD * sum(lengths)
    assert sampling(Size.of(policy.model), [3], [(3, n) for n in lengths]) == work


def test_of_experts_only_those_in_use_count() -> None:
    class Experts(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.experts = torch.nn.ModuleList(torch.nn.Linear(4, 4, bias=False) for _ in range(8))

    config = LlamaConfig(
        vocab_size=8, hidden_size=4, intermediate_size=4, num_hidden_layers=1, num_attention_heads=1
    )
    model = LlamaForCausalLM(config)
    dense = Size.of(model).matrices
    model.model.layers[0].extra = Experts()
    assert Size.of(model).matrices == dense + 8 * 16
    config.num_local_experts, config.num_experts_per_tok = 8, 2
    assert Size.of(model).matrices == dense + 2 * 16
