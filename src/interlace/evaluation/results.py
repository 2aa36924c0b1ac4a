"""What an evaluation found: one record per problem, and every number that is computed from them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import TYPE_CHECKING, Any, Literal

from interlace.evaluation.metrics import Estimate, PairedDifference, estimate, paired_difference, pass_at_k
from interlace.types import Sampling

if TYPE_CHECKING:
    from rich.table import Table

GROUPS = ("task", "split", "difficulty")
"""What results are broken down by: the problem's task and these columns of its `meta`."""

MOST_GROUPS = 20
"""A breakdown into more groups than this is left out of tables (it stays in the records)."""


@dataclass(frozen=True)
class ProblemResult:
    """What came of one problem.

    Attributes:
        id: The problem's.
        groups: Its task and its values of `GROUPS`, as text.
        greedy: Whether the greedy answer is correct; `None` if there is none or it is unscorable.
        greedy_reward: Its reward.
        greedy_length: Its tokens, end token included.
        greedy_truncated: Whether it reached the token limit.
        samples: Scorable samples.
        correct: How many of them are correct.
        reward: Their mean reward.
        lengths: Tokens of every sample, unscorable ones included.
        truncated: How many samples reached the token limit.
        unscorable: Unscorable answers, greedy or sampled.
        invalid: How many greedy answers (of the samples where there is none) are no answer: cut at the token
            limit, or without anything that the verifier could read, where it names what it reads.
        majority: majority@k by k.
        best: By k, accuracy of the answer of k that the policy itself finds likeliest per token.
        nats: Sum over all samples of -log-probability, of the distribution that they were drawn from.
        text: The greedy answer, or the first sample, to look at.
        extracted: The answer that the verifier read from `text`.
    """

    id: str
    groups: Mapping[str, str] = field(default_factory=dict)
    greedy: bool | None = None
    greedy_reward: float | None = None
    greedy_length: int | None = None
    greedy_truncated: bool = False
    samples: int = 0
    correct: int = 0
    reward: float | None = None
    lengths: tuple[int, ...] = ()
    truncated: int = 0
    unscorable: int = 0
    invalid: int = 0
    majority: Mapping[int, float] = field(default_factory=dict)
    best: Mapping[int, float] = field(default_factory=dict)
    nats: float | None = None
    text: str = ""
    extracted: str | None = None


