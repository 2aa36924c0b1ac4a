"""The demo: train a 0.37M-parameter model from scratch on countdown, SFT and then GRPO from its checkpoint.

Three numbers from 1 to 12 and a target up to 50; the answer is two lines of arithmetic. Held-out problems
share no (numbers, target) with training. About 8 minutes on two cores; less with fewer steps:

    python examples/demo.py [sft_steps=700] [rl_steps=600] [eval_problems=512] [out=runs/demo]
"""

from __future__ import annotations

import shutil
import sys
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

import interlace


def main(arguments: list[str]) -> None:
    settings = {"sft_steps": "700", "rl_steps": "600", "eval_problems": "512", "out": "runs/demo"}
    for argument in arguments:
        key, _, value = argument.partition("=")
        if key not in settings:
            raise SystemExit(f"error: unknown setting '{key}'; accepted are {', '.join(settings)}")
        settings[key] = value
    out = Path(settings["out"])
    if (out / "config.yaml").exists():  # a demo starts afresh; runs of your own are never overwritten
        shutil.rmtree(out)
    began = time.monotonic()
    result = interlace.train(
        "sft_then_rl",
        task="countdown",
        model="scratch:nano",
        std=True,
        denominator="tokens",
        eval_problems=settings["eval_problems"],
        eval_samples=4,
        out=str(out),
        stages={
            "sft": {"steps": settings["sft_steps"], "lr": 3e-3, "demos_per_step": 64},
            "rl": {"steps": settings["rl_steps"], "lr": 4e-4, "prompts_per_step": 16, "group_size": 8},
        },
    )
    minutes = (time.monotonic() - began) / 60
    table = Table(title="held-out countdown problems (95 % intervals)")
    for column in ("", "greedy", "sampled at temperature 1"):
        table.add_column(column)
    for record in result.evaluations:
        if record["at"] in ("start", "after sft", "after rl"):
            table.add_row(record["at"], *(_interval(record[k]) for k in ("greedy", "sampled")))
    console = Console()
    console.print(table)
    console.print(f"{minutes:.1f} minutes · run folder: {out}")
    console.print(
        f"look at one rollout's numbers:  interlace explain grpo task=countdown model={result.checkpoint}"
    )


def _interval(estimate: dict) -> str:
    return f"{estimate['value']:.1%}  ({estimate['low']:.1%} to {estimate['high']:.1%})"


if __name__ == "__main__":
    main(sys.argv[1:])
