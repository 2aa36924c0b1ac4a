"""Methods that alternate, steer their balance or combine gradients train, act as they say, resume exactly.

A run is crashed in the middle of a schedule, a buffer or a stage and continued; its weights and log must be
those of a run that nothing interrupted.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from interlace.config import read_yaml
from interlace.rewards import REWARDS
from interlace.training.run import RunResult
from tests.training.runs import Parity, assert_same_run, crashed_and_resumed, lines, train, weights


@pytest.fixture(autouse=True)
def parity(monkeypatch):
    monkeypatch.setitem(REWARDS, "parity", Parity)


def run(method: str, out: Path, **settings: Any) -> RunResult:
    return train(method, out, **{"reward": "parity", **settings})


def finite(log: list[dict[str, Any]]) -> bool:
    return all(math.isfinite(v) for line in log for v in line.values() if isinstance(v, int | float))


def memory(result: RunResult, step: int) -> dict[str, Any]:
    """What the trainer remembered after a step of the only stage."""
    folder = result.folder / "checkpoints" / f"0-train-{step:06d}"
    return torch.load(folder / "trainer.pt", weights_only=True)


RESUMED = [
    # method, the line of the log after which it dies, settings
    ("relift", 4, {"buffer_size": 3, "steps": 8}),
    ("mifo", 5, {"buffer_size": 3, "steps": 10, "threshold": 0.5, "alpha": 0.5, "kl": 0.1}),
    ("sasr", 1, {"warmup_steps": 2, "steps": 4}),
    ("sasr", 4, {"warmup_steps": 2, "steps": 7, "refresh_every": 1, "seed": 2}),
    ("egspo", 3, {"stages": {"rl": {"steps": 2}}}),
    ("amft", 4, {"every": 2, "steps": 3}),
    ("bridge", 2, {"mu": "linear:0.9,0.1,4", "steps": 4, "resync": 3}),
    ("chord", 2, {"mu": "cosine:0.9,0.05,1,3", "steps": 4}),
    ("chord", 2, {"mu": "reward:0.9", "steps": 3, "phi": "entropy_norm"}),
    ("gta", 2, {"steps": 3, "kl": 0.1}),
    ("gta", 1, {"conflict": "project"}),
    ("dapo", 2, {"steps": 3, "updates_per_epoch": 2, "epochs_per_rollout": 2, "warmup_steps": 3}),
    ("ppo", 2, {"steps": 3, "kl": 0.1, "lr_schedule": "cosine"}),
    ("grpo", 2, {"steps": 3, "kl": 0.1, "problems": 5}),
    ("reinforce_pp", 1, {"precision": "bf16"}),
    ("sft_then_rl", 3, {"stages": {"sft": {"until": "loss:1,1"}}, "lr": 0.0}),
]


@pytest.mark.parametrize(("method", "crash_at", "settings"), RESUMED)
@pytest.mark.filterwarnings("ignore:this CPU")
def test_a_resumed_run_is_the_uninterrupted_one(method, crash_at, settings, tmp_path) -> None:
    whole = run(method, tmp_path / "whole", **settings)
    assert finite(lines(whole))
    settings = {"reward": "parity", **settings}
    assert_same_run(crashed_and_resumed(method, tmp_path / "parts", crash_at, **settings), whole)


def test_relift_alternates_with_two_optimizers_that_never_meet(tmp_path) -> None:
    """Two prompts fail in a step; a buffer of three makes an SFT step after every second RL step or so."""
    result = run(
        "relift", tmp_path / "run", buffer_size=3, steps=8, save_every=1, keep_checkpoints=99, sft_lr=1e-3,
        reward="countdown", lr_schedule="constant",
    )  # fmt: skip
    log = lines(result)
    turns = [line["turn"] for line in log]
    assert turns == ["rl", "rl", "sft", "rl", "sft", "rl", "rl", "sft"]
    assert [line["rows/demo"] for line in log] == [3 if turn == "sft" else 0 for turn in turns]
    for step in range(2, 8):
        before, after = (memory(result, s)["optimizers"] for s in (step - 1, step))
        for name, stage in (("policy", "rl"), ("sft", "sft")):
            stepped = not same_state(before[name], after[name])
            assert stepped == (turns[step - 1] == stage), (step, name)
    assert memory(result, 7)["optimizers"]["sft"]["param_groups"][0]["lr"] == 1e-3


def same_state(a: dict, b: dict) -> bool:
    """Whether two optimizer states hold the same moments."""
    if a["state"].keys() != b["state"].keys():
        return False
    return all(torch.equal(a["state"][i][k], b["state"][i][k]) for i in a["state"] for k in a["state"][i])


def test_relift_with_an_endless_buffer_is_dr_grpo(tmp_path) -> None:
    one = run("relift", tmp_path / "a", buffer_size=10**6, entropy_bonus=0)
    other = run("dr_grpo", tmp_path / "b", clip_low=None, clip_high=None)
    assert weights(one) == weights(other)


def test_mifo_freezes_what_rl_moved_most_through_its_sft_step(tmp_path) -> None:
    settings = {"buffer_size": 2, "threshold": 1.0, "freeze": 0.3, "steps": 4}
    result = run("mifo", tmp_path / "run", save_every=1, keep_checkpoints=9, **settings)
    assert [line["turn"] for line in lines(result)] == ["rl", "sft", "rl", "sft"]
    after_rl, after_sft, later = (model(result, step) for step in (1, 2, 3))
    masks = memory(result, 2)["rules"][1]["masks"]
    assert sum(int(m.sum()) for m in masks) == pytest.approx(0.3 * sum(m.numel() for m in masks), rel=0.01)
    moved = []
    for mask, a, b in zip(masks, after_rl, after_sft, strict=True):
        assert torch.equal(a[mask], b[mask])
        moved.append((a != b)[~mask])
    assert torch.cat(moved).double().mean() > 0.99
    assert any(not torch.equal(a[m], b[m]) for m, a, b in zip(masks, after_sft, later, strict=True))


def model(result: RunResult, step: int) -> list[torch.Tensor]:
    """The weights after a step, in the order of the optimizer's parameters."""
    from interlace.policies import load_policy

    folder = result.folder / "checkpoints" / f"0-train-{step:06d}" / "policy"
    return [p.detach() for p in load_policy(folder).trainable()]


