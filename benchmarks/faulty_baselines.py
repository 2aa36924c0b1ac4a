"""Does a broken SFT baseline change who wins? Paper 044's experiment, small.

    python benchmarks/faulty_baselines.py [key=value ...]

SFT-then-RL as it should be, with each of the two faults of published baselines in its SFT stage, and with
both; beside them two mixed methods from the same start. Same data, budget, RL stage and seeds. What comes
out is an ordinary comparison: runs/faulty-baselines/report.html, table.md and the rest; the command goes on
with it when it is issued again. Settings are those of `interlace compare`, as seeds=5 budget=sft:1500.
"""

from __future__ import annotations

import sys
from pathlib import Path

import interlace
from interlace.cli.arguments import merged, split_settings
from interlace.cli.compare import show

FAULTS = Path(__file__).parent / "faults.py"
METHODS = [
    "sft_then_rl",
    *(f"{FAULTS}:{name}" for name in ("dropped_then_rl", "mean_of_means_then_rl", "both_then_rl")),
    "chord",
    "luffy",
]
SETTINGS = {
    "model": "scratch:nano",
    "task": "countdown:high=12,target_high=36,ops=+-",
    "problems": 4000,
    "demonstrations": 2000,
    "demos_per_step": 32,
    "chord": {"demos_per_step": 16},
    "seeds": 3,
    "budget": "sft:900",
    "start": "sft",
    "switch": 0.5,
    "out": "runs/faulty-baselines",
}


def main(words: list[str]) -> None:
    settings = merged(SETTINGS, split_settings(words))
    outcome = interlace.compare(METHODS, **settings)
    show(outcome.results)
    print(f"report: {outcome.report}")


if __name__ == "__main__":
    main(sys.argv[1:])
