"""Properties of detectors and segmentations: a box that is missing or elsewhere, pixels that get another class."""

from rarely.core.boxes import BoxLayout, MissedBox, MovedBox
from rarely.core.pixels import WrongPixels

__all__ = ["BoxLayout", "MissedBox", "MovedBox", "WrongPixels"]
