"""A critic: a policy whose only statistic is `value`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from torch import Tensor, nn

from interlace.policies.text import TextPolicy
from interlace.types import Batch, Statistics


class Critic:
    """Estimates the value of the state that each decision is taken in; 0 everywhere at the start.

    Args:
        policy: The policy whose present weights the critic starts from.
        shared: Read the policy's own hidden states through a value head, instead of training a copy
            of its trunk. The value loss then also moves the policy's trunk.
    """

    def __init__(self, policy: TextPolicy, *, shared: bool = False) -> None:
        self.shared = shared
        self.text = policy if shared else policy.copy()
        self.text.add_value_head()
        if not shared:
            embedding = self.text.model.get_input_embeddings().weight
            self._unused = [
                p for p in self.text.model.get_output_embeddings().parameters() if p is not embedding
            ]

    def score(
        self, batch: Batch, needs: Sequence[str] = ("value",), *, grad: bool = True
    ) -> dict[str, Tensor]:
        """`value` of every decision, [N].

        Raises:
            ValueError: Another statistic is asked for.
        """
        if set(needs) - {"value"}:
            raise ValueError(f"a critic gives 'value' only, not {', '.join(sorted(set(needs) - {'value'}))}")
        return self.text.score(batch, needs, grad=grad)

    def backward(self, statistics: Statistics, cotangents: Statistics, *, retain_graph: bool = False) -> None:
        """Add the gradient of <cotangents, values>; with `shared` also to the policy's trunk."""
        self.text.backward(statistics, cotangents, retain_graph=retain_graph)

    def clone_frozen(self) -> Critic:
        """A copy whose parameters never change."""
        twin = Critic.__new__(Critic)
        twin.shared, twin.text, twin._unused = False, self.text.clone_frozen(), []
        return twin

    def parameters_by_part(self) -> Mapping[str, list[nn.Parameter]]:
        """`value`, and `backbone` where the trunk is the critic's own."""
        parts = self.text.parameters_by_part()
        wanted = ("value",) if self.shared else ("backbone", "value")
        return {name: parts[name] for name in wanted if name in parts}

    def trainable(self) -> list[nn.Parameter]:
        """What the critic's optimizer should hold."""
        return [p for parameters in self.parameters_by_part().values() for p in parameters]

    def collect_gradients(self) -> None:
        self.text.collect_gradients()

    def publish(self) -> None:
        self.text.publish()

    def save(self, directory: str | Path) -> None:
        """Write model, value head and tokenizer, as `TextPolicy.load` reads them."""
        self.text.save(directory)
