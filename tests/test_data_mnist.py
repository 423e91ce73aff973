"""MNIST's files: plain, compressed, damaged, missing, downloaded."""

import gzip
import hashlib
import struct

import pytest
import torch

from ssgd.lab.data import mnist as module
from ssgd.lab.data.mnist import mnist

from .server import serving


def idx(shape: tuple[int, ...], start: int = 0) -> bytes:
    size = 1
    for side in shape:
        size *= side
    content = bytes((start + i) % 10 for i in range(size))
    return struct.pack(f">{1 + len(shape)}I", 0x0800 + len(shape), *shape) + content


FILES = {
    "train-images-idx3-ubyte": idx((5, 28, 28)),
    "train-labels-idx1-ubyte": idx((5,), 3),
    "t10k-images-idx3-ubyte": idx((2, 28, 28)),
    "t10k-labels-idx1-ubyte": idx((2,), 8),
}


@pytest.fixture
def root(tmp_path):
    folder = tmp_path / "mnist"
    folder.mkdir()
    for name, content in FILES.items():
        (folder / name).write_bytes(content)
    return tmp_path


def test_reads_plain_and_compressed_files(root) -> None:
    plain = mnist("mnist", root, download=False)
    assert plain.train_images.shape == (5, 1, 28, 28) and plain.train_images.dtype == torch.uint8
    assert plain.train_labels.tolist() == [3, 4, 5, 6, 7] and plain.test_labels.tolist() == [8, 9]
    assert plain.train_images[0, 0, 0, :12].tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1]
    for file in list((root / "mnist").iterdir()):
        file.with_name(file.name + ".gz").write_bytes(gzip.compress(file.read_bytes(), mtime=0))
        file.unlink()
    packed = mnist("mnist", root, download=False)
    assert torch.equal(packed.train_images, plain.train_images) and torch.equal(packed.test_labels, plain.test_labels)


def test_digits_are_not_flipped_but_clothes_are(root) -> None:
    (root / "mnist").rename(root / "fashion-mnist")
    assert mnist("fashion-mnist", root, download=False).flip
    (root / "fashion-mnist").rename(root / "mnist")
    assert not mnist("mnist", root, download=False).flip


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("train-images-idx3-ubyte", FILES["train-images-idx3-ubyte"][:-1], "it has 3935 bytes, not 3936"),
        ("train-images-idx3-ubyte", FILES["train-images-idx3-ubyte"] + b"x", "it has 3937 bytes, not 3936"),
        ("train-images-idx3-ubyte", b"\0\0\x08", "at least 16 bytes"),
        ("train-images-idx3-ubyte", FILES["train-labels-idx1-ubyte"] * 3, "its first number is 2049, not 2051"),
        ("train-images-idx3-ubyte", idx((0, 28, 28)), "its count is 0"),
        ("t10k-labels-idx1-ubyte", idx((0,)), "its count is 0"),
        ("t10k-images-idx3-ubyte", idx((2, 28, 27)), "its images are 28×27, not 28×28"),
        ("t10k-labels-idx1-ubyte", idx((2,))[:-1] + b"\x0a", "it has a class 10"),
        ("t10k-labels-idx1-ubyte.gz", gzip.compress(idx((2,)), mtime=0)[:-9], "end-of-stream"),
        ("t10k-labels-idx1-ubyte.gz", b"<html>not found</html>", "[Nn]ot a gzipped file"),
    ],
)
def test_a_damaged_file_is_named(root, name: str, content: bytes, says: str) -> None:
    (root / "mnist" / name.removesuffix(".gz")).unlink()
    (root / "mnist" / name).write_bytes(content)
    with pytest.raises(ValueError, match=rf"{name} is damaged or cut short \(.*{says}.*\): delete it"):
        mnist("mnist", root, download=False)


def test_images_and_labels_must_be_as_many(root) -> None:
    (root / "mnist" / "train-labels-idx1-ubyte").write_bytes(idx((4,)))
    with pytest.raises(ValueError, match="5 train images but 4 labels"):
        mnist("mnist", root, download=False)


def test_a_missing_file_says_where_to_get_it(root) -> None:
    (root / "mnist" / "t10k-labels-idx1-ubyte").unlink()
    with pytest.raises(FileNotFoundError, match=r"t10k-labels-idx1-ubyte is not there: download https://.*\.gz"):
        mnist("mnist", root, download=False)
    with pytest.raises(ValueError, match="no MNIST called 'emnist'"):
        mnist("emnist", root)


def test_only_what_is_missing_is_downloaded(root, monkeypatch) -> None:
    (root / "mnist" / "train-images-idx3-ubyte").unlink()
    packed = gzip.compress(FILES["train-images-idx3-ubyte"], mtime=0)
    md5 = {name: hashlib.md5(packed).hexdigest() for name in FILES}
    monkeypatch.setitem(module.PUBLISHED_MD5, "mnist", md5)
    with serving({"/train-images-idx3-ubyte.gz": packed}) as server:
        monkeypatch.setitem(module.SERVERS, "mnist", server.address)
        assert mnist("mnist", root).train_images.shape == (5, 1, 28, 28)
    assert [path for path, _ in server.asked] == ["/train-images-idx3-ubyte.gz"]
