"""A causal language model as a policy: packed scoring, fused head, exact backward.

What is absent on purpose: no dropout (the ratio of two passes over the same weights is 1), no padding,
no logits of size decisions x vocabulary.
"""

from __future__ import annotations

import copy
import json
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel
from transformers.pytorch_utils import Conv1D

from interlace.policies import meter
from interlace.policies.files import save_whole, without_progress_bars
from interlace.policies.head import STATISTICS, Head, head_statistics
from interlace.policies.meter import Size, Work
from interlace.policies.packing import Trunk, without_repeats
from interlace.policies.precision import PRECISIONS, to_precision
from interlace.policies.probe import probe
from interlace.types import Batch, Slots, Statistics

_VALUE_FILE = "value_head.safetensors"
_DROPOUTS = (
    "activation_dropout",
    "attention_dropout",
    "attn_pdrop",
    "dropout",
    "embd_pdrop",
    "embed_dropout",
    "hidden_dropout",
    "hidden_dropout_prob",
    "resid_pdrop",
    "residual_dropout",
)


class TextPolicy:
    """A causal language model that scores decisions and receives their gradients.

    Args:
        model: A transformers causal language model in float32.
        tokenizer: Its tokenizer.
        precision: `fp32`, `bf16` (float32 masters are trained, see `precision.py`) or `fp64`.
        device: Where it runs; `None` takes the accelerator if there is one.
        eos_ids: Ids that end a completion; `None` reads them from the model and the tokenizer.

    Attributes:
        model, tokenizer, device, eos_ids: As given or found. `eos_ids[0]` ends plain-text demonstrations.
        precision, dtype: What it computes in.
        scoring_path: `packed`, or the named slower way that this model needs.
        reference: The policy that `kl` and `reverse_kl` are read against, or `None`.
        value_head: A linear head for `value`, or `None`.
        topk: How many tokens `topk_mass` counts.
        warnings: What the person should know about this model.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: Any,
        *,
        precision: str = "fp32",
        device: str | torch.device | None = None,
        eos_ids: Sequence[int] | None = None,
    ) -> None:
        self.tokenizer = tokenizer
        self.precision = precision
        self.device = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        self.model: PreTrainedModel = nn.Module.to(model, self.device).eval()
        self.reference: TextPolicy | None = None
        self.value_head: nn.Linear | None = None
        self.topk = 2
        self.warnings: list[str] = []
        self._read = (0, 0, 0)
        if precision == "fp64":
            self.model.double()
        found = probe(self.model)
        self.scoring_path, self._scale, self._softcap = found.path, found.scale, found.softcap
        self._masters = to_precision(self.model, precision)
        self._trunk = Trunk(self.model, self.scoring_path)
        self.eos_ids, missing = (tuple(eos_ids), "") if eos_ids else end_ids(model, tokenizer)
        for message in (found.warning, _dropout_warning(model), missing, self._slow_precision()):
            if message:
                self.warnings.append(message)
                warnings.warn(message, stacklevel=2)

    @property
    def dtype(self) -> torch.dtype:
        return PRECISIONS[self.precision]

    @property
    def head(self) -> Head:
        """The head as it is now (weights are shared, not copied)."""
        output = self.model.get_output_embeddings()
        return Head(output.weight, getattr(output, "bias", None), self._scale, self._softcap)

    @property
    def vocab_size(self) -> int:
        """Number of ids that a token is drawn from: the whole head, also where it is padded."""
        return self.model.get_output_embeddings().weight.shape[0]

    @property
    def max_positions(self) -> int:
        """The longest row that the model can read."""
        return int(getattr(self.model.config.get_text_config(), "max_position_embeddings", None) or 2**31)

    def hidden(self, slots: Slots) -> Tensor:
        """The states before the head, [M, H], one per slot."""
        self._count(slots.input.numel(), int(slots.position.sum()) + slots.input.numel(), 0)
        return self._trunk(self._inputs(slots), slots.position.to(self.device), slots.row)

    def score(
        self, batch: Batch, needs: Sequence[str] = ("logp",), *, grad: bool = True
    ) -> dict[str, Tensor]:
        """Statistics of every decision; see `interlace.types.Statistics`.

        Args:
            batch: Its slots are read once, whatever is asked.
            needs: Names of statistics.
            grad: Whether they shall be differentiable.

        Returns:
            float32 (float64 with `fp64`) [N] each, where the batch is.

        Raises:
            ValueError: No slots, an unknown statistic, a row that is too long, or a missing
                reference or value head.
        """
        slots = batch.slots
        if slots is None:
            raise ValueError(
                "this batch has no slots, so nothing can be scored (its log-probabilities were given)"
            )
        self._check(slots, needs)
        slots = without_repeats(slots)
        from_head = [name for name in needs if name != "value"]
        statistics: dict[str, Tensor] = {}
        with torch.set_grad_enabled(grad):
            hidden = self.hidden(slots)
            if from_head:
                self._count(0, 0, slots.slot.numel())
                statistics = head_statistics(
                    hidden,
                    self.head,
                    slots.slot,
                    slots.target,
                    slots.temperature,
                    from_head,
                    k=self.topk,
                    **self._against_reference(slots, from_head),
                )
            if "value" in needs:
                assert self.value_head is not None
                states = hidden.index_select(0, slots.slot.to(self.device))
                statistics["value"] = self.value_head(states.to(self.value_head.weight.dtype)).squeeze(1)
        return {name: value.to(batch.row.device) for name, value in statistics.items()}

    def backward(self, statistics: Statistics, cotangents: Statistics, *, retain_graph: bool = False) -> None:
        """Add the gradient of sum_s <cotangents[s], statistics[s]> to the trained parameters' `.grad`.

        Args:
            statistics: What `score` returned.
            cotangents: One number per decision for some of them.
            retain_graph: Keep the graph for another call on the same statistics.

        Raises:
            ValueError: A cotangent for a statistic that was not scored or carries no gradient.
        """
        values, gradients = [], []
        for name, cotangent in cotangents.items():
            if name not in statistics:
                raise ValueError(f"cotangent for {name!r}, but scored were {', '.join(statistics) or 'none'}")
            value = statistics[name]
            if value.requires_grad:
                values.append(value)
                gradients.append(cotangent.to(value.device, value.dtype))
            elif bool((cotangent != 0).any()):
                raise ValueError(
                    f"{name!r} carries no gradient here (topk_mass never does; others with grad=True)"
                )
        if values:
            torch.autograd.backward(values, gradients, retain_graph=retain_graph)
            self.collect_gradients()
            meter.add(Work(train=Size.of(self.model).backward(*self._read)))

    def named_trainable(self) -> dict[str, nn.Parameter]:
        """What an optimizer should hold, by the model's names: masters with `bf16`, else the weights."""
        named = {name: self._master(p) for name, p in self.model.named_parameters() if p.requires_grad}
        if self.value_head is not None:
            named |= {
                f"value_head.{name}": p for name, p in self.value_head.named_parameters() if p.requires_grad
            }
        return named

    def trainable(self) -> list[nn.Parameter]:
        """What an optimizer should hold (float32 masters with `bf16`)."""
        return list(self.named_trainable().values())

    def collect_gradients(self) -> None:
        """Move gradients of half-precision weights to their masters (`backward` does so itself)."""
        if self._masters is not None:
            self._masters.collect()

    def publish(self) -> None:
        """Bring the weights up to date after an optimizer step."""
        if self._masters is not None:
            self._masters.publish()

    def parameters_by_part(self) -> Mapping[str, list[nn.Parameter]]:
        """Trained parameters: `backbone`, `head` (if it is not tied to the embedding) and `value`."""
        embedding = self.model.get_input_embeddings().weight
        output = self.model.get_output_embeddings()
        head = {id(self._master(p)) for p in output.parameters() if p is not embedding}
        parts: dict[str, list[nn.Parameter]] = {"backbone": [], "head": [], "value": []}
        for name, parameter in self.named_trainable().items():
            part = (
                "value" if name.startswith("value_head.") else "head" if id(parameter) in head else "backbone"
            )
            parts[part].append(parameter)
        return {name: parameters for name, parameters in parts.items() if parameters}

    def linear_weights(self) -> list[nn.Parameter]:
        """Trained matrices of the model's linear layers, the head apart."""
        output = self.model.get_output_embeddings()
        layers = (m for m in self.model.modules() if isinstance(m, nn.Linear | Conv1D) and m is not output)
        weights = (m.get_parameter("weight") for m in layers)
        return [self._master(weight) for weight in weights if weight.requires_grad]

    def add_value_head(self) -> nn.Linear:
        """Give the policy a linear value head that starts at 0, if it has none."""
        if self.value_head is None:
            width = self.head.weight.shape[1]
            dtype = torch.float64 if self.precision == "fp64" else torch.float32
            self.value_head = nn.Linear(width, 1, device=self.device, dtype=dtype)
            nn.init.zeros_(self.value_head.weight)
            nn.init.zeros_(self.value_head.bias)
        return self.value_head

    def copy(self) -> TextPolicy:
        """An independent policy with the same weights, without gradients and without a reference."""
        twin = copy.copy(self)
        twin.model = copy.deepcopy(self.model)
        twin.value_head = copy.deepcopy(self.value_head)
        twin.reference = None
        twin.warnings = list(self.warnings)
        twin._trunk = Trunk(twin.model, self.scoring_path)
        twin._masters = None if self._masters is None else self._masters.copy_for(twin.model, self.model)
        return twin

    def clone_frozen(self) -> TextPolicy:
        """A copy whose parameters never change (a reference); it keeps no masters."""
        twin = self.copy()
        twin._masters = None
        twin.model.requires_grad_(False)
        if twin.value_head is not None:
            twin.value_head.requires_grad_(False)
        return twin

    def save(self, directory: str | Path, dtype: torch.dtype | None = None) -> None:
        """Write model and tokenizer for `AutoModelForCausalLM` and `AutoTokenizer`, whole or not at all.

        Args:
            directory: Replaced if it exists.
            dtype: Type of the saved weights; `None` saves what is trained (float32 with `bf16`).
        """
        state = self.model.state_dict()
        for name, parameter in self.model.named_parameters(remove_duplicate=False):
            state[name] = self._master(parameter).detach()
        if dtype is not None:
            cast = {id(v): v.to(dtype) if v.is_floating_point() else v for v in state.values()}
            state = {name: cast[id(v)] for name, v in state.items()}
        saved = dtype or (torch.float32 if self.precision == "bf16" else self.dtype)
        save_whole(directory, lambda d: self._write(d, state, saved))

    @classmethod
    def load(
        cls, directory: str | Path, *, precision: str = "fp32", device: str | torch.device | None = None
    ) -> TextPolicy:
        """Read what `save` wrote, or any causal language model that transformers knows."""
        dtype = torch.float64 if precision == "fp64" else torch.float32
        with without_progress_bars():
            model = AutoModelForCausalLM.from_pretrained(directory, dtype=dtype)
            tokenizer = AutoTokenizer.from_pretrained(directory)
        policy = cls(model, tokenizer, precision=precision, device=device)
        values = Path(directory) / _VALUE_FILE
        if values.is_file():
            policy.add_value_head().load_state_dict(load_file(values))
        return policy

    def _write(self, directory: Path, state: dict[str, Tensor], dtype: torch.dtype) -> None:
        if self.model.generation_config is not None:
            self.model.generation_config.eos_token_id = list(self.eos_ids)
        with without_progress_bars():
            self.model.save_pretrained(directory, state_dict=state)
            self.tokenizer.save_pretrained(directory)
        config = directory / "config.json"
        content = json.loads(config.read_text())
        content["dtype" if "dtype" in content else "torch_dtype"] = str(dtype).removeprefix("torch.")
        config.write_text(json.dumps(content, indent=2, sort_keys=True) + "\n")
        if self.value_head is not None:
            save_file(self.value_head.state_dict(), directory / _VALUE_FILE)

    def _slow_precision(self) -> str:
        capability = torch.backends.cpu.get_cpu_capability()
        if self.precision != "bf16" or self.device.type != "cpu" or "AVX512" in capability:
            return ""
        return f"this CPU ({capability}) has no bf16 arithmetic and imitates it, many times slower; use fp32"

    def _count(self, tokens: int, attended: int, choices: int) -> None:
        """Tell the meter of a forward pass, and keep in mind what a backward pass would go through."""
        flops = Size.of(self.model).forward(tokens, attended, choices)
        if not torch.is_grad_enabled():
            meter.add(Work(score=flops, scored=tokens))
            return
        meter.add(Work(train=flops, trained=tokens))
        self._read = (tokens, attended, 0) if tokens else (*self._read[:2], choices)

    def _master(self, parameter: nn.Parameter) -> nn.Parameter:
        return parameter if self._masters is None else self._masters.of(parameter)

    def _inputs(self, slots: Slots) -> Tensor:
        """Token ids, or embeddings where some slots mix two tokens."""
        ids = slots.input.to(self.device)
        if (
            slots.second_input is None
            or slots.second_weight is None
            or not bool((slots.second_weight != 0).any())
        ):
            return ids
        embed = self.model.get_input_embeddings()
        first = embed(ids)
        weight = slots.second_weight.to(self.device, first.dtype)[:, None]
        mixes = weight != 0
        second = embed(torch.where(mixes[:, 0], slots.second_input.to(self.device), ids))
        return torch.where(mixes, (1 - weight) * first + weight * second, first)

    def _against_reference(self, slots: Slots, names: Sequence[str]) -> dict[str, Any]:
        if not {"kl", "reverse_kl"} & set(names):
            return {}
        assert self.reference is not None
        with torch.no_grad():
            hidden = self.reference.hidden(slots)
        return {"reference_hidden": hidden, "reference_head": self.reference.head}

    def _check(self, slots: Slots, needs: Sequence[str]) -> None:
        unknown = [name for name in needs if name not in (*STATISTICS, "value")]
        if unknown:
            raise ValueError(
                f"unknown statistic {unknown[0]!r}; accepted: {', '.join((*STATISTICS, 'value'))}"
            )
        if {"kl", "reverse_kl"} & set(needs) and self.reference is None:
            raise ValueError("kl and reverse_kl need policy.reference; set it to policy.clone_frozen()")
        if "value" in needs and self.value_head is None:
            raise ValueError("value needs a value head; use a Critic, or policy.add_value_head()")
        if slots.position.numel() and int(slots.position.max()) >= self.max_positions:
            row = int(slots.row[slots.position.argmax()])
            raise ValueError(
                f"row {row} has {int(slots.position.max()) + 1} input tokens, but the model reads at most "
                f"{self.max_positions}; lower max_tokens or drop long prompts"
            )


