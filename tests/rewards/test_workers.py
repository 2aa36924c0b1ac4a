import os
import signal
import threading
import time
from pathlib import Path

import pytest

from interlace.rewards import Exact, Function, Scorer
from interlace.tasks import load_task
from interlace.types import Problem, Verdict

PROBLEM = Problem("p", "q", "right")
LIMIT = 1.5


@pytest.fixture(scope="module")
def scorer():
    with Scorer(Function("tests.rewards.behaviours:behave"), workers=2, timeout=LIMIT) as scorer:
        scorer.score([("right", PROBLEM)])  # the first call pays for the imports
        yield scorer


def run(scorer, *completions):
    return scorer.score([(c, PROBLEM) for c in completions])


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def gone(pid, seconds=5):
    deadline = time.monotonic() + seconds
    while alive(pid) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not alive(pid)


def test_results_come_in_order(scorer):
    texts = ["right" if i % 3 else "wrong" for i in range(50)]
    assert [s.verdict == "pass" for s in run(scorer, *texts)] == [t == "right" for t in texts]
    assert run(scorer) == []


@pytest.mark.parametrize(
    ("completion", "kind"),
    [
        ("exit", "crash"),
        ("segfault", "crash"),
        ("sysexit", "error"),
        ("raise", "error"),
        ("return none", "none"),
        ("return nan", "not finite"),
        ("return text", "type"),
    ],
)
def test_what_cannot_be_scored_is_unscorable_counted_and_harms_no_other_row(scorer, completion, kind):
    before = scorer.unscorable[kind]
    scores = run(scorer, "right", completion, "right", "wrong")
    assert [s.verdict for s in scores] == ["pass", "unscorable", "pass", "fail"]
    assert scores[1].reward is None and scores[1].reason.startswith(kind)
    assert scorer.unscorable[kind] == before + 1


def test_hanging_calls_are_ended_at_the_limit_even_if_they_never_let_go(scorer):
    before, start = scorer.unscorable["timeout"], time.monotonic()
    scores = run(scorer, "hang", "spin", "right")
    assert [s.verdict for s in scores] == ["unscorable", "unscorable", "pass"]
    assert scorer.unscorable["timeout"] == before + 2
    # Both hang side by side, and a replacement does not pay for the imports again.
    assert LIMIT <= time.monotonic() - start < 2 * LIMIT + 2


@pytest.mark.parametrize("action", ["nest", "fork"])
def test_processes_that_a_reward_started_die_with_its_worker(scorer, tmp_path, action):
    note = tmp_path / "pid"
    (score,) = run(scorer, f"{action} {note}")
    # A child that outlives a crashed worker must not hide the crash until the limit.
    assert score.reason.startswith("timeout" if action == "nest" else "crash")
    assert gone(int(note.read_text()))


def test_what_a_reward_prints_does_not_reach_standard_output(scorer, capfd):
    (score,) = run(scorer, "print")
    assert score.verdict is Verdict.FAIL
    assert capfd.readouterr().out == ""


def test_it_works_in_a_thread_and_installs_no_signal_handler(scorer):
    handlers = [signal.getsignal(s) for s in (signal.SIGALRM, signal.SIGCHLD, signal.SIGTERM)]
    verdicts = []
    thread = threading.Thread(target=lambda: verdicts.extend(run(scorer, "right", "exit", "wrong")))
    thread.start()
    thread.join()
    assert [s.verdict for s in verdicts] == ["pass", "unscorable", "fail"]
    assert handlers == [signal.getsignal(s) for s in (signal.SIGALRM, signal.SIGCHLD, signal.SIGTERM)]


def test_a_worker_killed_while_idle_costs_no_row(scorer, tmp_path):
    note = tmp_path / "pid"
    run(scorer, f"pid {note}")
    pid = int(note.read_text())
    os.kill(pid, signal.SIGKILL)
    assert gone(pid)
    assert [s.verdict for s in run(scorer, "right", "right", "right")] == ["pass"] * 3


def test_a_row_whose_worker_died_before_taking_it_up_is_judged_by_another_one(scorer, tmp_path):
    note = tmp_path / "pid"
    run(scorer, "right", "right", f"pid {note}")
    assert len(scorer._pool.idle) == 2
    for worker in scorer._pool.idle:
        os.kill(worker.pid, signal.SIGSTOP)  # it accepts the request, and never reads it
    killer = threading.Timer(
        0.3, lambda: [os.kill(w.pid, signal.SIGKILL) for w in list(scorer._pool.busy.values())]
    )
    killer.start()
    assert [s.verdict for s in run(scorer, "right", "right")] == ["pass", "pass"]
    killer.join()


def test_closing_leaves_no_process_and_a_later_call_starts_anew(scorer, tmp_path):
    note = tmp_path / "pid"
    run(scorer, f"pid {note}")
    worker, nursery = int(note.read_text()), scorer._pool.nursery.pid
    assert alive(worker) and alive(nursery)
    scorer.close()
    assert gone(worker) and gone(nursery)
    assert [s.verdict for s in run(scorer, "right")] == ["pass"]


def test_an_interrupted_call_leaves_no_worker_that_answers_for_another_row(scorer, monkeypatch):
    real = scorer._pool._collect

    def interrupted():
        raise KeyboardInterrupt

    monkeypatch.setattr(scorer._pool, "_collect", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run(scorer, "right", "right")
    monkeypatch.setattr(scorer._pool, "_collect", real)
    assert [s.verdict for s in run(scorer, "wrong", "right")] == ["fail", "pass"]


def test_bounded_rewards_run_in_this_process_at_once():
    task = load_task("countdown")
    problem = task.problems("train", 1)[0]
    scorer = Scorer(task.reward, timeout=0.001)
    start = time.process_time()
    scores = scorer.score([(problem.demonstration, problem)] * 2000)
    assert time.process_time() - start < 1
    assert {s.verdict for s in scores} == {Verdict.PASS}
    assert scorer.scored == 2000 and scorer._pool is None


def test_an_unscorable_row_of_a_bounded_reward_is_counted_too():
    scorer = Scorer("exact")
    scorer.score([("7", Problem("p", "q")), ("7", Problem("p", "q", "7"))])
    assert scorer.unscorable == {"gold": 1}


def test_a_row_that_cannot_be_sent_is_unscorable(scorer):
    scores = scorer.score([("right", Problem("p", "q", lambda: 0)), ("right", PROBLEM)])
    assert [s.verdict for s in scores] == ["unscorable", "pass"]


class Unsendable(Exact):
    bounded = False

    def __reduce__(self):
        raise TypeError("no")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"workers": 0}, "at least 1"),
        ({"timeout": 0}, "seconds above 0"),
        ({"reward": Unsendable()}, "cannot be sent"),
    ],
)
def test_impossible_arguments_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        Scorer(**{"reward": "math", **arguments})
