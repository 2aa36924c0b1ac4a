"""A stop string is noticed at the first token whose text completes it, for every kind of tokenizer."""

from __future__ import annotations

import random

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from interlace.rollout.stops import StopText


def _bytes_tokenizer() -> PreTrainedTokenizerFast:
    """One token per byte, so that a character may take several tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({c: i for i, c in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>")


def _pieces_tokenizer() -> PreTrainedTokenizerFast:
    """Word pieces that carry their leading space, which the decoder drops at the start of a text."""
    words = ["▁a", "▁stop", "st", "op", "▁", "b", "▁b", "s", "p"]
    tokenizer = Tokenizer(models.WordLevel({w: i for i, w in enumerate(words)}, unk_token="b"))
    tokenizer.decoder = decoders.Metaspace(replacement="▁", prepend_scheme="always")
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


def _first_by_whole_text(tokenizer: PreTrainedTokenizerFast, ids: list[int], stops: tuple[str, ...]) -> int:
    for n in range(1, len(ids) + 1):
        text = tokenizer.decode(ids[:n], skip_special_tokens=False, clean_up_tokenization_spaces=False)
        if any(stop in text for stop in stops):
            return n
    return -1


def _first(tokenizer: PreTrainedTokenizerFast, ids: list[int], stops: tuple[str, ...]) -> int:
    watch = StopText(tokenizer, stops)
    for n in range(1, len(ids) + 1):
        if watch.found(ids[:n]):
            return n
    return -1


@pytest.mark.parametrize("stops", [("ab",), ("é",), ("a é b", "zz"), ("\n",)])
def test_found_where_the_whole_text_first_contains_it_bytes(stops: tuple[str, ...]) -> None:
    tokenizer = _bytes_tokenizer()
    draw = random.Random(0)
    hits = 0
    for _ in range(200):
        text = "".join(
            draw.choice(["a", "b", " ", "é", "z", "\n", "€", "🙂"]) for _ in range(draw.randrange(40))
        )
        ids = tokenizer.encode(text)
        if ids and draw.random() < 0.3:
            ids.pop(draw.randrange(len(ids)))  # bytes that are no valid text
        expected = _first_by_whole_text(tokenizer, ids, stops)
        assert _first(tokenizer, ids, stops) == expected
        hits += expected > 0
    assert hits > 5


@pytest.mark.parametrize("stops", [("stop",), (" stop",), ("a b",), ("bb", "sp")])
def test_found_where_the_whole_text_first_contains_it_pieces(stops: tuple[str, ...]) -> None:
    tokenizer = _pieces_tokenizer()
    draw = random.Random(1)
    hits = 0
    for _ in range(200):
        ids = [draw.randrange(9) for _ in range(draw.randrange(1, 25))]
        expected = _first_by_whole_text(tokenizer, ids, stops)
        assert _first(tokenizer, ids, stops) == expected
        hits += expected > 0
    assert hits > 5


def test_a_special_token_can_be_a_stop_string() -> None:
    tokenizer = _bytes_tokenizer()
    ids = [*tokenizer.encode("ab"), tokenizer.eos_token_id]
    assert _first(tokenizer, ids, ("<end>",)) == 3
