"""A whole run: what it leaves behind, what it refuses before training, and when it warns or stops."""

import json
import math
import os
import signal

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from interlace.config import ConfigError, read_yaml, resolve
from interlace.policies import Renderer, TextPolicy
from interlace.rewards import REWARDS
from interlace.tasks.base import judged, stable_hash, unscorable
from interlace.tasks.countdown import Countdown
from interlace.training.collect import pack
from interlace.training.metrics import DeadRun
from interlace.training.run import train as train_aloud
from interlace.types import Source, Trajectory
from tests.training.runs import (
    TINY,
    Parity,
    Told,
    assert_same_run,
    crashed_and_resumed,
    lines,
    result,
    train,
    weights,
)


class Wrong:
    """Only the demonstration is right."""

    bounded = True

    def __call__(self, completion, problem):
        return judged(completion == problem.demonstration)


class Chance:
    """Half of all texts are right, by lot, so that every change of the weights changes the accuracy."""

    bounded = True

    def __call__(self, completion, problem):
        return judged(stable_hash(completion, problem.id) % 2 == 0 or completion == problem.demonstration)


class Silent(Wrong):
    """Nothing but the demonstration can be scored."""

    def __call__(self, completion, problem):
        return judged(True) if completion == problem.demonstration else unscorable("none", "no idea")


RUNS = {
    "sft": ("sft", {}),
    "grpo": ("grpo", {}),
    "grpo with kl": ("grpo", {"kl": 0.1}),
    "ppo": ("ppo", {}),
    "dapo": ("dapo", {}),
}
every_run = pytest.mark.parametrize("name", RUNS)


@pytest.fixture(scope="module", autouse=True)
def rewards():
    REWARDS.update(parity=Parity, wrong=Wrong, silent=Silent, chance=Chance)
    yield
    for name in ("parity", "wrong", "silent", "chance"):
        REWARDS.pop(name, None)


@pytest.fixture(scope="module")
def finished(tmp_path_factory, rewards):
    """The run of each name, made once."""
    made = {}

    def run(name):
        if name not in made:
            method, settings = RUNS[name]
            out = tmp_path_factory.mktemp("runs") / name.replace(" ", "-")
            made[name] = train(method, out, reward="parity", **settings)
        return made[name]

    return run


def policy_and_row(run):
    """The trained policy and a demonstration that it can score."""
    policy = TextPolicy.load(run.checkpoint)
    renderer = Renderer(policy.tokenizer, policy.eos_ids)
    (problem,) = Countdown().problems("test", 1)
    prompt, answer = renderer.prompt_ids(problem), renderer.demonstration_ids(problem)
    source = [Source.PROMPT] * len(prompt) + [Source.DEMO] * len(answer)
    return policy, Trajectory(0, prompt + answer, source, "g", problem)


@every_run
def test_a_run_folder_holds_everything(finished, name) -> None:
    run = finished(name)
    held = {p.name for p in run.folder.iterdir()} - {".lock"}
    sampled = {"samples"} if name != "sft" else set()
    kl = {"references"} if "kl" in name else set()
    always = {"config.yaml", "environment.json", "metrics.jsonl", "checkpoints", "latest.json", "evaluations"}
    assert held == always | {"result.json"} | sampled | kl
    environment = json.loads((run.folder / "environment.json").read_text())
    assert environment["threads"] == 1 and environment["versions"]["torch"] == torch.__version__
    assert json.loads((run.folder / "latest.json").read_text()) == {"checkpoint": "0-train-000002-end"}
    assert [p.name for p in (run.folder / "checkpoints").iterdir()] == ["0-train-000002-end"]


@every_run
def test_its_configuration_resolves_to_itself(finished, name) -> None:
    saved = read_yaml(finished(name).folder / "config.yaml")
    assert resolve(saved["method"], saved).to_dict() == saved
    assert saved["stages"]["train"]["steps"] == 2 and saved["reward"] == "parity"


@every_run
def test_metrics_have_one_line_per_step_with_the_schedule(finished, name) -> None:
    first, second = lines(finished(name))
    assert (first["step"], second["step"]) == (1, 2)
    # Linear to 0 over two steps: the whole rate, then half of it.
    assert second["lr"] == pytest.approx(first["lr"] / 2)
    assert all(line["grad_norm"] > 0 and line["rows/scored"] > 0 for line in (first, second))
    assert not any(math.isnan(v) for line in (first, second) for v in line.values() if isinstance(v, float))


