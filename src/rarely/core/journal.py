"""Answers of a network in a file, so that a run that was interrupted asks for none of them again."""

from __future__ import annotations

import fcntl
import hashlib
import io
import os
import stat
import struct
import zlib
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from rarely.core.errors import StoreError

_MAGIC = b"rarely answers 1\n"
_HEAD = struct.Struct("<16sII")  # what was asked, length of the answer, checksum of both


class Journal:
    """A file that answers are added to, each when it is known, and never changed.

    An answer belongs to its inputs, not to its place in a run: whatever asks again, in whatever order, is told the
    same. What was being written when a process or a machine ended fails its checksum, and is cut off.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._answers: dict[bytes, bytes] = {}
        try:
            self._file = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o644)
            try:
                if not stat.S_ISREG(os.fstat(self._file).st_mode):
                    raise StoreError(f"{self.path} cannot be used as a checkpoint: it is not a file")
                fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # held by this process alone, and not by copies
                self._read()
            except BaseException:
                os.close(self._file)
                raise
        except BlockingIOError:
            raise StoreError(f"{self.path} is in use by another run; wait for it, or name another file") from None
        except OSError as error:
            raise StoreError(f"{self.path} cannot be used as a checkpoint: {error.strerror}") from error

    def __len__(self) -> int:
        return len(self._answers)

    def find(self, network: int, x: Tensor) -> Tensor | None:
        """What network number `network` has answered to x (n, *event), if it was asked."""
        answer = self._answers.get(_name(network, x))
        if answer is None:
            return None
        return torch.from_numpy(np.load(io.BytesIO(answer), allow_pickle=False)).to(x.device)

    def add(self, network: int, x: Tensor, y: Tensor) -> None:
        held, name = io.BytesIO(), _name(network, x)
        np.save(held, y.detach().cpu().numpy(), allow_pickle=False)
        answer = held.getvalue()
        try:
            self._write(_HEAD.pack(name, len(answer), zlib.crc32(name + answer)) + answer)
        except OSError as error:
            raise StoreError(f"{self.path} cannot be written: {error.strerror}; the answers so far are kept") from error
        self._answers[name] = answer

    def close(self) -> None:
        os.close(self._file)

    def _write(self, data: bytes) -> None:
        while data:
            data = data[os.write(self._file, data) :]

    def _read(self) -> None:
        content = b""
        while more := os.read(self._file, 2**20):  # of this handle: the lock goes with any other that is closed
            content += more
        if not content.startswith(_MAGIC) and not _MAGIC.startswith(content):
            raise StoreError(f"{self.path} is not a checkpoint of rarely; name another file")
        good = len(_MAGIC)
        while good + _HEAD.size <= len(content):
            name, length, check = _HEAD.unpack_from(content, good)
            start = good + _HEAD.size
            answer = content[start : start + length]
            if len(answer) < length or zlib.crc32(name + answer) != check:
                break
            self._answers[name], good = answer, start + length
        if len(content) < len(_MAGIC):
            os.ftruncate(self._file, 0)
            os.lseek(self._file, 0, os.SEEK_SET)
            self._write(_MAGIC)
        else:
            os.ftruncate(self._file, good)
            os.lseek(self._file, good, os.SEEK_SET)


def _name(network: int, x: Tensor) -> bytes:
    """Of inputs, by their content."""
    array = np.ascontiguousarray(x.detach().cpu().numpy())
    told = f"{network} {array.dtype.str} {array.shape}".encode()
    return hashlib.blake2b(told + b"\0" + array.tobytes(), digest_size=16).digest()
