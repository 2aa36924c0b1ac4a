"""One file per paper; `interlace.methods.grpo(kl=0.01)` builds a method, `get(name)` finds it.

Every module of this folder whose name does not start with an underscore is imported here, and each entry
that it registers becomes an attribute under its registered name.
"""

import importlib
import pkgutil

from interlace.methods._method import REGISTER, Entry, Method, MethodError, get, register

__all__ = ["REGISTER", "Entry", "Method", "MethodError", "get", "register"]

for _module in pkgutil.iter_modules(__path__):
    if not _module.name.startswith("_"):
        importlib.import_module(f"{__name__}.{_module.name}")
globals().update(REGISTER)