@every_run
def test_a_checkpoint_is_a_transformers_model(finished, name) -> None:
    run = finished(name)
    model = AutoModelForCausalLM.from_pretrained(run.checkpoint)
    tokenizer = AutoTokenizer.from_pretrained(run.checkpoint)
    policy, row = policy_and_row(run)
    text = row.problem.prompt + row.problem.demonstration
    assert tokenizer(text)["input_ids"] + [tokenizer.eos_token_id] == row.ids
    with torch.no_grad():
        logits = model(torch.tensor([row.ids])).logits[0].log_softmax(-1)
    answer = row.source.count(Source.DEMO)
    plain = logits[torch.arange(len(row.ids) - 1), torch.tensor(row.ids[1:])][-answer:]
    scored = policy.score(pack([row]), grad=False)["logp"]
    torch.testing.assert_close(plain, scored, rtol=0, atol=1e-5)


@every_run
def test_training_moved_every_weight(finished, name) -> None:
    start = load_file(train_weights_at_start(finished(name)))
    end = load_file(finished(name).checkpoint / "model.safetensors")
    assert start.keys() == end.keys()
    assert all(not torch.equal(start[key], end[key]) for key in end)


def train_weights_at_start(run):
    """The weights before the first step, from a run of none."""
    out = run.folder.parent / "untrained"
    if not out.exists():
        train("sft", out, steps=0)
    return out / "checkpoints" / "0-train-000000-end" / "policy" / "model.safetensors"


@every_run
def test_results_are_those_of_the_evaluations(finished, name) -> None:
    run = finished(name)
    found = result(run)
    assert found["method"] == RUNS[name][0] and found["final"] and run.complete
    assert found["evaluations"] == run.evaluations
    assert [one["at"] for one in run.evaluations] == ["start", "after train"]
    assert all(one["n"] == 4 and one["greedy"]["n"] == 4 for one in run.evaluations)
    files = sorted(p.name for p in (run.folder / "evaluations").iterdir())
    assert files == ["0-after-train-000002.json", "0-start-000000.json"]
    whole = json.loads((run.folder / "evaluations" / files[0]).read_text())
    right = sum(p["greedy"] for p in whole["problems"])
    assert run.evaluations[1]["greedy"]["value"] == right / 4


@pytest.mark.parametrize("name", [n for n in RUNS if n != "sft"])
def test_samples_are_kept_to_look_at(finished, name) -> None:
    (path,) = (finished(name).folder / "samples").iterdir()
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert len(rows) == 8 and {row["finish"] for row in rows} <= {"stop", "length"}
    for row in rows:
        assert row["reward"] == float(len(row["response"]) % 2 == 0)
        assert row["verdict"] == ("pass" if row["reward"] else "fail")
        assert row["prompt"].endswith(":") and row["problem"].startswith("countdown:")


def test_sft_trains_whole_demonstrations_with_their_end(finished) -> None:
    demos = [p.demonstration for p in Countdown().problems("train", 12)]
    possible = {len(demo) + 1 for demo in demos}
    for line in lines(finished("sft")):
        assert line["rows/demo"] == 4 and line["rows/rollout"] == 0 and line["tokens/generated"] == 0
        assert 4 * min(possible) <= line["n/sft"] <= 4 * max(possible)
    epoch = lines(train_all_demos(finished("sft")))[0]
    assert epoch["n/sft"] == sum(len(demo) + 1 for demo in demos)


def train_all_demos(run):
    """One step over all twelve demonstrations."""
    return train("sft", run.folder.parent / "all", demos_per_step=12, steps=1)


def test_the_first_kl_is_exactly_zero_and_then_grows(finished) -> None:
    first, second = lines(finished("grpo with kl"))
    assert first["kl"] == 0 and second["kl"] > 0
    assert "kl" not in lines(finished("grpo"))[0]


def test_a_critic_is_trained_and_saved_beside_the_policy(finished) -> None:
    run = finished("ppo")
    assert all(line["grad_norm/critic"] > 0 and line["loss/value"] > 0 for line in lines(run))
    saved = run.checkpoint.parent / "critic"
    assert load_file(saved / "value_head.safetensors")["weight"].abs().max() > 0
    (entropy,) = {tuple(sorted(p.name for p in run.checkpoint.parent.iterdir()))}
    assert entropy == ("critic", "policy", "progress.json", "trainer.pt")


