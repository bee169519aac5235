"""Networks: ONNX files as torch modules, onnxruntime as a fallback, and loading from any supported file."""

from __future__ import annotations

from rarely.networks.loading import load_network
from rarely.networks.onnx_import import import_onnx
from rarely.networks.ort import OnnxRuntimeNetwork

__all__ = ["OnnxRuntimeNetwork", "import_onnx", "load_network"]
