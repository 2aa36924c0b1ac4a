"""Tagged blocks: spans of sampled ids, the reward of their form, and the row that teaches the guess."""

from types import SimpleNamespace

import pytest

from interlace.policies import Renderer
from interlace.policies.scratch import character_tokenizer
from interlace.rules.blocks import STYLES, Blocks, BlockScorer, GuessFirst
from interlace.types import Problem, SampleRequest, Sampling, Score, Source, Trajectory, Verdict
from tests.rules.collecting import Recorder

WORDS, SYMBOLS = STYLES["words"], STYLES["symbols"]
TEXT = "<guess> 7 </guess> <think> 3+4 </think> <answer> 7 </answer>"


def tokens(*pieces: str):
    """Ids of these texts, and how to decode them."""
    return list(range(len(pieces))), lambda ids: "".join(pieces[i] for i in ids)


def mask(spans, name: str, length: int) -> list[int]:
    return [int(any(a <= t < b and n == name for a, b, n in spans)) for t in range(length)]


def test_mask_of_the_guess_and_its_complement():
    """The sheet: of <g> L </g> <t> a b </t> <a> L </a> the SFT mask is 0 1 0 0 0 0 0 0 0 0."""
    pieces = ("<guess>", "L", "</guess>", "<think>", "a", "b", "</think>", "<answer>", "L", "</answer>")
    spans = WORDS.spans(*tokens(*pieces))
    assert mask(spans, "guess", 10) == [0, 1, 0, 0, 0, 0, 0, 0, 0, 0]
    assert mask(spans, "think", 10) == [0, 0, 0, 0, 1, 1, 0, 0, 0, 0]
    assert mask(spans, "answer", 10) == [0, 0, 0, 0, 0, 0, 0, 0, 1, 0]


def test_a_token_belongs_to_the_content_that_its_text_reaches_into():
    """Tags may be cut anywhere, and a token may hold the end of a tag and the first letter."""
    pieces = ("<gu", "ess> se", "ven", " ", "</", "guess>")
    assert WORDS.spans(*tokens(*pieces)) == [(1, 3, "guess")]


def test_space_around_the_content_is_outside():
    pieces = ("<guess>", " ", "7", " ", "</guess>")
    assert WORDS.spans(*tokens(*pieces)) == [(2, 3, "guess")]


@pytest.mark.parametrize("pieces", [("<guess>", "7"), ("7", "</guess>"), ("<guess>", " ", "</guess>"), ()])
def test_no_span_where_the_block_is_not_complete_or_empty(pieces):
    assert WORDS.spans(*tokens(*pieces)) == []


def test_a_long_row_is_decoded_a_few_times_only():
    pieces = ["<guess>", *"0123456789" * 100, "</guess>"]
    ids, decode = tokens(*pieces)
    calls = []
    assert WORDS.spans(ids, lambda part: calls.append(1) or decode(part)) == [(1, 1001, "guess")]
    assert len(calls) < 40


@pytest.mark.parametrize(
    "text, good",
    [
        (TEXT, True),
        (TEXT + "\n", True),
        (TEXT + " indeed", False),
        (TEXT.replace("3+4", " "), False),
        (TEXT.replace("</guess>", ""), False),
        (TEXT + "<think> </think>", False),
        ("<think> 3+4 </think> <guess> 7 </guess> <answer> 7 </answer>", False),
        ("7", False),
    ],
)
def test_form(text, good):
    assert WORDS.well_formed(text) is good


class Seven:
    def score(self, items):
        self.seen = [text for text, _ in items]
        verdicts = {
            "7": Score(1.0, Verdict.PASS, {"correctness": 1.0}),
            "?": Score(None, Verdict.UNSCORABLE, {}),
        }
        return [verdicts.get(text, Score(0.0, Verdict.FAIL, {"correctness": 0.0})) for text, _ in items]


