"""The engine on a server, against a small server that speaks the protocol."""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from interlace.rollout import OpenAIEngine
from interlace.types import Completion, Finish
from tests.rollout.tiny import request

Answer = Callable[[dict[str, Any]], Any]


class _Server(ThreadingHTTPServer):
    answer: Answer
    seen: list[tuple[str, dict[str, str], dict[str, Any]]]


class _Handler(BaseHTTPRequestHandler):
    server: _Server

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.seen.append((self.path, dict(self.headers), body))
        answer = self.server.answer(body)
        status, content = answer if isinstance(answer, tuple) else (200, {"choices": answer})
        data = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: Any) -> None:
        """Silent."""


def _echo(body: dict[str, Any]) -> list[dict[str, Any]]:
    """Continuation k: the prompt's last id, then 40 + k; an end token for the first, a limit for others."""
    return [
        {
            "index": k,
            "text": "not to be trusted",
            "token_ids": [body["prompt"][-1], 40 + k],
            "finish_reason": "length" if k else "stop",
            "logprobs": {"token_logprobs": [-0.5, -1.0 - k]},
        }
        for k in reversed(range(body["n"]))
    ]


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[_Server]:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    server = _Server(("127.0.0.1", 0), _Handler)
    server.answer, server.seen = _echo, []
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def _engine(server: _Server, **options: Any) -> OpenAIEngine:
    return OpenAIEngine(f"http://127.0.0.1:{server.server_port}/v1/", "tiny", **options)


def test_completions_are_the_ids_that_the_server_sampled(server: _Server) -> None:
    requests = [request((3, 14), (0, 1), hint=(15,), prefix=(9,)), request((7,), (2,))]
    assert _engine(server).generate(requests, seed=0, step=0) == [
        [
            Completion((9, 40), (-0.5, -1.0), Finish.STOP),
            Completion((9, 41), (-0.5, -2.0), Finish.LENGTH),
        ],
        [Completion((7, 40), (-0.5, -1.0), Finish.STOP)],
    ]


def test_prompts_and_sampling_are_sent_as_they_are(server: _Server) -> None:
    asked = request(
        (3, 14),
        (0, 1),
        prefix=(9,),
        temperature=0.5,
        top_p=0.9,
        top_k=7,
        min_p=0.1,
        stop=("x",),
        stop_ids=(4,),
    )
    _engine(server, api_key="secret", processed_logprobs=True).generate([asked], seed=0, step=0)
    ((path, headers, body),) = server.seen
    assert path == "/v1/completions" and headers["Authorization"] == "Bearer secret"
    seed = body.pop("seed")
    assert 0 <= seed < 2**31
    assert body == {
        "model": "tiny",
        "prompt": [3, 14, 9],
        "n": 2,
        "max_tokens": 12,
        "temperature": 0.5,
        "top_p": 0.9,
        "logprobs": 1,
        "return_token_ids": True,
        "top_k": 7,
        "min_p": 0.1,
        "stop": ["x"],
        "stop_token_ids": [4],
    }


def test_the_seed_follows_from_seed_step_and_first_row(server: _Server) -> None:
    engine = _engine(server, concurrency=1)
    for seed, step, row in ((0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1), (0, 0, 0)):
        engine.generate([request((3,), (row, row + 1))], seed=seed, step=step)
    seeds = [body["seed"] for _, _, body in server.seen]
    assert seeds[0] == seeds[4] and len(set(seeds)) == 4


def test_a_server_without_token_ids_is_refused(server: _Server) -> None:
    server.answer = lambda body: [{k: v for k, v in c.items() if k != "token_ids"} for c in _echo(body)]
    with pytest.raises(RuntimeError, match="returns no token ids"):
        _engine(server).generate([request((3,), (0,))], seed=0, step=0)


def test_log_probabilities_of_another_distribution_are_left_out(server: _Server) -> None:
    asked = request((3,), (0,), temperature=0.5)
    with pytest.warns(UserWarning, match="processed"):
        completion = _engine(server).generate([asked], seed=0, step=0)[0][0]
    assert all(map(math.isnan, completion.logp)) and len(completion.logp) == 2
    processed = _engine(server, processed_logprobs=True).generate([asked], seed=0, step=0)[0][0]
    assert processed.logp == (-0.5, -1.0)
    greedy = _engine(server).generate([request((3,), (0,), temperature=0)], seed=0, step=0)[0][0]
    assert greedy.logp == (0.0, 0.0)


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ((400, {"error": "prompt too long"}), r"refused the request \(400\).*prompt too long"),
        ([], "0 completions, n=1 were asked for"),
        ([{"token_ids": [1], "finish_reason": "abort"}], "'abort'"),
        ([{"token_ids": [1], "finish_reason": "stop"}], "0 log-probabilities for 1 tokens"),
    ],
)
def test_what_is_wrong_with_an_answer_is_said(server: _Server, answer: Any, message: str) -> None:
    server.answer = lambda body: answer
    with pytest.raises(RuntimeError, match=message):
        _engine(server).generate([request((3,), (0,))], seed=0, step=0)


def test_a_server_that_is_not_there_is_named() -> None:
    with pytest.raises(RuntimeError, match=r"127\.0\.0\.1:9/v1/completions cannot be reached"):
        OpenAIEngine("http://127.0.0.1:9/v1", "tiny").generate([request((3,), (0,))], seed=0, step=0)


def test_a_server_with_old_weights_cannot_serve_a_policy_in_training(server: _Server) -> None:
    with pytest.raises(RuntimeError, match="still serves the old"):
        _engine(server).refresh()
    calls: list[int] = []
    _engine(server, reload=lambda: calls.append(1)).refresh()
    assert calls == [1]
