"""One function that loads a network from any supported file or Python object."""

from __future__ import annotations

import importlib
import inspect
import logging
import warnings
import zipfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from rarely.core.errors import FormatError, InputError, NetworkError, UnsupportedOperator
from rarely.io.files import check_archive, exists, is_file, is_zip, one_line
from rarely.io.imports import import_object
from rarely.io.onnx.importer import import_onnx
from rarely.io.onnx.model import is_onnx, split_output
from rarely.io.onnx.runtime import OnnxRuntimeNetwork, onnxruntime_installed
from rarely.io.pickle_names import check_names
from rarely.io.pickles import only_tensors, unpickled

BatchFunction = Callable[[torch.Tensor], torch.Tensor]

TORCHSCRIPT = (".ts", ".torchscript")
CHECKPOINTS = (".pt", ".pth", ".ckpt", ".bin")
PICKLES = (".pkl", ".pickle")
NESTED = ("state_dict", "model_state_dict", "model")


def load_network(
    path: str | Path,
    *,
    architecture: str | Callable[[], nn.Module] | None = None,
    trust_pickle: bool = False,
    device: torch.device | str | None = None,
    check: bool = True,
) -> BatchFunction:
    """Load a network that maps a batch (n, *shape) to (n, outputs).

    `path` is one of

    * `.onnx` or `.onnx.gz`, and of several outputs the one that is named behind it, `net.onnx:name`;
    * `.pt2` (torch.export), TorchScript (`.ts`, `.torchscript`, `.pt`), `.rlv`;
    * weights (`.safetensors`, or a state dict in `.pt`, `.pth`, `.ckpt`, `.bin`) together with
      `architecture`, a callable that makes the module or its name `package.module:callable`;
    * `package.module:attribute` or `file.py:attribute`: a module, a function of a batch, or a class or
      function without arguments that makes one.

    Loading a pickle can run any code, so one is opened only with `trust_pickle`. With `check`, an ONNX
    import is compared with onnxruntime where that is installed.
    """
    network = _load(str(path), architecture, trust_pickle, check)
    if isinstance(network, nn.Module):
        network.eval()
        if device is not None:
            network = network.to(device)
    return network


def input_shape(network: Any) -> tuple[int, ...] | None:
    """The shape of one input, where the network's file says it."""
    shape = getattr(network, "input_shape", None)
    return None if shape is None else tuple(shape)


class Normalised(nn.Module):
    """(x - mean) / std, then the network."""

    def __init__(self, network: Any, mean: torch.Tensor, std: torch.Tensor) -> None:
        super().__init__()
        self.network = network
        self.mean: torch.Tensor
        self.std: torch.Tensor
        self.register_buffer("mean", mean)
        self.register_buffer("std", std)
        self.input_shape = getattr(network, "input_shape", None)
        self.output_shape = getattr(network, "output_shape", None)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.network((x - self.mean) / self.std)
        return result


class NormalisedFunction:
    """The same for a function that is no module: of tensors or of arrays, whichever it takes."""

    def __init__(self, network: Any, mean: torch.Tensor, std: torch.Tensor) -> None:
        self.network, self.mean, self.std = network, mean, std
        self.differentiable = getattr(network, "differentiable", True)
        self.input_shape = getattr(network, "input_shape", None)
        self.output_shape = getattr(network, "output_shape", None)

    def __call__(self, x: Any) -> Any:
        if isinstance(x, np.ndarray):
            return self.network((x - self.mean.numpy()) / self.std.numpy())
        return self.network((x - self.mean.to(x)) / self.std.to(x))


def normalised(network: Any, mean: Sequence[float] | None, std: Sequence[float] | None) -> Any:
    """The network with its normalisation inside, one number for all or one per channel; as it is when none is given."""
    if mean is None and std is None:
        return network
    shape = input_shape(network)
    centre, scale = _per_channel(mean or (0.0,), shape, "mean"), _per_channel(std or (1.0,), shape, "std")
    if not bool((scale > 0).all()):
        raise InputError("std must be positive")
    if not isinstance(network, nn.Module):
        return NormalisedFunction(network, centre, scale)
    return Normalised(network, centre, scale).eval()


def _per_channel(values: Sequence[float], shape: tuple[int, ...] | None, name: str) -> torch.Tensor:
    if len(values) == 1:
        return torch.tensor(values[0])
    if shape is not None and (len(shape) != 3 or shape[0] != len(values)):
        raise InputError(f"{name} has {len(values)} values, but the network takes {shape}, not {len(values)} channels")
    return torch.tensor(values).reshape(-1, 1, 1)


def _load(
    name: str, architecture: str | Callable[[], nn.Module] | None, trust_pickle: bool, check: bool
) -> BatchFunction:
    path = Path(split_output(name)[0])
    if not exists(path) and ":" in str(path):
        return _python_network(name)
    if not is_file(path):
        raise FormatError(path, "there is no such file")
    suffix = path.suffix.lower()
    if suffix == ".safetensors":
        return _with_weights(path, architecture, _read_safetensors(path))
    if suffix in TORCHSCRIPT or (suffix in CHECKPOINTS and _is_torchscript(path)):
        return _load_torchscript(path)
    if suffix in CHECKPOINTS + PICKLES:
        return _load_checkpoint(path, architecture, trust_pickle)
    if architecture is not None:
        raise InputError(f"{path} holds its own architecture; `architecture` belongs to weights alone")
    if is_onnx(name):
        return load_onnx(name, check=check)
    if suffix == ".pt2":
        from rarely.io.exported import load_exported

        return load_exported(path, trust_pickle=trust_pickle)
    if suffix == ".rlv":
        network: BatchFunction = importlib.import_module("rarely.io.formats.rlv").read_rlv(path).network
        return network
    raise InputError(
        f"{path}: unknown kind of network {suffix!r}; known are .onnx, .onnx.gz, .pt2, .ts, .torchscript, "
        ".pt, .pth, .safetensors, .rlv and module:attribute"
    )


