"""Train the detector and the segmentation of the demo's scenes and write them as package assets.

    python scripts/train_scenes.py --out src/rarely/demo/assets

Both learn from scenes that this project's own code draws. A minute on one core.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import onnx
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import Tensor, nn
from torch.nn import functional as F
from train_demo import SEED, train, write_onnx

from rarely.demo.scenes import SCENE_SIGNS, SCENE_SIZE, Scenes, draw_scenes

GRID = 8  # cells on a side; each gives one row
CELL = SCENE_SIZE // GRID
ROWS, COLUMNS = GRID * GRID, 4 + len(SCENE_SIGNS)
SCENES = 20_000


def cell_centers() -> Tensor:
    """(rows, 2): x, y in pixels, row by row of the grid."""
    axis = (torch.arange(GRID) + 0.5) * CELL
    y, x = torch.meshgrid(axis, axis, indexing="ij")
    return torch.stack([x.flatten(), y.flatten()], 1)


def offsets() -> Tensor:
    """What is added to the rows (rows, columns): corners are told from the center of the cell."""
    return F.pad(cell_centers().repeat(1, 2), (0, len(SCENE_SIGNS)))


def in_rows(y: Tensor) -> Tensor:
    """Channels (n, columns, 8, 8) as rows (n, rows, columns): corners in pixels, then a logit for each sign."""
    return y.flatten(2).mT + offsets()


class DetectionLoss(nn.Module):
    """Cells near the middle of a sign must say it and its box; those far from it nothing. Between them is no loss."""

    def forward(self, y: Tensor, wanted: Tensor) -> Tensor:
        rows, boxes, labels = in_rows(y), wanted[..., :4], wanted[..., 4].long()  # of two signs each
        middle, side = (boxes[..., :2] + boxes[..., 2:]) / 2, boxes[..., 2:] - boxes[..., :2]
        away = ((cell_centers() - middle[:, :, None]).abs() / side[:, :, None]).amax(-1)  # (n, 2, rows)
        inside = (away < 0.25) | (away == away.amin(-1, keepdim=True))
        right = F.one_hot(labels, len(SCENE_SIGNS)).float()[:, :, None]  # (n, 2, 1, signs)
        target = (inside[..., None] * right).amax(1)
        counts = (target + 1 - ((away < 0.6)[..., None] * right).amax(1)).clamp(max=1)
        said = F.binary_cross_entropy_with_logits(rows[..., 4:], target, reduction="none")
        off = F.smooth_l1_loss(
            rows[:, None, :, :4].expand(-1, 2, -1, -1), boxes[:, :, None].expand(-1, -1, ROWS, -1), reduction="none"
        ).sum(-1)
        return (said * counts).sum() / len(y) + 0.3 * (off * inside).sum() / inside.sum()


def train_detector(scenes: Scenes) -> nn.Sequential:
    torch.manual_seed(SEED)
    model = nn.Sequential(
        nn.Conv2d(1, 16, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Conv2d(32, 32, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(32, 32, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(32, COLUMNS, 1),
    )
    wanted = torch.cat([torch.from_numpy(scenes.boxes), torch.from_numpy(scenes.labels)[..., None].float()], -1)
    train(model, torch.from_numpy(scenes.images), wanted, DetectionLoss(), epochs=15, rate=6e-3)
    return model


def train_segmentation(scenes: Scenes) -> nn.Sequential:
    torch.manual_seed(SEED)
    model = nn.Sequential(
        nn.Conv2d(1, 16, 4, stride=2, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 24, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(24, 24, 3, padding=2, dilation=2),
        nn.ReLU(),
        nn.Conv2d(24, 24, 3, padding=2, dilation=2),
        nn.ReLU(),
        nn.ConvTranspose2d(24, 1 + len(SCENE_SIGNS), 4, stride=2, padding=1),
    )
    images, classes = torch.from_numpy(scenes.images), torch.from_numpy(scenes.classes)
    train(model, images, classes, nn.CrossEntropyLoss(), epochs=5, rate=6e-3)
    return model


def add_rows(path: Path) -> None:
    """`in_rows` as the last nodes of a written detector."""
    proto = onnx.load(path)
    graph = proto.graph
    last = graph.node[-1]
    last.output[0] = "cells"
    graph.initializer.extend(
        [
            numpy_helper.from_array(torch.tensor([0, COLUMNS, ROWS]).numpy(), "shape"),
            numpy_helper.from_array(offsets().numpy(), "offsets"),
        ]
    )
    graph.node.extend(
        [
            helper.make_node("Reshape", ["cells", "shape"], ["columns"]),
            helper.make_node("Transpose", ["columns"], ["rows"], perm=[0, 2, 1]),
            helper.make_node("Add", ["rows", "offsets"], ["output"]),
        ]
    )
    graph.output[0].CopyFrom(helper.make_tensor_value_info("output", TensorProto.FLOAT, ["batch", ROWS, COLUMNS]))
    onnx.checker.check_model(proto, full_check=True)
    onnx.save(proto, path)


def found(rows: Tensor, scenes: Scenes) -> float:
    """The share of signs that some row of their class has, with a score above 1/2 and an IoU above 1/2."""
    boxes, labels = torch.from_numpy(scenes.boxes), torch.from_numpy(scenes.labels)
    common = torch.minimum(rows[:, None, :, 2:4], boxes[:, :, None, 2:]) - torch.maximum(
        rows[:, None, :, :2], boxes[:, :, None, :2]
    )
    inside = common.clamp(min=0).prod(-1)
    areas = (rows[..., 2:4] - rows[..., :2]).clamp(min=0).prod(-1)[:, None] + (boxes[..., 2:] - boxes[..., :2]).prod(
        -1, keepdim=True
    )
    sure = rows[..., 4:].mT.gather(1, labels[..., None].expand(-1, -1, ROWS)) > 0
    return float((sure & (inside > 0.5 * (areas - inside))).any(-1).float().mean())


def main() -> None:
    parser = argparse.ArgumentParser(description="Train the networks of the demo's scenes and write them.")
    parser.add_argument("--out", type=Path, default=Path("src/rarely/demo/assets"))
    out: Path = parser.parse_args().out
    torch.set_num_threads(1)  # sums in one order, so that a seed gives one network
    scenes, fresh = draw_scenes(SCENES, SEED), draw_scenes(2_000, SEED + 1)

    print("detector")
    detector = train_detector(scenes)
    with torch.no_grad():
        rows = in_rows(detector(torch.from_numpy(fresh.images)))
    print(f"  finds {found(rows, fresh):.2%} of the signs of {len(fresh.images)} fresh scenes")
    write_onnx(detector, (1, SCENE_SIZE, SCENE_SIZE), (COLUMNS, GRID, GRID), out / "detector.onnx")
    add_rows(out / "detector.onnx")

    print("segmentation")
    segmentation = train_segmentation(scenes)
    with torch.no_grad():
        right = segmentation(torch.from_numpy(fresh.images)).argmax(1) == torch.from_numpy(fresh.classes)
    print(f"  {right.float().mean():.2%} of the pixels right in {len(fresh.images)} fresh scenes")
    write_onnx(
        segmentation, (1, SCENE_SIZE, SCENE_SIZE), (1 + len(SCENE_SIGNS), *[SCENE_SIZE] * 2), out / "segmentation.onnx"
    )


if __name__ == "__main__":
    main()
