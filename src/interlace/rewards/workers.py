"""Judging many completions, each call bounded in time."""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections import Counter, deque
from collections.abc import Sequence
from multiprocessing.connection import Connection, wait

from interlace.rewards.base import Reward, unscorable
from interlace.rewards.worker import FORK, STARTED, from_wire, judge
from interlace.types import Problem, Score, Verdict

START_SECONDS = 300.0
"""How long the nursery may take to load a reward (imports included)."""

_BOOT = "import sys; sys.path[:] = {path!r}; from interlace.rewards.worker import nursery; nursery({fd})"


class Scorer:
    """Applies a reward to many completions.

    A reward with `bounded = True` is called in this process. Any other runs in worker processes, which
    are started when first needed and kept. A call that exceeds the time limit, or whose process dies,
    makes its row unscorable; the worker, with every process that its reward started, is killed and
    replaced. Time is kept here, by waiting with a limit: no signal handlers, so it works in any thread.

    Args:
        reward: A reward, or the spec of one.
        workers: Worker processes at most; by default the number of cores, at most 8.
        timeout: Seconds that one call may take.

    Attributes:
        reward: The reward.
        scored: How many completions were judged so far.
        unscorable: How many of them were unscorable, by kind: `timeout`, `crash` (the process died),
            `error` (an exception), `none`, `not finite`, `type`, `gold` (the reference cannot be used).

    Raises:
        ValueError: A spec that names nothing, or a reward that cannot be sent to another process.
    """

    def __init__(self, reward: Reward | str, *, workers: int | None = None, timeout: float = 10.0) -> None:
        if isinstance(reward, str):
            from interlace.rewards import load_reward

            reward = load_reward(reward)
        if workers is not None and workers < 1:
            raise ValueError(f"workers={workers}; accepted: at least 1")
        if not timeout > 0:
            raise ValueError(f"timeout={timeout}; accepted: seconds above 0")
        self.reward = reward
        self.timeout = timeout
        self.max_workers = workers or max(1, min(8, os.cpu_count() or 1))
        self.scored = 0
        self.unscorable: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._pool = None if reward.bounded else _Pool(_sendable(reward), timeout)
        if self._pool is not None:
            self._finalizer = weakref.finalize(self, self._pool.close)

    def score(self, pairs: Sequence[tuple[str, Problem]]) -> list[Score]:
        """Judge every (completion, problem); results in the same order.

        Raises:
            RuntimeError: The reward could not be loaded in a worker.
        """
        with self._lock:
            if self._pool is None:
                scores = [judge(self.reward, text, problem) for text, problem in pairs]
            else:
                scores = self._pool.run(pairs, self.max_workers)
            self.scored += len(scores)
            for score in scores:
                if score.verdict is Verdict.UNSCORABLE:
                    self.unscorable[score.reason.partition(":")[0]] += 1
        return scores

    def close(self) -> None:
        """End all processes. A later call starts new ones."""
        with self._lock:
            if self._pool is not None:
                self._pool.close()

    def __enter__(self) -> Scorer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _sendable(reward: Reward) -> bytes:
    try:
        return pickle.dumps(reward)
    except Exception as error:
        raise ValueError(
            f"reward {reward!r} cannot be sent to a worker process ({error}); "
            "define it in an importable module or name it file.py:function"
        ) from error


class _Worker:
    def __init__(self, pid: int, channel: Connection) -> None:
        self.pid, self.channel = pid, channel
        self.row = -1
        self.deadline = 0.0
        self.started = False

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        self.channel.close()


