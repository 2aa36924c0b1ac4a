"""Charts as SVG text: forests, lines with bands, scatters, bars. Colours and fonts come from the style.

A method has one colour and one shape of mark everywhere; both tell it apart, for whoever sees no colours.
"""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

Point = tuple[float, float]
Form = Callable[[float], str]

SHAPES = ("circle", "square", "triangle", "diamond", "cross", "down", "plus", "star")
HUES = 8
"""Colours of the style; further methods take them again with a dashed line."""


def text(value: object) -> str:
    """Anything as text inside markup."""
    return html.escape(str(value), quote=True)


def element(tag: str, *children: str, **attributes: object) -> str:
    """One SVG element; `class_` and `data_m` are written as `class` and `data-m`."""
    written = "".join(
        f' {name.rstrip("_").replace("_", "-")}="{text(_short(value))}"'
        for name, value in attributes.items()
        if value is not None
    )
    inner = "".join(children)
    return f"<{tag}{written}>{inner}</{tag}>" if inner else f"<{tag}{written}/>"


def _short(value: object) -> object:
    return f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else value


def svg(width: float, height: float, label: str, *children: str, class_: str = "chart") -> str:
    """A drawing of this size, which shrinks where there is less room."""
    return (
        f'<svg class="{class_}" viewBox="0 0 {width:g} {height:g}" width="{width:g}" height="{height:g}" '
        f'role="img" aria-label="{text(label)}">{"".join(children)}</svg>'
    )


@dataclass(frozen=True)
class Scale:
    """From numbers to places, linear or logarithmic."""

    low: float
    high: float
    first: float
    last: float
    log: bool = False

    def __call__(self, value: float) -> float:
        low, high = self.low, self.high
        if self.log:
            value, low, high = math.log(max(value, 1e-300)), math.log(low), math.log(high)
        share = (value - low) / (high - low) if high > low else 0.5
        return self.first + share * (self.last - self.first)


def ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Round numbers that cover a range."""
    if not high > low:
        return [low]
    raw = (high - low) / max(count - 1, 1)
    size = 10 ** math.floor(math.log10(raw))
    step = next(m * size for m in (1, 2, 5, 10) if m * size >= raw * 0.7)
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [round(i * step, 12) for i in range(first, last + 1)]


def covering(values: Sequence[float], zero: bool = False, least: float = 0.0) -> tuple[float, float]:
    """A range with some air around values, from 0 if that is asked for and possible."""
    known = [v for v in values if math.isfinite(v)] or [0.0]
    low, high = min(known), max(known)
    if high - low < least:
        middle = (low + high) / 2
        low, high = middle - least / 2, middle + least / 2
    air = 0.06 * (high - low) or abs(high) * 0.1 or 1.0
    return (0.0 if zero and low >= 0 else low - air), high + air


def mark(shape: int, x: float, y: float, size: float = 4.0, **attributes: object) -> str:
    """The mark of a method."""
    name = SHAPES[shape % len(SHAPES)]
    if name == "circle":
        return element("circle", cx=x, cy=y, r=size, **attributes)
    if name == "square":
        s = size * 0.9
        return element("rect", x=x - s, y=y - s, width=2 * s, height=2 * s, **attributes)
    reach = size * 1.25
    corners: dict[str, list[Point]] = {
        "triangle": [(0, -1), (0.95, 0.75), (-0.95, 0.75)],
        "down": [(0, 1), (0.95, -0.75), (-0.95, -0.75)],
        "diamond": [(0, -1.1), (0.95, 0), (0, 1.1), (-0.95, 0)],
        "cross": _plus(0.32, math.pi / 4),
        "plus": _plus(0.32, 0.0),
        "star": [
            (math.sin(a) * r, -math.cos(a) * r)
            for i in range(10)
            for a, r in [(math.pi * i / 5, 1.15 if i % 2 == 0 else 0.5)]
        ],
    }
    points = " ".join(f"{x + reach * dx:.1f},{y + reach * dy:.1f}" for dx, dy in corners[name])
    return element("polygon", points=points, **attributes)


def _plus(half: float, turn: float) -> list[Point]:
    arm = [(-half, -1), (half, -1), (half, -half)]
    points = [(x * math.cos(q) - y * math.sin(q), x * math.sin(q) + y * math.cos(q))
              for q in (turn + k * math.pi / 2 for k in range(4)) for x, y in arm]  # fmt: skip
    return points


def swatch(index: int, size: float = 12) -> str:
    """A method's mark, for text and tables."""
    inner = mark(index, size / 2, size / 2, size * 0.34, class_=f"fill h{index % HUES}")
    return (
        f'<svg class="swatch" width="{size:g}" height="{size:g}" viewBox="0 0 {size:g} {size:g}" '
        f'aria-hidden="true">{inner}</svg>'
    )


