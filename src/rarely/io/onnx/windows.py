"""Windows that the input moves, and that ONNX makes shorter at the end of their tensor, whereas here they never are.

Here a window keeps its width, and entries that ONNX leaves away hold `ABSENT`. Such a value may be moved about, and be
asked for its shape, and ends among the places of a ScatterND, which skips what is absent. Every other use would compute
with more entries than ONNX does, and is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rarely.core.errors import UnsupportedOperator
from rarely.io.onnx.builder import Activation, Value
from rarely.io.onnx.model import OnnxFile, describe_node

MOVES = frozenset({"Add", "Concat", "Expand", "Identity", "Reshape", "Shape", "Squeeze", "Transpose", "Unsqueeze"})

Names = frozenset[str]


@dataclass
class Windows:
    """What is known of the values that have to do with windows, each by its name."""

    sized: dict[str, Names] = field(default_factory=dict)  # the windows on which ONNX's shape or sizes depend
    marked: dict[str, Names] = field(default_factory=dict)  # those of which absent entries hold `ABSENT`

    def follow(self, file: OnnxFile, node: Any, values: Mapping[str, Value]) -> None:
        """Take note of a node that was converted, or refuse it."""
        active = [name for name in node.input if isinstance(values.get(name), Activation)]
        moved = node.op_type == "Slice" and len(node.input) > 1 and node.input[1] in active
        sized = self._union(self.sized, node.input)
        if moved and not self._union(self.sized, node.input[1:]):
            self._note(node, sized | {node.output[0]}, self._union(self.marked, node.input[:1]) | {node.output[0]})
        elif not sized:
            return
        elif not active:  # folded: sizes, and constants of such sizes
            self._note(node, sized, frozenset())
        elif node.op_type == "ScatterND":
            self._check_places(file, node)
        elif node.op_type in MOVES:
            self._note(node, sized, self._marks(node, values))
        else:
            raise self._refusal(file, node)

    def check_output(self, file: OnnxFile) -> None:
        if file.output_name in self.sized:
            raise UnsupportedOperator(f"{file.source}: the shape of its output would depend on the input")

    def _marks(self, node: Any, values: Mapping[str, Value]) -> Names:
        """An absent entry stays one when it is moved, or added to; of joined indices one is enough."""
        if node.op_type == "Shape":
            return frozenset()
        if node.op_type == "Add":
            return self._union(self.marked, node.input)
        if node.op_type == "Concat":
            axis, rank = node.attribute[0].i, len(values[node.input[0]].shape)
            if axis not in (-1, rank - 1):
                marks = [self.marked.get(name, frozenset()) for name in node.input]
                return frozenset.intersection(*marks)
            return self._union(self.marked, node.input)
        return self._union(self.marked, node.input[:1])

    def _check_places(self, file: OnnxFile, node: Any) -> None:
        """Every place that ONNX would leave away must be marked; updates have the shape of the places in any case."""
        data, places = node.input[:2]
        if data in self.sized or self._union(self.sized, [places]) - self._union(self.marked, [places]):
            raise self._refusal(file, node)

    def _note(self, node: Any, sized: Names, marked: Names) -> None:
        for name in node.output:
            self.sized[name], self.marked[name] = sized, marked

    def _refusal(self, file: OnnxFile, node: Any) -> UnsupportedOperator:
        name = next(name for name in node.input if name in self.sized)
        return UnsupportedOperator(
            f"{file.source}: {describe_node(node)} reads {name!r}, whose shape would depend on the input"
        )

    @staticmethod
    def _union(known: Mapping[str, Names], names: Any) -> Names:
        return frozenset().union(*(known.get(name, frozenset()) for name in names))