class _Pool:
    """A nursery and its workers."""

    def __init__(self, reward: bytes, timeout: float) -> None:
        self.reward = reward
        self.timeout = timeout
        self.nursery: subprocess.Popen | None = None
        self.control: socket.socket | None = None
        self.idle: list[_Worker] = []
        self.busy: dict[Connection, _Worker] = {}

    def run(self, pairs: Sequence[tuple[str, Problem]], workers: int) -> list[Score]:
        scores: dict[int, Score] = {}
        waiting = deque(range(len(pairs)))
        sent: Counter[int] = Counter()
        try:
            while waiting or self.busy:
                while waiting and len(self.busy) < workers:
                    row = waiting.popleft()
                    sent[row] += 1
                    try:
                        request = pickle.dumps(pairs[row])
                    except Exception as error:
                        scores[row] = unscorable("error", f"the row cannot be sent to a worker: {error}")
                    else:
                        self._assign(row, request)
                for row, score in self._collect():
                    # A worker that died before it took up the row says nothing about the row.
                    if score is None and sent[row] < 3:
                        waiting.appendleft(row)
                    else:
                        scores[row] = score or unscorable("crash", "the worker process died")
        except BaseException:
            # The busy workers hold rows that nobody will ask for again.
            for worker in self.busy.values():
                worker.kill()
            self.busy.clear()
            raise
        return [scores[row] for row in range(len(pairs))]

    def _assign(self, row: int, request: bytes) -> None:
        while True:
            worker = self.idle.pop() if self.idle else self._start_worker()
            try:
                worker.channel.send_bytes(request)
                break
            except OSError:  # it died while it was idle
                worker.kill()
        worker.row, worker.started = row, False
        worker.deadline = time.monotonic() + self.timeout
        self.busy[worker.channel] = worker

    def _collect(self) -> list[tuple[int, Score | None]]:
        """Wait for a message or a deadline; rows that are done, `None` for those never taken up."""
        if not self.busy:
            return []
        done: list[tuple[int, Score | None]] = []
        nearest = min(worker.deadline for worker in self.busy.values())
        for channel in wait(list(self.busy), max(0.0, nearest - time.monotonic())):
            worker = self.busy[channel]  # type: ignore[index]
            try:
                message = worker.channel.recv()
            except (EOFError, OSError):
                crash = unscorable("crash", "the worker process died")
                done.append((worker.row, crash if worker.started else None))
                del self.busy[worker.channel]
                worker.kill()
                continue
            if message == STARTED:
                worker.started, worker.deadline = True, time.monotonic() + self.timeout
            else:
                done.append((worker.row, from_wire(message)))
                self.idle.append(self.busy.pop(worker.channel))
        now = time.monotonic()
        for worker in [w for w in self.busy.values() if w.deadline <= now and not w.channel.poll()]:
            done.append((worker.row, unscorable("timeout", f"more than {self.timeout:g} s")))
            del self.busy[worker.channel]
            worker.kill()
        return done

    def _start_worker(self) -> _Worker:
        if self.nursery is None or self.nursery.poll() is not None:
            self._start_nursery()
        assert self.control is not None
        ours, theirs = socket.socketpair()
        socket.send_fds(self.control, [FORK], [theirs.fileno()])
        theirs.close()
        pid = int.from_bytes(_receive_exactly(self.control, 8), "big")
        worker = _Worker(pid, Connection(ours.detach()))
        if not worker.channel.poll(START_SECONDS):
            worker.kill()
            raise RuntimeError(f"a reward worker did not start within {START_SECONDS:g} s")
        worker.channel.recv()
        return worker

    def _start_nursery(self) -> None:
        self._close_nursery()
        ours, theirs = socket.socketpair()
        code = _BOOT.format(path=sys.path, fd=theirs.fileno())
        one_thread = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
        self.nursery = subprocess.Popen(
            [sys.executable, "-c", code],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            env={**os.environ, **one_thread},
        )
        theirs.close()
        self.control = ours
        problem = f"not within {START_SECONDS:g} s"
        with contextlib.closing(Connection(os.dup(ours.fileno()))) as channel:
            try:
                channel.send_bytes(self.reward)
                if channel.poll(START_SECONDS):
                    problem = channel.recv()
            except (EOFError, OSError):
                problem = "the process died"
        if problem:
            self.close()
            raise RuntimeError(f"the reward could not be loaded in a worker process: {problem}")

    def close(self) -> None:
        for worker in [*self.idle, *self.busy.values()]:
            worker.kill()
        self.idle.clear()
        self.busy.clear()
        self._close_nursery()

    def _close_nursery(self) -> None:
        if self.control is not None:
            self.control.close()
            self.control = None
        if self.nursery is not None:
            try:
                self.nursery.wait(5)
            except subprocess.TimeoutExpired:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(self.nursery.pid, signal.SIGKILL)
                self.nursery.wait()
            self.nursery = None


def _receive_exactly(control: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = control.recv(size - len(data))
        if not more:
            raise RuntimeError("the process that starts reward workers died")
        data += more
    return data