@dataclass(frozen=True)
class Interval:
    """One line of a forest.

    Attributes:
        index: Of the method's colour and mark.
        value, low, high: The estimate.
        dots: The seeds' own values.
        tip: What is shown when one points at it.
    """

    index: int
    value: float
    low: float
    high: float
    dots: Sequence[float] = ()
    tip: str = ""


def strip(item: Interval, scale: Scale, height: float, references: Sequence[float] = ()) -> str:
    """One estimate with its interval on a scale that other rows share; no axis."""
    y, hue = height / 2, f"h{item.index % HUES}"
    parts = [
        element("line", x1=scale(r), x2=scale(r), y1=0, y2=height, class_="reference") for r in references
    ]
    parts += [element("circle", cx=scale(d), cy=y + 7, r=1.8, class_=f"fill faint {hue}") for d in item.dots]
    low, high = scale(max(item.low, scale.low)), scale(min(item.high, scale.high))
    parts += [
        element("line", x1=low, x2=high, y1=y, y2=y, class_=f"interval {hue}"),
        *(
            element("line", x1=x, x2=x, y1=y - 4, y2=y + 4, class_=f"interval thin {hue}")
            for x, shown in ((low, item.low >= scale.low), (high, item.high <= scale.high))
            if shown
        ),
        mark(item.index, scale(item.value), y, 5, class_=f"fill {hue}", data_tip=item.tip or None),
    ]
    width = scale.last + (scale.first if scale.first < 40 else 0)
    return svg(width, height, item.tip, *parts, class_="strip")


def axis_strip(scale: Scale, form: Form, references: Sequence[tuple[float, str]] = (), count: int = 5) -> str:
    """The axis of a column of strips."""
    parts = [element("line", x1=scale.first, x2=scale.last, y1=4, y2=4, class_="axis")]
    for value in ticks(scale.low, scale.high, count):
        x = scale(value)
        parts.append(element("line", x1=x, x2=x, y1=4, y2=8, class_="axis"))
        parts.append(element("text", text(form(value)), x=x, y=20, text_anchor="middle", class_="tick"))
    for value, name in references:
        parts.append(
            element("text", text(name), x=scale(value), y=33, text_anchor="middle", class_="tick strong")
        )
    return svg(scale.last + scale.first, 36 if references else 24, "axis", *parts, class_="strip")


@dataclass(frozen=True)
class Series:
    """One method's line.

    Attributes:
        label, index: Its name, colour and mark.
        points: The line.
        band: (x, low, high) around it.
        faint: Thin lines of single seeds.
        before: A thin dashed line that leads to it (weights that it started from).
    """

    label: str
    index: int
    points: Sequence[Point]
    band: Sequence[tuple[float, float, float]] = ()
    faint: Sequence[Sequence[Point]] = ()
    before: Sequence[Point] = ()


@dataclass(frozen=True)
class Axis:
    """What an axis shows.

    Attributes:
        name: With its unit.
        form: Numbers as text.
        zero: Whether it begins at 0.
        log: Whether equal ratios are equally long.
        at: Where its ticks are, instead of round numbers.
        least: The shortest range shown, so that noise does not look large.
    """

    name: str
    form: Form = lambda v: f"{v:g}"
    zero: bool = False
    log: bool = False
    at: Sequence[float] = ()
    least: float = 0.0


