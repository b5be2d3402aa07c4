"""A network that is built from descriptions of its layers, each of which reads earlier ones."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from torch import Tensor, nn

from potluck.errors import ModelError
from potluck.model.decoupled.layer_spec import LayerSpec

__all__ = ["LayerGraph"]

_INPUT = -1


class LayerGraph(nn.Sequential):
    """Layers in execution order; without a layer it returns its input."""

    def __init__(self, specs: Sequence[LayerSpec]) -> None:
        super().__init__(OrderedDict((spec.name, spec.build_layer()) for spec in specs))
        if len(self) != len(specs):
            raise ModelError("two layers of a network have the same name")
        self._sources = _resolve_sources(specs)
        last_use = {source: index for index, sources in enumerate(self._sources) for source in sources}
        self._released = [[source for source, last in last_use.items() if last == index] for index in range(len(specs))]

    def forward(self, inputs: Tensor) -> Tensor:
        return self._run_layers(inputs, len(self))

    def head_inputs(self, inputs: Tensor) -> Tensor:
        """What the last layer is given, which reads one other."""
        *_, last = self._sources
        assert last == (len(self) - 2,), "the last layer reads the one before it"
        return self._run_layers(inputs, len(self) - 1)

    def _run_layers(self, inputs: Tensor, count: int) -> Tensor:
        values = {_INPUT: inputs}
        for index, layer in enumerate(list(self)[:count]):
            values[index] = layer(*(values[source] for source in self._sources[index]))
            for source in self._released[index]:  # free it as soon as no other layer needs it
                del values[source]
        return values[count - 1]


def _resolve_sources(specs: Sequence[LayerSpec]) -> list[tuple[int, ...]]:
    """The indices of the layers that each one reads; a description without any reads the one before it."""
    index_of = {"": _INPUT}
    sources = []
    for index, spec in enumerate(specs):
        unknown = [name for name in spec.inputs if name not in index_of]
        if unknown:
            raise ModelError(f"layer {spec.name!r} reads {unknown[0]!r}, which does not precede it")
        sources.append(tuple(index_of[name] for name in spec.inputs) or (index - 1,))
        index_of[spec.name] = index
    return sources
