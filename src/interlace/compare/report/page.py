"""The report: one HTML file with its style, script, drawings and data inside, and no network."""

from __future__ import annotations

import base64
import hashlib
import importlib.resources
import re
import warnings

from interlace.compare.advice import advice
from interlace.compare.budget import short
from interlace.compare.report import figures, sections
from interlace.compare.report.charts import text
from interlace.compare.report.markup import Colours, folded, method, note, table
from interlace.compare.results import Results, TaskResults
from interlace.compare.summary import sentences

LANES = 10
"""Methods in the token view, the best of the ranking."""

HOW_TO_READ = """
<p>Every method trains from the same start, on the same demonstrations, prompts and verifier, until it has
spent the same number of floating-point operations. Counted are the forward and backward passes of every model
that it uses: tokens that are sampled, scored and trained on, references, critics, copies. Evaluations are
not.</p>
<p>Scores are compared problem by problem and seed by seed. Seeds and problems are both samples of what one
wants to speak about, so the interval of a difference is that of the crossed random-effects model: its
variance is (MS<sub>seed</sub> + MS<sub>problem</sub> − MS<sub>rest</sub>) / (seeds × problems), with
Student's t and Satterthwaite's degrees of freedom. Whether two methods are told apart is adjusted for the
number of pairs (Holm); intervals are not.</p>
<p>Settings are chosen on validation problems alone; the test problems of the ranking are answered once, by
the final weights.</p>
"""


def page(results: Results) -> str:
    """The whole HTML document."""
    files = importlib.resources.files("interlace.compare.report")
    style, script = ((files / name).read_text(encoding="utf-8") for name in ("style.css", "script.js"))
    colours = Colours(results.labels)
    views = [token_view(t, results) for t in results.tasks]
    parts = [_head(results, colours), _section("all", "All tasks", sections.overall(results, colours))]
    for t, view in zip(results.tasks, views, strict=True):
        parts.append(_task(t, colours, len(results.tasks) > 1, view))
    parts.append(_section("next", "What to try next", sections.advised(advice(results))))
    parts.append(_section("setup", "Configuration and environment", sections.configuration(results)))
    parts.append(_section("reading", "How to read this", f"<div class='prose'>{HOW_TO_READ}</div>"))
    # A frame obeys the policy of the page around it as well as its own.
    inner = dict.fromkeys(
        d for view in views if view for d in re.findall(r"script-src '(sha256-[^']+)'", view)
    )
    allowed = " ".join(f"'{digest}'" for digest in (_digest(script), *inner))
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src {allowed}"
    return (
        "<!doctype html>\n<html lang='en'><head><meta charset='utf-8'>"
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        "<meta name='viewport' content='width=device-width, initial-scale=1'>"
        f"<title>{text(_title(results))}</title><style>{style}</style></head>"
        f"<body>{''.join(parts)}<div id='tip'></div><script>{script}</script></body></html>\n"
    )


