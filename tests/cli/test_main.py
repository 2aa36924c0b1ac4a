import importlib.metadata
import os
import re
import subprocess
import sys
import warnings

import pytest
import typer

from interlace.cli.main import app

SHELL = [sys.executable, "-m", "interlace.cli"]


def shell(*words, **more):
    return subprocess.run([*SHELL, *words], capture_output=True, text=True, timeout=60, **more)


def test_the_entry_point_is_main():
    (point,) = (p for p in importlib.metadata.entry_points(group="console_scripts") if p.name == "interlace")
    assert point.value == "interlace.cli.main:main"


def test_help_imports_nothing_heavy():
    heavy = "torch", "transformers", "pydantic", "scipy", "numpy", "yaml"
    code = (
        "import sys\nfrom interlace.cli.main import app\n"
        "try: app(['--help'])\nexcept SystemExit: pass\n"
        f"print([m for m in {heavy} if m in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stderr.strip() == "[]"
    for command in ("train", "evaluate", "explain", "methods", "tasks", "models"):
        assert command in done.stdout


def test_help_takes_under_half_a_second_of_processor_time():
    def seconds():
        before = os.times()
        assert shell("--help").returncode == 0
        after = os.times()
        return after.children_user + after.children_system - before.children_user - before.children_system

    assert min(seconds() for _ in range(3)) < 0.5


def test_no_words_show_the_help(run):
    assert run() == run("--help")
    assert run()[0] == 0


def test_version(run):
    status, out, _ = run("--version")
    assert status == 0 and re.fullmatch(r"interlace \d+\.\d+\.\d+\n", out)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["explian", "grpo"],
            "error: unknown command 'explian': did you mean 'explain'? accepted are ",
        ),
        (["xyz"], "error: unknown command 'xyz': accepted are train, "),
        (["explain", "grpo", "--inptu", "x"], "error: unknown option --inptu: did you mean --input?"),
        (
            ["train", "grpo", "--lr", "3"],
            "error: unknown option --lr: settings are written without dashes, as lr=VALUE",
        ),
        (["explain"], "error: Missing argument 'METHOD"),
        (["explain", "grpo", "--input"], "error: Option '--input' requires an argument."),
        (["methods", "grppo"], "error: unknown method 'grppo': did you mean 'grpo'? accepted are "),
    ],
)
def test_a_mistake_is_one_line_on_standard_error_with_status_2(run, words, message):
    status, out, err = run(*words)
    assert (status, out) == (2, "")
    assert err.startswith(message) and err.count("\n") == 1


def test_a_real_process_exits_with_2_and_no_traceback():
    done = shell("explain", "grpo", "--input", "there-is-no-such-file.json")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "error: there-is-no-such-file.json: No such file or directory\n"


def test_debug_shows_where_a_mistake_was_raised():
    done = shell("explain", "grpo", "--input", "no-file", env={**os.environ, "INTERLACE_DEBUG": "1"})
    assert done.returncode not in (0, 2) and "Traceback" in done.stderr and "FileNotFoundError" in done.stderr


def command(function):
    """`interlace` with one more command, for this test only."""
    one = typer.Typer(cls=app.info.cls)
    one.callback()(lambda: None)
    one.command("it")(function)
    return one


def outcome(function):
    from typer.testing import CliRunner

    return CliRunner().invoke(command(function), ["it"])


def test_a_message_of_several_lines_becomes_one():
    def it():
        raise ValueError("first\n  second\n")

    result = outcome(it)
    assert (result.exit_code, result.stderr) == (2, "error: first second\n")


def test_a_fault_of_the_library_is_not_hidden():
    def it():
        raise KeyError("x")

    result = outcome(it)
    assert isinstance(result.exception, KeyError)


def test_warnings_are_one_line_on_standard_error_and_the_python_hook_is_put_back():
    before = warnings.showwarning

    def it():
        warnings.simplefilter("always")
        warnings.warn("mind\nthis", stacklevel=1)
        print("{}")

    with warnings.catch_warnings():
        result = outcome(it)
        assert (result.exit_code, result.stdout, result.stderr) == (0, "{}\n", "warning: mind this\n")
    assert warnings.showwarning is before


def test_an_interrupt_ends_with_130():
    def it():
        raise KeyboardInterrupt

    assert outcome(it).exit_code == 130


def test_a_reader_that_has_seen_enough_is_no_error():
    done = subprocess.run(
        f"{sys.executable} -m interlace.cli --help | head -c 1",
        shell=True,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert len(done.stdout) == 1 and done.stderr == ""
