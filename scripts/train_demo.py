"""Train the two networks of `rarely demo` and write them, with their properties, as package assets.

    python scripts/train_demo.py --out src/rarely/demo/assets

Everything comes from this project's own code: the images are drawn, the controller imitates an analytic law.
Four minutes on one core, most of it spent measuring: the probabilities in the manifest come from a short
multilevel splitting that shares no code with the library, so that the demo can be compared with something.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))  # runs before the package is installed

from rarely.demo.data import CONTROL_INPUTS, SIGNS, SIZE, draw_images, expert_acceleration

SEED = 2019
Score = Callable[[Tensor], Tensor]


def train(model: nn.Module, inputs: Tensor, targets: Tensor, loss: nn.Module, epochs: int, rate: float) -> None:
    optimiser = torch.optim.Adam(model.parameters(), lr=rate)
    batch = 128
    steps = epochs * (len(inputs) // batch)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, max_lr=rate, total_steps=steps)
    start = time.perf_counter()
    for epoch in range(epochs):
        order = torch.randperm(len(inputs))[: len(inputs) // batch * batch].view(-1, batch)
        total = 0.0
        for chosen in order:
            optimiser.zero_grad()
            value = loss(model(inputs[chosen]), targets[chosen])
            value.backward()
            optimiser.step()
            schedule.step()
            total += value.item()
        seconds = time.perf_counter() - start
        print(f"  epoch {epoch + 1:2d}/{epochs}  loss {total / len(order):.4f}  {seconds:.0f} s")
    model.requires_grad_(False).eval()


def train_classifier() -> nn.Sequential:
    torch.manual_seed(SEED)
    model = nn.Sequential(
        nn.Conv2d(1, 8, 4, stride=2, padding=1),
        nn.ReLU(),
        nn.Conv2d(8, 16, 4, stride=2, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(16 * (SIZE // 4) ** 2, 64),
        nn.ReLU(),
        nn.Linear(64, len(SIGNS)),
    )
    images, labels = draw_images(18_000, seed=SEED)
    train(model, torch.from_numpy(images), torch.from_numpy(labels), nn.CrossEntropyLoss(), epochs=12, rate=4e-3)
    return model


def train_controller() -> nn.Sequential:
    torch.manual_seed(SEED)
    width = 32
    model = nn.Sequential(
        nn.Linear(len(CONTROL_INPUTS), width),
        nn.ReLU(),
        nn.Linear(width, width),
        nn.ReLU(),
        nn.Linear(width, width),
        nn.ReLU(),
        nn.Linear(width, 1),
    )
    inputs = np.random.default_rng(SEED).random((40_000, len(CONTROL_INPUTS)))
    wanted = torch.from_numpy(expert_acceleration(inputs)).float()[:, None]
    train(model, torch.from_numpy(inputs).float(), wanted, nn.MSELoss(), epochs=25, rate=5e-3)
    return model


def write_onnx(model: nn.Sequential, shape: tuple[int, ...], outputs: tuple[int, ...], path: Path) -> None:
    """Node by node: torch's own exporter needs an extra package, and this graph stays readable."""
    nodes, weights = [], []
    current = "input"
    for index, layer in enumerate(model):
        names = [current]
        for part in ("weight", "bias"):
            if hasattr(layer, part):
                names.append(f"{index}.{part}")
                weights.append(numpy_helper.from_array(getattr(layer, part).detach().numpy(), names[-1]))
        current = "output" if index == len(model) - 1 else f"h{index}"
        match layer:
            case nn.Linear():
                node = helper.make_node("Gemm", names, [current], transB=1)
            case nn.Conv2d():
                node = helper.make_node("Conv", names, [current], **_window(layer), dilations=layer.dilation)
            case nn.ConvTranspose2d():
                node = helper.make_node("ConvTranspose", names, [current], **_window(layer))
            case nn.ReLU():
                node = helper.make_node("Relu", names, [current])
            case nn.Flatten():
                node = helper.make_node("Flatten", names, [current], axis=1)
            case _:
                raise NotImplementedError(type(layer).__name__)
        nodes.append(node)
    graph = helper.make_graph(
        nodes,
        path.stem,
        [helper.make_tensor_value_info("input", TensorProto.FLOAT, ["batch", *shape])],
        [helper.make_tensor_value_info("output", TensorProto.FLOAT, ["batch", *outputs])],
        weights,
    )
    proto = helper.make_model(graph, producer_name="rarely", opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(proto, full_check=True)
    onnx.save(proto, path)


def _window(layer: nn.Conv2d | nn.ConvTranspose2d) -> dict[str, object]:
    return {"kernel_shape": layer.kernel_size, "strides": layer.stride, "pads": [*layer.padding, *layer.padding]}


def log10_prob(score: Score, low: Tensor, high: Tensor, particles: int, steps: int) -> float:
    """P(score >= 0) for x uniform in the box: splitting, pCN moves in normal space; -inf below 1e-40."""
    normal = torch.distributions.Normal(0.0, 1.0)

    def at(z: Tensor) -> Tensor:
        return score(low + (high - low) * normal.cdf(z))

    z = torch.randn(particles, low.numel(), dtype=torch.float64)
    values, total, step = at(z), 0.0, 0.7
    while total > -40.0:
        level = values.quantile(0.9).clamp(max=0.0)
        alive = values >= 0 if level >= 0 else values > level
        if not alive.any():  # all particles sit in one corner: as far as floats can tell, the score has its maximum
            return -math.inf
        total += math.log10(alive.double().mean().item())
        if level >= 0:
            return total
        parents = alive.nonzero()[:, 0][torch.randint(int(alive.sum()), (particles,))]
        z, values = z[parents], values[parents]
        for _ in range(steps):
            proposal = math.sqrt(1 - step**2) * z + step * torch.randn_like(z)
            new = at(proposal)
            accept = new > level
            z = torch.where(accept[:, None], proposal, z)
            values = torch.where(accept, new, values)
            step = min(0.95, step * math.exp(0.3 * (accept.double().mean().item() - 0.3)))
    return -math.inf


def vnnlib(comments: list[str], low: list[float], high: list[float], outputs: int, violation: str) -> str:
    lines = [f"; {comment}" for comment in comments]
    lines += [f"(declare-const X_{i} Real)" for i in range(len(low))]
    lines += [f"(declare-const Y_{i} Real)" for i in range(outputs)]
    for i, (a, b) in enumerate(zip(low, high, strict=True)):
        lines += [f"(assert (>= X_{i} {a:.9f}))", f"(assert (<= X_{i} {b:.9f}))"]
    return "\n".join([*lines, violation, ""])


def replicated(score: Score, low: Tensor, high: Tensor) -> tuple[float, float]:
    """log10 of the mean of four longer runs, and its standard error.

    Four runs say little about their own spread, so the error is never put below that of ideal splitting.
    """
    particles = 1000
    runs = np.array([log10_prob(score, low, high, particles, steps=30) for _ in range(4)])
    if not np.isfinite(runs).all():
        return -math.inf, 0.0
    scaled = 10 ** (runs - runs.max())
    mean = float(runs.max() + np.log10(scaled.mean()))
    spread = float(scaled.std(ddof=1) / scaled.mean())
    ideal = math.sqrt(9 * abs(mean) / particles)  # -log10 p levels of relative variance (1 - 0.1) / 0.1 / N
    return mean, max(spread, ideal) / math.sqrt(len(runs)) / math.log(10)


def noise_problems(model: nn.Sequential, out: Path) -> list[dict[str, object]]:
    """One image per class; the noise is set so that mistakes go from common to very rare."""
    targets = {"disc": -2, "star": -4, "square": -7, "cross": -10, "triangle": -15, "ring": -20}
    images, labels = draw_images(600, seed=SEED + 2)
    logits = model(torch.from_numpy(images)).numpy()
    rivals = logits.copy()
    rivals[np.arange(len(labels)), labels] = -np.inf
    margins = logits[np.arange(len(labels)), labels] - rivals.max(axis=1)
    # Image c shows class c. The lower quartile of the margins: an ordinary picture, not the easiest one.
    chosen = []
    for label in range(len(SIGNS)):
        members = np.flatnonzero(labels == label)
        chosen.append(members[np.argsort(margins[members])[len(members) // 4]])
    np.savez_compressed(out / "signs.npz", images=images[chosen], labels=labels[chosen], names=np.array(SIGNS))

    problems: list[dict[str, object]] = []
    for sign, target in targets.items():
        label = SIGNS.index(sign)
        image = torch.from_numpy(images[chosen[label]]).double().flatten()

        def score(x: Tensor, label: int = label) -> Tensor:
            y = model(x.float().view(-1, 1, SIZE, SIZE)).double()
            own = y[:, label].clone()
            y[:, label] = -math.inf
            return y.amax(dim=1) - own

        def box(eps: float, image: Tensor = image) -> tuple[Tensor, Tensor]:
            return (image - eps).clamp(0, 1), (image + eps).clamp(0, 1)

        small, large = 0.01, 0.5
        for _ in range(7):
            middle = math.sqrt(small * large)
            if log10_prob(score, *box(middle), particles=500, steps=25) < target:
                small = middle
            else:
                large = middle
        eps = round(math.sqrt(small * large), 3)
        measured, error = replicated(score, *box(eps))
        print(f"  {sign:8s} eps {eps:.3f}  log10 p {measured:.2f} ± {error:.2f}")
        problems.append(
            {
                "name": f"{sign}-noise",
                "description": f"A picture of a {sign} whose every pixel may change, at random, by up to "
                f"{eps:.1%} of full brightness: how often does the network see something else?",
                "network": "signs.onnx",
                "property": None,
                "image": label,
                "eps": eps,
                "clip": [0.0, 1.0],
                "log10_prob": round(measured, 2),
                "log10_prob_error": round(error, 2),
            }
        )
        if sign == "square":
            low, high = box(eps)
            others = " ".join(f"(and (>= Y_{i} Y_{label}))" for i in range(len(SIGNS)) if i != label)
            text = vnnlib(
                [
                    f"Image {label} of signs.npz ({sign}), every pixel within {eps} and in [0, 1].",
                    "Unsafe: another sign wins.",
                ],
                low.tolist(),
                high.tolist(),
                len(SIGNS),
                f"(assert (or {others}))",
            )
            (out / f"{sign}-noise.vnnlib").write_text(text)
            problems[-1]["property"] = f"{sign}-noise.vnnlib"
    return problems


# Gap below, closing speed above; the car itself drives at 10 m/s or more. In all three boxes the expert law
# brakes, so a violation is the network's own mistake.
CONTROL_BOXES = {"brake-30m": (30.0, 10.0), "brake-25m": (25.0, 8.0), "brake-25m-fast": (25.0, 10.0)}
NEVER = "brake-25m-fast"


def control_problems(model: nn.Sequential, out: Path) -> list[dict[str, object]]:
    def score(x: Tensor) -> Tensor:
        return model(x.float())[:, 0].double()

    problems: list[dict[str, object]] = []
    for name, (gap, closing) in CONTROL_BOXES.items():
        bounds = {"gap": (0.0, gap), "speed": (10.0, 40.0), "closing speed": (closing, 30.0)}
        ranges = [bounds.get(quantity.name, (quantity.low, quantity.high)) for quantity in CONTROL_INPUTS]
        low = [quantity.normalise(a) for quantity, (a, _) in zip(CONTROL_INPUTS, ranges, strict=True)]
        high = [quantity.normalise(b) for quantity, (_, b) in zip(CONTROL_INPUTS, ranges, strict=True)]
        # The law falls with speed and closing speed and rises with the rest: its maximum is at this corner.
        corner = [low[i] if CONTROL_INPUTS[i].name in ("speed", "closing speed") else high[i] for i in range(6)]
        expert = float(expert_acceleration(corner))
        measured, error = replicated(score, torch.tensor(low).double(), torch.tensor(high).double())
        print(f"  {name:15s} log10 p {measured:.2f} ± {error:.2f}   expert at most {expert:.2f} m/s²")
        if expert >= 0 or not (measured == -math.inf if name == NEVER else -12 < measured < -6):
            raise SystemExit(f"{name} is not the problem it should be; change CONTROL_BOXES")
        comments = ["Normalised inputs: X = (value - low) / (high - low) of the controller's input ranges."]
        for i, (quantity, (a, b)) in enumerate(zip(CONTROL_INPUTS, ranges, strict=True)):
            comments.append(f"X_{i}: {quantity.name} in [{a:g}, {b:g}] {quantity.unit}".replace("²", "2"))
        comments.append("Unsafe: the commanded acceleration Y_0 (m/s2) is not negative.")
        (out / f"{name}.vnnlib").write_text(vnnlib(comments, low, high, 1, "(assert (>= Y_0 0.0))"))
        problems.append(
            {
                "name": name,
                "description": f"The car ahead is less than {gap:g} m away and coming closer by more than "
                f"{closing * 3.6:.0f} km/h: how often does the cruise controller ask for gas, not brakes?",
                "network": "cruise.onnx",
                "property": f"{name}.vnnlib",
                "image": None,
                "eps": None,
                "clip": None,
                "log10_prob": None if name == NEVER else round(measured, 2),
                "log10_prob_error": None if name == NEVER else round(error, 2),
            }
        )
    return problems


def main() -> None:
    parser = argparse.ArgumentParser(description="Train the networks of `rarely demo` and write the package assets.")
    parser.add_argument("--out", type=Path, default=Path("src/rarely/demo/assets"))
    out: Path = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)  # sums in one order, so that a seed gives one network

    print("sign classifier")
    classifier = train_classifier()
    images, labels = draw_images(6000, seed=SEED + 1)
    found = classifier(torch.from_numpy(images)).argmax(dim=1).numpy()
    print(f"  test accuracy {np.mean(found == labels):.2%} on {len(labels)} fresh images")
    write_onnx(classifier, (1, SIZE, SIZE), (len(SIGNS),), out / "signs.onnx")

    print("cruise controller")
    controller = train_controller()
    inputs = np.random.default_rng(SEED + 1).random((20_000, len(CONTROL_INPUTS)))
    learned = controller(torch.from_numpy(inputs).float())[:, 0].numpy()
    print(f"  test error {np.sqrt(np.mean((learned - expert_acceleration(inputs)) ** 2)):.2f} m/s² rms")
    write_onnx(controller, (len(CONTROL_INPUTS),), (1,), out / "cruise.onnx")

    print("problems")
    torch.manual_seed(SEED)
    problems = noise_problems(classifier, out) + control_problems(controller, out)
    (out / "demo.json").write_text(json.dumps({"version": 1, "problems": problems}, indent=2) + "\n")
    print(f"wrote {sum(path.stat().st_size for path in out.iterdir()) / 1000:.0f} kB to {out}")


if __name__ == "__main__":
    main()
