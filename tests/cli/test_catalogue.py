import re

import pytest

from interlace.methods import REGISTER


def test_methods_lists_every_registered_one_with_its_facts(run):
    status, out, err = run("methods")
    assert (status, err) == (0, "")
    lines = {line.split()[0]: line for line in out.splitlines()[1:-1]}
    assert lines.keys() == REGISTER.keys()
    for word in ("050", "CHORD", "mixed", "prompts + demonstrations", "official code"):
        assert word in lines["chord"]


def test_methods_can_be_narrowed_by_family_and_by_what_they_need(run):
    def names(*options):
        return [line.split()[0] for line in run("methods", *options)[1].splitlines()[1:-1]]

    assert set(names("--family", "sft")) == {n for n, e in REGISTER.items() if e.family == "sft"}
    assert "ppo" in names("--needs", "critic") and "grpo" not in names("--needs", "critic")
    assert set(names("--needs", "demonstrations", "--needs", "critic")) == {"amft"}
    assert names("--family", "sft", "--needs", "critic") == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--family", "mixd"], "family 'mixd': did you mean 'mixed'? accepted are sft, rl, mixed, pipeline"),
        (["--needs", "critik"], "needs 'critik': did you mean 'critic'?"),
    ],
)
def test_unknown_filters_name_the_accepted_ones(run, options, message):
    status, out, err = run("methods", *options)
    assert (status, out) == (2, "") and message in err


def test_a_method_shows_docstring_parameters_terms_and_reductions(run):
    status, out, _ = run("methods", "chord")
    assert status == 0
    assert "arXiv 2508.11408, paper 050, family mixed" in out
    assert "L = (1 - mu) PG(A) + mu sg[phi] NLL" in out
    assert re.search(r"^clip_high +0\.2 +number >= 0 \| none", out, re.M)
    assert re.search(r"^phi +p\(1-p\) +.*entropy_top", out, re.M)
    assert re.search(r"^std +true +true, false", out, re.M)
    assert re.search(r"^dual_clip +none +number > 1 \| none", out, re.M)
    assert re.search(r"^sft +demo +.* +tokens", out, re.M)
    assert "reduces: mu=1 phi=1 is sft" in out


def test_what_is_special_to_a_method_stands_before_what_it_shares(run):
    _, out, _ = run("methods", "dapo")
    names = [line.split()[0] for line in out.splitlines() if re.match(r"[a-z_]+ +\S+ +\S", line)]
    assert names.index("overlong_buffer") < names.index("std_eps")


def test_stages_and_variants_are_shown(run):
    _, out, _ = run("methods", "sft_then_rl")
    assert re.search(r"^sft +sft +demo", out, re.M) and re.search(r"^rl +policy +rollout", out, re.M)
    _, out, _ = run("methods", "luffy")
    assert "variant=code: std=false clip_low=none clip_high=none denominator=length" in out


@pytest.mark.parametrize("name", sorted(REGISTER))
def test_every_method_can_be_shown(run, name):
    status, out, err = run("methods", name)
    assert (status, err) == (0, "") and out.startswith(name)


def test_tasks_lists_the_built_in_ones_and_the_datasets(run):
    status, out, _ = run("tasks")
    assert status == 0
    assert re.search(r"^countdown +.*numbers=3 .*train validation test ood", out, re.M)
    assert "gym:NAME with one of" in out and "chain_sum" in out


def test_a_task_shows_knobs_and_a_problem_whose_demonstration_passes(run):
    for words in (["countdown", "numbers=2"], ["countdown:numbers=2"]):
        status, out, _ = run("tasks", *words)
        assert status == 0
        assert "knobs: numbers=2 low=1 high=12" in out and "use: task=countdown:numbers=2" in out
        prompt = re.search(r"^(\d+) (\d+) = (\d+):$", out, re.M)
        step = re.search(r"^demonstration: (\d+)([-+*])(\d+)=(\d+)$", out, re.M)
        assert sorted(prompt.group(1, 2)) == sorted(step.group(1, 3)) and prompt.group(3) == step.group(4)
        assert "the verifier says of the demonstration: pass" in out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["countdwn"], "unknown task 'countdwn' (nearest: countdown)"),
        (["countdown", "numbrs=3"], "unknown knob 'numbrs' (nearest: numbers)"),
        (["countdown", "arithmetic"], "one task, not 2"),
    ],
)
def test_unknown_tasks_and_knobs_name_the_nearest(run, words, message):
    status, out, err = run("tasks", *words)
    assert (status, out) == (2, "") and message in err


def test_models_lists_the_sizes_and_says_whether_smollm2_is_there(run, tmp_path, monkeypatch):
    monkeypatch.setenv("INTERLACE_CACHE", str(tmp_path))
    status, out, _ = run("models")
    assert status == 0
    assert re.search(r"^scratch:nano +from random weights, hidden 96", out, re.M)
    assert "smollm2" in out and "not prepared yet: interlace models get smollm2" in out
    (tmp_path / "smollm2").mkdir()
    (tmp_path / "smollm2" / "config.json").write_text("{}")
    assert "SmolLM2-135M-Instruct, prepared" in run("models")[1]


def test_a_model_that_is_already_prepared_is_not_fetched_again(run, tmp_path, monkeypatch):
    monkeypatch.setenv("INTERLACE_CACHE", str(tmp_path))
    (tmp_path / "smollm2").mkdir()
    (tmp_path / "smollm2" / "config.json").write_text("{}")
    status, out, _ = run("models", "get", "smollm2")
    assert status == 0 and f"{tmp_path}/smollm2" in out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["get", "smolm2"], "models get 'smolm2': did you mean 'smollm2'?"),
        (["get"], "accepted is nothing, or: models get smollm2"),
        (["fetch", "smollm2"], "models fetch smollm2: accepted is nothing"),
    ],
)
def test_models_says_what_can_be_got(run, words, message):
    status, out, err = run("models", *words)
    assert (status, out) == (2, "") and message in err
