"""`interlace check` prints which laws a method keeps, and its exit status says whether all of them."""

from __future__ import annotations

BROKEN = """
from interlace.methods import Method, register
from interlace.methods._parameters import Length
from interlace.parts.terms import Term


class Mine(Length):
    scale: float = 1.0


@register("mine", Mine)
def mine(h):
    compare = {"demo": lambda v: h.scale * (v.logp - v.logp.mean()) ** 2}
    return Method(terms=(Term("mine", compare, "tokens"),))
"""


def test_a_method_that_keeps_the_laws_is_listed_with_each_of_them(run):
    status, out, err = run("check", "relift", "fail_reward=0.5")
    assert (status, err) == (0, "")
    lines = out.splitlines()
    assert lines[0].split()[:2] == ["stage", "law"]
    assert (
        sum(line.startswith("rl ") for line in lines) == sum(line.startswith("sft ") for line in lines) == 8
    )
    assert lines[-1] == "16 of 16 laws kept"


def test_a_broken_law_says_what_to_change_and_fails(run, tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(BROKEN)
    status, out, err = run("check", f"{file}:mine", "scale=2")
    assert (status, err) == (1, "")
    (line,) = [line for line in out.splitlines() if line.startswith("split invariance")]
    assert "BROKEN" in line and "pool='group' or 'step'" in line
    assert out.splitlines()[-1] == "6 of 8 laws kept"  # and what training accumulates differs


def test_mistakes_are_told_in_one_line(run):
    for words, says in (
        (["check"], "Missing argument"),
        (["check", "std=false"], "one method, not 0"),
        (["check", "sft", "grpo"], "one method, not 2 (sft, grpo)"),
        (["check", "grp"], "did you mean 'grpo'"),
        (["check", "grpo", "kll=1"], "did you mean 'kl'"),
        (["check", "nowhere.py:mine"], "there is no file 'nowhere.py'"),
    ):
        status, out, err = run(*words)
        assert (status, out) == (2, ""), words
        assert says in err and err.count("\n") == 1
