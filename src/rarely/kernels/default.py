"""The kernel for an input model whose user has chosen none."""

from __future__ import annotations

from rarely.core.errors import InputError
from rarely.core.input_model import InputModel
from rarely.core.parts import redrawn
from rarely.kernels.base import Kernel
from rarely.kernels.pcn import PCN
from rarely.kernels.random_walk import RandomWalk
from rarely.kernels.redraw import Redraw


def default_kernel(inputs: InputModel) -> Kernel:
    """pCN where there is a map from normals, parts drawn anew where there are such, else the paper's random walk."""
    if inputs.normal_dim is not None:
        return PCN()
    if redrawn(inputs):
        return Redraw()
    if getattr(inputs, "whole", False):
        raise InputError(
            f"inputs of {type(inputs).__name__} are whole numbers, and nothing says how to move them; "
            "give it `parts` and `redraw`, as docs/how-to/write-an-input-model.md shows"
        )
    return RandomWalk()
