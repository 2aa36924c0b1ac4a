import pytest

from interlace.compare.settings import PRESETS, read_preset, resolve_comparison, settings_for, slug
from interlace.config import ConfigError, resolve
from interlace.methods._method import MethodError


def contender(comparison, label):
    return next(c for c in comparison.contenders if c.label == label)


def test_the_corrected_baseline_is_in_unless_it_is_taken_out_by_name():
    assert [c.label for c in resolve_comparison(["sft", "grpo"]).contenders] == ["sft", "grpo", "sft_then_rl"]
    without = resolve_comparison(["sft", "grpo"], {"without": "sft_then_rl"})
    assert [c.label for c in without.contenders] == ["sft", "grpo"]
    with pytest.raises(ConfigError, match="accepted is sft_then_rl"):
        resolve_comparison(["sft"], {"without": "grpo"})


def test_a_method_may_stand_in_with_several_settings_and_a_name():
    c = resolve_comparison(["chord mu=0.3", "chord mu=0.1 lr=1e-4", "chord as=plain"])
    assert [x.label for x in c.contenders][:3] == ["chord mu=0.3", "chord mu=0.1 lr=1e-4", "plain"]
    assert contender(c, "chord mu=0.1 lr=1e-4").settings["lr"] == "1e-4"
    assert len({x.slug for x in c.contenders}) == 4
    with pytest.raises(ConfigError, match="named twice"):
        resolve_comparison(["grpo", "grpo"])
    with pytest.raises(ConfigError, match="the same folder, a-b"):
        resolve_comparison(["grpo as=a:b", "grpo as=a/b"])
    other = resolve_comparison(["sft"], {"tasks": "countdown:ops=+-,countdown:ops=+"})
    assert len({slug(task) for task in other.tasks}) == 2


def test_settings_reach_whom_they_are_for():
    c = resolve_comparison(
        ["sft", "grpo", "chord"],
        {
            "kl": "0.1",
            "lr": "1e-4",
            "chord": {"mu": "0.3", "lr": "2e-4"},
            "stages": {"rl": {"group_size": "4"}},
        },
    )
    assert contender(c, "grpo").settings == {"kl": "0.1", "lr": "1e-4"}
    assert contender(c, "sft").settings == {"lr": "1e-4"}
    assert contender(c, "chord").settings == {"lr": "2e-4", "mu": "0.3"}
    assert contender(c, "sft_then_rl").settings["stages"] == {"rl": {"group_size": "4"}}


def test_methods_that_sample_may_start_from_one_sft_checkpoint():
    c = resolve_comparison(["sft", "grpo", "chord", "metis_rise"], {"start": "sft:0.4"})
    shares = {x.label: x.start_share for x in c.contenders}
    assert shares == {"sft": None, "grpo": 0.4, "chord": 0.4, "metis_rise": None, "sft_then_rl": None}
    own = resolve_comparison(["grpo", "chord"], {"start": "sft", "chord": {"start": "base"}})
    assert {x.label: x.start_share for x in own.contenders} == {
        "grpo": 0.5,
        "chord": None,
        "sft_then_rl": None,
    }


def test_every_method_is_searched_alike_and_the_baseline_also_when_to_switch():
    c = resolve_comparison(["sft", "grpo"], {"search": "lr:x0.3,x1", "switch": "0.25,0.75"})
    assert [x.name for x in contender(c, "sft").choices] == ["lr=x0.3", "lr=x1"]
    assert [x.name for x in contender(c, "grpo").choices] == ["lr=x0.3", "lr=x1"]
    assert [x.name for x in contender(c, "sft_then_rl").choices] == [
        "lr=x0.3 switch=0.25", "lr=x0.3 switch=0.75", "lr=x1 switch=0.25", "lr=x1 switch=0.75",
    ]  # fmt: skip


def rates(comparison, label, i):
    c = contender(comparison, label)
    given = settings_for(c, c.choices[i], task="countdown")
    return {s.name: s.settings.lr for s in resolve(c.method, given).stages}


