"""ONNX files as torch modules, and onnxruntime as referee and fallback."""