def end_ids(model: PreTrainedModel, tokenizer: Any) -> tuple[tuple[int, ...], str]:
    """Ids that end a completion, the tokenizer's first, and a warning (or empty).

    The generation settings and the tokenizer name them; a chat template that ends the assistant's turn
    with another special token adds that one, since it is what demonstrations teach.
    """
    named = getattr(model.generation_config, "eos_token_id", None)
    if named is None:
        named = getattr(model.config, "eos_token_id", None)
    found = [tokenizer.eos_token_id, *(named if isinstance(named, list | tuple) else [named])]
    ids = list(dict.fromkeys(i for i in found if i is not None))
    turn = _end_of_turn(tokenizer)
    warning = ""
    if turn is not None and turn not in ids:
        ids.append(turn)
        token = tokenizer.convert_ids_to_tokens(turn)
        warning = f"the chat template ends a turn with {token!r}; it ends completions too"
    if not ids:
        raise ValueError(
            "neither model nor tokenizer names an end-of-sequence token, so completions could never end"
        )
    return tuple(ids), warning


def _end_of_turn(tokenizer: Any) -> int | None:
    if not tokenizer.chat_template:
        return None
    messages = [{"role": "user", "content": "question"}, {"role": "assistant", "content": "reply"}]
    try:
        text = tokenizer.apply_chat_template(messages, tokenize=False)
    except Exception:
        return None
    rest = tokenizer(text[text.rfind("reply") + len("reply") :], add_special_tokens=False)["input_ids"]
    special = set(tokenizer.all_special_ids) | set(tokenizer.added_tokens_decoder)
    return next((i for i in rest if i in special), None)


def _dropout_warning(model: PreTrainedModel) -> str:
    config = model.config.get_text_config()
    found = {name: getattr(config, name, None) for name in _DROPOUTS}
    active = {name: rate for name, rate in found.items() if isinstance(rate, float) and rate > 0}
    if not active:
        return ""
    listed = ", ".join(f"{name}={rate}" for name, rate in active.items())
    return f"dropout is off during training (scores must be reproducible), although the model has {listed}"
