"""Demonstrations with the log-probabilities of who wrote them."""

import math
from dataclasses import replace
from types import SimpleNamespace

import pytest

from interlace.rules.behaviour import KnownAuthor
from interlace.types import Problem, Sampling, Source, Trajectory, Verdict

PLAIN = [Problem(f"p{i}", "", demonstration="ab") for i in range(2)]
GIVEN = [replace(p, meta={"behaviour_logp": [-1.0, -2.0]}) for p in PLAIN]
SOURCE = [Source.PROMPT, Source.DEMO, Source.DEMO]


def demonstration_row(problem: Problem) -> Trajectory:
    known = problem.meta.get("behaviour_logp")
    behaviour = None if known is None else [math.nan, *known]
    return Trajectory(0, [1, 2, 3], SOURCE, problem.id, problem, behaviour)


def sample(problems, n, policy="policy"):
    """The first two answers of each problem are right and differ, the third is wrong."""
    source = [Source.PROMPT, Source.ROLLOUT]
    rows = []
    for p in problems:
        for k in range(n):
            verdict = Verdict.PASS if k < 2 else Verdict.FAIL
            row = Trajectory(k, [1, 5 + k], source, p.id, p, [math.nan, -0.5], sampling=Sampling())
            rows.append(replace(row, verdict=verdict))
    return rows


def bench(demonstrated):
    return SimpleNamespace(
        demonstrated=demonstrated,
        prompts=demonstrated,
        demonstration_row=demonstration_row,
        log_probs=lambda rows: [[-0.1, -0.2] for _ in rows],
        sample=sample,
        text=lambda row: str(row.ids),
    )


@pytest.mark.parametrize("author", ["auto", "data"])
def test_a_column_of_the_data_is_taken_as_it_is(author):
    made = KnownAuthor(author)(bench(GIVEN))
    assert [row.behaviour_logp[1:] for row in made.rows] == [[-1.0, -2.0]] * 2
    assert made.notes == {"rows_data": 2} and made.skip is None
    assert len({row.group for row in made.rows}) == 2


def test_the_start_weights_stand_in_for_an_unknown_author_and_it_is_said():
    with pytest.warns(UserWarning, match="no demonstration has a column behaviour_logp"):
        made = KnownAuthor()(bench(PLAIN))
    assert [row.behaviour_logp[1:] for row in made.rows] == [[-0.1, -0.2]] * 2
    assert all(math.isnan(row.behaviour_logp[0]) for row in made.rows)
    assert made.notes == {"rows_start": 2}


def test_a_missing_column_is_named():
    for author in ("data", "auto"):
        with pytest.raises(ValueError, match=r"problem p1 .* 'behaviour_logp' is needed"):
            KnownAuthor(author)(bench([GIVEN[0], PLAIN[1]]))


def test_own_correct_answers_become_demonstrations_with_their_sampled_log_probabilities():
    made = KnownAuthor("samples", samples=3)(bench(PLAIN))
    assert [row.ids for row in made.rows] == [[1, 5], [1, 6]] * 2
    assert all(row.source == [Source.PROMPT, Source.DEMO] and row.sampling is None for row in made.rows)
    assert all(row.behaviour_logp[1] == -0.5 for row in made.rows)


def test_nothing_to_train_on_leaves_the_stage_out():
    assert KnownAuthor("samples")(bench([])).skip == "no sampled answer is correct"
    assert KnownAuthor("start")(bench([])).skip == "there is no demonstration"