@dataclass
class Frame:
    """The area of a chart and its two scales."""

    width: float
    height: float
    x: Scale
    y: Scale
    parts: list[str] = field(default_factory=list)

    @classmethod
    def of(
        cls,
        width: float,
        height: float,
        x_range: tuple[float, float],
        y_range: tuple[float, float],
        x_axis: Axis,
        y_axis: Axis,
        right: float,
    ) -> Frame:
        left, top, bottom = 50.0, 22.0, 40.0
        frame = cls(
            width,
            height,
            Scale(*x_range, left, width - right, x_axis.log),
            Scale(*y_range, height - bottom, top, y_axis.log),
        )
        floor, across = height - bottom, width - right
        for value in y_axis.at or ticks(*y_range):
            y = frame.y(value)
            frame.add(element("line", x1=left, x2=across, y1=y, y2=y, class_="grid"))
            frame.write(y_axis.form(value), left - 8, y + 4, "end")
        for value in x_axis.at or ticks(*x_range, max(4, int((across - left) / 90))):
            x = frame.x(value)
            frame.add(element("line", x1=x, x2=x, y1=floor, y2=floor + 4, class_="axis"))
            frame.write(x_axis.form(value), x, floor + 18, "middle")
        frame.add(element("line", x1=left, x2=across, y1=floor, y2=floor, class_="axis"))
        frame.write(y_axis.name, 0, 11, "start", "name")
        frame.write(x_axis.name, (left + across) / 2, height - 4, "middle", "name")
        return frame

    def add(self, *parts: str) -> None:
        self.parts += parts

    def write(self, words: str, x: float, y: float, anchor: str, kind: str = "tick") -> None:
        self.add(element("text", text(words), x=x, y=y, text_anchor=anchor, class_=kind))

    def path(self, points: Sequence[Point]) -> str:
        places = (f"{self.x(x):.1f},{self.y(y):.1f}" for x, y in points)
        return "M" + "L".join(places)

    def drawn(self, label: str) -> str:
        return svg(self.width, self.height, label, *self.parts)


def lines(
    series: Sequence[Series],
    x_axis: Axis,
    y_axis: Axis,
    label: str,
    width: float = 640,
    height: float = 330,
    names: bool = True,
    marks: bool = True,
) -> str:
    """Lines with bands, each named at its end (the first ones, if there are more than fit)."""
    xs = [x for s in series for x, _ in (*s.points, *s.before)]
    ys = [y for s in series for _, y in (*s.points, *s.before)]
    ys += [v for s in series for _, low, high in s.band for v in (low, high)]
    right = 22 + 6.6 * max((len(s.label) for s in series), default=0) if names else 14
    x_range = (min(xs), max(xs)) if x_axis.log else (0.0 if x_axis.zero else min(xs), max(xs))
    frame = Frame.of(width, height, x_range, covering(ys, y_axis.zero, y_axis.least), x_axis, y_axis, right)
    for s in series:
        frame.add(_line(frame, s, marks))
    if names:
        room = int((height - 46) / 13)
        ends = [(s, frame.y(s.points[-1][1])) for s in series[:room] if s.points]
        places = spread_out([y for _, y in ends], 13, 12, height - 34)
        for (s, y), place in zip(ends, places, strict=True):
            x = frame.x(s.points[-1][0])
            hue = f"h{s.index % HUES}"
            bend = f"M{x + 5:.1f},{y:.1f}L{width - right + 12:.1f},{place:.1f}"
            frame.add(
                element(
                    "g",
                    element("path", d=bend, class_=f"leader {hue}"),
                    element("text", text(s.label), x=width - right + 15, y=place + 4, class_=f"end {hue}"),
                    class_="m",
                    data_m=s.index,
                )
            )
    return frame.drawn(label)


def _line(frame: Frame, s: Series, marks: bool) -> str:
    hue = f"h{s.index % HUES}"
    dash = "6 3" if s.index >= HUES else None
    parts = []
    if s.band:
        up = [(x, high) for x, _, high in s.band]
        down = [(x, low) for x, low, _ in reversed(s.band)]
        parts.append(element("path", d=frame.path([*up, *down]) + "Z", class_=f"band {hue}"))
    parts += [element("path", d=frame.path(f), class_=f"line thin {hue}") for f in s.faint if len(f) > 1]
    if len(s.before) > 1:
        parts.append(element("path", d=frame.path(s.before), class_=f"line before {hue}"))
    if len(s.points) > 1:
        parts.append(element("path", d=frame.path(s.points), class_=f"line {hue}", stroke_dasharray=dash))
    for x, y in s.points if marks else s.points[-1:]:
        parts.append(mark(s.index, frame.x(x), frame.y(y), 3.2, class_=f"fill {hue}"))
    return element("g", *parts, class_="m", data_m=s.index)


