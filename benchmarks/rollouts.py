"""Rollouts: interlace's embedded engine against transformers `generate`, in one process, in pairs.

    python benchmarks/rollouts.py --model 1m --new 32 --threads 1

Each pair runs both engines one after the other (the order alternates) on the same weights, prompts and
number of new tokens; the ratio of a pair is what is quoted, because the clock of a shared machine is not
to be trusted; where other processes hold its cores, `--clock cpu` counts CPU seconds. `--task` lets an end
token that a random model picks about once in 64 tokens end the rows, so that lengths vary as on a real
task; only tokens up to the end token count. Weights are random: the speed does not depend on them.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from interlace.rollout import LocalEngine
from interlace.types import Problem, SampleRequest, Sampling

MODELS = {
    "1m": {
        "vocab_size": 64,
        "hidden_size": 128,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "intermediate_size": 512,
    },
    "5m": {
        "vocab_size": 64,
        "hidden_size": 256,
        "num_hidden_layers": 6,
        "num_attention_heads": 4,
        "intermediate_size": 768,
    },
    "135m": {
        "vocab_size": 49152,
        "hidden_size": 576,
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "intermediate_size": 1536,
        "tie_word_embeddings": True,
        "rope_theta": 100000.0,
    },
}
END = 2


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", choices=MODELS, default="1m")
    parser.add_argument("--batch", type=int, default=64, help="rows")
    parser.add_argument("--group", type=int, default=8, help="rows per prompt")
    parser.add_argument("--prompt", type=int, default=16, help="tokens of a prompt")
    parser.add_argument("--new", type=int, default=32, help="limit of new tokens")
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--path", choices=("fused", "generic", "transformers"), default=None)
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall")
    parser.add_argument("--task", action="store_true", help="rows end at an end token")
    arguments = parser.parse_args()

    torch.set_num_threads(arguments.threads)
    torch.manual_seed(0)
    config = LlamaConfig(**MODELS[arguments.model], max_position_embeddings=2048, eos_token_id=END)
    model = LlamaForCausalLM(config).to(getattr(torch, arguments.dtype)).eval()
    prompts = torch.randint(3, config.vocab_size, (arguments.batch // arguments.group, arguments.prompt))
    ends = (END,) if arguments.task else ()
    engine = LocalEngine(model, eos_ids=ends, max_rows=arguments.batch, path=arguments.path)
    requests = [
        SampleRequest(
            problem=Problem(id=str(i), prompt=""),
            n=arguments.group,
            sampling=Sampling(max_tokens=arguments.new),
            prompt_ids=tuple(prompt.tolist()),
            rows=tuple(range(i * arguments.group, (i + 1) * arguments.group)),
        )
        for i, prompt in enumerate(prompts)
    ]
    repeated = prompts.repeat_interleave(arguments.group, 0)

    def ours(step: int) -> int:
        groups = engine.generate(requests, seed=0, step=step)
        return sum(len(c.ids) for group in groups for c in group)

    def theirs(step: int) -> int:
        torch.manual_seed(step)
        with torch.no_grad():
            out = model.generate(
                repeated,
                attention_mask=torch.ones_like(repeated),
                do_sample=True,
                top_k=0,
                max_new_tokens=arguments.new,
                eos_token_id=ends[0] if ends else None,
                pad_token_id=0,
            )
        new = out[:, arguments.prompt :]
        # A row counts up to and with its first end token.
        ended_before = (new == END).long().cumsum(-1) - (new == END).long()
        return int((ended_before == 0).sum()) if ends else new.numel()

    clock = time.perf_counter if arguments.clock == "wall" else time.process_time
    rates: dict[str, list[float]] = {"ours": [], "theirs": []}
    for pair in range(arguments.pairs + 1):
        order: list[tuple[str, Callable[[int], int]]] = [("ours", ours), ("theirs", theirs)]
        for name, run in order if pair % 2 else order[::-1]:
            begin = clock()
            tokens = run(pair)
            rates[name].append(tokens / (clock() - begin))
    ratios = sorted(a / b for a, b in list(zip(rates["ours"], rates["theirs"], strict=True))[1:])
    print(
        f"{arguments.model} batch {arguments.batch} new {arguments.new} {arguments.dtype} "
        f"{arguments.threads} thread(s) path {engine.path}{' task' if arguments.task else ''}: "
        f"{statistics.median(rates['ours'][1:]):.0f} against {statistics.median(rates['theirs'][1:]):.0f} "
        f"tokens per {arguments.clock} second, ratio min {ratios[0]:.2f} "
        f"median {statistics.median(ratios):.2f} max {ratios[-1]:.2f}"
    )


if __name__ == "__main__":
    main()