def load_onnx(path: str, *, check: bool) -> BatchFunction:
    """Import an ONNX file, or run it in onnxruntime if it has an operator the importer does not know."""
    try:
        return import_onnx(path, check=check)
    except UnsupportedOperator as error:
        if not onnxruntime_installed():
            raise UnsupportedOperator(
                f"{error}; onnxruntime could run it as a black box: pip install 'rarely[onnxruntime]'"
            ) from error
        network = OnnxRuntimeNetwork(path)
        logging.getLogger("rarely").warning("%s; it runs in onnxruntime as a black box without gradients", error)
        return network


def _python_network(name: str) -> BatchFunction:
    target = import_object(name)
    if inspect.isclass(target) or (not isinstance(target, nn.Module) and _takes_nothing(target)):
        target = _call(name, target)
    if not callable(target):
        raise NetworkError(f"{name} is {type(target).__name__}, not a module or a function of a batch")
    network: BatchFunction = target
    return network


def _takes_nothing(target: Any) -> bool:
    try:
        parameters = inspect.signature(target).parameters.values()
    except (TypeError, ValueError):
        return False
    optional = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return all(p.default is not p.empty or p.kind in optional for p in parameters)


def _call(name: str, factory: Callable[[], Any]) -> Any:
    try:
        return factory()
    except (Exception, SystemExit) as error:  # the user's own code
        raise NetworkError(f"{name}() failed ({type(error).__name__}: {error})") from error


def _read_safetensors(path: Path) -> dict[str, torch.Tensor]:
    import safetensors
    import safetensors.torch

    try:
        return dict(safetensors.torch.load_file(path))
    except (safetensors.SafetensorError, OSError, ValueError) as error:
        raise FormatError(path, f"not a safetensors file that can be read ({error})") from error


def _is_torchscript(path: Path) -> bool:
    if not is_zip(path):
        return False
    check_archive(path)
    with zipfile.ZipFile(path) as archive:
        return any("/code/" in name or name.endswith("/constants.pkl") for name in archive.namelist())


def _load_torchscript(path: Path) -> nn.Module:
    try:
        with warnings.catch_warnings():
            # TorchScript is deprecated in torch; files of it are read here as long as torch can.
            warnings.simplefilter("ignore", DeprecationWarning)
            module: nn.Module = torch.jit.load(str(path), map_location="cpu")  # type: ignore[no-untyped-call]
    except Exception as error:  # torch raises RuntimeError, IndexError and more for damaged archives
        raise FormatError(path, f"not a TorchScript file that can be loaded ({one_line(error)})") from error
    return _frozen(module)


def _load_checkpoint(path: Path, architecture: str | Callable[[], nn.Module] | None, trust_pickle: bool) -> nn.Module:
    check_names(path)
    content = unpickled(path, architecture) if trust_pickle else only_tensors(path)
    if isinstance(content, nn.Module):
        return _frozen(content)
    if not isinstance(content, Mapping):
        raise NetworkError(f"{path} holds {type(content).__name__}, not a network or a state dict")
    for key in NESTED:
        if isinstance(content.get(key), Mapping):
            content = content[key]
            break
        if isinstance(content.get(key), nn.Module):
            return _frozen(content[key])
    return _with_weights(path, architecture, dict(content))


def _with_weights(
    path: Path, architecture: str | Callable[[], nn.Module] | None, weights: dict[str, torch.Tensor]
) -> nn.Module:
    if architecture is None:
        raise NetworkError(
            f"{path} holds weights only; name the architecture, too: "
            "load_network(path, architecture='package.module:make_network')"
        )
    label = architecture if isinstance(architecture, str) else getattr(architecture, "__name__", "architecture")
    target = import_object(architecture) if isinstance(architecture, str) else architecture
    network = target if isinstance(target, nn.Module) else _call(label, target)
    if not isinstance(network, nn.Module):
        raise NetworkError(f"{label} gives {type(network).__name__}, not a torch module")
    if weights and all(key.startswith("module.") for key in weights):
        # What torch.nn.DataParallel adds on saving.
        weights = {key.removeprefix("module."): value for key, value in weights.items()}
    try:
        network.load_state_dict(weights)
    except (RuntimeError, TypeError, AttributeError) as error:
        raise NetworkError(f"the weights in {path} do not fit {label}: {one_line(error, 600)}") from error
    return _frozen(network)


def _frozen(module: nn.Module) -> nn.Module:
    """Gradients are taken with respect to inputs only. (TorchScript has no module.requires_grad_.)"""
    for parameter in module.parameters():
        parameter.requires_grad_(False)
    return module
