"""Small language models from scratch: a size, an architecture, and one token per character.

Two files are all a checkpoint needs, so what is saved here loads anywhere with
`AutoModelForCausalLM` and `AutoTokenizer`.
"""

from __future__ import annotations

import difflib
import string
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoModelForCausalLM, PretrainedConfig, PreTrainedModel, PreTrainedTokenizerFast
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

SIZES: Mapping[str, Mapping[str, int]] = {
    "nano": {"hidden": 96, "layers": 3, "heads": 4, "ffn": 288},
    "1m": {"hidden": 128, "layers": 4, "heads": 4, "ffn": 512},
    "5m": {"hidden": 256, "layers": 6, "heads": 8, "ffn": 768},
}
"""Sizes by name: 0.37M, 1.06M and 5.13M parameters with a vocabulary of 64."""

ARCHITECTURES = ("llama", "qwen3", "gemma", "gemma2", "gemma3", "gpt2", "mistral")
"""Shapes of layer that can be built from scratch."""

OPTIONS = ("arch", "hidden", "layers", "heads", "kv_heads", "ffn", "positions", "window")
"""What may follow the size, as `scratch:nano,arch=qwen3,hidden=64`."""

PRINTABLE = string.ascii_letters + string.digits + string.punctuation + " \n"
"""The alphabet of a model from scratch when the task names none."""

PAD, EOS = "<pad>", "<eos>"


def parse_spec(spec: str) -> dict[str, str | int]:
    """Read `scratch:SIZE[,option=value...]`.

    Args:
        spec: The text after a command's `model=`.

    Returns:
        The size's numbers with the options over them, and `arch`.

    Raises:
        ValueError: An unknown size, option or architecture, or a value that is not a positive integer.
    """
    size, *pairs = spec.removeprefix("scratch:").split(",")
    options: dict[str, str | int] = {
        "arch": "llama",
        "positions": 512,
        **SIZES[_accepted("size", size, SIZES)],
    }
    for pair in pairs:
        key, _, value = pair.partition("=")
        _accepted("option", key.strip(), OPTIONS)
        if key.strip() == "arch":
            options["arch"] = _accepted("arch", value.strip(), ARCHITECTURES)
        elif value.strip().isdigit() and int(value) > 0:
            options[key.strip()] = int(value)
        else:
            raise ValueError(f"model={spec}: {key}={value!r} is not a positive integer")
    if int(options["hidden"]) % int(options["heads"]):
        raise ValueError(
            f"model={spec}: hidden={options['hidden']} is not a multiple of heads={options['heads']}"
        )
    return options


def build_model(
    options: Mapping[str, str | int], vocabulary: int, eos: int, pad: int, seed: int
) -> PreTrainedModel:
    """A freshly initialised model in float32; its weights are a function of the arguments alone.

    Args:
        options: From `parse_spec`.
        vocabulary: Number of token ids.
        eos, pad: Ids of the two special tokens.
        seed: Seed of the initial weights.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(_config(options, vocabulary, eos, pad), dtype=torch.float32)
    return model.eval()


def character_tokenizer(alphabet: Iterable[str] | None = None) -> PreTrainedTokenizerFast:
    """A tokenizer with one token per character, `<pad>` = 0 and `<eos>` = 1.

    There is no unknown token on purpose: a character outside the alphabet is an error when it is
    encoded, not a token that quietly stands for anything.

    Args:
        alphabet: The characters; `None` takes printable ASCII with space and newline.
    """
    characters = sorted(set(PRINTABLE if alphabet is None else alphabet))
    wrong = [c for c in characters if len(c) != 1]
    if wrong or not characters:
        raise ValueError(f"alphabet: accepted are single characters, at least one; got {wrong or 'none'}")
    vocabulary = {token: i for i, token in enumerate([PAD, EOS, *characters])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), behavior="isolated")
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token=PAD, eos_token=EOS, clean_up_tokenization_spaces=False
    )


def _config(options: Mapping[str, str | int], vocabulary: int, eos: int, pad: int) -> PretrainedConfig:
    number = {k: int(v) for k, v in options.items() if k != "arch"}
    arch = str(options["arch"])
    hidden, layers, heads = number["hidden"], number["layers"], number["heads"]
    kv_heads = number.get("kv_heads", heads)
    if heads % kv_heads:
        raise ValueError(f"kv_heads={kv_heads}: heads={heads} is not a multiple of it")
    common: dict[str, Any] = {
        "vocab_size": vocabulary,
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "bos_token_id": None,
        "eos_token_id": eos,
        "pad_token_id": pad,
        "tie_word_embeddings": True,
    }
    if arch == "gpt2":
        common |= {"n_inner": number["ffn"], "n_positions": number["positions"]}
        common |= {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
        return CONFIG_MAPPING["gpt2"](**common)
    common |= {
        "intermediate_size": number["ffn"],
        "num_key_value_heads": kv_heads,
        "head_dim": hidden // heads,
        "max_position_embeddings": number["positions"],
    }
    if arch in ("gemma2", "gemma3"):
        window = number.get("window", max(1, number["positions"] // 2))
        common |= {"sliding_window": window, "query_pre_attn_scalar": hidden // heads}
    elif arch == "mistral":
        common |= {"sliding_window": number.get("window")}
    elif arch == "qwen3" and "window" in number:
        common |= {
            "use_sliding_window": True,
            "sliding_window": number["window"],
            "max_window_layers": layers // 2,
        }
    elif "window" in number:
        raise ValueError(
            f"window: arch={arch} has no sliding window; accepted for gemma2, gemma3, mistral, qwen3"
        )
    return CONFIG_MAPPING["gemma3_text" if arch == "gemma3" else arch](**common)


def _accepted(what: str, name: str, names: Iterable[str]) -> str:
    names = list(names)
    if name in names:
        return name
    near = difflib.get_close_matches(name, names, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    raise ValueError(f"scratch model: unknown {what} {name!r}{hint} Accepted: {', '.join(names)}")
