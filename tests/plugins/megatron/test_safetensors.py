"""The safetensors format, read and written byte by byte."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest

pytest.importorskip("torch")

import torch

from sailor.errors import PluginError
from sailor_megatron.weights.safetensors_file import Planned, SafetensorsFile, write_file


def by_hand(folder: Path, header: object, data: bytes, length: int | None = None) -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path = folder / "model.safetensors"
    path.write_bytes(struct.pack("<Q", len(text) if length is None else length) + text + data)
    return path


def entry(dtype: str, shape: list[int], lo: int, hi: int) -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [lo, hi]}


def test_a_file_written_by_hand_is_read(tmp_path: Path) -> None:
    """1.5 is 0x3FC00000 in fp32 and 0x3FC0 in bf16; the header's length is odd here."""
    data = struct.pack("<3f", 1.5, -2.0, 0.25) + bytes.fromhex("c03f") + struct.pack("<2d", 1, 2)
    header = {
        "__metadata__": {"format": "pt"},
        "a": entry("F32", [3, 1], 0, 12),
        "b": entry("BF16", [], 12, 14),
        "empty": entry("F32", [0, 4], 14, 14),
        "c": entry("F64", [2], 14, 30),
    }
    text = json.dumps(header).encode()
    text += b" " * (len(text) % 2 == 0)
    with SafetensorsFile(by_hand(tmp_path, text, data)) as file:
        assert list(file.entries) == ["a", "b", "empty", "c"]
        assert file.tensor("a").tolist() == [[1.5], [-2.0], [0.25]]
        assert (file.tensor("b").dtype, file.tensor("b").item()) == (torch.bfloat16, 1.5)
        assert file.tensor("empty").shape == (0, 4)
        assert file.tensor("c").tolist() == [1.0, 2.0]


def test_what_is_written_is_the_format(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    planned = {"w": Planned("F32", (2, 2)), "v": Planned("BF16", (3,))}
    tensors = {"w": torch.tensor([[1.0, 2.0], [3.0, 4.0]]).T, "v": torch.tensor([1.5, 0.0, -1.0])}
    write_file(path, planned, iter(tensors.items()))
    raw = path.read_bytes()
    (length,) = struct.unpack("<Q", raw[:8])
    assert length % 8 == 0
    header = json.loads(raw[8 : 8 + length])
    assert header["w"] == entry("F32", [2, 2], 0, 16)
    assert header["v"] == entry("BF16", [3], 16, 22)
    data = raw[8 + length :]
    assert struct.unpack("<4f", data[:16]) == (1.0, 3.0, 2.0, 4.0)
    assert data[16:] == bytes.fromhex("c03f 0000 80bf")


def test_the_library_and_this_read_each_other(tmp_path: Path) -> None:
    library = pytest.importorskip("safetensors.torch", reason="safetensors is not installed")
    tensors = {
        f"t{index}": torch.randn(index + 1, 3, dtype=torch.float64).to(dtype)
        for index, dtype in enumerate((torch.float64, torch.float32, torch.float16, torch.bfloat16))
    }
    names = {torch.float64: "F64", torch.float32: "F32", torch.float16: "F16"}
    theirs, ours = tmp_path / "theirs", tmp_path / "ours"
    library.save_file(tensors, theirs)
    with SafetensorsFile(theirs) as file:
        assert set(file.entries) == set(tensors)
        for name, tensor in tensors.items():
            assert torch.equal(file.tensor(name), tensor)
            assert file.tensor(name).dtype is tensor.dtype
    planned = {
        name: Planned(names.get(tensor.dtype, "BF16"), tuple(tensor.shape))
        for name, tensor in tensors.items()
    }
    write_file(ours, planned, iter(tensors.items()))
    for name, tensor in library.load_file(ours).items():
        assert torch.equal(tensor, tensors[name])


def test_a_broken_file_is_one_sentence(tmp_path: Path) -> None:
    eight = b"\0" * 8
    for header, data, length, sentence in (
        ({"a": entry("F32", [2], 0, 8)}, eight[1:], None, "its bytes lie outside of the file"),
        ({}, b"", 10**15, "its header would be 1000000000000000 bytes long"),
        (b"{no json", b"", None, "its header is no JSON"),
        ([1], b"", None, "its header is no JSON object"),
        ({"a": {"dtype": "F32"}}, b"", None, "it lacks dtype, shape or data_offsets"),
        ({"a": entry("F32", [3], 0, 8)}, eight, None, r"8 bytes are no F32 \[3\]"),
        ({"a": entry("I64", [1], 0, 8)}, eight, None, "a: has dtype I64"),
        ({"a": entry("F32", [2], -8, 0)}, eight, None, "its bytes lie outside of the file"),
    ):
        with pytest.raises(PluginError, match=sentence) as caught:
            SafetensorsFile(by_hand(tmp_path, header, data, length))
        assert "\n" not in str(caught.value)
    with pytest.raises(PluginError, match="can't be read: no such file"):
        SafetensorsFile(tmp_path / "absent")
    (tmp_path / "model.safetensors").write_bytes(b"\1\2")
    with pytest.raises(PluginError, match="it ends within the header's length"):
        SafetensorsFile(tmp_path / "model.safetensors")
