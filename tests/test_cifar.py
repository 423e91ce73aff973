"""CIFAR's files: whole, damaged, missing, hostile."""

import hashlib
import io
import os
import pickle

import numpy as np
import pytest
import torch

from ssgd.data import cifar as module
from ssgd.data.cifar import ArraysOnly, cifar


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


def test_a_damaged_file_is_named(small):
    file = small / "cifar-100-python" / "test"
    file.write_bytes(file.read_bytes()[:-10])
    with pytest.raises(ValueError, match=r"test is damaged or cut short.*unpack it again"):
        cifar("cifar100", small)


def test_a_missing_file_says_where_to_get_it(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"data_batch_1 is not there: download.*cifar\.html"):
        cifar("cifar10", tmp_path)
    with pytest.raises(ValueError, match="no CIFAR called 'cifar'"):
        cifar("cifar", tmp_path)


def test_a_hostile_pickle_is_refused():
    class Hostile:
        def __reduce__(self):
            return os.system, ("touch /tmp/hostile",)

    with pytest.raises(pickle.UnpicklingError, match=r"asks for \w+\.system"):
        ArraysOnly(io.BytesIO(pickle.dumps(Hostile()))).load()


@pytest.mark.skipif("SSGD_DATA" not in os.environ, reason="needs the real CIFAR: set SSGD_DATA to its folder")
def test_the_real_cifar100():
    data = cifar("cifar100", os.environ["SSGD_DATA"])
    assert len(data.train_images) == 50_000 and data.test_labels.bincount().tolist() == [100] * 100