def test_sasr_draws_its_steps_from_the_norms_it_measured(tmp_path) -> None:
    log = lines(run("sasr", tmp_path / "run", warmup_steps=2, steps=9, gamma=0.8))
    assert [line["turn"] for line in log[:2]] == ["sft", "sft"]
    measured = warmup = log[1]["grad_norm"]
    for line in log[2:]:
        assert (line["state/g_last"], line["state/g_warmup"]) == (measured, warmup)
        p = measured / (measured + 0.8 * warmup)
        assert line["turn"] == ("sft" if line["state/u"] < p else "rl")
        if line["turn"] == "sft":
            measured = line["grad_norm"]
    assert {line["turn"] for line in log[2:]} == {"sft", "rl"}


def test_sasr_with_gamma_0_is_sft(tmp_path) -> None:
    one = run("sasr", tmp_path / "a", warmup_steps=1, gamma=0, steps=3, lr=1e-3)
    assert weights(one) == weights(run("sft", tmp_path / "b", steps=3, lr=1e-3))


def test_sasr_measures_its_kl_against_the_policy_after_the_warm_up(tmp_path) -> None:
    """Nothing has moved since at the first RL step, so its KL is 0, whatever the warm-up did."""
    log = lines(run("sasr", tmp_path / "run", warmup_steps=2, steps=6, gamma=100.0, kl=0.1, lr=1e-2))
    kl = [line["kl"] for line in log if line["turn"] == "rl"]
    assert len(kl) == 4
    assert kl[0] == pytest.approx(0, abs=1e-6)
    assert kl[-1] > 1e-4
    assert sorted(p.name for p in (tmp_path / "run" / "references" / "0").iterdir()) == ["000000", "000002"]


@pytest.mark.parametrize(("epochs", "steps"), [(0, 0), (1, 3), (2, 5)])
def test_egspo_warms_up_for_whole_epochs(epochs: int, steps: int, tmp_path) -> None:
    """10 demonstrations, 4 a step: 10 / 4 = 2.5 and 20 / 4 = 5 steps."""
    given = {"problems": 10, "stages": {"rl": {"steps": 1}}, "steps": None}
    result = run("egspo", tmp_path / "run", warmup_epochs=epochs, **given)
    assert [line["stage"] for line in lines(result)] == ["sft"] * steps + ["rl"]
    assert read_yaml(result.folder / "config.yaml")["stages"]["sft"]["steps"] == steps


