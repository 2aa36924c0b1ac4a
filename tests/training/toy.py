"""The toy policy and its rows, for the tests of this room."""

from interlace.analysis.toy import ToyPolicy, batch_of, trajectories

__all__ = ["ToyPolicy", "batch_of", "trajectories"]
