import pytest
import torch

from interlace.compare.measure import Suite, kept_tasks, mean_logp, measure, passages, score_table, variants
from interlace.policies import Renderer, load_policy
from interlace.rewards import Scorer
from interlace.tasks import load_task
from interlace.types import Problem

NANO = "scratch:nano,layers=1,hidden=16,heads=2,ffn=32"


def test_variants_are_what_no_run_is_trained_on():
    found = variants(load_task("countdown"), 5)
    assert set(found) == {"ood_numbers", "ood_large"}
    assert all(len(problems) == 5 for problems in found.values())
    assert {len(p.answer["numbers"]) for p in found["ood_numbers"]} == {4}
    assert variants(load_task("countdown"), 0) == {}


def test_open_text_is_also_asked_in_other_words():
    task = load_task("arithmetic:style=text")
    reworded = variants(task, 3)["ood_wording"]
    for problem, same in zip(task.problems("test", 3), reworded, strict=True):
        assert same.answer == problem.answer and same.id == problem.id
        assert same.prompt.endswith(problem.prompt) and same.prompt != problem.prompt


def test_retention_is_on_other_tasks_that_the_model_can_write():
    suite = Suite(ood_problems=32)
    assert set(kept_tasks(load_task("countdown"), suite)) == {"arithmetic"}
    text = kept_tasks(load_task("countdown:style=text"), suite)
    assert set(text) == {
        "general_points:style=text", "knights_knaves:style=text", "arithmetic:style=text", "english",
    }  # fmt: skip
    assert kept_tasks(load_task("countdown"), Suite(retention="none")) == {}
    assert set(kept_tasks(load_task("countdown"), Suite(retention="arithmetic:digits=1"))) == {
        "arithmetic:digits=1"
    }


def test_passages_are_plain_english_in_two_parts():
    found = passages()
    assert len(found) == 10
    assert found[0].prompt == "The river had risen during the night."
    assert found[0].demonstration.startswith(" By morning it covered the lower steps")


@pytest.mark.parametrize("ends", [True, False])
def test_mean_log_probability_is_that_of_the_models_own_forward(ends):
    policy = load_policy(NANO, alphabet="ab:", seed=3)
    renderer = Renderer(policy.tokenizer, policy.eos_ids)
    problems = [Problem("1", "ab:", demonstration="ba"), Problem("2", "b:", demonstration="a")]
    found = mean_logp(policy, renderer, problems, ends=ends)
    values = []
    for p in problems:
        prompt, demo = renderer.prompt_ids(p), renderer.demonstration_ids(p)
        demo = demo if ends else demo[:-1]
        with torch.no_grad():
            logp = policy.model(input_ids=torch.tensor([prompt + demo])).logits[0].log_softmax(-1)
        values += [float(logp[len(prompt) + i - 1, token]) for i, token in enumerate(demo)]
    assert found == pytest.approx(sum(values) / len(values), abs=1e-5)


def test_everything_is_measured_on_problems_that_do_not_depend_on_the_seed():
    task = load_task("countdown:numbers=2,high=9")
    policy = load_policy(NANO, alphabet=task.alphabet, seed=0)
    found = []
    with Scorer(task.reward) as scorer:
        for seed in (0, 1):
            suite = Suite(problems=6, samples=2, ood_problems=4, seed=seed)
            found.append(measure(policy, task, scorer, suite, 8))
    one, other = found
    assert [p["id"] for p in one["test"]["problems"]] == [p["id"] for p in other["test"]["problems"]]
    assert one["test"]["problems"] != other["test"]["problems"]  # other samples
    assert one["validation"] == other["validation"] | {"settings": one["validation"]["settings"]}
    assert set(one["ood"]) == {"ood_numbers", "ood_large"} and set(one["retention"]) == {"arithmetic"}
    assert set(one["retention"]["arithmetic"]) == {"logp", "accuracy"}
    assert len(one["test"]["problems"]) == 6 and one["test"]["samples"] == 2


def test_scores_are_by_problem_and_leave_out_what_cannot_be_scored():
    problems = [
        {"id": "a", "greedy": True, "samples": 4, "correct": 1},
        {"id": "b", "samples": 2},
        {"id": "c"},
    ]
    record = {"test": {"problems": problems}}
    assert score_table(record, "greedy") == {"a": 1.0}
    assert score_table(record, "sampled") == {"a": 0.25, "b": 0.0}
    assert score_table(record, "greedy", "validation") == {}