def test_reward_is_form_plus_accuracy_of_the_answer():
    inner, problem = Seven(), Problem("p", "")
    wrong = TEXT.replace("<answer> 7", "<answer> 8")
    texts = [TEXT, wrong, "<answer>7</answer>", "7", TEXT.replace("<answer> 7", "<answer> ?")]
    scores = BlockScorer(inner, WORDS).score([(text, problem) for text in texts])
    assert [s.reward for s in scores] == [2.0, 1.0, 1.0, 0.0, None]
    assert [s.verdict.value for s in scores] == ["pass", "fail", "pass", "fail", "unscorable"]
    assert inner.seen == ["7", "8", "7", "?"]
    assert scores[0].parts == {"correctness": 1.0, "blocks": 1.0}


def test_a_reward_of_the_whole_text_is_left_alone():
    inner = Seven()
    assert WORDS.scorer(inner).inner is inner
    assert Blocks(WORDS.tags, judged="text").scorer(inner) is inner


@pytest.mark.parametrize("blocks", [WORDS, SYMBOLS])
def test_a_tokenizer_of_characters_gets_those_of_the_tags(blocks):
    tokenizer = character_tokenizer(blocks.alphabet("0123456789+="))
    renderer = Renderer(tokenizer, (tokenizer.eos_token_id,))
    problem = Problem("p", "3+4=", demonstration=blocks.write(guess="7", think="3+4", answer="7"))
    ids = renderer.demonstration_ids(problem)
    assert renderer.decode(ids) == problem.demonstration
    assert blocks.well_formed(problem.demonstration)
    assert [renderer.decode(ids[a:b]) for a, b, _ in blocks.spans(ids, renderer.decode)] == ["7", "3+4", "7"]
    assert blocks.alphabet(None) is None


def test_tags_of_one_character():
    assert SYMBOLS.write(guess="7") == "⟨7⟩"


class Written(Recorder):
    """Tokens are characters, and the policy always answers the same."""

    def __init__(self, answer: str) -> None:
        super().__init__(group_size=2)
        self.answer = answer
        self.collector.renderer = SimpleNamespace(decode=lambda ids: "".join(map(chr, ids)))

    def demonstration(self, problem, group):
        ids = [*map(ord, problem.demonstration)]
        return Trajectory(99, [1, *ids], [Source.PROMPT, *[Source.DEMO] * len(ids)], group, problem)

    def fulfil(self, request: SampleRequest):
        ids = [*map(ord, self.answer)]
        source = [Source.PROMPT, Source.PROMPT, *[Source.ROLLOUT] * len(ids)]
        return [
            Trajectory(k, [1, 2, *ids], source, "g", request.problem, sampling=Sampling())
            for k in range(request.n)
        ]


def test_rollouts_are_marked_and_the_label_is_taught_as_a_guess():
    recorder = Written("<guess>8</guess><think>no</think><answer>7</answer>")
    rows = recorder.run(GuessFirst(WORDS), [Problem("p", "", answer=7, demonstration="3+4=7")])
    spelt = [["".join(map(chr, row.ids[a:b])) for a, b, _ in row.span] for row in rows]
    assert spelt == [["8", "no", "7"]] * 2 + [["7"]]
    assert [name for _, _, name in rows[0].span] == ["guess", "think", "answer"]
    assert rows[2].group == rows[0].group and rows[2].span[0][2] == "guess"
    assert "".join(map(chr, rows[2].ids[1:])) == "<guess> 7 </guess>"
    notes = recorder.collector.notes
    assert notes == {"blocks/well_formed": 1.0, "blocks/answer_differs_from_guess": 1.0}


def test_the_demonstration_is_the_label_of_a_task_without_one():
    for answer, taught in ((None, "3+4=7"), ({"target": 7}, "3+4=7"), (0, "0")):
        rows = Written("").run(GuessFirst(SYMBOLS), [Problem("p", "", answer=answer, demonstration="3+4=7")])
        assert "".join(map(chr, rows[-1].ids[1:])) == f"⟨{taught}⟩"
    alone = Written("").run(GuessFirst(SYMBOLS), [Problem("p", "")])
    assert len(alone) == 2
