"""From a short text to a policy: `scratch:nano`, `smollm2`, a directory or a Hugging Face name."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from pathlib import Path

import torch

from interlace.policies.scratch import SIZES, build_model, character_tokenizer, parse_spec
from interlace.policies.smollm2 import cached_smollm2
from interlace.policies.text import TextPolicy

ACCEPTED = (
    f"a directory with config.json, a Hugging Face name, smollm2, or scratch:SIZE[,option=value...] "
    f"with SIZE one of {', '.join(SIZES)}"
)
"""What `model=` may be."""


def load_policy(
    spec: str | Path,
    *,
    precision: str = "fp32",
    device: str | torch.device | None = None,
    alphabet: Iterable[str] | None = None,
    seed: int = 0,
) -> TextPolicy:
    """Load a policy, or make one.

    Args:
        spec: A directory, a Hugging Face name, `smollm2`, or `scratch:SIZE` with options
            (`scratch:nano,arch=qwen3,layers=2`; see `interlace.policies.scratch`).
        precision: `fp32`, `bf16` or `fp64`.
        device: Where it runs; `None` takes the accelerator if there is one.
        alphabet: Characters of a model from scratch; `None` takes printable ASCII.
        seed: Seed of the weights of a model from scratch.

    Raises:
        FileNotFoundError: Nothing of that name, with what is accepted.
        ValueError: A malformed `scratch:` spec or an unknown precision.
    """
    name = str(spec)
    if name.startswith("scratch:"):
        tokenizer = character_tokenizer(alphabet)
        options = parse_spec(name)
        model = build_model(options, len(tokenizer), tokenizer.eos_token_id, tokenizer.pad_token_id, seed)
        tokenizer.model_max_length = int(options["positions"])
        return TextPolicy(model, tokenizer, precision=precision, device=device)
    if name == "smollm2":
        ready = cached_smollm2()
        if ready is None:
            raise FileNotFoundError("model=smollm2 is not prepared yet; run: interlace models get smollm2")
        return TextPolicy.load(ready, precision=precision, device=device)
    path = Path(name).expanduser()
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise FileNotFoundError(f"model={name}: the directory holds no config.json; accepted: {ACCEPTED}")
        return TextPolicy.load(path, precision=precision, device=device)
    near = difflib.get_close_matches(
        name, ["smollm2", *(f"scratch:{size}" for size in SIZES)], n=1, cutoff=0.8
    )
    if near:
        raise FileNotFoundError(f"model={name}: did you mean {near[0]!r}? Accepted: {ACCEPTED}")
    try:
        return TextPolicy.load(name, precision=precision, device=device)
    except OSError as error:
        reason = str(error).strip().splitlines()[0]
        raise FileNotFoundError(
            f"model={name}: no such directory, and Hugging Face gave nothing of that name ({reason}). "
            f"Accepted: {ACCEPTED}"
        ) from error
