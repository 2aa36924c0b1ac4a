import itertools
import json
import math
import subprocess
import sys

import pytest
from rich.console import Console

import interlace
from interlace.cli.tokens import legend, show, style, tokens

ROWS = [
    {
        "group": "a",
        "source": "rollout",
        "reward": 1.0,
        "verdict": "pass",
        "logp": [-0.5, -1.2],
        "old_logp": [-0.6, -1.0],
    },
    {"group": "a", "source": "rollout", "reward": 0.0, "verdict": "fail", "logp": [-0.5]},
    {"group": "b", "source": "demo", "logp": [-0.7, -2.0]},
]


def text(**more):
    return json.dumps({"rows": ROWS, **more})


@pytest.fixture
def explain(run):
    """The one JSON object of `interlace explain WORDS --input - --json`."""

    def explain(*words, input=None):
        status, out, err = run(
            "explain", *words, "--input", "-", "--json", input=text() if input is None else input
        )
        assert (status, err) == (0, ""), err
        assert out.count("\n") == 1
        return json.loads(out)

    return explain


def test_the_printed_coefficients_are_the_hand_worked_ones(explain):
    out = explain("grpo", "std=false")
    # A = 1/2 and -1/2; rho = e^0.1, e^-0.2 (inside the clip) and 1; over row length, then over two rows.
    assert out["rows"][0]["advantage"] == [0.5, 0.5]
    assert out["rows"][0]["coefficient"] == pytest.approx([math.exp(0.1) / 8, math.exp(-0.2) / 8])
    assert out["rows"][1]["coefficient"] == pytest.approx([-1 / 4])
    assert out["rows"][2] == {"advantage": [0.0, 0.0], "coefficient": [0.0, 0.0]}
    assert out["terms"] == [{"name": "policy", "coefficient": 1.0, "denominator": "sequence_means", "n": 2.0}]


@pytest.mark.parametrize("method", ["sft", "grpo", "dapo", "chord", "ppo", "sft_then_rl"])
def test_the_command_prints_what_python_returns(explain, method):
    assert explain(method) == interlace.explain(method, ROWS)


def test_parameters_of_the_command_line_are_those_of_python(explain):
    expected = interlace.explain("chord", ROWS, mu=0.5, phi="p(1-p)", clip_high=None)
    assert explain("chord", "mu=0.5", "phi=p1mp", "clip_high=none") == expected


def test_a_file_is_read_like_standard_input(run, tmp_path, explain):
    path = tmp_path / "rows.json"
    path.write_bytes(b"\xef\xbb\xbf" + text().encode())  # a byte-order mark is no part of the JSON
    status, out, _ = run("explain", "grpo", "--input", str(path), "--json")
    assert status == 0 and json.loads(out) == explain("grpo")


def test_step_stage_and_state_are_keys_of_the_object_and_the_command_line_wins(explain):
    def mu(out):
        return {t["name"]: t["coefficient"] for t in out["terms"]}["sft"]

    schedule = "mu=linear:1,0,10"
    assert mu(explain("chord", schedule, input=text(step=5))) == pytest.approx(0.5)
    assert mu(explain("chord", schedule, "step=2", input=text(step=5))) == pytest.approx(0.8)
    assert explain("sft_then_rl", "stage=sft") == explain("sft")
    assert explain("sft_then_rl", "stage=sft", input=text(stage="rl")) == explain("sft")
    assert explain("sft_then_rl", "stage=none", input=text(stage="sft")) == explain("sft_then_rl")
    # SASR trains demonstrations if u < g_last / (g_last + gamma g_warmup) = 1/2.
    state = {"g_last": 1.0, "g_warmup": 1.0, "u": 0.4}
    below = [t["name"] for t in explain("sasr", "kl=0", input=text(state=state))["terms"]]
    above = [t["name"] for t in explain("sasr", "kl=0", "state.u=0.6", input=text(state=state))["terms"]]
    assert below != above


def test_several_methods_are_one_object_by_name_and_share_what_they_all_know(explain):
    out = explain("grpo", "chord", "std=false", "chord.mu=0.5")
    assert list(out) == ["grpo", "chord"]
    assert out["grpo"] == explain("grpo", "std=false")
    assert out["chord"] == explain("chord", "std=false", "mu=0.5")
    assert explain("grpo", "grpo.std=false") == explain("grpo", "std=false")