@dataclass(frozen=True)
class Evaluation:
    """The results of one policy on one list of problems. Every number is a function of the records.

    Attributes:
        problems: One record per problem that was answered.
        sampling: How samples were drawn (the greedy answer shares only its limits and stops).
        samples: Samples per problem, 0 if there was only the greedy answer.
        ks: The k of pass@k and majority@k.
        overlong: Ids of the problems left out because their prompt is over the limit.
        unscorable: How many answers nothing could be said about, by reason; they are in no share.
        settings: What else belongs to the result (model, task, seed), to be kept with it.
    """

    problems: tuple[ProblemResult, ...]
    sampling: Sampling
    samples: int = 0
    ks: tuple[int, ...] = ()
    overlong: tuple[str, ...] = ()
    unscorable: Mapping[str, int] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def n(self) -> int:
        """Problems that were answered."""
        return len(self.problems)

    @property
    def greedy(self) -> Estimate | None:
        """Accuracy of the greedy answer (Wilson's interval)."""
        return _greedy(self.problems)

    @property
    def sampled(self) -> Estimate | None:
        """Mean accuracy of the samples (problems are the clusters of the interval)."""
        return _sampled(self.problems)

    @property
    def pass_at_k(self) -> dict[int, Estimate]:
        """Unbiased pass@k over the problems with at least k scorable samples."""
        return self._at_k(lambda p, k: pass_at_k(p.samples, p.correct, k))

    @property
    def majority_at_k(self) -> dict[int, Estimate]:
        """majority@k; empty where the verifier reads no answer out of a text."""
        return self._at_k(lambda p, k: p.majority.get(k))

    @property
    def best_of_k(self) -> dict[int, Estimate]:
        """Accuracy of the likeliest per token of k answers, as the policy itself sees it."""
        return self._at_k(lambda p, k: p.best.get(k))

    @property
    def entropy(self) -> float | None:
        """Nats per sampled token, an estimate from the samples; `None` if nothing was sampled."""
        known = [p for p in self.problems if p.nats is not None]
        tokens = sum(sum(p.lengths) for p in known)
        return sum(p.nats or 0.0 for p in known) / tokens if tokens else None

    @property
    def invalid(self) -> float:
        """Share of greedy answers (of the samples where there are none) that are no answer."""
        answers = sum(len(p.lengths) if p.greedy_length is None else 1 for p in self.problems)
        return sum(p.invalid for p in self.problems) / max(answers, 1)

    @property
    def reward(self) -> float | None:
        """Mean reward of the samples, or of the greedy answers if nothing was sampled."""
        of_samples = _mean(p.reward for p in self.problems if p.reward is not None)
        return (
            _mean(p.greedy_reward for p in self.problems if p.greedy_reward is not None)
            if of_samples is None
            else of_samples
        )

    @property
    def mean_length(self) -> float:
        """Tokens per answer: of the samples, or of the greedy answers if nothing was sampled."""
        return _mean(self._lengths()) or 0.0

    @property
    def truncated(self) -> float:
        """Share of those answers that reached the token limit."""
        cut = sum(p.truncated if self.samples else p.greedy_truncated for p in self.problems)
        return cut / max(sum(1 for _ in self._lengths()), 1)

    def by_group(self, key: str) -> dict[str, Evaluation]:
        """The same for every value of `task`, `split` or `difficulty`, in order.

        Raises:
            ValueError: another key.
        """
        if key not in GROUPS:
            raise ValueError(f"group '{key}': accepted are {', '.join(GROUPS)}")
        values = sorted({p.groups[key] for p in self.problems if key in p.groups}, key=_natural)
        return {
            value: Evaluation(
                tuple(p for p in self.problems if p.groups.get(key) == value),
                self.sampling,
                self.samples,
                self.ks,
            )
            for value in values
        }

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers, lists and texts: summary numbers first, then everything `from_dict` needs."""
        summary = {
            "n": self.n,
            "greedy": _plain(self.greedy),
            "sampled": _plain(self.sampled),
            "pass_at_k": {str(k): _plain(e) for k, e in self.pass_at_k.items()},
            "majority_at_k": {str(k): _plain(e) for k, e in self.majority_at_k.items()},
            "best_of_k": {str(k): _plain(e) for k, e in self.best_of_k.items()},
            "reward": self.reward,
            "mean_length": self.mean_length,
            "truncated": self.truncated,
            "invalid": self.invalid,
            "entropy": self.entropy,
            "groups": {
                key: {
                    value: {"n": part.n, "greedy": _plain(part.greedy), "sampled": _plain(part.sampled)}
                    for value, part in self.by_group(key).items()
                }
                for key in self._shown_groups()
            },
        }
        kept = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in ("problems", "sampling")}
        records = [_compact(asdict(p)) for p in self.problems]
        return _listed({"summary": summary, **kept, "sampling": asdict(self.sampling), "problems": records})

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Evaluation:
        """The evaluation that `to_dict` wrote (also through JSON)."""
        problems = []
        for record in data["problems"]:
            majority, best = ({int(k): v for k, v in record.get(f, {}).items()} for f in ("majority", "best"))
            lengths = tuple(record.get("lengths", ()))
            at_k = {"majority": majority, "best": best}
            problems.append(ProblemResult(**{**record, **at_k, "lengths": lengths}))
        sampling: dict[str, Any] = {
            k: tuple(v) if isinstance(v, list) else v for k, v in data["sampling"].items()
        }
        return cls(
            tuple(problems),
            Sampling(**sampling),
            data["samples"],
            tuple(data["ks"]),
            tuple(data["overlong"]),
            dict(data["unscorable"]),
            dict(data["settings"]),
        )

    def summary(self) -> str:
        """One line with the numbers that matter."""
        parts = []
        if self.greedy is not None:
            parts.append(f"greedy {self.greedy}")
        if self.sampled is not None:
            parts.append(
                f"sampled {self.sampled} ({self.samples} at temperature {self.sampling.temperature:g})"
            )
        for name, table in (("pass", self.pass_at_k), ("majority", self.majority_at_k)):
            k = max(table, default=1)
            if k > 1:
                parts.append(f"{name}@{k} {100 * table[k].value:.1f}%")
        parts.append(f"length {self.mean_length:.1f}")
        parts.append(f"truncated {100 * self.truncated:.1f}%")
        if self.unscorable:
            parts.append(f"unscorable {sum(self.unscorable.values())}")
        if self.overlong:
            parts.append(f"overlong prompts {len(self.overlong)}")
        return f"{self.n} problems: " + ", ".join(parts)

    def table(self, title: str | None = None) -> Table:
        """Everything but the records, for a terminal (`rich`)."""
        from rich.table import Table

        table = Table(title=title, title_justify="left")
        table.add_column("")
        table.add_column("value", justify="right")
        table.add_column("95% interval", justify="right")
        table.add_column("problems", justify="right")
        for name, e in self._estimates():
            table.add_row(name, f"{100 * e.value:.1f}%", f"{100 * e.low:.1f} to {100 * e.high:.1f}", str(e.n))
        table.add_section()
        if self.reward is not None:
            table.add_row("mean reward", f"{self.reward:.3f}", "", str(self.n))
        table.add_row("mean length (tokens)", f"{self.mean_length:.1f}", "", str(self.n))
        table.add_row("truncated answers", f"{100 * self.truncated:.1f}%", "", str(self.n))
        for reason, count in sorted(self.unscorable.items()):
            table.add_row(f"unscorable: {reason}", str(count), "", "")
        if self.overlong:
            table.add_row("overlong prompts, left out", str(len(self.overlong)), "", "")
        for key in self._shown_groups():
            table.add_section()
            for value, part in self.by_group(key).items():
                shown = part.greedy or part.sampled
                if shown is not None:
                    interval = f"{100 * shown.low:.1f} to {100 * shown.high:.1f}"
                    table.add_row(f"{key} {value}", f"{100 * shown.value:.1f}%", interval, str(shown.n))
        return table

    def _estimates(self) -> list[tuple[str, Estimate]]:
        rows: list[tuple[str, Estimate | None]] = [("greedy accuracy", self.greedy)]
        rows.append((f"accuracy at T={self.sampling.temperature:g}", self.sampled))
        rows += [(f"pass@{k}", e) for k, e in self.pass_at_k.items() if k > 1]
        rows += [(f"majority@{k}", e) for k, e in self.majority_at_k.items() if k > 1]
        return [(name, e) for name, e in rows if e is not None]

    def _at_k(self, measure: Callable[[ProblemResult, int], float | None]) -> dict[int, Estimate]:
        out = {}
        for k in self.ks:
            enough = [p for p in self.problems if p.samples >= k]
            values = [v for p in enough if (v := measure(p, k)) is not None]
            if values:
                out[k] = estimate(values, sum(p.samples // k for p in enough))
        return out

    def _lengths(self) -> Iterable[int]:
        for p in self.problems:
            if self.samples:
                yield from p.lengths
            elif p.greedy_length is not None:
                yield p.greedy_length

    def _shown_groups(self) -> list[str]:
        return [
            key
            for key in GROUPS
            if 1 < len({p.groups[key] for p in self.problems if key in p.groups}) <= MOST_GROUPS
        ]


def paired(
    first: Evaluation, second: Evaluation, of: Literal["greedy", "sampled"] = "greedy"
) -> PairedDifference:
    """How much better the second evaluation is than the first on the same problems.

    Args:
        of: Compare the greedy answer, or the share of correct samples.

    Problems where either side has nothing scorable are left out of the difference.

    Raises:
        ValueError: they are not on the same problems, or one lacks the kind of answer.
    """
    measure = {"greedy": _greedy_value, "sampled": _sampled_value}.get(of)
    if measure is None:
        raise ValueError(f"of={of!r}: accepted are greedy, sampled")
    a, b = ({p.id: p for p in e.problems} for e in (first, second))
    if a.keys() != b.keys():
        apart = sorted(a.keys() ^ b.keys())
        raise ValueError(
            f"not the same problems: {len(apart)} are in only one of the two evaluations (as '{apart[0]}'); "
            "evaluate both on the same task, split, n and seed"
        )
    pairs = [(measure(a[i]), measure(b[i])) for i in a]
    kept = [(x, y) for x, y in pairs if x is not None and y is not None]
    if not kept:
        raise ValueError(f"of={of!r}: no problem has a scorable {of} answer in both evaluations")
    return paired_difference([x for x, _ in kept], [y for _, y in kept])


def _greedy_value(p: ProblemResult) -> float | None:
    return None if p.greedy is None else float(p.greedy)


def _sampled_value(p: ProblemResult) -> float | None:
    return p.correct / p.samples if p.samples else None


def _greedy(problems: Iterable[ProblemResult]) -> Estimate | None:
    values = [v for p in problems if (v := _greedy_value(p)) is not None]
    return estimate(values) if values else None


def _sampled(problems: Iterable[ProblemResult]) -> Estimate | None:
    scorable = [p for p in problems if p.samples]
    if not scorable:
        return None
    return estimate([p.correct / p.samples for p in scorable], sum(p.samples for p in scorable))


def _mean(values: Iterable[float]) -> float | None:
    values = list(values)
    return sum(values) / len(values) if values else None


def _natural(text: str) -> tuple[int, float, str]:
    try:
        return (0, float(text), text)
    except ValueError:
        return (1, 0.0, text)


def _plain(e: Estimate | None) -> dict[str, float] | None:
    return None if e is None else asdict(e)


def _compact(record: dict[str, Any]) -> dict[str, Any]:
    """Without what equals its default, so that a file of thousands of records stays small."""
    defaults = asdict(ProblemResult(""))
    return {k: v for k, v in record.items() if k == "id" or v != defaults[k]}


def _listed(value: Any) -> Any:
    """Tuples as lists and keys as texts, as JSON reads them back."""
    if isinstance(value, Mapping):
        return {str(k): _listed(v) for k, v in value.items()}
    if isinstance(value, tuple | list):
        return [_listed(v) for v in value]
    return value
