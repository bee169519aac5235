"""`Rng.moves`: normals that four chains of a population share on a CPU."""

from __future__ import annotations

import torch

from rarely.core.rng import Rng

SHAPE = (2, 4096, 256)  # large enough to be shared


def drawn(rng: Rng, shape: tuple[int, int, int], most: int = 1000) -> torch.Tensor:
    noise, seen = torch.full(shape, torch.nan), 0
    for chains, values, sign in rng.moves(shape, torch.float32, most):
        assert chains.stop - chains.start == values.shape[1] <= most
        assert chains.start == seen
        noise[:, chains] = sign * values
        seen = chains.stop
    assert seen == shape[1]
    return noise


def test_every_chain_gets_standard_normals() -> None:
    noise = drawn(Rng(0), SHAPE).double()
    assert torch.isfinite(noise).all()
    n = noise.numel() / 4  # as many are drawn
    assert abs(noise.mean()) < 5 / n**0.5
    assert abs((noise**2).mean() - 1) < 5 * (2 / n) ** 0.5
    assert abs((noise**4).mean() - 3) < 5 * (96 / n) ** 0.5


def test_rows_are_shared_by_four_chains_of_one_population_and_no_other() -> None:
    noise = drawn(Rng(1), SHAPE)
    first, second = (set(noise[b, :, 0].abs().tolist()) for b in (0, 1))
    assert len(first) == len(second) == SHAPE[1] // 4
    assert not first & second


def test_chains_meet_other_chains_at_the_next_step() -> None:
    rng = Rng(2)
    partners = [drawn(rng, SHAPE)[0, :, 0].abs() for _ in range(2)]
    pairs = [partner[:1024].unsqueeze(1) == partner[1024:2048] for partner in partners]
    assert int((pairs[0] & pairs[1]).sum()) == 0


def test_uneven_and_small_populations() -> None:
    for shape in ((1, 5003, 300), (3, 10, 4), (1, 300, 2)):
        assert torch.isfinite(drawn(Rng(3), shape, 77)).all()


def test_a_population_mean_varies_as_with_separate_draws() -> None:
    """64 steps with beta 0.3: population means of z and z^2 vary no more than those of independent chains."""
    rng, beta, n = Rng(4), 0.3, 1024
    z = torch.zeros(4, n, 300)
    for _ in range(64):
        z = (1 - beta**2) ** 0.5 * z + beta * drawn(rng, (4, n, 300))
    for value, variance in ((z, 1.0), (z * z, 2.0)):
        means = value.mean(1).flatten().double()  # 1200 of them
        ratio = float(means.var()) * n / variance
        # Shared draws add up to 3 beta^2 / 2 = 14 % to even functions; 1200 means know a variance to 4 %.
        assert ratio < (1 if variance == 1 else 1.14) * (1 + 5 * 0.041)
