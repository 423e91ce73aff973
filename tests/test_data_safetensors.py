"""Safetensors whose header does not fit their data."""

import json

import pytest

from ssgd.lab.train.checkpoint import read_safetensors

ONES = {"dtype": "F32", "shape": [2]}


def written(path, data=16, length=None, **entries):
    """A file whose header says of each tensor what is given."""
    header = json.dumps({name: {**ONES, **entry} for name, entry in entries.items()}).encode()
    path.write_bytes((length or len(header)).to_bytes(8, "little") + header + bytes(data))
    return path


def test_tensors_follow_each_other_in_any_order_of_names(tmp_path):
    path = written(
        tmp_path / "file",
        b={"data_offsets": [8, 16]},
        a={"data_offsets": [0, 8]},
        empty={"shape": [3, 0], "data_offsets": [8, 8]},
    )
    found = read_safetensors(path)
    assert {name: tensor.shape for name, tensor in found.items()} == {"a": (2,), "b": (2,), "empty": (3, 0)}


@pytest.mark.parametrize(
    ("first", "second", "says"),
    [
        ([0, 8], [4, 12], r"it has b at bytes \[4, 12\], not \[8, 16\]"),
        ([0, 8], [0, 8], r"it has b at bytes \[0, 8\], not \[8, 16\]"),
        ([8, 16], [-8, 0], r"it has b at bytes \[-8, 0\], not \[0, 8\]"),
        ([0, 8], [12, 20], r"it has b at bytes \[12, 20\], not \[8, 16\]"),
        ([4, 12], [12, 20], r"it has a at bytes \[4, 12\], not \[0, 8\]"),
        ([0, 8], [8, 12], r"it has b at bytes \[8, 12\], not \[8, 16\]"),
    ],
)
def test_gaps_and_overlaps_are_named(tmp_path, first, second, says):
    path = written(tmp_path / "file", a={"data_offsets": first}, b={"data_offsets": second})
    with pytest.raises(ValueError, match=rf"file is damaged: {says}: write it again"):
        read_safetensors(path)


@pytest.mark.parametrize("shape", [[-1], [-1, -2], [2.0], [2**63], [2**62, 2**62], "2", None])
def test_a_shape_that_is_none_is_refused(tmp_path, shape):
    path = written(tmp_path / "file", 8, a={"shape": shape, "data_offsets": [0, 8]})
    with pytest.raises(ValueError, match=r"file is damaged, or no safetensors file of plain numbers: write it again"):
        read_safetensors(path)


@pytest.mark.parametrize("length", [10**6, 2**63, 2**64 - 1])
def test_a_header_longer_than_the_file_is_refused(tmp_path, length):
    path = written(tmp_path / "file", 0, length, a={"shape": [0], "data_offsets": [0, 0]})
    with pytest.raises(ValueError, match=r"file is damaged or cut short: write it again"):
        read_safetensors(path)
