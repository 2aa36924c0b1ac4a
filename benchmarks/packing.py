"""Tokens per second of forward and backward: packed rows against padded ones.

    python benchmarks/packing.py [MODEL ...] [--tokens 4096] [--repeats 3]

MODEL is what `interlace train model=` accepts (default: scratch:1m). Every line trains on the same rows
with the same sum of log-probabilities; `transformers` pads all rows to the longest and takes the
log-softmax of full logits, which is what trainers do by default. Time is CPU time of one thread, so
other work on the machine disturbs it less; quote the ratios.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial

import torch

from interlace.policies import TextPolicy, load_policy
from interlace.policies.packing import RowLayout
from interlace.types import Batch, Slots

LENGTHS = {
    "equal 64": lambda count, g: torch.full((count,), 64),
    "equal 128": lambda count, g: torch.full((count,), 128),
    "16 to 128": lambda count, g: torch.randint(16, 129, (count,), generator=g),
    "many short, few long": lambda count, g: (16 + 112 * torch.rand(count, generator=g) ** 4).long(),
}


def rows_of(lengths: torch.Tensor, vocabulary: int, generator: torch.Generator) -> Batch:
    """A batch of rows with random ids; every slot is read for the next token."""
    total, rows = int(lengths.sum()), lengths.numel()
    row = torch.repeat_interleave(torch.arange(rows), lengths)
    position = torch.arange(total) - (lengths.cumsum(0) - lengths)[row]
    ids = torch.randint(2, vocabulary, (total,), generator=generator)
    target = torch.randint(2, vocabulary, (total,), generator=generator)
    slots = Slots(ids, position, row, torch.arange(total), target, torch.ones(total))
    zero = torch.zeros(rows, dtype=torch.int64)
    byte, none = zero.to(torch.int8), torch.zeros(total, dtype=torch.int8)
    return Batch(
        row_id=torch.arange(rows), group=zero, episode=zero, reward=zero.double(), verdict=byte, finish=byte,
        is_rollout=zero.bool(), active=~zero.bool(), extra=({},) * rows, row=row, source=none, span=none,
        arrays={}, slots=slots,
    )  # fmt: skip


def plain(policy: TextPolicy, batch: Batch) -> None:
    """One right-padded batch, full logits, log-softmax."""
    slots = batch.slots
    assert slots is not None
    shape = (batch.n_rows, int(slots.position.max()) + 1)
    ids, target = torch.zeros(shape, dtype=torch.int64), torch.zeros(shape, dtype=torch.int64)
    mask = torch.zeros(shape, dtype=torch.int64)
    ids[slots.row, slots.position], mask[slots.row, slots.position] = slots.input, 1
    target[slots.row, slots.position] = slots.target
    logits = policy.model(input_ids=ids, attention_mask=mask, use_cache=False).logits.float()
    logp = logits.log_softmax(-1).gather(2, target[..., None])[..., 0]
    (logp * mask).sum().backward()


def ours(policy: TextPolicy, batch: Batch) -> None:
    statistics = policy.score(batch)
    policy.backward(statistics, {"logp": torch.ones_like(statistics["logp"])})


def seconds(run: Callable[[], None], repeats: int) -> float:
    run()
    times = []
    for _ in range(repeats):
        start = time.process_time()
        run()
        times.append(time.process_time() - start)
    return min(times)


def rates(policy: TextPolicy, batch: Batch, repeats: int) -> list[float]:
    """Tokens per second of transformers, padded buckets, packed rows one by one, packed buckets."""
    bucketed = RowLayout.of
    found = []
    for way in ("transformers", "padded", "rows", "packed"):
        policy._trunk.path = "padded" if way == "padded" else "packed"
        run = plain if way == "transformers" else ours

        def step(run: Callable[[TextPolicy, Batch], None] = run) -> None:
            policy.model.zero_grad()
            run(policy, batch)

        if way == "rows":
            RowLayout.of = partial(bucketed, single=True)  # type: ignore[method-assign]
        try:
            found.append(batch.n_decisions / seconds(step, repeats))
        finally:
            RowLayout.of = bucketed  # type: ignore[method-assign]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model", nargs="*", default=["scratch:1m"])
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--precision", default="fp32")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    columns = f"{'transformers':>12} {'padded':>8} {'packed, by row':>14} {'packed':>8}"
    print(f"{'model':12} {'lengths':22} {columns}  tokens/s")
    for name in arguments.model:
        alphabet = map(chr, range(33, 95))
        policy = load_policy(name, precision=arguments.precision, device="cpu", alphabet=alphabet)
        for lengths_name, draw in LENGTHS.items():
            generator = torch.Generator().manual_seed(0)
            lengths = draw(4096, generator)
            lengths = lengths[: int((lengths.cumsum(0) <= arguments.tokens).sum())]
            batch = rows_of(lengths, policy.vocab_size, generator)
            r = rates(policy, batch, arguments.repeats)
            print(
                f"{name:12} {lengths_name:22} {r[0]:12.0f} {r[1]:8.0f} {r[2]:14.0f} {r[3]:8.0f}", flush=True
            )


if __name__ == "__main__":
    main()