def test_a_method_of_a_file_is_named_by_its_path(explain, tmp_path):
    (tmp_path / "mine.py").write_text(
        "from interlace.methods import Method, register\n"
        "from interlace.methods._parameters import Length\n"
        "from interlace.parts.terms import Term\n"
        "class Mine(Length):\n"
        "    weight: float = 1.0\n"
        "@register('mine', Mine)\n"
        "def mine(h):\n"
        "    loss = {'demo': lambda v: -h.weight * v.logp}\n"
        "    return Method(terms=(Term('mine', loss, 'tokens', likelihood=True),))\n"
    )
    out = explain(f"{tmp_path}/mine.py:mine", "weight=3")
    assert out["rows"][2]["coefficient"] == pytest.approx([1.5, 1.5])


def test_empty_rows_and_no_rows_are_legal(explain):
    assert explain("grpo", input='{"rows": []}') == {**interlace.explain("grpo", []), "rows": []}
    out = explain("grpo", input='{"rows": [{"source": "rollout", "logp": [], "reward": 1}]}')
    assert out["rows"] == [{"advantage": [], "coefficient": []}]


def test_the_output_is_strict_json_on_a_real_pipe():
    done = subprocess.run(
        [sys.executable, "-m", "interlace.cli", "explain", "grpo", "--input", "-", "--json"],
        input=text(),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout, parse_constant=lambda c: pytest.fail(c)) == interlace.explain("grpo", ROWS)


BROKEN = [
    ("", "standard input: not JSON"),
    ("{", "standard input: not JSON"),
    ("[1]", "standard input: a list; accepted is an object with the keys rows, step, stage, state"),
    ("{}", "'rows' is required"),
    ('{"rows": 3}', "rows: accepted is a list of objects"),
    ('{"rowss": []}', "unknown key 'rowss': did you mean 'rows'?"),
    ('{"rows": [], "step": -1}', "step=-1"),
    ('{"rows": [], "step": 1.5}', "step=1.5"),
    ('{"rows": [], "stage": 3}', "'stage': 3 is not accepted"),
    ('{"rows": [], "stage": "sft"}', "this method has no stages"),
    ('{"rows": [], "state": [1]}', "'state': [1] is not accepted"),
    ('{"rows": [], "state": {"u": "x"}}', "state.u='x'"),
    ('{"rows": [{"logp": [NaN], "source": "rollout"}]}', "NaN is not a JSON number"),
    ('{"rows": [{"logp": [-1e999], "source": "rollout"}]}', "row 0: 'logp'"),
    ('{"rows": [{"logp": [0.5], "source": "rollout"}]}', "row 0: 'logp'"),
    ('{"rows": [{"logp": [-1], "source": "rolout"}]}', "row 0: 'source': 'rolout' is not accepted"),
    ('{"rows": [{"logp": [-1], "source": "rollout", "rewrad": 1}]}', "did you mean 'reward'?"),
    ('{"rows": [{"logp": [-1], "source": "rollout", "reward": ' + "9" * 400 + "}]}", "'reward'"),
    ("[" * 100_000, "nested too deeply"),
]


@pytest.mark.parametrize(("input", "message"), BROKEN, ids=[m for _, m in BROKEN])
def test_bad_input_ends_with_2_a_message_and_nothing_on_standard_output(run, input, message):
    status, out, err = run("explain", "grpo", "--input", "-", "--json", input=input)
    assert (status, out) == (2, "")
    assert err.startswith("error: ") and message in err and err.count("\n") == 1


def test_bytes_that_are_no_text_are_refused(run):
    status, _, err = run("explain", "grpo", "--input", "-", "--json", input=b'{"rows": "\xff"}')
    assert status == 2 and "not UTF-8 text" in err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["grpo", "kll=1"], "grpo: unknown parameter 'kll'; did you mean 'kl'?"),
        (["grpo", "kl=-1"], "kl='-1'"),
        (["grpo", "std_scope=batch"], "std_scope='batch'"),
        (["grpo", "kl=1"], "row 0: 'ref_logp' is needed"),
        (["grpo", "dapo", "kll=1"], "unknown parameter 'kll': did you mean 'kl'?"),
        (["grpo", "dapo", "cord.kl=1"], "'cord.kl': accepted before the dot are grpo, dapo"),
        (["grpo", "dapoo"], "unknown method 'dapoo': did you mean 'dapo'?"),
        (["grpo", "grpo"], "a method is named twice"),
        (["kl=1"], "name a method"),
        (["grpo", "step=x"], "step=x: accepted are integers >= 0"),
        (["grpo", "state=3"], "state=3: give its numbers by name"),
        (["sasr", "state.u=x"], "state.u=x: accepted are finite numbers"),
        (["chord", "mu=cosine:1"], "cosine:1"),
    ],
)
def test_bad_words_end_with_2_and_a_message(run, words, message):
    status, out, err = run("explain", *words, "--input", "-", "--json", input=text())
    assert (status, out) == (2, "")
    assert message in err and err.count("\n") == 1


