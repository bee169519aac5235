"""The table from ONNX operator names to the functions that append them to a graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from rarely.core.errors import UnsupportedOperator
from rarely.io.onnx.builder import Activation, Builder, Constant, IllFormed, Value
from rarely.io.onnx.model import Array


@dataclass(frozen=True)
class Operator:
    """One ONNX node with its inputs resolved; missing optional inputs are None."""

    kind: str
    inputs: Sequence[Value | None]
    attributes: dict[str, Any]
    opset: int
    outputs: int

    def input(self, index: int) -> Value:
        """Any input that must be there."""
        value = self.optional(index)
        if value is None:
            raise IllFormed(f"input {index} is missing")
        return value

    def optional(self, index: int) -> Value | None:
        """Any input, or None."""
        return self.inputs[index] if index < len(self.inputs) else None

    def activation(self, index: int = 0) -> Activation:
        """An input that depends on the network's input."""
        value = self.input(index)
        if not isinstance(value, Activation):
            raise UnsupportedOperator(f"{self.kind} with a constant input {index} is not supported")
        return value

    def array(self, index: int) -> Array:
        """An input that must be known at import, such as a weight."""
        value = self.input(index)
        if not isinstance(value, Constant):
            raise UnsupportedOperator(f"{self.kind} whose input {index} is computed is not supported")
        return value.array

    def optional_array(self, index: int) -> Array | None:
        """Like `array`, or None where the input is absent."""
        return None if self.optional(index) is None else self.array(index)

    def attr(self, name: str, default: Any) -> Any:
        """An attribute or its default; strings are decoded."""
        value = self.attributes.get(name, default)
        return value.decode() if isinstance(value, bytes) else value

    def ints(self, name: str, index: int) -> list[int] | None:
        """A list that older operator sets store as an attribute and newer ones as a constant input."""
        if name in self.attributes:
            return [int(entry) for entry in self.attributes[name]]
        array = self.optional_array(index)
        return None if array is None else [int(entry) for entry in array.reshape(-1)]

    def refuse(self, feature: str) -> UnsupportedOperator:
        """The error for a variant of a known operator that is not implemented."""
        return UnsupportedOperator(f"{self.kind} with {feature} is not supported")


Handler = Callable[[Builder, Operator], Value | list[Value]]

HANDLERS: dict[str, Handler] = {}


def handles(*kinds: str) -> Callable[[Handler], Handler]:
    """Register a handler for operators of the standard domain."""

    def register(handler: Handler) -> Handler:
        for kind in kinds:
            HANDLERS[kind] = handler
        return handler

    return register
