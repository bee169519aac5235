"""A first run in onnxruntime in a process of its own, with limits: nobody knows beforehand what a black box takes.

Run as `python -m rarely.io.onnx.trial NAME TYPE BYTES SIZE...` with the model on standard input.
"""

from __future__ import annotations

import subprocess
import sys

from rarely.core.errors import FormatError
from rarely.core.limits import MEMORY, SECONDS
from rarely.io.files import one_line, refuse
from rarely.io.onnx.model import InputPort, OnnxFile

_OUT_OF_MEMORY = 3


def try_apart(file: OnnxFile, port: InputPort) -> None:
    """Run a model once, elsewhere. A `FormatError` where it takes too much; other failures are for the real run."""
    words = [port.name, port.dtype.name, str(MEMORY.now), *map(str, port.shape)]
    try:
        done = subprocess.run(
            [sys.executable, "-m", __name__, *words], input=file.serialize(), capture_output=True, timeout=SECONDS.now
        )
    except subprocess.TimeoutExpired:
        refuse(file.source, SECONDS.excess(2 * SECONDS.now, "the time that one input takes in onnxruntime"))
    except (OSError, ValueError) as error:  # no interpreter to start, or a name with a NUL
        raise FormatError(file.source, f"it cannot be tried in a process of its own ({one_line(error)})") from error
    else:
        if done.returncode == _OUT_OF_MEMORY or done.returncode < 0:
            refuse(file.source, MEMORY.excess(2 * MEMORY.now, "what one input takes in onnxruntime"))


def main(words: list[str]) -> int:
    name, kind, most, *shape = words
    import numpy as np
    import onnxruntime

    model = sys.stdin.buffer.read()
    try:
        import resource

        with open("/proc/self/statm", encoding="ascii") as pages:
            held = int(pages.read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (held + int(most), resource.getrlimit(resource.RLIMIT_AS)[1]))
    except (ImportError, OSError, ValueError):
        pass  # a system without such limits; the time is still limited
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.enable_cpu_mem_arena = False
    try:
        session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"], enable_fallback=0)
        session.run(None, {name: np.zeros([int(n) for n in shape], kind)})
    except Exception as error:  # onnxruntime's exceptions share no public base class
        text = str(error).lower()
        return _OUT_OF_MEMORY if isinstance(error, MemoryError) or "alloc" in text or "memory" in text else 0
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
