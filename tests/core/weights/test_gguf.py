from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from art_core.errors import DataError
from art_core.weights.gguf import GgufFile


@pytest.fixture(scope="module")
def path(write_gguf: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    result: Path = write_gguf(tmp_path_factory.mktemp("gguf") / "tiny.gguf")
    return result


def test_metadata_equals_what_the_reference_reader_finds(path: Path) -> None:
    reference = gguf.GGUFReader(path)
    wanted = {key: field.contents() for key, field in reference.fields.items() if not key.startswith("GGUF.")}
    assert GgufFile.open(path).metadata == wanted


def test_tensors_equal_what_the_reference_reader_finds(path: Path) -> None:
    file = GgufFile.open(path)
    reference = gguf.GGUFReader(path).tensors
    assert [tensor.name for tensor in file.tensors] == [tensor.name for tensor in reference]
    for tensor, wanted in zip(file.tensors, reference, strict=True):
        values = gguf.quants.dequantize(wanted.data, wanted.tensor_type).reshape(tensor.shape)
        np.testing.assert_array_equal(file.read(tensor), values)


def test_shape_is_row_major(path: Path) -> None:
    shapes = {tensor.name: tensor.shape for tensor in GgufFile.open(path).tensors}
    assert shapes["blk.0.ffn_down.weight"] == (64, 96)
    assert shapes["blk.1.attn_k.weight"] == (32, 64)


def test_another_kind_of_file_is_refused(tmp_path: Path) -> None:
    other = tmp_path / "model.gguf"
    other.write_bytes(b"version https://git-lfs.github.com/spec/v1\n")
    with pytest.raises(DataError, match="does not begin with 'GGUF'"):
        GgufFile.open(other)


def test_an_unknown_version_is_named(path: Path, tmp_path: Path) -> None:
    newer = tmp_path / "newer.gguf"
    newer.write_bytes(path.read_bytes()[:4] + (9).to_bytes(4, "little") + path.read_bytes()[8:])
    with pytest.raises(DataError, match="version 9"):
        GgufFile.open(newer)


def test_a_file_cut_in_its_data_names_the_tensor(path: Path, tmp_path: Path) -> None:
    short = tmp_path / "short.gguf"
    short.write_bytes(path.read_bytes()[:-8])
    file = GgufFile.open(short)
    with pytest.raises(DataError, match=r"ends in the middle of tensor 'output_norm\.weight'"):
        file.read(file.tensors[-1])


@given(share=st.floats(0, 0.999))
@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_file_cut_anywhere_in_its_header_is_refused(share: float, path: Path, tmp_path: Path) -> None:
    data = path.read_bytes()
    end_of_header = min(tensor.offset for tensor in GgufFile.open(path).tensors) - 32
    short = tmp_path / "short.gguf"
    short.write_bytes(data[: max(1, int(end_of_header * share))])
    with pytest.raises(DataError):
        GgufFile.open(short)
