"""How well a policy solves problems, with its uncertainty."""

from interlace.evaluation.evaluate import evaluate
from interlace.evaluation.metrics import Estimate, PairedDifference
from interlace.evaluation.results import Evaluation, ProblemResult, paired

__all__ = ["Estimate", "Evaluation", "PairedDifference", "ProblemResult", "evaluate", "paired"]
