"""A tiny comparison on real components: finished, killed and issued again, with a folder deleted, with a run
that diverges.
"""

import io
import json
import multiprocessing
import os
import shutil
import signal
import time
from pathlib import Path

import pytest
from rich.console import Console

import interlace
from interlace.compare.jobs import outcome
from interlace.compare.live import LiveView
from interlace.compare.results import load_results
from interlace.compare.tournament import write_reports
from interlace.config import ConfigError

METHODS = ["sft", "grpo", "sft as=wild lr=1e9 stop_dead_after=3"]
SETTINGS = {
    "model": "scratch:nano,layers=1,hidden=32,heads=2,ffn=64",
    "task": "countdown:numbers=2,high=6",
    "problems": 24,
    "demos_per_step": 4,
    "prompts_per_step": 2,
    "group_size": 4,
    "budget": "sft:10",
    "start": "sft:0.5",
    "switch": "0.5",
    "seeds": 2,
    "test_problems": 8,
    "test_samples": 2,
    "ood_problems": 4,
    "retention": "none",
    "looks": 2,
    "eval_problems": 4,
    "save_every": 1,
    "stop_dead_after": 0,
}
PLACE = "countdown-numbers=2,high=6"


class Told(LiveView):
    """A view whose text can be read."""

    def __init__(self):
        super().__init__(Console(file=io.StringIO(), width=200), every=0.0)

    @property
    def text(self):
        return self.console.file.getvalue()


def compare(out, view=None, **more):
    given = {"jobs": 0, **SETTINGS, **more}
    return interlace.compare(METHODS, view=view or Told(), out=str(out), **given)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A comparison that nothing disturbed, with what it said."""
    view = Told()
    return compare(tmp_path_factory.mktemp("whole") / "c", view), view.text


def outcomes(folder):
    """Of every job by its id."""
    return {str(p.parent.relative_to(folder)): outcome(p.parent) for p in Path(folder).rglob("outcome.json")}


def test_every_method_spends_the_same_and_shared_starts_are_trained_once(whole):
    found, _ = whole
    (t,) = found.results.tasks
    assert found.complete and found.results.open == 0
    assert {s.label for s in t.ranking} == {"sft", "grpo", "sft_then_rl"}
    shared = [o for name, o in outcomes(found.folder).items() if name.startswith("shared/")]
    assert len(shared) == 2
    for run in t.runs:
        if run.done:
            assert run.cost == pytest.approx(t.budget, rel=0.1)
            assert run.outcome["charged"] in ({0.0} if run.label == "sft" else {o["flops"] for o in shared})
    assert t.budget == pytest.approx(10 * t.base["outcome"]["sft_step_flops"])


def test_a_run_that_diverges_is_reported_and_stops_nobody(whole):
    found, said = whole
    (t,) = found.results.tasks
    assert set(t.absent) == {"wild"}
    assert {r.state for r in t.runs if r.label == "wild"} == {"diverged"}
    assert all(r.done for r in t.runs if r.label != "wild")
    assert f"runs/{PLACE}/wild/seed-0: diverged: the gradient was not finite" in said
    assert "wild, seed 1: diverged: the gradient was not finite" in (found.folder / "table.md").read_text()
    assert "wild: a lower lr." in found.report.read_text()


def test_everything_is_written(whole):
    found, said = whole
    names = {p.name for p in found.folder.iterdir()}
    assert {"report.html", "report.json", "table.md", "runs.csv", "curves.csv", "scores.csv"} <= names
    plain = json.loads((found.folder / "report.json").read_text())
    assert [s["label"] for s in plain["tasks"][0]["ranking"]] == [
        s.label for s in found.results.tasks[0].ranking
    ]
    assert "Open the token view" in found.report.read_text()
    for place in ("base", f"runs/{PLACE}/sft_then_rl/seed-1"):
        assert place in said


def test_along_the_way_and_after_every_stage_there_are_evaluations(whole):
    found, _ = whole
    (t,) = found.results.tasks
    (run,) = (r for r in t.runs if r.label == "grpo" and r.seed == 0)
    assert [x["at"] for x in run.outcome["looks"]] == ["start", "train", "after train"]
    final = run.measured["final"]
    assert len(final["test"]["problems"]) == len(t.problems)
    assert "ood_numbers" in final["ood"]
    assert run.before["state"] == "done" and run.before["looks"]


def killed(out):
    """The same comparison in a process of its own, killed in the middle of a run."""
    process = multiprocessing.get_context("fork").Process(target=compare, args=(out,))
    process.start()
    place = Path(out) / "runs" / PLACE / "grpo" / "seed-0"
    while process.is_alive() and not (place / "latest.json").exists():
        time.sleep(0.001)
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    return place


def test_killed_in_the_middle_and_issued_again_it_ends_with_the_same_table(whole, tmp_path):
    found, _ = whole
    place = killed(tmp_path / "c")
    assert outcome(place) is None and (place / "config.yaml").exists()
    again = compare(tmp_path / "c")
    assert again.complete
    assert (again.folder / "table.md").read_text() == (found.folder / "table.md").read_text()
    assert (again.folder / "scores.csv").read_text() == (found.folder / "scores.csv").read_text()
    flops = [r.outcome["flops"] for r in again.results.tasks[0].runs if r.done]
    assert flops == [r.outcome["flops"] for r in found.results.tasks[0].runs if r.done]


def test_one_deleted_run_is_made_anew_alone_in_a_process_of_its_own(whole, tmp_path):
    found, _ = whole
    root = tmp_path / "c"
    shutil.copytree(found.folder, root)
    lost = root / "runs" / PLACE / "sft_then_rl" / "seed-1"
    shutil.rmtree(lost)
    before = {p: p.stat().st_mtime_ns for p in root.rglob("outcome.json")}
    again = compare(root, jobs=2)
    assert again.complete and outcome(lost)["state"] == "done"
    assert {p: p.stat().st_mtime_ns for p in before} == before
    assert (root / "table.md").read_text() == (found.folder / "table.md").read_text()


def test_parts_from_several_machines_make_one_report(whole, tmp_path):
    found, _ = whole
    for name, part in (("one", "sft"), ("other", "sft_then_rl")):
        there = tmp_path / name
        shutil.copytree(found.folder / "base", there / "base")
        shutil.copytree(found.folder / "runs" / PLACE / part, there / "runs" / PLACE / part)
        shutil.copy(found.folder / "comparison.yaml", there)
    joined, path = write_reports([tmp_path / "one", tmp_path / "other"], tmp_path / "report")
    assert [s.label for s in joined.tasks[0].ranking if s.label in ("sft", "sft_then_rl")]
    pair = joined.tasks[0].pair("sft", "sft_then_rl")
    assert pair.difference == found.results.tasks[0].pair("sft", "sft_then_rl").difference
    assert path.exists()
    with pytest.raises(ConfigError, match="no run of a comparison"):
        load_results([tmp_path / "report"])


def test_other_settings_for_the_same_folder_are_refused(whole):
    found, _ = whole
    with pytest.raises(ConfigError, match=r"other settings \(settings.lr\)"):
        compare(found.folder, lr=1e-5)
