"""Programs for GPUs as functions of a CPU: their own text, compiled as C++, one thread after another.

What is tried this way is their mathematics. Launching, races and the compiler of GPUs are tried on one.
"""

from __future__ import annotations

import ctypes
import re
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

_SHIM = (Path(__file__).parent / "shim.h").read_text()
_KERNEL = re.compile(r'extern "C" __global__ void __launch_bounds__\(\w+\) (\w+)\((.*?)\) \{', re.DOTALL)
_OTHER = {"__logf": "host_log", "__expf": "host_exp", "__sincosf": "host_sincos"}  # names that C libraries have taken


@dataclass
class HostFunction:
    run: Any
    threads: int

    def __call__(self, count: int, *arguments: Tensor | int | None, shared: int = 0) -> None:
        values: list[Any] = []
        for argument in arguments:
            if isinstance(argument, Tensor):
                assert argument.is_contiguous()
                values.append(ctypes.c_void_p(argument.data_ptr()))
            else:
                values.append(ctypes.c_void_p(0) if argument is None else ctypes.c_int(argument))
        self.run(ctypes.c_int(-(-count // self.threads)), ctypes.c_int(self.threads), *values)


def compiler_in(folder: Path) -> Callable[..., Callable[[str], HostFunction]]:
    """What stands in for `compiler.compiled`."""

    @cache
    def library(text: str) -> Any:
        number = len(list(folder.glob("*.cpp")))
        source, target = folder / f"{number}.cpp", folder / f"{number}.so"
        source.write_text(_as_cpp(text))
        subprocess.run(["g++", "-O2", "-shared", "-fPIC", "-w", "-o", str(target), str(source)], check=True)
        return ctypes.CDLL(str(target))

    def compiled(
        text: str, threads: int, device: torch.device, for_good: bool = False
    ) -> Callable[[str], HostFunction]:
        return lambda name: HostFunction(getattr(library(text), f"run_{name}"), threads)

    return compiled


def _as_cpp(text: str) -> str:
    runs = []
    for name, parameters in _KERNEL.findall(text):
        declared = [parameter.strip() for parameter in parameters.split(",")]
        names = [one.split()[-1].lstrip("*") for one in declared]
        # The threads of a block bring in its weights together: here the first finds all of them.
        weights = "\n#if !LITERAL\nif (t == 0) for (int i = 0; i < FOURS; ++i) shared[i] = weights[i];\n#endif\n"
        before = weights if "extern __shared__" in text else ""
        runs.append(
            f'extern "C" void run_{name}(int blocks, int threads, {", ".join(declared)}) {{\n'
            "  for (unsigned b = 0; b < blocks; ++b)\n    for (unsigned t = 0; t < threads; ++t) {\n"
            f"      blockIdx.x = b; threadIdx.x = t; {before} {name}({', '.join(names)});\n    }}\n}}\n"
        )
    for name, other in _OTHER.items():
        text = text.replace(name, other)
    text = text.replace("extern __shared__ float4 shared[];", "static float4 shared[65536];")
    return "\n".join([_SHIM, text, *runs])