def test_a_result_that_is_no_number_is_an_error_not_broken_json(run):
    rows = [{"source": "rollout", "logp": [-1], "ref_logp": [-1e10], "reward": 1}]
    words = ["explain", "grpo", "kl=1e300", "kl_estimator=k2", "--input", "-", "--json"]
    status, out, err = run(*words, input=json.dumps({"rows": rows}))
    assert (status, out) == (2, "") and err.startswith("error: a result is too large")


def drawn(explained, rows, colour="truecolor", **texts):
    console = Console(width=200, color_system=colour, force_terminal=colour is not None, highlight=False)
    with console.capture() as captured:
        show(explained, rows, console=console, **texts)
    return captured.get()


def test_blue_is_more_likely_and_orange_less_by_size_on_one_scale():
    def levels(c):
        triplet = style(c, 2.0).bgcolor.triplet
        return triplet.red, triplet.green, triplet.blue

    assert levels(2.0) == (10, 95, 165) and levels(-2.0) == (196, 80, 10)
    # a quarter of the largest is half way from the faintest (a quarter of the colour) to the full one
    assert levels(0.5) == (6, 59, 103)
    assert style(0.0, 2.0).bgcolor is None and style(0.0, 0.0).bgcolor is None
    assert levels(1e-9)[2] > 40  # what is trained at all can be told from what is not


def test_the_terminal_view_shows_terms_numbers_and_a_legend(run):
    status, out, _ = run("explain", "grpo", "std=false", "--input", "-", input=text())
    assert status == 0
    assert "sequence_means" in out and "more likely" in out and "less likely" in out
    assert f"{math.exp(0.1) / 8:+.4g}" in out and "-0.25" in out
    assert "row 1 · rollout · group a · reward 0 · fail · advantage -0.5" in out


def test_tokens_keep_their_text_and_newlines_are_visible():
    line = tokens([0.1, 0.0, -0.2], ["a b", "\n", "]x["], 0.2, coloured=True)
    assert line.plain.strip() == "a b⏎]x["
    assert "(empty)" in tokens([], None, 1.0, coloured=True).plain


def test_without_colours_neighbours_with_the_same_number_are_written_with_it():
    numbers = [0.1, 0.1, 0.0, -0.2, 0.1]
    plain = tokens(numbers, ["a", "b\n", "c", "d", "e"], 0.2, coloured=False).plain
    assert plain.split() == ["ab⏎(+0.1)", "c", "d(-0.2)", "e(+0.1)"]


def test_the_scale_is_common_to_all_methods_shown():
    one = {"loss": 0.0, "terms": [], "rows": [{"advantage": [1.0], "coefficient": [0.5]}]}
    two = {"loss": 0.0, "terms": [], "rows": [{"advantage": [1.0], "coefficient": [-1.0]}]}
    out = drawn({"one": one, "two": two}, [{"source": "demo", "logp": [-1.0]}])
    # 1/4 + 3/4 of the square root of a half, and full strength
    assert "48;2;8;74;129" in out and "48;2;196;80;10" in out
    assert "|coefficient| 1" in legend(1.0).plain


def test_a_batch_without_any_signal_says_so():
    nothing = {"loss": 0.0, "terms": [], "rows": [{"advantage": [0.0], "coefficient": [0.0]}]}
    rows = [{"source": "rollout", "logp": [-1.0]}]
    assert "no token of these rows is trained" in drawn({"m": nothing}, rows)


def test_prompts_stand_before_the_tokens():
    one = {"loss": 0.0, "terms": [], "rows": [{"advantage": [1.0], "coefficient": [0.5]}]}
    rows = [{"source": "demo", "logp": [-1.0]}]
    out = drawn({"m": one}, rows, colour=None, texts=[["4"]], prompts=["2+2="])
    assert "  2+2=\n  4(+0.5)\n" in out


