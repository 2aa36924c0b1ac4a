"""Model directories: written whole or not at all, and quietly."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import transformers


def save_whole(directory: str | Path, write: Callable[[Path], Any]) -> Path:
    """Fill a temporary sibling of `directory`, then put it in its place.

    A reader, or a run that was killed while writing, sees the old directory or the new one, never a
    half of either.

    Args:
        directory: Where the result shall be; replaced if it exists.
        write: Writes every file into the directory that it is given.

    Returns:
        `directory`.
    """
    directory = Path(directory)
    directory.parent.mkdir(parents=True, exist_ok=True)
    fresh = Path(tempfile.mkdtemp(prefix=f".{directory.name}.", dir=directory.parent))
    try:
        fresh.chmod(0o777 & ~_umask())
        write(fresh)
        for file in fresh.rglob("*"):
            if file.is_file():
                _flush(file)
        _replace(fresh, directory)
    except BaseException:
        shutil.rmtree(fresh, ignore_errors=True)
        raise
    return directory


def _replace(fresh: Path, directory: Path) -> None:
    if not directory.exists():
        os.rename(fresh, directory)
        return
    old = Path(tempfile.mkdtemp(prefix=f".{directory.name}.old.", dir=directory.parent))
    os.rename(directory, old / "was")
    os.rename(fresh, directory)
    shutil.rmtree(old)


def _flush(file: Path) -> None:
    with file.open("rb") as opened:
        os.fsync(opened.fileno())


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


@contextmanager
def without_progress_bars() -> Iterator[None]:
    """Silence the bars that transformers draws for every file it reads or writes."""
    logging = transformers.utils.logging
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()
