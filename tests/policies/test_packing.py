import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from interlace.policies.packing import PATHS, NotPackable, RowLayout, Trunk
from tests.policies.build import FAMILIES, gradients, relative_gap, tiny_model

LENGTHS = (5, 40, 1, 17, 18, 40, 2, 31)


def packed_rows(lengths=LENGTHS, seed=0):
    lengths = torch.tensor(lengths)
    row = torch.repeat_interleave(torch.arange(len(lengths)), lengths)
    position = torch.cat([torch.arange(n) for n in lengths.tolist()])
    ids = torch.randint(2, 20, (len(row),), generator=torch.Generator().manual_seed(seed))
    return ids, position, row


def pull(hidden):
    """A gradient that no norm at the end of the trunk can cancel."""
    g = torch.Generator().manual_seed(7)
    hidden.backward(torch.randn(hidden.shape, dtype=torch.float64, generator=g).to(hidden.dtype))


@pytest.mark.parametrize("arch", FAMILIES)
def test_every_path_equals_the_model_run_on_each_row_alone(arch):
    model = tiny_model(arch)
    ids, position, row = packed_rows()
    trunk = getattr(model, model.base_model_prefix)
    rows = [ids[row == i] for i in range(len(LENGTHS))]
    plain = torch.cat([trunk(input_ids=r[None]).last_hidden_state[0] for r in rows])
    pull(plain)
    expected = gradients(model)
    for path in PATHS:
        model.zero_grad()
        hidden = Trunk(model, path)(ids, position, row)
        torch.testing.assert_close(hidden, plain, rtol=1e-5, atol=1e-5)
        pull(hidden)
        assert relative_gap(gradients(model), expected) < 1e-5


@pytest.mark.parametrize("arch", FAMILIES)
def test_in_float64_packed_rows_equal_single_rows_to_1e_10(arch):
    model = tiny_model(arch).double()
    ids, position, row = packed_rows()
    found = {}
    for path in PATHS:
        model.zero_grad()
        hidden = Trunk(model, path)(ids, position, row)
        pull(hidden)
        found[path] = hidden.detach(), gradients(model)
    for path in ("packed", "padded"):
        torch.testing.assert_close(found[path][0], found["one_by_one"][0], rtol=1e-10, atol=1e-10)
        assert relative_gap(found[path][1], found["one_by_one"][1]) < 1e-10


def test_float64_models_compute_norms_in_float64():
    # Perturb one embedding by 1e-12: through a float32 norm the change would be lost or jump by 1e-8.
    model = tiny_model("llama").double()
    ids, position, row = packed_rows((6,))
    trunk = Trunk(model, "packed")
    with torch.no_grad():
        before = trunk(ids, position, row)
        model.get_input_embeddings().weight[ids[-1]] += 1e-12
        change = (trunk(ids, position, row) - before).abs().max()
    assert 1e-14 < change < 1e-9


@pytest.mark.parametrize("arch", ["gemma2", "gemma3", "mistral", "qwen3"])
def test_windows_narrower_than_a_row_change_packed_scores_as_they_change_plain_ones(arch):
    ids, position, row = packed_rows((30,))
    near = Trunk(tiny_model(arch, window=4), "packed")(ids, position, row)
    far = Trunk(tiny_model(arch, window=64), "packed")(ids, position, row)
    torch.testing.assert_close(near[:4], far[:4], rtol=1e-5, atol=1e-5)
    assert (near[20:] - far[20:]).abs().max() > 1e-3


def test_rows_do_not_see_each_other():
    model = tiny_model("llama")
    ids, position, row = packed_rows()
    other = torch.where(row == 3, (ids + 1) % 20, ids)
    trunk = Trunk(model, "packed")
    with torch.no_grad():
        before, after = trunk(ids, position, row), trunk(other, position, row)
    assert torch.equal(before[row != 3], after[row != 3])
    assert (before[row == 3] - after[row == 3]).abs().max() > 1e-2


@pytest.mark.parametrize("path", PATHS)
def test_a_nan_in_one_row_stays_in_that_row(path):
    # Whatever stands in for padding is read from a row's own tokens, so NaN there must not leak.
    model = tiny_model("llama")
    with torch.no_grad():
        model.get_input_embeddings().weight[[0, 1]] = float("nan")
    ids, position, row = packed_rows()
    clean = Trunk(model, path)(ids, position, row)
    assert bool(torch.isfinite(clean).all())
    ids[row == 4] = 0
    hidden = Trunk(model, path)(ids, position, row)
    assert bool(hidden[row == 4].isnan().all())
    torch.testing.assert_close(hidden[row != 4], clean[row != 4], rtol=1e-6, atol=1e-6)


@settings(max_examples=60, deadline=None)
@given(lengths=st.lists(st.integers(1, 90), min_size=1, max_size=30), single=st.booleans())
def test_split_and_join_give_back_every_slot_with_little_padding(lengths, single):
    row = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
    layout = RowLayout.of(row, single=single)
    values = torch.arange(len(row))
    parts = layout.split(values)
    assert torch.equal(layout.join(parts), values)
    for part, lengths_in_bucket in zip(parts, layout.lengths):
        for line, length in zip(part, lengths_in_bucket.tolist()):
            own = line[:length]
            assert torch.equal(own, torch.arange(length) + own[0])
            assert bool((line[length:] == own[-1]).all())
    padding = sum(b * longest for b, longest in layout.shapes) - len(row)
    assert padding <= (0 if single else max(0.25 * len(row), 16 * len(lengths)))


def test_rows_of_one_length_are_not_moved():
    layout = RowLayout.of(torch.tensor([0, 0, 1, 1, 5, 5]))
    assert layout.shapes == ((3, 2),) and layout.gather is None and layout.restore is None


def test_the_model_attends_as_before_after_a_packed_run_and_after_a_failed_one():
    model = tiny_model("gemma2")
    before = model.config._attn_implementation
    ids, position, row = packed_rows()
    Trunk(model, "packed")(ids, position, row)
    assert model.config._attn_implementation == before
    with pytest.raises(IndexError):
        Trunk(model, "packed")(ids + 10**6, position, row)
    assert model.config._attn_implementation == before
    model(input_ids=ids[None, :5])


def test_layers_that_rows_on_one_sequence_cannot_reproduce_are_refused():
    model = tiny_model("qwen3")
    ids, position, row = packed_rows((5, 3))
    Trunk(model).check_attention(ids, position, row)
    # A window of 4096 that a layer forgets cannot show in eight tokens; what the layers ask for does.
    windowed = next(layer.self_attn for layer in model.model.layers if layer.self_attn.sliding_window)
    windowed.sliding_window = None
    with pytest.raises(NotPackable, match="windows"):
        Trunk(model).check_attention(ids, position, row)
    model.config.layer_types = ["full_attention", "chunked_attention"]
    with pytest.raises(NotPackable, match="chunked_attention"):
        Trunk(model).check_attention(ids, position, row)


def test_no_slots_give_no_states():
    none = torch.zeros(0, dtype=torch.int64)
    assert Trunk(tiny_model("llama"))(none, none, none).shape == (0, 32)
