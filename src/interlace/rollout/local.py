"""The embedded engine: continuous batching of sample requests on the policy's own weights."""

from __future__ import annotations

import math
import os
import warnings
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from interlace.policies import meter
from interlace.rollout import tape
from interlace.rollout.decoders import Decoder, GenericDecoder, PlainDecoder, Unsupported, evaluating
from interlace.rollout.fused import FusedDecoder
from interlace.rollout.sampling import draw, row_keys, uniforms_at
from interlace.rollout.stops import StopText
from interlace.types import Completion, Finish, SampleRequest, Sampling

PATHS = ("fused", "generic", "transformers")
_TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4, torch.bfloat16: 6e-2, torch.float16: 1e-2}


class LocalEngine:
    """Samples in this process, from the model that is being trained.

    A group's prompt is prefilled once for all its rows that enter together; rows leave the batch when
    they finish and waiting ones take their place. A token is a function of the weights, its own row's
    ids and (seed, step, row, position); the batch around it changes nothing beyond rounding.

    Three decoders fulfil one contract, tried in this order: `fused` (Llama-like models), `generic` (any
    model with a key-value cache), `transformers` (the model's own cache; slow). At construction a decoder
    must agree with the plain forward of the model on 8 tokens, else the next is taken; `path` names it.

    Args:
        model: A transformers causal language model, or a PEFT model around one.
        tokenizer: Needed for stop strings only; anything with Hugging Face's `decode`.
        eos_ids: Token ids that end every completion.
        sampling: Used for requests that bring none.
        max_rows: Rows in flight at once; `None` chooses by memory, at most 256 (1024 on an accelerator).
        dtype: What the fused decoder computes in; `None` is the model's own. A lower precision is faster
            on some machines, and then `logp` no longer equals the trainer's to rounding.
        path: One of `PATHS` to insist on it; `None` takes the first that works.

    Raises:
        ValueError: If no decoder (or not the one insisted on) agrees with the model.
    """

    def __init__(
        self,
        model: nn.Module,
        tokenizer: Any = None,
        eos_ids: Sequence[int] = (),
        *,
        sampling: Sampling | None = None,
        max_rows: int | None = None,
        dtype: torch.dtype | None = None,
        path: str | None = None,
    ) -> None:
        if path is not None and path not in PATHS:
            raise ValueError(
                f"path={path!r}: accepted are {', '.join(PATHS)}, or None for the first that works"
            )
        if max_rows is not None and max_rows < 1:
            raise ValueError(f"max_rows={max_rows}: accepted are integers >= 1, or None to choose by memory")
        self.model, self.tokenizer, self.eos_ids = model, tokenizer, frozenset(eos_ids)
        self.sampling, self.max_rows = sampling, max_rows
        config: Any = model.config.get_text_config()  # type: ignore[operator, union-attr]
        self._config = config
        self.max_positions: int | None = getattr(config, "max_position_embeddings", None)
        self._vocabulary: int = model.get_input_embeddings().weight.shape[0]  # type: ignore[operator]
        self._decoder = _choose_decoder(model, self._vocabulary, dtype, path)
        self.path, self.dtype = self._decoder.path, self._decoder.dtype
        self.device = next(model.parameters()).device
        self._read_from: tuple[Any, ...] = _weights_signature(model)
        if dtype is not None and dtype != self.dtype:
            warnings.warn(
                f"the {self.path} decoder runs in the model's own {self.dtype}, not in dtype={dtype}",
                stacklevel=2,
            )

    @classmethod
    def for_policy(cls, policy: Any, **options: Any) -> LocalEngine:
        """An engine on a text policy's `model`, `tokenizer` and `eos_ids`; `options` as for the class."""
        return cls(policy.model, policy.tokenizer, policy.eos_ids, **options)

    def refresh(self) -> None:
        """Read the weights again; `generate` does so by itself when it sees that they have changed.

        It sees what goes through autograd's version counters, as every optimizer's step does, and not
        what is written through `.data`.
        """
        self._decoder.refresh()
        self._read_from = _weights_signature(self.model)

    def generate(self, requests: Sequence[SampleRequest], *, seed: int, step: int) -> list[list[Completion]]:
        """Continue each request's `prompt_ids + hint_ids + prefix_ids` `n` times.

        Args:
            requests: With `prompt_ids` and `rows` filled in.
            seed: The run's seed.
            step: The rollout step.

        Returns:
            One list of `n` completions per request, in request order.

        Raises:
            ValueError: If a request cannot be fulfilled; nothing has been sampled then.
            FloatingPointError: If the model's logits are not finite.
        """
        rows = self._rows(requests, seed, step)
        if not rows:
            return [[] for _ in requests]
        if _weights_signature(self.model) != self._read_from:
            self.refresh()
        longest_prompt = max(len(row.prompt) for row in rows)
        longest_new = max(row.sampling.max_tokens for row in rows)
        limit = min(len(rows), self.max_rows or self._rows_in_memory(longest_prompt + longest_new))
        # Rows that enter later move the head on while older ones are still there.
        columns = longest_prompt + longest_new + (tape.BLOCK if limit < len(rows) else 0)
        with self._decoder.guard():
            try:
                self._decoder.open(limit, longest_prompt, columns)
                self._run(deque(rows), limit)
            finally:
                self._decoder.close()
        prompts = [len(r.prompt_ids) + len(r.hint_ids) + len(r.prefix_ids) for r in requests if r.n]
        size = meter.Size.of(self.model)
        meter.add(meter.sampling(size, prompts, [(len(row.prompt), len(row.ids)) for row in rows]))
        done: list[list[Completion]] = [[] for _ in requests]
        for row in rows:
            done[row.request].append(Completion(tuple(row.ids), tuple(row.logp), row.finish))
        return done

    def _run(self, waiting: deque[_Row], limit: int) -> None:
        live: list[_Row] = []
        draws: _Draws | None = None
        while live or waiting:
            free = limit - len(live)
            if waiting and (not live or free >= max(1, limit // 4)):
                entering = [waiting.popleft() for _ in range(min(free, len(waiting)))]
                entering.sort(key=lambda row: len(row.prompt))
                prompts, copies = _shared_prompts(entering)
                self._choose(entering, _Draws(entering, self.device), self._decoder.admit(prompts, copies))
                live, draws = self._retire(live + entering), None
            if live:
                draws = draws or _Draws(live, self.device)
                tokens = torch.tensor([row.ids[-1] for row in live], device=self.device)
                self._choose(live, draws, self._decoder.step(tokens))
                before = len(live)
                live = self._retire(live)
                draws = draws if len(live) == before else None

    def _choose(self, rows: list[_Row], draws: _Draws, logits: Tensor) -> None:
        """Sample the next token of each row and notice which rows that ends."""
        ids, logp = draws.next(logits)
        values = logp.tolist()
        if not math.isfinite(sum(values)):
            raise FloatingPointError(
                "the model's logits are not finite, so nothing can be sampled: the weights have probably "
                "diverged; lower the learning rate or go back to an earlier checkpoint"
            )
        for row, token, value in zip(rows, ids.tolist(), values, strict=True):
            row.add(token, value)

    def _retire(self, rows: list[_Row]) -> list[_Row]:
        """Take finished rows out of the batch; the last ones move into their places."""
        unfinished = [i for i, row in enumerate(rows) if row.finish is Finish.NONE]
        count = len(unfinished)
        if count < len(rows):
            fillers = [i for i in unfinished if i >= count]
            holes = [i for i in range(count) if rows[i].finish is not Finish.NONE]
            for hole, filler in zip(holes, fillers, strict=True):
                rows[hole] = rows[filler]
            self._decoder.compact(holes, fillers, count)
        return rows[:count]

    def _rows(self, requests: Sequence[SampleRequest], seed: int, step: int) -> list[_Row]:
        """One `_Row` per continuation, after every check that can be made before sampling."""
        rows: list[_Row] = []
        seen: set[int] = set()
        for index, request in enumerate(requests):
            where = f"request {index} (problem {request.problem.id!r})"
            sampling = request.sampling or self.sampling
            if sampling is None:
                raise ValueError(f"{where} has no sampling, and the engine was given none to use instead")
            prompt = [*request.prompt_ids, *request.hint_ids, *request.prefix_ids]
            self._check(where, prompt, sampling)
            if len(request.rows) != request.n:
                raise ValueError(
                    f"{where}: n={request.n} continuations but {len(request.rows)} row ids in `rows`"
                )
            for row in request.rows:
                if row in seen:
                    raise ValueError(
                        f"{where}: row id {row} is used twice in this call; rows with the same id would draw "
                        "the same random numbers"
                    )
                seen.add(row)
            ends = self.eos_ids | frozenset(sampling.stop_ids)
            keys = row_keys(seed, step, torch.tensor(request.rows, dtype=torch.int64)).tolist()
            rows += [
                _Row(
                    request=index,
                    prompt=prompt,
                    offset=len(request.prefix_ids),
                    key=key,
                    sampling=sampling,
                    ends=ends,
                    text=StopText(self.tokenizer, sampling.stop) if sampling.stop else None,
                )
                for key in keys
            ]
        return rows

    def _check(self, where: str, prompt: list[int], sampling: Sampling) -> None:
        if not prompt:
            raise ValueError(f"{where} has an empty prompt: `prompt_ids` must hold at least one token")
        if min(prompt) < 0 or max(prompt) >= self._vocabulary:
            bad = min(prompt) if min(prompt) < 0 else max(prompt)
            raise ValueError(
                f"{where}: token id {bad} in its prompt; the model knows 0 .. {self._vocabulary - 1}"
            )
        if sampling.stop and (self.tokenizer is None or "" in sampling.stop):
            why = "stop strings must not be empty" if self.tokenizer else "stop strings need a tokenizer"
            raise ValueError(f"{where}: stop={sampling.stop!r}: {why}; `stop_ids` needs none")
        limit = self.max_positions
        # The last token is chosen but never read.
        if limit is not None and len(prompt) + sampling.max_tokens - 1 > limit:
            room = limit - len(prompt) + 1
            fix = f"set max_tokens to at most {room}" if room > 0 else "the prompt alone is too long: drop it"
            raise ValueError(
                f"{where}: {len(prompt)} prompt tokens and max_tokens={sampling.max_tokens} need "
                f"{len(prompt) + sampling.max_tokens - 1} positions, the model has {limit}; {fix}"
            )

    def _rows_in_memory(self, columns: int) -> int:
        """How many rows of this length fit into half of an accelerator's free memory or a quarter of RAM."""
        if self.device.type == "cuda":
            most, memory = 1024, torch.cuda.mem_get_info(self.device)[0] // 2
        else:
            most, memory = 256, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 4
        config = self._config
        queries = getattr(config, "num_attention_heads", None)
        if not queries:
            return most
        heads = getattr(config, "num_key_value_heads", None) or queries
        dim = getattr(config, "head_dim", None) or config.hidden_size // queries
        row = 2 * config.num_hidden_layers * heads * dim * columns * self.dtype.itemsize
        return max(1, min(most, memory // row))


@dataclass(slots=True)
class _Row:
    """A continuation in the making."""

    request: int
    prompt: list[int]
    offset: int
    key: int
    sampling: Sampling
    ends: frozenset[int]
    text: StopText | None
    ids: list[int] = field(default_factory=list)
    logp: list[float] = field(default_factory=list)
    finish: Finish = Finish.NONE

    def add(self, token: int, logp: float) -> None:
        self.ids.append(token)
        self.logp.append(logp)
        if token in self.ends or (self.text is not None and self.text.found(self.ids)):
            self.finish = Finish.STOP
        elif len(self.ids) >= self.sampling.max_tokens:
            self.finish = Finish.LENGTH


class _Draws:
    """Random numbers and sampling parameters of a batch of rows, as long as the batch stays the same."""

    def __init__(self, rows: Sequence[_Row], device: torch.device) -> None:
        self.keys = torch.tensor([row.key for row in rows], device=device)
        self.positions = torch.tensor([row.offset + len(row.ids) for row in rows], device=device)
        self.knobs: dict[str, Any] = {}
        for name in ("temperature", "top_k", "top_p", "min_p"):
            values = [getattr(row.sampling, name) for row in rows]
            dtype = torch.int64 if name == "top_k" else torch.float64
            shared = values.count(values[0]) == len(values)
            self.knobs[name] = values[0] if shared else torch.tensor(values, dtype=dtype, device=device)

    def next(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """Ids and log-probabilities [rows] of the next token of each row."""
        drawn = draw(logits, uniforms_at(self.keys, self.positions), **self.knobs)
        self.positions += 1
        return drawn


def _shared_prompts(rows: Sequence[_Row]) -> tuple[list[list[int]], list[int]]:
    """Prompts and how many consecutive rows of the same request continue each."""
    prompts: list[list[int]] = []
    copies: list[int] = []
    request = None
    for row in rows:
        if row.request == request:
            copies[-1] += 1
        else:
            prompts.append(row.prompt)
            copies.append(1)
            request = row.request
    return prompts, copies


def _weights_signature(model: nn.Module) -> tuple[Any, ...]:
    """Changes when a parameter is written or replaced, or an adapter is switched."""
    weights = [(p.data_ptr(), -1 if p.is_inference() else p._version) for p in model.parameters()]
    adapted: list[Any] = [m for m in model.modules() if hasattr(m, "lora_A")]
    adapters = [(tuple(m.active_adapters), m.disable_adapters) for m in adapted]
    return (*weights, *adapters)


def _choose_decoder(
    model: nn.Module, vocabulary: int, dtype: torch.dtype | None, path: str | None
) -> Decoder:
    """The first decoder that agrees with the model's plain forward."""
    reasons = []
    for name in PATHS if path is None else (path,):
        try:
            decoder: Decoder
            if name == "fused":
                decoder = FusedDecoder(model, dtype)
            else:
                decoder = GenericDecoder(model) if name == "generic" else PlainDecoder(model)
            gap = _disagreement(decoder, model, vocabulary)
        except Exception as error:
            reasons.append(f"{name}: {error}" if isinstance(error, Unsupported) else f"{name}: {error!r}")
            continue
        if gap <= _TOLERANCE.get(decoder.dtype, 1e-4):
            return decoder
        reasons.append(f"{name}: differs from the model's forward by {gap:.1e} of the largest logit")
    raise ValueError(f"no decoder can sample from this {type(model).__name__}: " + "; ".join(reasons))


def _disagreement(decoder: Decoder, model: nn.Module, vocabulary: int) -> float:
    """Largest difference to the plain forward over an 8-token row and a shorter one beside it.

    Both enter, two of their tokens are fed one by one, then the shorter row moves to the first place;
    relative to the largest logit.
    """
    long = [(7 * i + 3) % vocabulary for i in range(8)]
    rows = (long, long[1:6])
    device = next(model.parameters()).device
    with evaluating(model):
        plain = [model(input_ids=torch.tensor([row], device=device)).logits[0].double() for row in rows]
    found: list[list[Tensor]] = [[], []]
    with decoder.guard():
        decoder.open(2, 6, 16)
        logits = decoder.admit([row[:-2] for row in rows], [1, 1])
        for back in (2, 1):
            found[0].append(logits[0])
            found[1].append(logits[1])
            logits = decoder.step(torch.tensor([row[-back] for row in rows], device=device))
        decoder.compact([0], [1], 1)
        found[1].append(decoder.step(torch.tensor([0], device=device))[0])
        found[0].append(logits[0])
        found[1].insert(2, logits[1])
        decoder.close()
    with evaluating(model):
        extra = model(input_ids=torch.tensor([[*rows[1], 0]], device=device)).logits[0, -1:].double()
    plain[1] = torch.cat([plain[1], extra])
    scale = max(float(p.abs().max()) for p in plain)
    gap = max(
        float((torch.stack(f).double() - p[-len(f) :]).abs().max()) for f, p in zip(found, plain, strict=True)
    )
    return gap / max(scale, 1e-30) if math.isfinite(gap) else math.inf
