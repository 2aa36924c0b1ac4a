import pytest

from interlace.cli.arguments import ArgumentsError, is_setting, merged, split_settings, split_words


def test_everything_after_the_first_equals_sign_is_the_value():
    words = [
        "mu=cosine:0.9,0.05,0,200",
        "model=scratch:nano,arch=qwen3",
        "stop=",
        "phi=p(1-p)",
        "x=a b=c:d",
    ]
    assert split_settings(words) == {
        "mu": "cosine:0.9,0.05,0,200",
        "model": "scratch:nano,arch=qwen3",
        "stop": "",
        "phi": "p(1-p)",
        "x": "a b=c:d",
    }


def test_dots_nest_and_values_with_dots_do_not():
    assert split_settings(["stages.sft.lr=1e-3", "stages.rl.lr=0.5", "stages.sft.steps=3", "out=a.b"]) == {
        "stages": {"sft": {"lr": "1e-3", "steps": "3"}, "rl": {"lr": "0.5"}},
        "out": "a.b",
    }


def test_names_and_settings_may_come_in_any_order():
    assert split_words(["kl=1", "grpo", "./my-ideas/x=1.py:mine", "mu=2"]) == (
        ["grpo", "./my-ideas/x=1.py:mine"],
        {"kl": "1", "mu": "2"},
    )


@pytest.mark.parametrize("word", ["grpo", "=3", "3=4", ".a=1", "a.=1", "a..b=1", "a b=1", "f.py:x", "-x=1"])
def test_what_has_no_key_is_no_setting(word):
    assert not is_setting(word)
    with pytest.raises(ArgumentsError, match="is not key=value"):
        split_settings([word])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["lr=1", "lr=2"], "'lr' is given twice: lr=1 and lr=2"),
        (["a.b=1", "a.b=2"], "'a.b' is given twice"),
        (["a=1", "a.b=2"], "'a' is given a value and 'a.b' too"),
        (["a.b=2", "a=1"], "'a' is given twice: a group of settings and a=1"),
        (["a.b=2", "a.b.c=1"], "'a.b' is given a value and 'a.b.c' too"),
    ],
)
def test_a_key_given_twice_is_an_error_not_the_last_value(words, message):
    with pytest.raises(ArgumentsError) as caught:
        split_settings(words)
    assert message in str(caught.value)


def test_the_command_line_is_laid_over_the_file_group_by_group():
    below = {"lr": 1, "stages": {"sft": {"steps": 1, "lr": 2}}, "stop": ["a"]}
    above = {"stages": {"sft": {"lr": "3"}, "rl": {"lr": "4"}}, "stop": "b"}
    assert merged(below, above) == {
        "lr": 1,
        "stages": {"sft": {"steps": 1, "lr": "3"}, "rl": {"lr": "4"}},
        "stop": "b",
    }
    assert below == {"lr": 1, "stages": {"sft": {"steps": 1, "lr": 2}}, "stop": ["a"]}
