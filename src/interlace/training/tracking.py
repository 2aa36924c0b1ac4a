"""Where the numbers of a run go besides its own metrics file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from interlace.config import ConfigError


class Trackers:
    """Sends each step's numbers to the trackers asked for.

    Raises:
        ConfigError: an unknown tracker, or one whose package is not installed.
    """

    def __init__(self, names: Sequence[str], folder: Path) -> None:
        self._writers = []
        for name in names:
            if name != "tensorboard":
                raise ConfigError(f"track={name}: accepted is tensorboard")
            try:
                from torch.utils.tensorboard import SummaryWriter
            except ImportError:
                raise ConfigError("track=tensorboard needs the package: pip install tensorboard") from None
            self._writers.append(SummaryWriter(str(folder / "tensorboard")))

    def log(self, line: Mapping[str, Any], step: int) -> None:
        """One step's numbers; what is not a number is left out."""
        for writer in self._writers:
            for key, value in line.items():
                if isinstance(value, int | float):
                    writer.add_scalar(key, value, step)

    def close(self) -> None:
        for writer in self._writers:
            writer.close()
