"""interlace: supervised fine-tuning and reinforcement learning of language models, together."""

__version__ = "0.1.0"


def __getattr__(name: str):  # heavy rooms load on first use
    if name == "explain":
        from interlace.analysis.explain import explain

        return explain
    if name == "methods":
        import importlib

        return importlib.import_module("interlace.methods")
    raise AttributeError(f"module 'interlace' has no attribute '{name}'")
