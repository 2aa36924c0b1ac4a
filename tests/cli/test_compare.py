"""`interlace compare` and `interlace report` as commands; what they do is tested in tests/compare."""

import yaml

TINY = [
    "task=countdown:numbers=2,high=6",
    "model=scratch:nano,layers=1,hidden=16,heads=2,ffn=16",
    "problems=12",
    "demos_per_step=2",
    "budget=sft:2",
    "seeds=1",
    "test_problems=4",
    "test_samples=0",
    "ood_problems=0",
    "retention=none",
    "looks=0",
    "eval_problems=2",
    "without=sft_then_rl",
    "jobs=0",
]


def test_a_comparison_ends_with_its_ranking_and_can_be_reported_again(run, tmp_path):
    words = ["compare", "sft", "dft", *TINY, f"out={tmp_path}/c"]
    status, out, err = run(*words)
    assert status == 0, err
    assert "greedy accuracy in %" in out and "has the highest greedy accuracy of 2 methods" in out
    assert out.endswith(f"report: {tmp_path}/c/report.html\n")
    assert "runs/countdown-numbers=2,high=6/dft/seed-0: done" in err
    (tmp_path / "c" / "table.md").rename(tmp_path / "before.md")
    status, _, err = run(*words)
    assert status == 0 and "done" not in err.replace("are done", "")
    status, told, _ = run("report", f"{tmp_path}/c", f"out={tmp_path}/r")
    assert status == 0 and told.endswith(f"report: {tmp_path}/r/report.html\n")
    for folder in ("c", "r"):
        assert (tmp_path / folder / "table.md").read_text() == (tmp_path / "before.md").read_text()


def test_a_dry_run_prints_the_comparison_and_its_size(run):
    status, out, _ = run("compare", "sft", "grpo", "search=lr:x0.5,x1", "seeds=2", "--dry-run")
    assert status == 0
    plan = yaml.safe_load(out)
    assert [c["label"] for c in plan["contenders"]] == ["sft", "grpo", "sft_then_rl"]
    assert out.splitlines()[-1] == (
        "# 6 runs in the table, 10 more to choose settings, in runs/compare-countdown"
    )


def test_settings_of_a_preset_and_a_file_are_overruled_from_the_left_to_the_right(run, tmp_path):
    (tmp_path / "c.yaml").write_text("seeds: 4\ntest_problems: 10\nmethods: [sft, chord]\n")
    status, out, _ = run(
        "compare", "--preset", "demo", "--config", f"{tmp_path}/c.yaml", "seeds=1", "--dry-run"
    )
    plan = yaml.safe_load(out)
    assert status == 0
    assert (plan["seeds"], plan["test_problems"], plan["start"]) == ([0], 10, "sft")
    assert [c["label"] for c in plan["contenders"]] == ["sft", "chord", "sft_then_rl"]


def test_mistakes_are_told_in_one_line_before_anything_runs(run, tmp_path):
    for words, said in (
        (["compare"], "name methods, as in: interlace compare sft grpo chord"),
        (["compare", "grpp"], "did you mean 'grpo'?"),
        (["compare", "grpo", "budgt=sft:3"], "did you mean 'budget'?"),
        (["compare", "--preset", "latop"], "did you mean 'laptop'?"),
        (["report", f"{tmp_path}/nowhere"], "there is no such folder"),
        (["report", f"{tmp_path}"], "no run of a comparison in there"),
        (["report"], "Missing argument"),
        (["report", "a", "b=1"], "unknown setting 'b'"),
    ):
        status, out, err = run(*words)
        assert status == 2 and out == "" and err.startswith("error: ") and err.count("\n") == 1, (words, err)
        assert said in err, (words, err)
