"""Engines that fulfil sample requests: the embedded one and any OpenAI-compatible server."""

from interlace.rollout.local import LocalEngine
from interlace.rollout.openai import OpenAIEngine

__all__ = ["LocalEngine", "OpenAIEngine"]
