"""An engine on any OpenAI-compatible server that can say which token ids it sampled.

Prompts go out as token ids and completions must come back as token ids (vLLM's `return_token_ids`);
text is never tokenised again, so a server that returns only text is refused.
"""

from __future__ import annotations

import json
import math
import urllib.error
import urllib.request
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch

from interlace.rollout.sampling import row_keys
from interlace.types import Completion, Finish, SampleRequest, Sampling

_FINISH = {"stop": Finish.STOP, "length": Finish.LENGTH}


class OpenAIEngine:
    """Fulfils sample requests on a server's `/completions` endpoint.

    A request's seed is a function of (seed, step, first row id), so a server that is deterministic for a
    seed gives the same completions whatever else is in flight.

    Args:
        base_url: The address up to and including the version, such as `http://127.0.0.1:8000/v1`.
        model: The name under which the server knows the model.
        api_key: Sent as a bearer token.
        sampling: Used for requests that bring none.
        processed_logprobs: Whether the server's log-probabilities are those of the distribution it sampled
            from (vLLM: `--logprobs-mode processed_logprobs`). If not, they are right at temperature 1
            without truncation only, and NaN is returned elsewhere.
        reload: Called by `refresh` to give the server the new weights; `None` for a server whose weights
            stay as they are, which then cannot serve a policy that is being trained.
        concurrency: Requests in flight at once.
        timeout: Seconds to wait for one request.
    """

    def __init__(
        self,
        base_url: str,
        model: str,
        *,
        api_key: str | None = None,
        sampling: Sampling | None = None,
        processed_logprobs: bool = False,
        reload: Callable[[], None] | None = None,
        concurrency: int = 32,
        timeout: float = 600.0,
    ) -> None:
        self.url, self.model, self.sampling = base_url.rstrip("/") + "/completions", model, sampling
        self._headers = {"Content-Type": "application/json"}
        if api_key:
            self._headers["Authorization"] = f"Bearer {api_key}"
        self._processed, self._reload = processed_logprobs, reload
        self._concurrency, self._timeout = concurrency, timeout

    def refresh(self) -> None:
        """Give the server the new weights.

        Raises:
            RuntimeError: If the engine was given no way to do so.
        """
        if self._reload is None:
            raise RuntimeError(
                f"the weights changed, but {self.url} still serves the old ones: give OpenAIEngine "
                "`reload=` (a function that loads the new weights into the server), or sample locally"
            )
        self._reload()

    def generate(self, requests: Sequence[SampleRequest], *, seed: int, step: int) -> list[list[Completion]]:
        """Continue each request's `prompt_ids + hint_ids + prefix_ids` `n` times.

        Raises:
            RuntimeError: If the server cannot be reached, refuses, or returns no token ids.
        """
        with ThreadPoolExecutor(max(1, min(self._concurrency, len(requests)))) as pool:
            return list(pool.map(lambda request: self._fulfil(request, seed, step), requests))

    def _fulfil(self, request: SampleRequest, seed: int, step: int) -> list[Completion]:
        sampling = request.sampling or self.sampling
        if sampling is None:
            raise ValueError(
                f"problem {request.problem.id!r} has no sampling, and the engine was given none to use for it"
            )
        first_row = torch.tensor(request.rows[:1] or (0,), dtype=torch.int64)
        body: dict[str, Any] = {
            "model": self.model,
            "prompt": [*request.prompt_ids, *request.hint_ids, *request.prefix_ids],
            "n": request.n,
            "max_tokens": sampling.max_tokens,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "seed": int(row_keys(seed, step, first_row)) & 0x7FFFFFFF,
            "logprobs": 1,
            "return_token_ids": True,
        }
        for name, value, off in (
            ("top_k", sampling.top_k, 0),
            ("min_p", sampling.min_p, 0.0),
            ("stop", list(sampling.stop), []),
            ("stop_token_ids", list(sampling.stop_ids), []),
        ):
            # Beyond the common interface, so a server hears of them only when they matter.
            if value != off:
                body[name] = value
        choices = self._post(body).get("choices", [])
        if len(choices) != request.n:
            raise RuntimeError(
                f"{self.url} returned {len(choices)} completions, n={request.n} were asked for"
            )
        choices = sorted(choices, key=lambda choice: choice.get("index", 0))
        return [self._completion(choice, sampling) for choice in choices]

    def _completion(self, choice: dict[str, Any], sampling: Sampling) -> Completion:
        ids = choice.get("token_ids")
        if ids is None:
            raise RuntimeError(
                f"{self.url} returns no token ids (`token_ids` of a choice, asked by `return_token_ids`). "
                "Tokenising its text again could change them, so this server cannot be sampled from; "
                "vLLM 0.10.2 and newer can"
            )
        finish = choice.get("finish_reason")
        if finish not in _FINISH:
            raise RuntimeError(f"{self.url} ended a completion with {finish!r}; accepted are stop and length")
        return Completion(tuple(ids), self._logp(choice, len(ids), sampling), _FINISH[finish])

    def _logp(self, choice: dict[str, Any], length: int, sampling: Sampling) -> tuple[float, ...]:
        if sampling.temperature == 0:
            return (0.0,) * length
        if not self._processed and (sampling.temperature != 1 or sampling.truncated):
            warnings.warn(
                "the server's log-probabilities are not those of the distribution it sampled from "
                "(temperature or truncation); they are left out. Start vLLM with --logprobs-mode "
                "processed_logprobs and pass processed_logprobs=True to have them",
                stacklevel=2,
            )
            return (math.nan,) * length
        given = (choice.get("logprobs") or {}).get("token_logprobs") or []
        if len(given) != length:
            raise RuntimeError(f"{self.url} returned {len(given)} log-probabilities for {length} tokens")
        return tuple(map(float, given))

    def _post(self, body: dict[str, Any]) -> dict[str, Any]:
        request = urllib.request.Request(self.url, json.dumps(body).encode(), self._headers)
        try:
            with urllib.request.urlopen(request, timeout=self._timeout) as response:
                return json.load(response)
        except urllib.error.HTTPError as error:
            text = error.read().decode(errors="replace")[:500]
            raise RuntimeError(f"{self.url} refused the request ({error.code}): {text}") from error
        except OSError as error:
            raise RuntimeError(f"{self.url} cannot be reached: {error}") from error
