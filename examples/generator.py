"""For researchers: how often does a classifier disagree with the sign that a generator was asked to draw?

Run it with `python examples/generator.py`. A small decoder learns to draw squares in a few seconds; then its latent is
the distribution of the inputs. A VAE's or a GAN's decoder goes in the same place.
"""

from __future__ import annotations

import torch
from torch import nn

import rarely
from rarely.demo import SIGNS, assets, draw_images
from rarely.inputs import Generator

LATENT = 8
SQUARE = SIGNS.index("square")


def train_decoder() -> nn.Sequential:
    """The mean of the squares and their largest principal directions, sharpened by what a linear map cannot do."""
    torch.manual_seed(0)
    pictures, labels = draw_images(3_000, seed=7)
    squares = torch.from_numpy(pictures[labels == SQUARE]).flatten(1)
    _, spread, directions = torch.pca_lowrank(squares, LATENT)
    codes = (squares - squares.mean(0)) @ directions / spread * len(squares) ** 0.5  # each of variance 1
    decoder = nn.Sequential(
        nn.Linear(LATENT, 64), nn.ReLU(), nn.Linear(64, 400), nn.Sigmoid(), nn.Unflatten(1, (1, 20, 20))
    )
    optimiser = torch.optim.Adam(decoder.parameters(), lr=5e-3)
    for _ in range(300):
        rows = torch.randint(len(squares), (128,))
        optimiser.zero_grad()
        nn.functional.mse_loss(decoder(codes[rows]).flatten(1), squares[rows]).backward()
        optimiser.step()
    return decoder.eval()


def main() -> None:
    inputs = Generator(train_decoder(), LATENT)
    network = rarely.load_network(assets() / "signs.onnx")
    problem = rarely.Problem(network, rarely.Misclassification(SQUARE), inputs)
    found = rarely.estimate(problem)
    print(f"a drawn square of {inputs.normal_dim} normals is seen as something else:", found)
    with torch.no_grad():
        answers = network(found.witnesses.inputs).argmax(1).bincount(minlength=len(SIGNS))
    print(
        "as", ", ".join(f"{SIGNS[i]} {int(n)}" for i, n in enumerate(answers) if n), "of", len(found.witnesses), "seen"
    )


if __name__ == "__main__":
    main()
