"""Peak memory of log-probabilities with their gradient: fused head against full logits.

    python benchmarks/head_memory.py [--hidden 256] [--vocabulary 49152 151936] [--decisions 512 2048]

Every measurement is a fresh process; printed is the growth of its resident memory above hidden states,
weight and weight gradient, in MB, and the time.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import time

import torch

from interlace.policies.head import Head, head_statistics


def fused(hidden: torch.Tensor, weight: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    n = len(target)
    return head_statistics(hidden, Head(weight), torch.arange(n), target, torch.ones(n))["logp"]


def full(hidden: torch.Tensor, weight: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return torch.log_softmax(hidden @ weight.T, -1).gather(1, target[:, None])[:, 0]


WAYS = {"fused": fused, "full logits": full}


def peak() -> float:
    """Highest resident memory of this process so far, in MB."""
    scale = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * scale / 2**20


def measure(way: str, decisions: int, vocabulary: int, width: int) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    hidden = torch.randn(decisions, width, requires_grad=True)
    weight = (0.05 * torch.randn(vocabulary, width)).requires_grad_()
    target = torch.randint(vocabulary, (decisions,))
    weight.grad = torch.zeros_like(weight)
    (weight.detach()[:8] @ hidden.detach().T).sum()
    before, start = peak(), time.process_time()
    WAYS[way](hidden, weight, target).sum().backward()
    print(f"{peak() - before:.0f} {time.process_time() - start:.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--vocabulary", type=int, nargs="*", default=[49152, 151936])
    parser.add_argument("--decisions", type=int, nargs="*", default=[512, 2048])
    parser.add_argument("--way", choices=WAYS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.way:
        measure(arguments.way, arguments.decisions[0], arguments.vocabulary[0], arguments.hidden)
        return
    print(f"{'vocabulary':>10} {'decisions':>9} {'N x V, MB':>10}  {'way':12} {'peak, MB':>9} {'CPU s':>6}")
    for vocabulary in arguments.vocabulary:
        for decisions in arguments.decisions:
            for way in WAYS:
                command = [sys.executable, __file__, "--way", way, "--hidden", str(arguments.hidden)]
                command += ["--vocabulary", str(vocabulary), "--decisions", str(decisions)]
                out = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
                size = decisions * vocabulary * 4 / 2**20
                print(
                    f"{vocabulary:10} {decisions:9} {size:10.0f}  {way:12} {out[0]:>9} {out[1]:>6}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
