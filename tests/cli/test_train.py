import json
import re

import pytest
import yaml

from interlace.config import resolve

TINY = [
    "task=countdown:numbers=2",
    "steps=2",
    "problems=8",
    "eval_problems=4",
    "demos_per_step=4",
    "max_new_tokens=16",
]


@pytest.fixture
def dry(run):
    def dry(*words):
        status, out, err = run("train", *words, "--dry-run")
        assert (status, err) == (0, ""), err
        return yaml.safe_load(out)

    return dry


def test_a_dry_run_prints_the_resolved_configuration_and_trains_nothing(dry, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shown = dry("chord", "mu=0.2", "lr=1e-3", "stages.train.steps=7")
    assert shown == resolve("chord", {"mu": 0.2, "lr": 1e-3, "stages": {"train": {"steps": 7}}}).to_dict()
    assert shown["stages"]["train"]["lr"] == 0.001 and shown["stages"]["train"]["steps"] == 7
    assert list(tmp_path.iterdir()) == []


def test_what_follows_from_the_settings_stands_in_comments(run):
    _, out, _ = run("train", "grpo", "prompts_per_step=4", "group_size=3", "--dry-run")
    assert re.search(r"^# stage train: rollouts per step 12, .*on-policy yes", out, re.M)


def test_what_a_dry_run_prints_is_a_configuration_file(run, dry, tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text(run("train", "sft_then_rl", "stages.sft.lr=1e-2", "kl=0.1", "--dry-run")[1])
    assert dry("--config", str(path)) == yaml.safe_load(path.read_text())


def test_the_command_line_wins_over_the_file(dry, tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text("method: grpo\nkl: 0.5\nseed: 3\nstages: {train: {steps: 5, group_size: 2}}\n")
    shown = dry("--config", str(path), "kl=0.25", "stages.train.steps=6")
    assert (shown["parameters"]["kl"], shown["seed"]) == (0.25, 3)
    assert (shown["stages"]["train"]["steps"], shown["stages"]["train"]["group_size"]) == (6, 2)
    assert dry("dapo", "--config", str(path))["method"] == "dapo"


def test_init_from_is_an_option_and_a_setting(dry):
    assert dry("grpo", "--init-from", "runs/a")["init_from"] == "runs/a"
    assert dry("grpo", "init_from=runs/a")["init_from"] == "runs/a"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "name a method"),
        (["grpo", "sft"], "one method, not 2"),
        (["grpoo"], "unknown method 'grpoo': did you mean 'grpo'?"),
        (["grpo", "lrr=1"], "unknown setting 'lrr'; did you mean 'lr'?"),
        (["grpo", "lr=fast"], "lr='fast'"),
        (["grpo", "stages.sft.lr=1"], "stages.sft: accepted are train"),
        (["grpo", "--config", "no-such.yaml"], "no-such.yaml"),
        (["grpo", "--resume", "runs/a"], "leave out METHOD"),
        (["--resume", "runs/a", "--init-from", "runs/b"], "leave out --init-from"),
        (["--resume", "no-such-run"], "resume=no-such-run: there is no run in that folder"),
    ],
)
def test_a_mistake_is_told_before_anything_is_trained(run, words, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    status, out, err = run("train", *words)
    assert (status, out) == (2, "") and message in err and err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A tiny run through the command, and what it printed."""
    from typer.testing import CliRunner

    from interlace.cli.main import app

    folder = tmp_path_factory.mktemp("runs") / "tiny"
    result = CliRunner().invoke(app, ["train", "sft", *TINY, f"out={folder}"], catch_exceptions=False)
    assert result.exit_code == 0, result.stderr
    return folder, result


def test_a_run_leaves_a_model_where_it_says(finished):
    folder, result = finished
    assert f"run folder: {folder}\n" in result.stdout
    model = re.search(r"^model: (.*)$", result.stdout, re.M).group(1)
    assert json.loads((folder / model / "config.json").read_text())["model_type"] == "llama"
    assert len((folder / "metrics.jsonl").read_text().splitlines()) == 2


def test_a_second_run_does_not_overwrite_the_first(finished, run):
    folder, _ = finished
    status, _, err = run("train", "sft", *TINY, f"out={folder}")
    assert status == 2 and "already holds a run" in err


def test_evaluating_a_run_repeats_its_own_last_evaluation(finished, run):
    folder, _ = finished
    (own,) = (folder / "evaluations").glob("*after-train*.json")
    expected = json.loads(own.read_text())
    status, out, err = run("evaluate", str(folder), "samples=1", "--json")
    assert status == 0, err
    found = json.loads(out)
    assert found["problems"] == expected["problems"]
    assert found["summary"]["greedy"] == expected["summary"]["greedy"]
    assert found["settings"]["task"] == "countdown:numbers=2" and found["settings"]["max_new_tokens"] == 16


def test_a_checkpoint_is_evaluated_like_its_run(finished, run):
    folder, _ = finished
    (checkpoint,) = (folder / "checkpoints").glob("*-end")
    words = ["task=countdown:numbers=2", "problems=4", "max_new_tokens=16", "--json"]
    of_run = json.loads(run("evaluate", str(folder), *words)[1])
    of_checkpoint = json.loads(run("evaluate", str(checkpoint), *words)[1])
    assert of_checkpoint["problems"] == of_run["problems"]


def test_a_run_does_not_bring_its_verifier_and_limit_to_another_task(tmp_path):
    from interlace.evaluation.model import run_settings

    shown = resolve("sft", {"task": "countdown", "reward": "math", "max_new_tokens": 9, "seed": 4}).to_dict()
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(shown))
    own = run_settings(tmp_path)
    assert (own["reward"], own["max_new_tokens"], own["task"]) == ("math", 9, "countdown")
    assert run_settings(tmp_path, "countdown") == own
    other = run_settings(tmp_path, "arithmetic")
    assert "reward" not in other and "max_new_tokens" not in other and other["seed"] == 4
    assert run_settings("scratch:nano") == {}


def test_a_run_that_learns_nothing_ends_with_status_1_and_its_message(run, monkeypatch):
    import interlace.training.run
    from interlace.training.metrics import DeadRun

    def dead(*words, **settings):
        raise DeadRun("every completion was truncated for 9 steps in a row: raise max_new_tokens")

    monkeypatch.setattr(interlace.training.run, "train", dead)
    status, out, err = run("train", "grpo")
    assert (status, out) == (1, "")
    assert err == "error: every completion was truncated for 9 steps in a row: raise max_new_tokens\n"
