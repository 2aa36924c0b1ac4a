"""A reward that is somebody's own Python function: `module:function` or `file.py:function`."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import os
import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from interlace.rewards.base import as_score
from interlace.tasks.base import nearest
from interlace.types import Problem, Score


class Function:
    """Calls `function(completion, problem)` and reads what it returns (see `as_score`).

    Args:
        target: `module:function`, `path/to/file.py:function`, or a function of an importable module.

    Raises:
        ValueError: No such module, file or function, or a function that a worker process cannot import
            (a lambda, one defined inside another function, or in the script or notebook being run).
    """

    bounded = False

    def __init__(self, target: str | Callable[[str, Problem], Any]) -> None:
        if isinstance(target, str):
            place, _, name = target.rpartition(":")
            # A relative path must mean the same file in every process.
            self.target: Any = f"{Path(place).resolve()}:{name}" if place.endswith(".py") else target
            self._function: Callable[[str, Problem], Any] | None = _resolve(self.target)
        else:
            _require_importable(target)
            self.target, self._function = target, target
            name = getattr(target, "__name__", type(target).__name__)
        self.name = name

    def __getstate__(self) -> dict[str, Any]:
        return {"target": self.target, "name": self.name, "_function": None}

    def prepare(self) -> None:
        """Import the function's module."""
        if self._function is None:
            self._function = _resolve(self.target) if isinstance(self.target, str) else self.target

    def __call__(self, completion: str, problem: Problem) -> Score:
        self.prepare()
        assert self._function is not None
        return as_score(self._function(completion, problem), self.name)


def _resolve(target: str) -> Callable[[str, Problem], Any]:
    place, _, name = target.rpartition(":")
    module = _module_from_file(Path(place)) if place.endswith(".py") else _module(place)
    function = getattr(module, name, None)
    if not callable(function):
        functions = [k for k, v in vars(module).items() if callable(v) and not k.startswith("_")]
        raise ValueError(
            f"reward {target!r}: {place} has no function {name!r}{nearest(name, functions)}; "
            f"it has: {', '.join(functions) or 'none'}"
        )
    return function


def _module(name: str) -> Any:
    # Console scripts do not look for modules in the working directory; `python script.py` does.
    if os.getcwd() not in sys.path and "" not in sys.path:
        sys.path.append(os.getcwd())
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise ValueError(f"reward: cannot import module {name!r}: {error}") from error


def _module_from_file(path: Path) -> Any:
    if not path.is_file():
        raise ValueError(f"reward: no file {path}")
    name = f"_interlace_reward_{path.stem}_{hashlib.blake2b(str(path).encode(), digest_size=4).hexdigest()}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _require_importable(function: Callable) -> None:
    advice = "put it in a file of its own and name it file.py:function"
    if getattr(function, "__module__", None) == "__main__":
        raise ValueError(f"reward {function!r} lives in the script or notebook being run; {advice}")
    try:
        pickle.dumps(function)
    except Exception as error:
        raise ValueError(f"reward {function!r} cannot be sent to a worker ({error}); {advice}") from error
