"""Read GGUF files (llama.cpp's model format): metadata, and tensors expanded to float32.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import itertools
import math
import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from art_core.errors import DataError, MissingExtraError

if TYPE_CHECKING:
    import numpy as np

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_ALIGNMENT = 32  # of the tensor data, unless the file says otherwise
_STRING, _ARRAY = 8, 9
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}


@dataclass(frozen=True)
class GgufTensor:
    """Where a tensor lies: `offset` bytes from the file's start. `shape` is row-major, `[out, in]` for a projection."""

    name: str
    shape: tuple[int, ...]
    kind: int
    offset: int

    @property
    def num_elements(self) -> int:
        return math.prod(self.shape)


@dataclass(frozen=True)
class GgufFile:
    """The header of a GGUF file. `metadata` maps keys to numbers, strings, booleans and lists of them."""

    path: Path
    metadata: dict[str, Any]
    tensors: tuple[GgufTensor, ...]

    @classmethod
    def open(cls, path: Path) -> Self:
        """The header of the file at `path`; no tensor is read yet.

        Raises:
            DataError: not a GGUF file of a version that is known, or cut short.
        """
        with path.open("rb") as file:
            if file.read(4) != _MAGIC:
                raise DataError(f"{path} is not a GGUF file: it does not begin with 'GGUF'; download it again")
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                cursor = _Cursor(data, 4)
                try:
                    version = cursor.scalar("I")
                    if version not in _VERSIONS:
                        raise DataError(f"{path} is GGUF version {version}; wanted one of {_VERSIONS}, little-endian")
                    num_tensors, num_keys = cursor.scalar("Q"), cursor.scalar("Q")
                    metadata = {cursor.string(): cursor.value(cursor.scalar("I")) for _ in range(num_keys)}
                    found = [_tensor(cursor) for _ in range(num_tensors)]
                except (struct.error, UnicodeDecodeError, KeyError) as error:
                    raise DataError(
                        f"{path} is damaged in its header, near byte {cursor.position}: {error}; download it again"
                    ) from error
        alignment = int(metadata.get("general.alignment", _ALIGNMENT))
        start = -(-cursor.position // alignment) * alignment
        tensors = tuple(GgufTensor(name, shape, kind, start + offset) for name, shape, kind, offset in found)
        return cls(path, metadata, tensors)

    def read(self, tensor: GgufTensor) -> np.ndarray[Any, Any]:
        """The values of `tensor` as float32, quantised ones expanded.

        Raises:
            DataError: the file ends before the tensor does, or the tensor is stored in a way that is not known.
            MissingExtraError: the library `gguf` is not installed.
        """
        try:
            import numpy as np
            from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
            from gguf.quants import dequantize
        except ModuleNotFoundError as error:
            raise MissingExtraError(
                f"reading a GGUF file needs {error.name!r}, which is not installed; run: pip install 'art-core[train]'"
            ) from error
        try:
            kind = GGMLQuantizationType(tensor.kind)
            block_size, block_bytes = GGML_QUANT_SIZES[kind]
            row_bytes = tensor.shape[-1] // block_size * block_bytes
            size_bytes = tensor.num_elements // tensor.shape[-1] * row_bytes
            with self.path.open("rb") as file:
                file.seek(tensor.offset)
                raw = file.read(size_bytes)
            if len(raw) != size_bytes:
                raise DataError(f"{self.path} ends in the middle of tensor {tensor.name!r}; download it again")
            values = dequantize(np.frombuffer(raw, np.uint8).reshape(-1, row_bytes), kind)
        except (ValueError, KeyError, NotImplementedError) as error:
            if isinstance(error, DataError):
                raise
            raise DataError(
                f"{self.path}: tensor {tensor.name!r} is stored in a way that cannot be expanded "
                f"(type {tensor.kind}: {error}); use the model's safetensors instead"
            ) from error
        return np.asarray(values, np.float32).reshape(tensor.shape)


def _tensor(cursor: _Cursor) -> tuple[str, tuple[int, ...], int, int]:
    name = cursor.string()
    innermost_first = [cursor.scalar("Q") for _ in range(cursor.scalar("I"))]
    return name, tuple(reversed(innermost_first)), cursor.scalar("I"), cursor.scalar("Q")


class _Cursor:
    """Reads the values of the header one after the other."""

    def __init__(self, data: mmap.mmap, position: int) -> None:
        self._data = data
        self.position = position

    def scalar(self, code: str) -> Any:
        (value,) = struct.unpack_from(f"<{code}", self._data, self.position)
        self.position += struct.calcsize(f"<{code}")
        return value

    def string(self) -> str:
        size = self.scalar("Q")
        start, self.position = self.position, self.position + size
        if self.position > len(self._data):
            raise struct.error("a string reaches past the end of the file")
        return self._data[start : self.position].decode()

    def value(self, kind: int) -> Any:
        if kind == _STRING:
            return self.string()
        if kind != _ARRAY:
            return self.scalar(_SCALARS[kind])
        kind, count = self.scalar("I"), self.scalar("Q")
        if kind in (_STRING, _ARRAY):
            return [self.value(kind) for _ in itertools.repeat(None, count)]
        values = struct.unpack_from(f"<{count}{_SCALARS[kind]}", self._data, self.position)
        self.position += struct.calcsize(f"<{count}{_SCALARS[kind]}")
        return list(values)
