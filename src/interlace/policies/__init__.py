"""Policies: whatever takes decisions with a log-probability. Text models come first."""

from interlace.policies.critic import Critic
from interlace.policies.head import Head, head_statistics
from interlace.policies.loading import load_policy
from interlace.policies.render import Renderer, RenderError
from interlace.policies.smollm2 import get_smollm2
from interlace.policies.text import TextPolicy

__all__ = [
    "Critic",
    "Head",
    "RenderError",
    "Renderer",
    "TextPolicy",
    "get_smollm2",
    "head_statistics",
    "load_policy",
]