def test_dynamic_sampling_trains_groups_with_signal_alone(finished) -> None:
    for line in lines(finished("dapo")):
        assert line["groups/live"] == 1 and line["rows/rollout"] == 8
        assert line["sampling/rounds"] >= 1 and 0 < line["sampling/live_groups"] <= 1


def test_a_seed_decides_everything(finished, tmp_path) -> None:
    again = train("grpo", tmp_path / "again", reward="parity")
    other = train("grpo", tmp_path / "other", reward="parity", seed=1)
    assert_same_run(again, finished("grpo"))
    assert weights(other) != weights(again)


def test_weights_alone_are_taken_from_another_run(finished, tmp_path) -> None:
    """Report G5: `init_from` starts anew at step 0 with an empty optimizer."""
    run = train("grpo", tmp_path / "run", init_from=str(finished("sft").folder), steps=0)
    assert weights(run) == weights(finished("sft"))
    run = train("grpo", tmp_path / "more", init_from=str(finished("sft").checkpoint), reward="parity")
    assert [line["step"] for line in lines(run)] == [1, 2] and lines(run)[0]["lr"] == 3e-4


def test_denominators_come_from_what_is_really_trained(tmp_path) -> None:
    """Report A8: rows that hold only a prompt and an answer; every denominator counts rollouts."""
    path = tmp_path / "prompts.jsonl"
    path.write_text(
        "".join(json.dumps({"prompt": f"{i}+1=", "answer": str(i + 1)}) + "\n" for i in range(20))
    )
    given = {"task": str(path), "max_new_tokens": 6, "reward": "parity", "problems": None, "steps": 1}
    tokens = lines(train("grpo", tmp_path / "tokens", denominator="tokens", **given))[0]
    assert tokens["n/policy"] == tokens["tokens/generated"] > 0
    rows = lines(train("grpo", tmp_path / "rows", denominator="sequences", **given))[0]
    assert rows["n/policy"] == rows["rows/rollout"] == 8
    constant = lines(train("dr_grpo", tmp_path / "constant", **given))[0]
    assert constant["n/policy"] == 8 * 6


def test_micro_batches_need_not_divide_anything(tmp_path) -> None:
    """Report J1: 3 prompts, 3 rollouts each, micro-batches of a size that divides neither."""
    given = {"prompts_per_step": 3, "group_size": 3, "reward": "parity", "steps": 1, "precision": "fp64"}
    whole = train("grpo", tmp_path / "whole", **given)
    split = train("grpo", tmp_path / "split", micro_batch_tokens=37, **given)
    assert lines(split)[0]["rows/rollout"] == 9
    one, other = (load_file(run.checkpoint / "model.safetensors") for run in (whole, split))
    for name in one:
        torch.testing.assert_close(one[name], other[name], rtol=0, atol=1e-9)


@pytest.mark.parametrize("given", [{"updates_per_epoch": 2}, {"epochs_per_rollout": 2}])
def test_the_ratio_is_one_in_the_first_optimizer_step_alone(finished, tmp_path, given) -> None:
    """Report J2."""
    assert [line["ratio/max_abs_log"] for line in lines(finished("grpo"))] == [0, 0]
    view = Told()
    reused = train("grpo", tmp_path / "run", view, reward="parity", **given)
    assert all(line["ratio/max_abs_log"] > 0 for line in lines(reused))
    assert [line["updates"] for line in lines(reused)] == [2, 4]
    assert "off-policy after update 1" in view.text


def test_an_overlong_demonstration_is_dropped_and_counted_never_cut(tmp_path) -> None:
    """Law 5, report C8: what is trained is whole, though it is longer than a completion may be."""
    lengths = sorted(len(p.demonstration) + 1 for p in Countdown().problems("train", 12))
    limit = lengths[5]
    kept = [n for n in lengths if n <= limit]
    view = Told()
    run = train(
        "sft",
        tmp_path / "run",
        view,
        max_demo_tokens=limit,
        max_new_tokens=3,
        steps=1,
        demos_per_step=len(kept),
    )
    assert f"{12 - len(kept)} demonstrations are over the limit and were dropped, never cut" in view.text
    assert lines(run)[0]["n/sft"] == sum(kept)


