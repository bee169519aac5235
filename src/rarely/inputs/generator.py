"""Inputs that a generator makes of standard normals."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from rarely.core.errors import InputError, NetworkError
from rarely.core.input_model import Shape, assign, leading
from rarely.core.network import Network, adapt_network
from rarely.core.rng import TORCHS, Rng
from rarely.inputs.common import no_density

_PROBE = 2  # latents that show which shape the decoder gives


@dataclass(frozen=True, init=False)
class Generator:
    """decoder(Z) for standard normal Z: a VAE's decoder, a GAN's generator, a simulator.

    The decoder takes latents (n, *latent) to inputs (n, *event). A torch module is run in eval mode, is copied to where
    the batch runs, and lets gradients through; a function of tensors or of numpy arrays works as well.
    """

    decoder: Network
    latent: Shape
    event_shape: Shape
    support = None
    log_density = no_density

    def __init__(self, decoder: nn.Module | Callable[[Any], Any], latent: int | Shape) -> None:
        shape = leading(latent)
        if not shape or min(shape) < 1:
            raise InputError(f"latent must be the number of normals or the shape of one latent, got {latent}")
        probe = Rng(0).normal((_PROBE, *shape))
        try:
            adapted, made = adapt_network(decoder, probe)
        except NetworkError as error:
            raise InputError(
                f"the decoder failed on latents of shape {tuple(probe.shape)}: {error.__cause__ or error}; "
                "check that `latent` is the shape of one latent"
            ) from error
        assign(self, decoder=replace(adapted, seconds=0.0), latent=shape)  # models with one decoder stack
        if made.ndim == 0 or made.shape[0] != _PROBE:
            raise InputError(
                f"the decoder turned {_PROBE} latents into {tuple(made.shape)}; its first dimension must be the batch"
            )
        assign(self, event_shape=tuple(made.shape[1:]))

    @property
    def words(self) -> str:
        return f"what a generator makes of {self.normal_dim:,} standard normals"

    @property
    def normal_dim(self) -> int:
        return math.prod(self.latent)

    @property
    def smooth(self) -> bool:
        return self.decoder.differentiable

    @property
    def center(self) -> Tensor:
        return self.from_normal(torch.zeros(self.normal_dim, dtype=self.decoder.dtype))

    def sample(self, shape: int | Shape, rng: Rng = TORCHS) -> Tensor:
        return self.from_normal(rng.normal((*leading(shape), self.normal_dim), self.decoder.dtype))

    def from_normal(self, z: Tensor) -> Tensor:
        return self._decode(z.reshape(-1, *self.latent)).reshape(*z.shape[:-1], *self.event_shape)

    def _decode(self, latents: Tensor) -> Tensor:
        """Wherever the decoder lives: with the batch during a run, where the user left it before."""
        module = self.decoder.module
        home = None if module is None else next(iter([*module.parameters(), *module.buffers()]), None)
        # Gradients are of the latents alone: a decoder's own parameters would drag a graph through every draw.
        tracked = torch.is_grad_enabled() and latents.requires_grad
        with self.decoder.evaluating(), torch.set_grad_enabled(tracked):
            made = self.decoder.call(latents.to(latents.device if home is None else home.device, self.decoder.dtype))
        return made.to(latents.device, latents.dtype)
