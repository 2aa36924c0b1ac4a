"""What runs in the processes that judge completions.

One clean process, the *nursery*, is started per `Scorer`. It loads the reward once and forks workers
on request, so a worker that had to be killed is replaced in milliseconds, not in the seconds that
importing sympy or reasoning-gym takes. The nursery has no threads and never runs a reward, which is
what makes forking it safe, whatever the training process holds. It is started as a fresh interpreter
that does not run the user's main script again.
"""

from __future__ import annotations

import os
import pickle
import queue
import select
import signal
import socket
import threading
from multiprocessing.connection import Connection
from typing import Any

from interlace.rewards.base import as_score, unscorable
from interlace.rewards.compose import prepare
from interlace.types import Problem, Score, Verdict

FORK = b"f"
READY, STARTED = "ready", "started"
"""What a worker says before its first row, and when it takes up a row (so that a row sent to a worker
that was already dead is known not to be at fault)."""
REAP_SECONDS = 0.2

Wire = tuple[float | None, str, dict[str, float], str, str | None]
"""A `Score` as plain values, so that nothing a user's code made is unpickled by the trainer."""


def nursery(control_fd: int) -> None:
    """Load the reward sent through the control socket, then fork a worker for every socket sent."""
    os.dup2(2, 1)  # what rewards print must not mix with the trainer's own output
    control = socket.socket(fileno=control_fd)
    channel = Connection(os.dup(control_fd))
    try:
        reward = pickle.loads(channel.recv_bytes())
        prepare(reward)
    except BaseException as error:
        channel.send(f"{type(error).__name__}: {error}")
        os._exit(1)
    channel.send("")
    channel.close()
    while True:
        ready, _, _ = select.select([control], [], [], REAP_SECONDS)
        _reap(os.WNOHANG)
        if not ready:
            continue
        request, descriptors, _, _ = socket.recv_fds(control, 1, 1)
        if request != FORK:
            break
        pid = os.fork()
        if pid == 0:
            control.close()
            try:
                work(reward, Connection(descriptors[0]))
            finally:
                os._exit(0)
        os.close(descriptors[0])
        control.sendall(pid.to_bytes(8, "big"))
    _reap(0)
    os._exit(0)  # an orderly end of the interpreter takes seconds when large libraries are loaded


def _reap(options: int) -> None:
    try:
        while os.waitpid(-1, options)[0]:
            pass
    except ChildProcessError:
        pass


def work(reward: Any, channel: Connection) -> None:
    """Judge what comes through the channel, in a process group of its own, until the channel closes."""
    os.setsid()
    # A process that a reward forks must not keep this worker's end open after the worker is gone.
    os.register_at_fork(after_in_child=channel.close)
    requests: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_receive, args=(channel, requests), daemon=True).start()
    channel.send(READY)
    while True:
        request = requests.get()
        channel.send(STARTED)
        channel.send(_judge(reward, request))


def _receive(channel: Connection, requests: queue.SimpleQueue[bytes]) -> None:
    """The trainer closing its end, or dying, ends this worker and all that its rewards started."""
    try:
        while True:
            requests.put(channel.recv_bytes())
    except (EOFError, OSError):
        os.killpg(0, signal.SIGKILL)


def _judge(reward: Any, request: bytes) -> Wire:
    try:
        completion, problem = pickle.loads(request)
        return to_wire(as_score(reward(completion, problem)))
    except BaseException as error:
        return to_wire(failure(error))


def judge(reward: Any, completion: str, problem: Problem) -> Score:
    """Call a reward here; an exception makes the row unscorable."""
    try:
        return reward(completion, problem)
    except Exception as error:
        return failure(error)


def failure(error: BaseException) -> Score:
    """The score of a row whose reward raised."""
    return unscorable("error", f"{type(error).__name__}: {error}"[:300])


def to_wire(score: Score) -> Wire:
    return score.reward, score.verdict.value, dict(score.parts), score.reason, score.extracted


def from_wire(wire: Wire) -> Score:
    reward, verdict, parts, reason, extracted = wire
    return Score(reward, Verdict(verdict), parts, reason, extracted)
