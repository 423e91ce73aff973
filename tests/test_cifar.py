"""CIFAR's files: whole, damaged, missing, hostile, downloaded."""

import hashlib
import io
import os
import pickle
import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch

from ssgd.lab.data import cifar as module
from ssgd.lab.data.cifar import ArraysOnly, cifar

from .server import serving


@pytest.fixture
def small(tmp_path, monkeypatch):
    """A CIFAR-100 of 6 and 2 images, with its own checksums."""
    folder = tmp_path / "cifar-100-python"
    folder.mkdir()
    md5 = {}
    for part, size in (("train", 6), ("test", 2)):
        pixels = np.random.default_rng(0).integers(0, 256, (size, 3072), dtype=np.uint8)
        content = pickle.dumps(
            {"data": pixels, "fine_labels": list(range(size)), "filenames": ["x"] * size}, protocol=3
        )
        (folder / part).write_bytes(content)
        md5[part] = hashlib.md5(content).hexdigest()
    monkeypatch.setitem(module.PUBLISHED_MD5, "cifar100", md5)
    return tmp_path


def test_reads_images_and_labels(small):
    data = cifar("cifar100", small)
    assert data.train_images.shape == (6, 3, 32, 32) and data.train_images.dtype == torch.uint8
    assert data.test_labels.tolist() == [0, 1] and data.classes == 100
    assert (data.name, data.channels, data.flip, data.padding) == ("cifar100", 3, True, 4)


def test_a_damaged_file_is_named(small):
    file = small / "cifar-100-python" / "test"
    file.write_bytes(file.read_bytes()[:-10])
    with pytest.raises(ValueError, match=r"test is damaged or cut short.*unpack it again"):
        cifar("cifar100", small)


def test_a_missing_file_says_where_to_get_it(small, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"data_batch_1 is not there: download.*cifar\.html"):
        cifar("cifar10", tmp_path, download=False)
    (small / "cifar-100-python" / "test").unlink()
    with pytest.raises(FileNotFoundError, match=r"test is not there: download"):  # the folder is there: no download
        cifar("cifar100", small)
    with pytest.raises(ValueError, match="no CIFAR called 'cifar'"):
        cifar("cifar", tmp_path)


class Hostile:
    def __init__(self, trace):
        self.trace = trace

    def __reduce__(self):
        return os.system, (f"touch {self.trace}",)


def test_a_hostile_pickle_is_refused(tmp_path):
    with pytest.raises(pickle.UnpicklingError, match=r"asks for \w+\.system"):
        ArraysOnly(io.BytesIO(pickle.dumps(Hostile(tmp_path / "trace")))).load()
    assert not (tmp_path / "trace").exists()


def test_a_hostile_file_with_the_right_sum_is_refused_by_name(small, monkeypatch):
    content = pickle.dumps({"data": Hostile(small / "trace"), "fine_labels": []})
    (small / "cifar-100-python" / "train").write_bytes(content)
    monkeypatch.setitem(module.PUBLISHED_MD5["cifar100"], "train", hashlib.md5(content).hexdigest())
    with pytest.raises(pickle.UnpicklingError, match=r"cifar-100-python/train: this file asks for \w+\.system"):
        cifar("cifar100", small)
    assert not (small / "trace").exists()


@pytest.fixture
def archive(small, monkeypatch):
    """What the server would send; the folder itself is gone."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:
        tar.add(small / "cifar-100-python", "cifar-100-python")
    for file in (small / "cifar-100-python").iterdir():
        file.unlink()
    (small / "cifar-100-python").rmdir()
    md5 = hashlib.md5(packed.getvalue()).hexdigest()
    monkeypatch.setitem(module.ARCHIVES, "cifar100", ("cifar-100-python.tar.gz", md5))
    return packed.getvalue()


def test_a_missing_folder_is_downloaded_once(small, archive, monkeypatch):
    with serving({"/cifar-100-python.tar.gz": archive}) as server:
        monkeypatch.setattr(module, "SERVER", server.address)
        assert len(cifar("cifar100", small / "new").train_labels) == 6
        assert len(cifar("cifar100", small / "new").train_labels) == 6
    assert len(server.asked) == 1


def test_an_archive_put_there_by_hand_is_unpacked(small, archive, monkeypatch):
    monkeypatch.setattr(module, "SERVER", "http://127.0.0.1:9/")
    (small / "cifar-100-python.tar.gz").write_bytes(archive)
    assert len(cifar("cifar100", small).test_labels) == 2


def real(folder):
    """Where the real files are, if SSGD_DATA has that folder."""
    return pytest.mark.skipif(
        not Path(os.environ.get("SSGD_DATA", ""), folder).is_dir() or "SSGD_DATA" not in os.environ,
        reason=f"needs the real CIFAR: set SSGD_DATA to a folder with {folder}",
    )


@real("cifar-100-python")
def test_the_real_cifar100():
    data = cifar("cifar100", os.environ["SSGD_DATA"], download=False)
    assert len(data.train_images) == 50_000 and data.test_labels.bincount().tolist() == [100] * 100


@real("cifar-10-batches-py")
def test_the_real_cifar10():
    data = cifar("cifar10", os.environ["SSGD_DATA"], download=False)
    assert data.train_labels.bincount().tolist() == [5000] * 10 and len(data.test_images) == 10_000
