"""Input models: the distribution p(x) of the inputs."""

from rarely.core.input_model import InputModel, adapt_inputs
from rarely.inputs.box import Box
from rarely.inputs.constrained import Constrained
from rarely.inputs.corruptions import Corruptions
from rarely.inputs.gaussian import Gaussian, TruncatedGaussian
from rarely.inputs.generator import Generator
from rarely.inputs.laws import Choice, Empirical, Fixed, Law, Normal, OneHot, Uniform
from rarely.inputs.lp_ball import LpBall
from rarely.inputs.mixture import Mixture
from rarely.inputs.noise import GaussianNoise, PixelDropout, PoissonNoise
from rarely.inputs.product import Product
from rarely.inputs.tabular import Tabular

__all__ = [
    "Box",
    "Choice",
    "Constrained",
    "Corruptions",
    "Empirical",
    "Fixed",
    "Gaussian",
    "GaussianNoise",
    "Generator",
    "InputModel",
    "Law",
    "LpBall",
    "Mixture",
    "Normal",
    "OneHot",
    "PixelDropout",
    "PoissonNoise",
    "Product",
    "Tabular",
    "TruncatedGaussian",
    "Uniform",
    "adapt_inputs",
]
