"""interlace: supervised fine-tuning and reinforcement learning of language models, together."""

__version__ = "0.1.0"


def __getattr__(name: str):  # heavy rooms load on first use
    import importlib

    rooms = {
        "explain": "interlace.analysis.explain",
        "side_by_side": "interlace.analysis.side_by_side",
        "formula": "interlace.analysis.formula",
        "check": "interlace.analysis.laws",
        "train": "interlace.training.run",
        "evaluate": "interlace.evaluation.evaluate",
        "evaluate_model": "interlace.evaluation.model",
        "load_policy": "interlace.policies",
        "load_task": "interlace.tasks",
        "sample_batch": "interlace.analysis.batch",
    }
    if name in rooms:
        return getattr(importlib.import_module(rooms[name]), name)
    if name in ("methods", "compare"):
        return importlib.import_module(f"interlace.{name}")
    raise AttributeError(f"module 'interlace' has no attribute '{name}'")
