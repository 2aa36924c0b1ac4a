"""Engines that fulfil sample requests: the embedded one and any OpenAI-compatible server."""

from interlace.rollout.local import LocalEngine, engine_for_policy

__all__ = ["LocalEngine", "engine_for_policy"]
