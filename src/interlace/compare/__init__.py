"""Which way of combining SFT and RL is best for a model and its data: one budget, real intervals.

`interlace.compare(...)` is `tournament.compare`: the room is called as what it is for.
"""

from __future__ import annotations

import sys
import types
from typing import Any


class _Room(types.ModuleType):
    def __call__(self, *arguments: Any, **settings: Any) -> Any:
        from interlace.compare.tournament import compare

        return compare(*arguments, **settings)


sys.modules[__name__].__class__ = _Room