def test_demonstrations_are_verified_before_any_limit(tmp_path) -> None:
    """Report C8: no demonstration fits into a completion of 3 tokens, yet all of them pass their verifier."""
    view = Told()
    run = train("sft", tmp_path / "run", view, max_new_tokens=3, steps=1, demos_per_step=12)
    assert "verifier self-check" not in view.text
    assert lines(run)[0]["rows/demo"] == 12
    with pytest.raises(ConfigError, match=r"12 demonstrations are over the limit.*\(max_demo_tokens\)"):
        train("sft", tmp_path / "none", max_demo_tokens=3)


def data(tmp_path, *rows):
    path = tmp_path / "data.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


QUESTIONS = [{"prompt": f"{i}+{i}="} for i in range(20)]


@pytest.mark.parametrize(
    ("method", "rows", "settings", "error", "message"),
    [
        ("grpo", QUESTIONS, {}, ConfigError, "no row has an answer"),
        ("sft", [{**q, "answer": "1"} for q in QUESTIONS], {}, ConfigError, "there are none: no row has one"),
        ("grpo", [{"text": "a"}], {}, ValueError, "no prompt; accepted columns: prompt, question"),
        ("sft", [{**q, "answer": "1", "demonstration": "2"} for q in QUESTIONS], {}, ConfigError,
         r"no training problem is left; verifier self-check.*demonstration 0/"),
        ("grpo", None, {"max_prompt_tokens": 2}, ConfigError, r"12 of 12 prompts are over the limit"),
        ("grpo", None, {"task": "countdwn"}, ValueError, r"unknown task 'countdwn' \(nearest: countdown\)"),
        ("grpo", None, {"task": "nothing.jsonl"}, FileNotFoundError, "no file nothing.jsonl"),
        ("grpo", None, {"reward": "nothing.py:f"}, ValueError, "no file .*nothing.py"),
        ("grpo", None, {"reward": "mth"}, ValueError, r"unknown name 'mth' \(nearest: math\)"),
        ("grpo", None, {"model": "scratch:nanoo"}, ValueError, "did you mean 'nano'"),
        ("sft", None, {"demonstrations": 0}, ConfigError, "trains on demonstrations, and there are none"),
        ("grpo", None, {"keep": "best"}, ConfigError, "keep=best chooses between evaluations"),
    ],
)  # fmt: skip
def test_bad_data_is_told_before_training(tmp_path, method, rows, settings, error, message) -> None:
    settings = {"task": data(tmp_path, *rows), "problems": None} if rows else settings
    with pytest.raises(error, match="(?s)" + message):
        train(method, tmp_path / "run", **settings)
    assert not (tmp_path / "run" / "metrics.jsonl").exists()


def test_a_run_folder_is_not_taken_twice(finished, tmp_path) -> None:
    folder = finished("sft").folder
    with pytest.raises(ConfigError, match="already holds a run"):
        train("sft", folder)
    with pytest.raises(ConfigError, match="a resumed run keeps its settings; lr cannot change"):
        train_aloud(resume=folder, view=Told(), lr=1.0)
    with pytest.raises(ConfigError, match="there is no run in that folder"):
        train_aloud(resume=tmp_path, view=Told())


SHORT = {"reward": "wrong", "max_new_tokens": 1, "top_k": 1}  # the likeliest token is no end token
DEAD = {
    "all rewards of every group were equal": ({"reward": "wrong"}, "larger group_size"),
    "every completion was truncated": (SHORT, "raise max_new_tokens"),
    "no rollout could be scored": ({"reward": "silent"}, "check reward="),
}


@pytest.mark.parametrize("what", DEAD)
def test_a_dead_run_warns_and_then_stops_with_the_knob_to_turn(tmp_path, what) -> None:
    """Law 12, report C7."""
    settings, knob = DEAD[what]
    view = Told()
    with pytest.raises(DeadRun, match=f"{what} for 7 steps in a row: .*{knob}"):
        train("grpo", tmp_path / "run", view, steps=9, stop_dead_after=7, **settings)
    assert f"warning: {what} for 5 step(s)" in view.text and knob in view.text
    assert len(lines(tmp_path / "run")) == 6


def test_dynamic_sampling_without_any_signal_names_the_rewards(tmp_path) -> None:
    with pytest.raises(DeadRun, match=r"all rewards of every group were equal.*larger group_size"):
        train("dapo", tmp_path / "run", reward="wrong", steps=9, stop_dead_after=3, problems=4)


def test_a_run_may_be_told_to_go_on(tmp_path) -> None:
    run = train("grpo", tmp_path / "run", reward="wrong", steps=7, stop_dead_after=0)
    assert run.complete and len(lines(run)) == 7


