import pytest
import torch

from interlace.policies import load_policy
from tests.policies.build import batch_of, random_rows


def test_a_model_from_scratch_takes_the_task_s_alphabet_and_seed():
    policy = load_policy("scratch:nano,layers=1", alphabet="01+=", seed=2, device="cpu")
    assert (policy.vocab_size, policy.max_positions, policy.eos_ids) == (6, 512, (1,))
    assert policy.scoring_path == "packed" and policy.warnings == []
    assert policy.dtype == torch.float32 and policy.device.type == "cpu"
    same = load_policy("scratch:nano,layers=1", alphabet="01+=", seed=2, device="cpu")
    assert torch.equal(same.head.weight, policy.head.weight)


@pytest.mark.parametrize("precision", ["fp32", "fp64"])
def test_a_saved_directory_loads_as_the_same_policy(precision, tmp_path):
    policy = load_policy("scratch:nano,layers=1", precision=precision, device="cpu")
    policy.save(tmp_path / "run")
    again = load_policy(tmp_path / "run", precision=precision, device="cpu")
    batch = batch_of(random_rows([(4, 6), (2, 3)]))
    assert torch.equal(again.score(batch)["logp"], policy.score(batch)["logp"])
    assert again.eos_ids == policy.eos_ids and again.max_positions == 512


def test_a_directory_without_a_model_says_what_is_missing(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"config\.json"):
        load_policy(tmp_path)


def test_a_misspelt_name_is_met_with_the_nearest_one():
    with pytest.raises(FileNotFoundError, match="did you mean 'smollm2'"):
        load_policy("smolm2")


def test_smollm2_before_it_is_prepared_names_the_command(tmp_path, monkeypatch):
    monkeypatch.setenv("INTERLACE_CACHE", str(tmp_path))
    with pytest.raises(FileNotFoundError, match="interlace models get smollm2"):
        load_policy("smollm2")


def test_a_name_that_nobody_knows_lists_what_is_accepted():
    # Not a possible name on Hugging Face, so nothing is asked of the network.
    with pytest.raises(FileNotFoundError, match="scratch:SIZE"):
        load_policy("no/such/model/here")


def test_an_unknown_precision_is_refused():
    with pytest.raises(ValueError, match="fp32, bf16, fp64"):
        load_policy("scratch:nano,layers=1", precision="fp8", device="cpu")
