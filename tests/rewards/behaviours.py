"""A reward function whose behaviour the completion chooses."""

import ctypes
import os
import subprocess
import sys
import time
from pathlib import Path

HOLD = "60"


def behave(completion, problem):
    action, _, argument = completion.partition(" ")
    if action == "hang":
        time.sleep(int(HOLD))
    if action == "spin":
        while True:
            pass
    if action == "exit":
        os._exit(3)
    if action == "sysexit":
        sys.exit(1)
    if action == "segfault":
        ctypes.string_at(0)
    if action == "raise":
        raise KeyError("no such thing")
    if action == "return":
        return {"none": None, "nan": float("nan"), "text": "1", "half": 0.5}[argument]
    if action == "print":
        os.write(1, b"noise on file descriptor 1\n" * 1000)
        print("noise" * 1000)
    if action in ("nest", "fork"):
        child = os.fork() if action == "fork" else subprocess.Popen(["sleep", HOLD]).pid
        if child == 0:
            time.sleep(int(HOLD))
        Path(argument).write_text(str(child))
        if action == "fork":
            os._exit(1)
        time.sleep(int(HOLD))
    if action == "pid":
        Path(argument).write_text(str(os.getpid()))
    if action == "modules":
        return float(argument in sys.modules)
    return completion == problem.answer