def test_imitation_keeps_a_run_alive(tmp_path) -> None:
    """Rollouts without signal beside demonstrations that are trained are no dead run."""
    run = train("chord", tmp_path / "run", reward="wrong", steps=4, stop_dead_after=2)
    assert run.complete and all(line["groups/live"] == 0 for line in lines(run))


class Interrupting(Told):
    """Presses Ctrl-C at the first step."""

    def step(self, done, metrics):
        super().step(done, metrics)
        if self.steps == 1:
            os.kill(os.getpid(), signal.SIGINT)


def test_ctrl_c_ends_the_step_and_saves(tmp_path, finished) -> None:
    view = Interrupting()
    stopped = train("grpo", tmp_path / "run", view, reward="parity")
    assert not stopped.complete and not result(stopped)["final"] and len(lines(stopped)) == 1
    assert f"continue with: interlace train --resume {stopped.folder}" in view.text
    assert_same_run(train_aloud(resume=stopped.folder, view=Told()), finished("grpo"))


BEST = {"lr": 0.1, "lr_schedule": "constant", "steps": 5, "eval_every": 1, "keep": "best"}
CHANCE = {"reward": "chance", "eval_problems": 32}


@pytest.fixture(scope="module")
def best_early(tmp_path_factory, rewards):
    """A run whose best evaluation is not its last: its settings, itself, and what it said."""
    for seed in range(9):
        view = Told()
        given = {**BEST, **CHANCE, "seed": seed}
        run = train("sft", tmp_path_factory.mktemp("best") / "run", view, **given)
        if result(run)["kept"] != {"train": 5}:
            return given, run, view.text
    raise AssertionError("nine runs in a row got better until the end")


def test_a_stage_may_end_with_its_best_weights(best_early, tmp_path) -> None:
    """Of the evaluations on validation problems the best one, of equals the latest; the test is not asked."""
    given, run, said = best_early
    looks = {e["step"]: e["greedy"]["value"] for e in run.evaluations if e["at"] == "train"}
    assert list(looks) == [1, 2, 3, 4, 5]
    best = max(looks, key=lambda step: (looks[step], step))
    assert result(run)["kept"] == {"train": best} and f"keeping the weights of step {best}" in said
    shorter = train("sft", tmp_path / "shorter", **{**given, "steps": best, "keep": "last", "eval_every": 0})
    assert weights(run) == weights(shorter)
    # The evaluation on the test problems is of these weights.
    assert run.evaluations[-1]["greedy"] == shorter.evaluations[-1]["greedy"]
    last = train("sft", tmp_path / "last", **{**given, "keep": "last"})
    assert weights(last) != weights(run) and result(last)["kept"] == {}


@pytest.mark.parametrize("crash_at", [2, 5])
def test_the_best_weights_survive_a_crash(best_early, tmp_path, crash_at) -> None:
    given, run, _ = best_early
    assert_same_run(crashed_and_resumed("sft", tmp_path / "crashed", crash_at, **given), run)


def test_the_next_stage_starts_from_the_best_weights(best_early, tmp_path) -> None:
    given, alone, _ = best_early
    onwards = {**CHANCE, "seed": given["seed"]}
    run = train("sft_then_rl", tmp_path / "run", stages={"sft": BEST}, rl_steps=1, steps=None, **onwards)
    assert result(run)["kept"] == {"sft": result(alone)["kept"]["train"]}
    (ended,) = (run.folder / "checkpoints").glob("0-sft-*-end")
    assert weights(ended / "policy") == weights(alone)
    first = lines(run)[5]
    rl = lines(train("dr_grpo", tmp_path / "rl", init_from=str(alone.folder), **onwards, steps=1))[0]
    assert first["stage"] == "rl" and first["loss/policy"] == rl["loss/policy"]
    assert first["grad_norm"] == rl["grad_norm"]


def test_the_best_weights_need_validation_problems(tmp_path) -> None:
    rows = [{"prompt": f"{i}=", "answer": "1", "demonstration": "1", "split": "train"} for i in range(9)]
    with pytest.raises(ConfigError, match="keep=best compares weights on validation problems"):
        train("sft", tmp_path / "run", **{**BEST, "task": data(tmp_path, *rows), "problems": None})


def test_tiny_runs_are_tiny() -> None:
    """The sizes that the numbers in this file come from."""
    assert (TINY["prompts_per_step"], TINY["group_size"], TINY["steps"], TINY["problems"]) == (2, 4, 2, 12)
