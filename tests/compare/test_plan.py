"""What is planned, from outcomes that are written by hand."""

import json

import pytest

from interlace.compare.jobs import outcome, write_job
from interlace.compare.plan import Planner
from interlace.compare.settings import resolve_comparison
from interlace.config import ConfigError
from interlace.training.checkpoint import write_json


@pytest.fixture
def folder(tmp_path):
    class Folder:
        root = tmp_path

        def plan(self, methods, **settings):
            self.planner = Planner(resolve_comparison(methods, {"seeds": "2", **settings}), tmp_path)
            self.jobs = {job.id: job for job in self.planner.jobs()}
            return self.jobs

        def end(self, job, state="done", validation=None, **facts):
            write_job(tmp_path, self.jobs[job])
            facts = {"flops": 1.0, "charged": 0.0, "error": "", **facts}
            write_json(tmp_path / job / "outcome.json", {"state": state, **facts})
            if validation is not None:
                problems = [{"id": str(i), "greedy": i < validation} for i in range(10)]
                record = {"at": "final", "validation": {"problems": problems}}
                write_json(tmp_path / job / "measured" / "0-final.json", record)

        def base(self):
            self.end("base/countdown", sft_step_flops=1e6)

    return Folder()


def kinds(jobs, kind):
    return [job.id for job in jobs.values() if job.kind == kind]


def test_first_comes_the_start_model_which_says_what_a_step_costs(folder):
    assert list(folder.plan(["sft"], budget="sft:100")) == ["base/countdown"]
    folder.base()
    jobs = folder.plan(["sft"], budget="sft:100", switch="0.5")
    assert jobs["runs/countdown/sft/seed-0"].settings["budget"] == 1e8
    assert jobs["runs/countdown/sft_then_rl/seed-1"].settings["budget"] == 1e8


def test_one_sft_checkpoint_serves_everyone_who_starts_from_it(folder):
    folder.plan(["grpo"])
    folder.base()
    jobs = folder.plan(["sft", "grpo", "chord"], start="sft:0.25", switch="0.25", budget="sft:100")
    (first, second) = kinds(jobs, "shared")
    assert jobs[first].settings["budget"] == 0.25e8
    starts = {job.label: job.init for job in jobs.values() if job.kind == "run" and job.seed == 0}
    assert starts == {"sft": None, "grpo": first, "chord": first, "sft_then_rl": first}
    assert second.endswith("seed-1")
    other = folder.plan(["grpo"], start="sft:0.25", switch="0.5", budget="sft:100")
    assert len(kinds(other, "shared")) == 4


def test_other_rates_of_the_sft_stage_are_another_checkpoint(folder):
    folder.plan(["grpo"])
    folder.base()
    jobs = folder.plan(["grpo"], start="sft", switch="0.5", stages={"sft": {"lr": "1e-3"}})
    assert len(kinds(jobs, "shared")) == 4


def test_settings_are_chosen_on_validation_problems_and_other_seeds(folder):
    folder.plan(["sft"])
    folder.base()
    jobs = folder.plan(["sft"], search="lr:x0.3,x1", without="sft_then_rl")
    tuning = kinds(jobs, "tuning")
    assert tuning == ["tuning/countdown/sft/lr=x0.3/seed-1000", "tuning/countdown/sft/lr=x1/seed-1000"]
    assert kinds(jobs, "run") == []
    folder.end(tuning[0], validation=7)
    assert kinds(folder.plan(["sft"], search="lr:x0.3,x1", without="sft_then_rl"), "run") == []
    folder.end(tuning[1], validation=4)
    jobs = folder.plan(["sft"], search="lr:x0.3,x1", without="sft_then_rl")
    runs = kinds(jobs, "run")
    assert [jobs[r].seed for r in runs] == [0, 1] and {jobs[r].choice for r in runs} == {"lr=x0.3"}
    assert jobs[runs[0]].settings["stages"]["train"]["lr"] == pytest.approx(9e-4)


def test_a_setting_that_diverged_is_not_chosen(folder):
    folder.plan(["sft"])
    folder.base()
    jobs = folder.plan(["sft"], search="lr:x0.3,x1", without="sft_then_rl")
    first, second = kinds(jobs, "tuning")
    folder.end(first, validation=3)
    folder.end(second, state="diverged")
    jobs = folder.plan(["sft"], search="lr:x0.3,x1", without="sft_then_rl")
    assert {jobs[r].choice for r in kinds(jobs, "run")} == {"lr=x0.3"}
    chosen = folder.planner.chosen(folder.planner.c.contenders[0], "countdown")
    assert chosen.scores == {"lr=x0.3": 0.3, "lr=x1": None}


def test_more_seeds_and_more_methods_leave_what_is_there_as_it_is(folder):
    folder.plan(["sft"])
    folder.base()
    before = folder.plan(["sft", "grpo"], start="sft", switch="0.5")
    for job in before.values():
        if job.id != "base/countdown":
            write_job(folder.root, job)
    after = folder.plan(["sft", "grpo", "chord"], start="sft", switch="0.5", seeds="5")
    assert set(before) < set(after)
    for job in after.values():
        write_job(folder.root, job)  # the same settings, or it would be refused


def test_a_folder_that_holds_other_settings_is_refused_by_name(folder):
    folder.plan(["sft"])
    folder.base()
    job = folder.plan(["sft"])["runs/countdown/sft/seed-0"]
    write_job(folder.root, job)
    changed = folder.plan(["sft"], lr="1e-2")["runs/countdown/sft/seed-0"]
    with pytest.raises(ConfigError, match=r"other settings \(settings.lr\)"):
        write_job(folder.root, changed)


def test_what_needs_a_failed_start_is_blocked(folder):
    folder.plan(["grpo"])
    folder.base()
    jobs = folder.plan(["grpo"], start="sft", switch="0.5")
    shared = kinds(jobs, "shared")[0]
    folder.end(shared, state="diverged")
    blocked = [job.id for job in jobs.values() if folder.planner.is_blocked(job)]
    assert blocked == [job.id for job in jobs.values() if job.init == shared]


def test_a_budget_in_steps_gives_every_run_as_many(folder):
    folder.plan(["sft"])
    folder.base()
    jobs = folder.plan(["sft", "grpo"], budget="steps:40", start="sft", switch="0.25")
    assert jobs["runs/countdown/sft/seed-0"].settings["stages"] == {"train": {"steps": 40}}
    assert jobs["runs/countdown/grpo/seed-0"].settings["stages"] == {"train": {"steps": 20}}
    stages = jobs["runs/countdown/sft_then_rl/seed-0"].settings["stages"]
    assert stages == {"sft": {"steps": 0}, "rl": {"steps": 30}}
    assert {jobs[s].settings["stages"]["train"]["steps"] for s in kinds(jobs, "shared")} == {10, 20}


def test_an_outcome_that_is_half_written_is_none(tmp_path):
    (tmp_path / "outcome.json").write_text('{"state": "do')
    assert outcome(tmp_path) is None
    (tmp_path / "outcome.json").write_text(json.dumps({"state": "done"}))
    assert outcome(tmp_path) == {"state": "done"}