def test_amft_moves_mu_by_its_meta_gradient_and_uses_it(tmp_path) -> None:
    log = lines(run("amft", tmp_path / "run", every=2, eta_mu=0.1, eta_entropy=0.01, steps=3))
    log = [line for line in log if line["stage"] == "mix"]
    assert [line["state/meta_gradient"] != 0 for line in log] == [True, False, True]
    mu = 0.8
    for line in log:
        entropy = 0.01 * (line["state/entropy_target"] - line["state/entropy"])
        mu = min(0.95, max(0.05, mu + 0.1 * line["state/meta_gradient"] + entropy))
        assert line["state/mu"] == pytest.approx(mu, abs=1e-12)
        assert line["coefficient/sft"] == line["state/mu"]
        assert line["coefficient/policy"] == 1 - line["state/mu"]
    assert all(line["state/entropy_target"] == log[0]["state/entropy"] for line in log)


def test_amft_with_equal_bounds_is_a_constant_mixture(tmp_path) -> None:
    settings = {"mu_min": 0.3, "mu_max": 0.3, "mu": 0.3, "advantage": "group", "entropy_bonus": 0, "lr": 1e-3}
    only_mix = {"stages": {"sft": {"steps": 0}}}
    one = run("amft", tmp_path / "a", **settings, **only_mix)
    other = run("chord", tmp_path / "b", mu=0.3, phi="1", lr=1e-3)
    assert weights(one) == weights(other)


def test_bridge_without_sft_is_grpo_and_its_copy_is_the_student_to_the_bit(tmp_path) -> None:
    result = run("bridge", tmp_path / "a", mu=0, lr=1e-3)
    assert all(line["teacher/norm"] == 0 and line["teacher/gain_grad_norm"] == 0 for line in lines(result))
    end = result.checkpoint
    assert weights(end) == weights(end.parent / "auxiliary")
    assert weights(end) == weights(run("grpo", tmp_path / "b", lr=1e-3))


def test_bridge_trains_student_copy_and_teacher(tmp_path) -> None:
    result = run("bridge", tmp_path / "a", mu=0.5, teacher_lr=1e-3, lora_rank=2, steps=3, lr=1e-3)
    log = lines(result)
    assert log[0]["teacher/norm"] > 0
    assert log[0]["teacher/gain_grad_norm"] > 0, "student and copy have taken different steps"
    end = result.checkpoint
    assert weights(end) != weights(end.parent / "auxiliary")
    saved = torch.load(end.parent / "trainer.pt", weights_only=True)["rules"][0]
    shapes = {(tuple(u.shape), tuple(d.shape)) for u, d in zip(saved["up"], saved["down"], strict=True)}
    assert shapes == {((16, 2), (2, 16)), ((32, 2), (2, 16)), ((16, 2), (2, 32))}
    assert len(saved["up"]) == 7, "every linear layer, embedding and head apart"
    assert log[2]["teacher/norm"] == pytest.approx(
        math.sqrt(sum(float((u @ d).square().sum()) for u, d in zip(saved["up"], saved["down"], strict=True)))
    )


def test_chord_follows_its_schedule_and_its_rewards(tmp_path) -> None:
    """Cosine over 4 steps from 0.9 to 0.1: at a quarter, half and three quarters by hand."""
    log = lines(run("chord", tmp_path / "a", mu="cosine:0.9,0.1,0,4", steps=4, lr=0.0))
    expected = [0.1 + 0.8 * (1 + math.cos(math.pi * s / 4)) / 2 for s in range(4)]
    assert [line["coefficient/sft"] for line in log] == pytest.approx(expected)
    log = lines(run("chord", tmp_path / "b", mu="reward:0.9", steps=2))
    for line in log:
        assert line["coefficient/sft"] == pytest.approx(max(0.0, 0.9 - line["reward/mean"]))


def test_gta_reports_conflicts_and_costs_nothing_extra_without_its_rule(tmp_path) -> None:
    log = lines(run("gta", tmp_path / "a", steps=2))
    assert all(line["conflict"] in (0, 1) and -1 <= line["conflict/cosine"] <= 1 for line in log)
    assert "conflict" not in lines(run("gta", tmp_path / "b", conflict=None))[0]


def test_a_stage_ends_by_the_rule_of_the_person(tmp_path) -> None:
    """With lr 0 the validation loss never falls: the second look at it ends the stage."""
    settings = {"lr": 0.0, "steps": 5, "stages": {"sft": {"until": "loss:1,1"}, "rl": {"until": "pass:0,2"}}}
    result = run("sft_then_rl", tmp_path / "run", **settings)
    steps = [(line["stage"], line["step"]) for line in lines(result)]
    assert steps == [("sft", 1), ("sft", 2), ("rl", 1), ("rl", 2)]
    assert json.loads((result.folder / "result.json").read_text())["final"]
