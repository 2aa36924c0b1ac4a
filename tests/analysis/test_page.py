"""The page is one file, needs no network, and lets no text from outside become markup."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from html.parser import HTMLParser
from typing import Any

import pytest

from interlace.analysis.page import page, payload
from interlace.analysis.side_by_side import SILENT, side_by_side
from interlace.methods import REGISTER
from tests.analysis.rows import toy_rows

HOSTILE = (
    "</script><script>alert(1)</script>",
    "<!--",
    "<img src=x onerror=alert(1)>",
    "\u202e\u2028</style>",
    "{{script}}",
    "&lt;b&gt;",
    "\\u003cscript",
    "\x00",
)


class Elements(HTMLParser):
    """Tags with their attributes, and the text of script and style elements."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.inside: list[tuple[dict[str, str | None], str]] = []
        self.errors: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        if self.cdata_elem:
            self.inside.append((self.tags[-1][1], data))


def hostile_page() -> str:
    n = len(HOSTILE)
    rows = [{"logp": [-0.5] * n, "source": "demo", "group": "</script>"}]
    return page(
        side_by_side(
            ["sft", "grpo"], rows, [HOSTILE], ["<b>prompt</b></script>"], about={"task": "</title><script>"}
        )
    )


def data_of(text: str) -> dict[str, Any]:
    found = [data for attributes, data in Elements(text).inside if attributes.get("id") == "data"]
    assert len(found) == 1
    return json.loads(found[0])


def test_tokens_reach_the_page_unchanged_and_only_as_data() -> None:
    text = hostile_page()
    data = data_of(text)
    assert data["rows"][0]["text"] == list(HOSTILE)
    assert data["rows"][0]["prompt"] == "<b>prompt</b></script>"
    assert data["about"] == {"task": "</title><script>"}
    parsed = Elements(text)
    assert [tag for tag, _ in parsed.tags].count("script") == 2
    assert "img" not in {tag for tag, _ in parsed.tags}
    assert not any(key.startswith("on") for _, attributes in parsed.tags for key in attributes)


def test_nothing_is_fetched_and_only_the_own_script_may_run() -> None:
    text = hostile_page()
    parsed = Elements(text)
    assert not [a for _, a in parsed.tags if {"src", "href", "srcset", "action"} & set(a)]
    assert not re.search(r"https?:|//[a-z]|@import|url\(", text.replace("// ", ""))
    policy = next(a["content"] for t, a in parsed.tags if t == "meta" and "http-equiv" in a)
    assert "default-src 'none'" in policy
    script = next(d for a, d in parsed.inside if not a)  # the style and the script have no attributes
    scripts = [d for a, d in parsed.inside if not a and "use strict" in d]
    assert len(scripts) == 1 and script
    digest = base64.b64encode(hashlib.sha256(scripts[0].encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in policy


def test_the_script_never_writes_markup() -> None:
    script = next(d for a, d in Elements(hostile_page()).inside if "use strict" in d)
    assert not re.search(
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|new Function", script
    )
    assert "fetch(" not in script and "XMLHttpRequest" not in script


@pytest.mark.parametrize("tokens", [True, False])
def test_every_method_can_be_drawn(tokens: bool) -> None:
    rows = toy_rows(1)
    texts = [[f"t{i}" for i in range(len(row["logp"]))] for row in rows] if tokens else None
    compared = side_by_side(sorted(REGISTER), rows, texts)
    data = data_of(page(compared))
    assert [lane["name"] for lane in data["lanes"]] == sorted(REGISTER)
    assert list(data["silent"]) == list(SILENT)
    for lane, drawn in zip(compared.lanes, data["lanes"], strict=True):
        assert drawn["problem"] is None
        for row, numbers in zip(lane.rows, drawn["rows"], strict=True):
            assert numbers["c"] == pytest.approx([t.coefficient for t in row], rel=1e-5)
            for token, silent, detail in zip(row, numbers["silent"], numbers["detail"], strict=True):
                assert token.silent == (list(SILENT)[silent] if silent >= 0 else None)
                assert token.detail == drawn["details"][detail]
            parts = [[[drawn["terms"][k]["name"], c] for k, c, *_ in of] for of in numbers["parts"]]
            assert [[name for name, _ in of] for of in parts] == [[p.term for p in t.parts] for t in row]


def test_numbers_are_short_and_finite() -> None:
    rows = [{"logp": [-1 / 3], "source": "demo", "old_logp": [None], "group": 7}]
    data = payload(side_by_side(["sft"], rows))
    assert data["rows"][0]["logp"] == [-0.333333] and data["rows"][0]["ratio"] == [None]
    assert data["rows"][0]["group"] == 7
    assert data["lanes"][0]["rows"][0]["c"] == [1]


def test_it_is_written_as_utf8(tmp_path: Any) -> None:
    file = tmp_path / "page.html"
    text = side_by_side(["sft"], [{"logp": [-0.5], "source": "demo"}], [["Zoë ⏎ 数"]]).to_html(file)
    assert file.read_text(encoding="utf-8") == text and "Zoë ⏎ 数" in text
