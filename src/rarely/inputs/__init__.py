"""Input models: the distribution p(x) of the inputs."""

from rarely.inputs.base import InputModel, adapt
from rarely.inputs.box import Box
from rarely.inputs.gaussian import Gaussian, TruncatedGaussian
from rarely.inputs.lp_ball import LpBall
from rarely.inputs.mixture import Mixture

__all__ = ["Box", "Gaussian", "InputModel", "LpBall", "Mixture", "TruncatedGaussian", "adapt"]