def _digest(script: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


def _title(results: Results) -> str:
    methods = len({s.label for t in results.tasks for s in t.ranking})
    return f"{methods} methods on {', '.join(t.task for t in results.tasks)}"


def _head(results: Results, colours: Colours) -> str:
    said = "".join(f"<li>{text(s)}</li>" for s in sentences(results))
    listed = "".join(f"<div><dt>{k}</dt><dd>{text(v)}</dd></div>" for k, v in _facts(results).items())
    chips = "".join(
        f"<button type='button' class='chip' data-focus='{colours[label]}' aria-pressed='false'>"
        f"{method(label, colours)}</button>"
        for label in results.labels
    )
    return (
        "<header><div class='wrap'><div class='headline'><div><div class='eyebrow'>interlace compare</div>"
        f"<h1>{text(_title(results))}</h1></div>"
        "<button class='ghost' id='theme' type='button'>Dark</button></div>"
        f"<dl class='facts'>{listed}</dl><ul class='summary'>{said}</ul></div></header>"
        f"<nav class='bar'><div class='wrap'><span class='label'>highlight</span>{chips}</div></nav>"
    )


def _facts(results: Results) -> dict[str, str]:
    c, t = results.comparison, results.tasks[0]
    model = str(c.get("common", {}).get("model", "scratch:nano"))
    parameters = t.base.get("outcome", {}).get("parameters")
    budget = str(c.get("budget", ""))
    share = 100 * float(c.get("start_share", 0.5))
    return {
        "model": model + (f", {parameters / 1e6:.3g} M parameters" if parameters else ""),
        "budget": f"{budget}, {short(t.budget)} a run" if t.budget is not None else f"{budget}; costs differ",
        "seeds": str(len({r.seed for x in results.tasks for r in x.runs})),
        "start": f"shared SFT checkpoint, {share:g} % of the budget"
        if c.get("start") == "sft"
        else "the model",
    }


def _section(name: str, title: str, content: str) -> str:
    return f"<section class='wrap' id='{name}'><h2>{text(title)}</h2>{content}</section>" if content else ""


def _task(t: TaskResults, colours: Colours, several: bool, view: str | None) -> str:
    name = re.sub(r"[^A-Za-z0-9]+", "-", t.task).strip("-")
    head = f"<div class='wrap'><h2 class='big' id='{name}'>{text(t.task)}</h2></div>" if several else ""
    if not t.ranking:
        return head + _section(f"{name}-none", "No result yet", _absent(t, colours))
    built = (
        ("Ranking", sections.ranking(t, colours)),
        ("Every two methods", sections.pairs(t, colours)),
        ("Learning curves", figures.curves(t, colours, name)),
        ("Stage by stage", sections.stages(t, colours)),
        ("Many answers", figures.passes(t, colours)),
        ("Out of distribution", figures.variants(t, colours)),
        ("Gain and retention", figures.retention(t, colours)),
        ("Along the way", figures.over_time(t, colours)),
        ("What it cost", sections.costs(t, colours)),
        ("What was tuned", sections.search(t, colours)),
        ("Answers side by side", sections.samples(t, colours)),
        ("Every token's number", "" if view is None else framed(view)),
    )
    return head + "".join(
        _section(f"{name}-{title.lower().replace(' ', '-')}", title, content) for title, content in built
    )


def _absent(t: TaskResults, colours: Colours) -> str:
    rows = [
        [method(label, colours), text("; ".join(f"seed {s}: {r}" for s, r in seeds.items()) or "not started")]
        for label, seeds in t.absent.items()
    ]
    return table(["method", "state"], rows)


def framed(document: str) -> str:
    """A page inside the page."""
    words = (
        "What each token's log-probability is multiplied by in the next update, method by method, on one "
        "batch sampled from the shared start (<code>interlace explain</code>)."
    )
    frame = f'<iframe title="token view" srcdoc="{text(document)}"></iframe>'
    return note(words) + folded("Open the token view", frame, "view")


def token_view(t: TaskResults, results: Results) -> str | None:
    """The side-by-side page of `explain` on the task's batch; `None` without one."""
    from interlace.analysis.side_by_side import side_by_side
    from interlace.methods import get

    if t.batch is None:
        return None
    specs: list[tuple[str, dict[str, object]]] = []
    first = [s.label for s in t.ranking[:LANES]]
    for c in results.comparison.get("contenders", []):
        if c["label"] not in first:
            continue
        known = {*get(c["method"]).parameters.model_fields, "variant"}
        spec = (c["method"], {k: v for k, v in c["settings"].items() if k in known})
        specs += [] if spec in specs else [spec]
    rows, tokens, prompts = (t.batch[name] for name in ("rows", "tokens", "prompts"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return side_by_side(specs, rows, tokens, prompts, about={"task": t.task}).to_html()
        except ValueError:  # rows that none of these methods can be shown on
            return None
