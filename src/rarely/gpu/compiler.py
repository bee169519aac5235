"""CUDA C to a function: NVRTC and the driver through ctypes, both of which torch brings along and has loaded."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib import resources
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

_SHARED = 48 * 1024  # bytes of shared memory from which a function must ask for them
_KEPT = 64  # programs that stay compiled: a campaign has one for each of its networks
_MOST_SHARED = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES


class CannotCompile(Exception):
    """There is no compiler, or it refuses; the caller's plain torch code runs instead."""


class _Module:
    """A program on a GPU, taken off it when nobody can run it any more."""

    def __init__(self, binary: bytes, driver: Any, index: int) -> None:
        self.driver, self.index, self.handle = driver, index, ctypes.c_void_p()
        _done(driver.cuModuleLoadData(ctypes.byref(self.handle), binary))
        weakref.finalize(self, driver.cuModuleUnload, self.handle).atexit = False  # the driver may be gone by then


@dataclass(frozen=True, eq=False)
class Function:
    """A compiled function. Arguments are tensors, None for no tensor, and whole numbers of 32 bits."""

    handle: ctypes.c_void_p
    module: _Module
    threads: int

    def __call__(self, count: int, *arguments: Tensor | int | None, shared: int = 0) -> None:
        """Run on its GPU's current stream, in the blocks that `count` threads need, each with so many bytes shared."""
        driver, blocks = self.module.driver, -(-count // self.threads)
        values = [_as_c(argument) for argument in arguments]
        pointers = (ctypes.c_void_p * len(values))(*[ctypes.addressof(value) for value in values])
        with torch.cuda.device(self.module.index):
            if shared > _SHARED:
                _done(driver.cuFuncSetAttribute(self.handle, _MOST_SHARED, shared))
            stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
            grid, block = (blocks, 1, 1), (self.threads, 1, 1)
            _done(driver.cuLaunchKernel(self.handle, *grid, *block, shared, stream, pointers, None))


def _as_c(argument: Tensor | int | None) -> Any:
    if isinstance(argument, int):
        return ctypes.c_int(argument)
    if argument is None:
        return ctypes.c_void_p(0)
    assert argument.is_contiguous()
    return ctypes.c_void_p(argument.data_ptr())


@cache
def source(*names: str) -> str:
    """The text of files of this folder, one after the other; a step of pCN asks for it each time."""
    return "\n".join((resources.files(__package__) / name).read_text(encoding="utf-8") for name in names)


def available(device: torch.device) -> bool:
    """Whether there can be programs for a device at all."""
    return device.type == "cuda"


def most_shared(device: torch.device) -> int:
    """Bytes of shared memory that a block may have."""
    properties: Any = torch.cuda.get_device_properties(device)
    return int(getattr(properties, "shared_memory_per_block_optin", _SHARED))


def compiled(text: str, threads: int, device: torch.device, for_good: bool = False) -> Callable[[str], Function]:
    """The functions of a program by their names, for a device; `CannotCompile` where that cannot be.

    A program that a CUDA graph may replay is there `for_good`: nobody knows when the last graph is gone.
    """
    index = torch.cuda.current_device() if device.index is None else device.index
    module = (_for_good if for_good else _for_now)(text, index)
    if isinstance(module, str):
        raise CannotCompile(module)
    return lambda name: _function(module, name, threads)


def _loaded(text: str, index: int) -> _Module | str:
    """A program on a GPU, or why there is none: a compiler that has refused is not asked again."""
    try:
        with torch.cuda.device(index):
            torch.zeros(1, device="cuda")  # makes the context that the module is loaded into
            capability = "{}{}".format(*torch.cuda.get_device_capability(index))
            return _Module(_binary(_library(), text, capability), _library(), index)
    except (OSError, AttributeError, RuntimeError, CannotCompile) as error:
        return str(error)


_for_good, _for_now = cache(_loaded), lru_cache(_KEPT)(_loaded)


@lru_cache(4 * _KEPT)
def _function(module: _Module, name: str, threads: int) -> Function:
    handle = ctypes.c_void_p()
    _done(module.driver.cuModuleGetFunction(ctypes.byref(handle), module.handle, name.encode()))
    return Function(handle, module, threads)


@cache
def _library() -> Any:
    """NVRTC and the driver by one name: a part of torch that is linked against both, wherever they are installed."""
    return ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libcaffe2_nvrtc.so"))


def _binary(library: Any, text: str, capability: str) -> bytes:
    # Numbers below 1e-38 are 0, division and roots may be off by a bit or two.
    fast = (b"--ftz=true", b"--prec-div=false", b"--prec-sqrt=false")
    options = [f"--gpu-architecture=sm_{capability}".encode(), b"--std=c++17", *fast]
    program, size = ctypes.c_void_p(), ctypes.c_size_t()
    _made(library.nvrtcCreateProgram(ctypes.byref(program), text.encode(), b"rarely.cu", 0, None, None))
    try:
        array = (ctypes.c_char_p * len(options))(*options)
        if library.nvrtcCompileProgram(program, len(options), array):
            library.nvrtcGetProgramLogSize(program, ctypes.byref(size))
            log = ctypes.create_string_buffer(size.value)
            library.nvrtcGetProgramLog(program, log)
            raise CannotCompile(log.value.decode(errors="replace"))
        _made(library.nvrtcGetCUBINSize(program, ctypes.byref(size)))
        binary = ctypes.create_string_buffer(size.value)
        _made(library.nvrtcGetCUBIN(program, binary))
        return binary.raw
    finally:
        library.nvrtcDestroyProgram(ctypes.byref(program))


def _made(result: int) -> None:
    if result:
        raise CannotCompile(f"error {result} of NVRTC")


def _done(result: int) -> None:
    if result:
        raise RuntimeError(f"error {result} of the CUDA driver")
