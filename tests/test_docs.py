"""Every command that README and docs show runs, in one folder, in the order of the pages, made small.

A line is a command if it is indented and begins with `interlace` (after `$ ` where its output is shown).
Synopses, with words in capitals or brackets, are not. Commands that the page shows to fail must fail.
"""

import json
import re
import shlex
import shutil
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from interlace.cli.main import app

ROOT = Path(__file__).parent.parent
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "docs" / "commands").glob("*.md"), key=lambda p: (p.stem != "train", p.stem)),
]
TINY = "scratch:nano,layers=1,hidden=32,heads=2,ffn=64"
SMALL = ["prompts_per_step=2", "group_size=2", "demos_per_step=2", "eval_problems=4", "problems=40"]
SHRUNK = re.compile(r"^(steps|stages\.\w+\.steps|eval_problems|problems|samples|model)=")
ELSEWHERE = ("compare", "report")
"""Commands with end-to-end tests of their own."""


def commands() -> list[tuple[str, str, bool]]:
    """(page, command, whether its output on the page is an error)."""
    found = []
    for page in PAGES:
        lines = page.read_text(encoding="utf-8").splitlines()
        for i, line in enumerate(lines):
            match = re.match(r"^\s{4,}(?:\$ )?(interlace .*?)(?:\s{2,}#.*)?$", line)
            if match is None or re.search(r"\[|\]|\b[A-Z]{4,}\b", match.group(1)):
                continue
            fails = i + 1 < len(lines) and lines[i + 1].strip().startswith("error:")
            found.append((str(page.relative_to(ROOT)), match.group(1), fails))
    return found


COMMANDS = commands()


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with what the pages assume: a data file, rows for explain, a method of one's own."""
    folder = tmp_path_factory.mktemp("docs")
    rows = [
        {"group": "a", "source": "rollout", "reward": r, "logp": [-0.5, -1.0], "old_logp": [-0.6, -0.9]}
        for r in (1.0, 0.0)
    ]
    (folder / "rows.json").write_text(json.dumps({"rows": rows}))
    shutil.copy(ROOT / "examples" / "word_problems.jsonl", folder / "problems.jsonl")
    code = re.search(r"```python\n(.*?)```", (ROOT / "CONTRIBUTING.md").read_text(), re.S)
    own = re.search(r"def (\w+)\(h", code.group(1)).group(1)
    text = code.group(1)
    (folder / "my_idea.py").write_text(text + ("" if own == "mine" else f"\nmine = {own}\n"))
    return folder


def made_small(words: list[str]) -> list[str]:
    """The same command on a tiny model and for two steps."""
    command = words[0]
    if command == "train" and not any(w.startswith("--resume") for w in words):
        kept = [w for w in words if not SHRUNK.match(w)]
        long = "data=problems.jsonl" in kept
        return [*kept, f"model={TINY}", "steps=2", *SMALL, *(["max_prompt_tokens=400"] if long else [])]
    if command == "evaluate":
        # The page's run has more steps than its small form, and so another name of its checkpoint.
        ends = {re.sub(r"\d{6}", "", str(p)): str(p) for p in Path("runs").glob("*/checkpoints/*-end")}
        words = [ends.get(re.sub(r"\d{6}", "", w), w) for w in words]
        return [*(w for w in words if not SHRUNK.match(w)), "problems=4", "samples=2"]
    if command == "explain" and "--input" not in words and "--formula" not in words:
        return [*words, f"model={TINY}"]
    return words


@pytest.mark.parametrize(
    ("page", "command", "fails"), COMMANDS, ids=[f"{p}: {c[:60]}" for p, c, _ in COMMANDS]
)
def test_commands_of_the_docs_run(place, monkeypatch, page, command, fails) -> None:
    words = shlex.split(command)[1:]
    if words[0] in ELSEWHERE:
        pytest.skip("has an end-to-end test of its own in tests/compare")
    monkeypatch.chdir(place)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    torch.set_num_threads(1)
    for run in Path("runs").glob("*"):
        if words[0] == "train" and not fails and run.name.split("-")[0] in words:
            shutil.rmtree(run)
    result = CliRunner().invoke(app, made_small(words))
    assert (result.exit_code != 0) == fails, result.output + str(result.exception)


def test_the_pages_show_commands() -> None:
    assert len(COMMANDS) >= 20
    assert {c.split()[1] for _, c, _ in COMMANDS} >= {
        "train",
        "evaluate",
        "explain",
        "methods",
        "tasks",
        "models",
    }


def test_python_of_the_readme_runs(tmp_path, monkeypatch) -> None:
    code = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.S).group(1)
    monkeypatch.chdir(tmp_path)
    small = f'model="{TINY}", steps=2, eval_problems=4, problems=40, demos_per_step=2, prompts_per_step=2,'
    shrunk = code.replace('model="scratch:nano",', small).replace('"steps": 600', '"steps": 2')
    assert shrunk != code
    exec(compile(shrunk, "README.md", "exec"), {})


def test_relative_links_of_the_pages_lead_somewhere() -> None:
    for page in PAGES:
        prose = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.S)
        for target in re.findall(r"\]\((?!http|#)([^)#]+)", prose):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_the_demo_runs_small(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    import runpy
    import sys

    out = tmp_path / "demo"
    arguments = ["demo.py", "sft_steps=2", "rl_steps=1", "eval_problems=4", f"out={out}"]
    monkeypatch.setattr(sys, "argv", arguments)
    runpy.run_path(str(ROOT / "examples" / "demo.py"), run_name="__main__")
    assert (out / "result.json").exists()