def test_without_input_the_batch_of_the_task_and_model_is_explained(run):
    words = ["explain", "luffy", "sft", "luffy.gamma=0.2", "task=countdown:numbers=2", "model=scratch:nano"]
    words += ["prompts_per_step=1", "group_size=2", "max_new_tokens=8", "seed=3"]
    status, out, err = run(*words)
    assert status == 0, err
    batch = interlace.sample_batch(
        "luffy", task="countdown:numbers=2", prompts_per_step=1, group_size=2, max_new_tokens=8, seed=3
    )
    assert len(batch.rows) == 3 and all(prompt in out for prompt in batch.prompts)
    status, printed, _ = run(*words, "--json")
    expected = interlace.explain("luffy", batch.rows, gamma=0.2)
    assert json.loads(printed)["luffy"] == expected
    # Imitated, and more so where the demonstration joins its group's statistics.
    assert min(expected["rows"][2]["coefficient"]) > 0 > max(expected["rows"][0]["coefficient"])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["grpo", "taks=countdown"], "unknown parameter 'taks': did you mean 'task'?"),
        (["grpo", "task=countdwn"], "unknown task 'countdwn' (nearest: countdown)"),
        (["grpo", "model=scratch:nanno"], "'nanno'"),
        (["grpo", "kl=x"], "kl='x'"),
    ],
)
def test_a_batch_that_cannot_be_sampled_is_a_mistake(run, words, message):
    status, out, err = run("explain", *words)
    assert (status, out) == (2, "") and message in err and err.count("\n") == 1


def test_methods_of_every_family_are_explained_without_a_traceback(run):
    from interlace.methods import REGISTER

    rows = [
        {
            "group": g,
            "source": s,
            "reward": r,
            "logp": [-0.4, -1.0],
            "old_logp": [-0.5, -1.0],
            "ref_logp": [-0.6, -0.9],
        }
        for g, (s, r) in itertools.product("ab", [("rollout", 1.0), ("rollout", 0.0), ("demo", 1.0)])
    ]
    for name in REGISTER:
        status, out, err = run("explain", name, "--input", "-", "--json", input=json.dumps({"rows": rows}))
        if status == 0:
            json.loads(out)
        else:
            assert (status, out) == (2, "") and err.startswith("error: ") and err.count("\n") == 1, (
                name,
                err,
            )


def test_several_methods_stand_under_each_other(run):
    status, out, err = run(
        "explain", "grpo", "chord", "std=false", "chord.mu=0.5", "--input", "-", input=text()
    )
    assert (status, err) == (0, "")
    assert "SFT : RL" in out and "chord std=false mu=0.5" in out
    assert "(mask: no term reads demo tokens)" in out  # GRPO on the demonstration


def test_a_page_is_written_for_one_or_several_methods(run, tmp_path):
    page = tmp_path / "page.html"
    status, out, err = run("explain", "sft", "pear", "--input", "-", "--html", str(page), input=text())
    assert (status, out, err) == (0, "", f"written: {page}\n")
    written = page.read_text(encoding="utf-8")
    assert written.startswith("<!doctype html>") and "behaviour_logp" in written
    status, out, _ = run("explain", "grpo", "--input", "-", "--json", "--html", str(page), input=text())
    assert status == 0 and json.loads(out)["terms"] and "pear" not in page.read_text(encoding="utf-8")
    status, _, err = run("explain", "sft", "--input", "-", "--html", f"{tmp_path}/no/page.html", input=text())
    assert status == 2 and "No such file or directory" in err


def test_the_sampled_batch_has_its_texts_and_origin_in_the_page(run, tmp_path):
    page = tmp_path / "page.html"
    words = ["explain", "sft", "relift.stage=sft", "relift", "task=countdown:numbers=2", "prompts_per_step=1"]
    status, _, err = run(*words, "group_size=2", "max_new_tokens=8", "--html", str(page))
    assert status == 0, err
    written = page.read_text(encoding="utf-8")
    assert '"task":"countdown:numbers=2","model":"scratch:nano"' in written
    assert '"name":"relift stage=sft"' in written


def test_formulas_are_printed_with_their_parameters(run):
    status, out, err = run("explain", "chord", "grpo", "--formula", "chord.mu=0.4", "clip_high=0.28")
    assert (status, err) == (0, "")
    assert "mu = 0.4;" in out and out.count("clip(rho, 0.8, 1.28)") == 2
    assert "-sg[p(1-p)]*logp" in out
    status, out, _ = run("explain", "relift", "stage=sft", "--formula")
    assert status == 0 and "\nstage sft\n" in out and "\nstage rl\n" not in out


def test_square_brackets_of_formulas_survive_the_catalogue(run):
    status, out, _ = run("methods", "dft")
    assert status == 0 and "-sg[w]*logp" in out