def spread_out(places: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Places moved apart to at least `gap`, as little as possible, in the same order."""
    order = sorted(range(len(places)), key=lambda i: places[i])
    groups: list[list[int]] = []
    centres: list[float] = []
    for i in order:
        groups.append([i])
        centres.append(min(max(places[i], low), high))
        while len(groups) > 1:
            a, b = groups[-2], groups[-1]
            if centres[-1] - centres[-2] >= gap * (len(a) + len(b)) / 2 - 1e-9:
                break
            merged = a + b
            centre = sum(places[j] for j in merged) / len(merged)
            half = gap * (len(merged) - 1) / 2
            centre = min(max(centre, low + half), max(high - half, low + half))
            groups[-2:], centres[-2:] = [merged], [centre]
    out = [0.0] * len(places)
    for group, centre in zip(groups, centres, strict=True):
        for k, i in enumerate(group):
            out[i] = centre + gap * (k - (len(group) - 1) / 2)
    return out


@dataclass(frozen=True)
class Cloud:
    """One method in a scatter: its mean and its seeds."""

    label: str
    index: int
    mean: Point
    seeds: Sequence[Point] = ()


def scatter(
    clouds: Sequence[Cloud],
    x_axis: Axis,
    y_axis: Axis,
    label: str,
    width: float = 460,
    height: float = 320,
    cross: Point | None = (0.0, 0.0),
) -> str:
    """Means with their seeds around them, each named beside it; `cross` marks a point of reference."""
    points = [p for c in clouds for p in (c.mean, *c.seeds)] + ([] if cross is None else [cross])
    right = 26.0 + 6.2 * max((len(c.label) for c in clouds), default=0)
    x_range = covering([x for x, _ in points], x_axis.zero, x_axis.least)
    y_range = covering([y for _, y in points], y_axis.zero, y_axis.least)
    frame = Frame.of(width, height, x_range, y_range, x_axis, y_axis, right)
    if cross is not None:
        x, y = frame.x(cross[0]), frame.y(cross[1])
        frame.add(
            element("line", x1=x, x2=x, y1=frame.y.last, y2=frame.y.first, class_="reference"),
            element("line", x1=frame.x.first, x2=frame.x.last, y1=y, y2=y, class_="reference"),
        )
    room = int((height - 60) / 13)
    places = spread_out([frame.y(c.mean[1]) for c in clouds[:room]], 13, 16, height - 44)
    for i, c in enumerate(clouds):
        hue = f"h{c.index % HUES}"
        x, y = frame.x(c.mean[0]), frame.y(c.mean[1])
        seeds = [(frame.x(a), frame.y(b)) for a, b in c.seeds]
        end = frame.x.last + 12
        frame.add(
            element(
                "g",
                *(element("line", x1=x, y1=y, x2=a, y2=b, class_=f"leader {hue}") for a, b in seeds),
                *(element("circle", cx=a, cy=b, r=2, class_=f"fill {hue}") for a, b in seeds),
                *_named(c.label, hue, (x, y), (end, places[i]) if i < room else None),
                mark(c.index, x, y, 5.5, class_=f"fill {hue}"),
                class_="m",
                data_m=c.index,
            )
        )
    return frame.drawn(label)


def _named(label: str, hue: str, point: Point, place: Point | None) -> list[str]:
    """A name beside a chart with a line to its point; nothing where there is no place for it."""
    if place is None:
        return []
    (x, y), (end, at) = point, place
    return [
        element("path", d=f"M{x + 7:.1f},{y:.1f}L{end - 3:.1f},{at:.1f}", class_=f"leader {hue}"),
        element("text", text(label), x=end, y=at + 4, class_=f"end {hue}"),
    ]


def stacked(
    parts: Sequence[tuple[str, str, float]], whole: float, width: float = 300, height: float = 18
) -> str:
    """One bar of several parts (name, class, amount), as long as its share of `whole`."""
    drawn, x = [], 0.0
    for name, kind, amount in parts:
        length = width * amount / whole if whole else 0.0
        if length > 0:
            box = {"x": x, "y": 1, "width": length, "height": height - 2}
            drawn.append(element("rect", **box, class_=f"part {kind}", data_tip=name))
        x += length
    return svg(width, height, ", ".join(name for name, _, n in parts if n), *drawn, class_="strip")
