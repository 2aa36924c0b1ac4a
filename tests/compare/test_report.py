"""The report: drawings whose places are known, and a page that is whole, self-contained and safe."""

import dataclasses
import itertools
import re
from html.parser import HTMLParser

import pytest

from interlace.compare.report import charts
from interlace.compare.report.charts import Axis, Scale, Series, spread_out, ticks
from interlace.compare.report.page import page
from tests.compare.made import failed, results, run, task

VOID = {"meta", "input", "br", "hr", "img", "link"}


class Nesting(HTMLParser):
    """Every element is closed in its order."""

    def __init__(self):
        super().__init__()
        self.open, self.seen = [], []

    def handle_starttag(self, tag, attrs):
        self.seen.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.seen.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open and self.open[-1] == tag, f"</{tag}> closes {self.open[-3:]}"
        self.open.pop()


def parsed(document):
    parser = Nesting()
    parser.feed(document)
    assert parser.open == []
    return parser


def grid(**accuracies):
    return [run(label, seed, a) for label, a in accuracies.items() for seed in range(3)]


@pytest.fixture(scope="module")
def document():
    runs = [
        *grid(sft=0.2, sft_then_rl=0.5, chord=0.45),
        failed("grpo", 0, "diverged", "the gradient was not finite"),
    ]
    return page(results(task(runs)))


def test_scales_put_numbers_where_they_belong():
    assert [Scale(0, 10, 100, 300)(v) for v in (0, 5, 10)] == [100, 200, 300]
    assert [Scale(1, 8, 0, 90, log=True)(v) for v in (1, 2, 4, 8)] == pytest.approx([0, 30, 60, 90])
    assert Scale(3, 3, 0, 10)(3) == 5


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0, 1, [0, 0.2, 0.4, 0.6, 0.8, 1]),
        (0, 0.43, [0, 0.1, 0.2, 0.3, 0.4]),
        (-3, 7, [-2, 0, 2, 4, 6]),
        (5, 5, [5]),
    ],
)
def test_ticks_are_round_and_inside(low, high, expected):
    assert ticks(low, high) == pytest.approx(expected)


def test_labels_are_moved_apart_as_little_as_possible():
    assert spread_out([10, 50, 90], 14, 0, 100) == [10, 50, 90]
    assert spread_out([50, 50], 14, 0, 100) == [43, 57]
    moved = spread_out([98, 99, 100], 14, 0, 100)
    assert moved == [72, 86, 100]
    crowded = spread_out([30, 20, 31, 70], 14, 0, 100)
    ordered = [crowded[i] for i in (1, 0, 2, 3)]
    assert all(b - a >= 14 - 1e-9 for a, b in itertools.pairwise(ordered))


def test_every_method_has_its_own_colour_and_mark():
    marks = {charts.mark(i, 0, 0, class_=f"h{i % charts.HUES}") for i in range(8)}
    assert len(marks) == 8
    # With eight colours and eight marks the ninth looks like the first, but for its dashes.
    drawn = charts.lines([Series("ninth", 8, [(0, 0), (1, 1)])], Axis("x"), Axis("y"), "two")
    assert 'stroke-dasharray="6 3"' in drawn


def test_a_line_goes_through_its_points():
    drawn = charts.lines(
        [Series("a", 0, [(0, 0), (10, 1)])], Axis("x", zero=True), Axis("y", zero=True), "l", 300, 200
    )
    path = re.search(r'<path d="M([\d.]+),([\d.]+)L([\d.]+),([\d.]+)" class="line h0"/>', drawn)
    x0, y0, x1, y1 = map(float, path.groups())
    assert (x0, y0) == (50, 160)  # the corner of the axes
    assert x1 == pytest.approx(300 - 22 - 6.6, abs=0.1) and y1 == pytest.approx(160 - 138 / 1.06, abs=0.1)


def test_the_page_is_well_formed_and_has_every_section(document):
    parser = parsed(document)
    titles = re.findall(r"<h2>(.*?)</h2>", document)
    assert titles == [
        "Ranking", "Every two methods", "Learning curves", "Many answers", "Out of distribution",
        "Gain and retention", "Along the way", "What it cost", "What was tuned", "Answers side by side",
        "What to try next", "Configuration and environment", "How to read this",
    ]  # fmt: skip
    assert all(
        a.get("aria-label") is not None for t, a in parser.seen if t == "svg" and a.get("role") == "img"
    )
    ids = [a["id"] for _, a in parser.seen if "id" in a]
    assert len(ids) == len(set(ids))


def test_the_page_needs_no_network(document):
    parser = parsed(document)
    policy = next(a["content"] for t, a in parser.seen if t == "meta" and "http-equiv" in a)
    assert policy.startswith("default-src 'none'") and "unsafe-inline" not in policy.split("script-src")[1]
    assert not re.search(r"https?://", re.sub(r"http://www\.w3\.org/\S+", "", document))
    assert not any(a.get("src") or a.get("href") for _, a in parser.seen)


def test_the_numbers_of_the_page_are_those_of_the_results(document):
    t = task(grid(sft=0.2, sft_then_rl=0.5, chord=0.45))
    best = t.ranking[0]
    e = best.accuracy
    assert f"{100 * e.value:.1f} [{100 * e.low:.1f}, {100 * e.high:.1f}]" in document
    assert "the gradient was not finite" in document


def test_text_from_outside_stays_text():
    bad = "<script>alert(1)</script>"
    runs = [run("sft", s, 0.5, text=bad) for s in range(2)] + [
        run("sft_then_rl", s, 0.5, text=bad) for s in range(2)
    ]
    t = task(runs, name=bad)
    document = page(results(t))
    parser = parsed(document)
    assert [t for t, _ in parser.seen].count("script") == 1
    assert "&lt;script&gt;alert(1)" in document


def test_nothing_finished_is_a_page_too():
    waiting = dataclasses.replace(failed("sft", 0, "waiting", ""), error="")
    document = page(results(task([waiting])))
    parsed(document)
    assert "No result yet" in document and "No run on sums has ended with a result." in document


def test_several_tasks_have_a_ranking_over_all():
    one, two = (
        task(grid(sft=0.2, sft_then_rl=0.5), name="sums"),
        task(grid(sft=0.3, sft_then_rl=0.6), name="others"),
    )
    document = page(results(one, two))
    parsed(document)
    assert "All tasks" in document and "interquartile mean" in document