def test_a_searched_rate_multiplies_what_each_stage_has_or_replaces_that_of_sampling():
    times = resolve_comparison(["sft", "grpo"], {"search": "lr:x0.5,x2", "switch": "0.5"})
    assert rates(times, "sft", 0) == {"train": pytest.approx(1.5e-3)}
    assert rates(times, "grpo", 1) == {"train": pytest.approx(6e-4)}
    assert rates(times, "sft_then_rl", 1) == {"sft": 3e-3, "rl": pytest.approx(6e-4)}
    absolute = resolve_comparison(["sft", "grpo"], {"search": "lr:1e-4,2e-4", "switch": "0.5"})
    assert rates(absolute, "sft_then_rl", 1) == {"sft": 3e-3, "rl": 2e-4}
    assert rates(absolute, "sft", 0) == {"train": 1e-4}


def test_a_search_of_one_method_alone_is_possible_and_others_skip_what_they_lack():
    c = resolve_comparison(["grpo", "chord"], {"chord": {"search": {"mu": "0.1,0.3"}}, "switch": "0.5"})
    assert [x.name for x in contender(c, "chord").choices] == ["mu=0.1", "mu=0.3"]
    assert len(contender(c, "grpo").choices) == 1
    both = resolve_comparison(["grpo", "chord"], {"search": "mu:0.1,0.3", "switch": "0.5"})
    assert [x.name for x in contender(both, "grpo").choices] == [""]


def test_seeds_that_choose_settings_are_not_those_of_the_table():
    c = resolve_comparison(["sft"], {"seeds": "3", "search_seeds": "2"})
    assert c.settings.seeds == (0, 1, 2) and c.tuning_seeds == (1000, 1001)
    assert resolve_comparison(["sft"], {"seeds": "0,7"}).settings.seeds == (0, 7)
    assert resolve_comparison(["sft"], {"seeds": [4]}).settings.seeds == (4,)
    for bad in ("0", "1,1", "5,1000"):
        with pytest.raises(ConfigError, match="seeds"):
            resolve_comparison(["sft"], {"seeds": bad})


def test_several_tasks_are_listed_with_their_knobs():
    c = resolve_comparison(["sft"], {"tasks": "countdown:numbers=2,high=6,arithmetic,gym:chain_sum"})
    assert c.tasks == ("countdown:numbers=2,high=6", "arithmetic", "gym:chain_sum")
    assert resolve_comparison(["sft"], {"task": "countdown:numbers=2,high=6"}).tasks == (
        "countdown:numbers=2,high=6",
    )


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"seed": "3"}, "give seeds=3"),
        ({"steps": "3"}, "give budget=steps:N"),
        ({"sarch": "lr:1"}, "did you mean 'search'"),
        ({"budget": "600 steps"}, "accepted are operations"),
        ({"chrd": {"mu": "1"}}, "did you mean 'chord'"),
        ({"chord": {"mo": "1"}}, "unknown setting 'mo'"),
        ({"chord": {"seed": "1"}}, "set by the comparison"),
        ({"search": "lr:fast"}, "accepted are rates, as 3e-4, or multiples"),
        ({"search": "lr:1,1"}, "different values"),
        ({"switch": "1.5"}, "less than 1"),
        ({"stages": {"sftt": {"lr": "1"}}}, "no contender has it"),
        ({"task": "a", "data": "b"}, "both given"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_runs(settings, message):
    with pytest.raises((ConfigError, MethodError), match=message):
        resolve_comparison(["grpo", "chord"], settings)


def test_presets_resolve_and_are_as_large_as_they_say():
    laptop = resolve_comparison(settings=None, preset="laptop")
    assert len(laptop.contenders) >= 6 and len(laptop.settings.seeds) == 3
    demo = resolve_comparison(settings={"seeds": "2"}, preset="demo")
    assert len(demo.contenders) * 2 < len(laptop.contenders) * 3
    assert set(PRESETS) == {"laptop", "demo"} and read_preset("demo")["methods"]
    with pytest.raises(ConfigError, match="did you mean 'laptop'"):
        read_preset("labtop")
