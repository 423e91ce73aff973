"""Image folders kept in memory: the images of those that are read while the training runs."""

import random
from functools import partial

import numpy as np
import pytest
import torch

from ssgd.lab.data import folder
from ssgd.lab.data.augment import cut
from ssgd.lab.data.folder import STD, fits

from .test_data_folder import all_of, picture, source_of

Folder, InMemory = source_of, partial(source_of, in_memory=True)
ONE_BYTE = 1.01 / 255 / min(STD)
Image = pytest.importorskip("PIL.Image", reason="needs pillow")


@pytest.fixture
def root(tmp_path):
    """Images of many shapes."""
    sizes = random.Random(0)
    for i in range(12):
        picture(tmp_path / "train" / "ab"[i % 2] / f"{i:02}.png", i, (sizes.randint(5, 40), sizes.randint(5, 40)))
    for i in range(5):
        picture(tmp_path / "val" / "ab"[i % 2] / f"{i}.png", 100 + i, (sizes.randint(5, 40), 16))
    return tmp_path


@pytest.mark.parametrize("size", [7, 16, 45])
def test_parts_are_scaled_as_pillow_scales_them(size):
    numbers = np.random.default_rng(0)
    images = torch.from_numpy(numbers.integers(0, 256, (9, 31, 23, 3), np.uint8))
    parts = [(0, 0, 23, 31), (22, 30, 23, 31), (0, 5, 16, 21), *((i, 2 * i, 23 - i, 31 - i) for i in range(6))]
    found = cut(images, torch.tensor(parts), torch.arange(9) % 2 == 1, size)
    for i, part in enumerate(parts):
        expected = Image.fromarray(images[i].numpy()).crop(part).resize((size, size), Image.Resampling.BILINEAR)
        expected = expected.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if i % 2 else expected
        away = np.abs(found[i].numpy().astype(int) - np.asarray(expected))
        assert away.max() <= 1 and away.mean() < 0.3, part


@pytest.mark.parametrize("augment", [True, False])
def test_they_are_the_images_of_the_folder(root, augment):
    kept, read = (kind(root, 9, 0, augment=augment, train_limit=10) for kind in (InMemory, Folder))
    for seed, number in ((0, 0), (0, 1), (5, 0)):
        for step, rank in ((1, 0), (0, 0), (0, 1)):
            mine, theirs = (source.epoch(seed, number).batch(step, 4, rank, 2) for source in (kept, read))
            assert torch.equal(mine[1], theirs[1])
            torch.testing.assert_close(mine[0], theirs[0], rtol=0, atol=ONE_BYTE if augment else 0)
            assert mine[0].is_contiguous(memory_format=torch.channels_last)
    for part in ("test", "train"):
        mine, theirs = (all_of(source.in_order(part, 4)) for source in (kept, read))
        assert all(torch.equal(a, b) for a, b in zip(mine, theirs, strict=True))
    assert [(s.name, s.classes, s.channels, s.kind, s.steps(4)) for s in (kept,)] == [(root.name, 2, 3, "images", 2)]


@pytest.mark.parametrize("augment", [True, False])
def test_fewer_of_them_are_those_of_the_folder_too(root, augment):
    kinds = (InMemory, Folder)
    wholes = [kind(root, 9, 0, augment=augment) for kind in kinds]
    for whole in wholes:
        whole.epoch(0, 0).batch(0, 4)  # kept, and not another's
    for less, limited in ((whole.first(6), kind(root, 9, 0, augment=augment, train_limit=6, test_limit=6))
                          for whole, kind in zip(wholes, kinds, strict=True)):  # fmt: skip
        mine, theirs = (source.epoch(0, 0).batch(0, 4) for source in (less, limited))
        assert all(torch.equal(a, b) for a, b in zip(mine, theirs, strict=True)) and less.steps(1) == 6
        for part in ("test", "train"):
            mine, theirs = (all_of(source.in_order(part, 4)) for source in (less, limited))
            assert all(torch.equal(a, b) for a, b in zip(mine, theirs, strict=True))
    assert [whole.steps(1) for whole in wholes] == [12, 12]


def test_a_batch_is_made_once_for_all_that_are_at_it(root):
    source = InMemory(root, 9, 0)
    assert source.epoch(0, 0).batch(1, 4)[0] is source.epoch(0, 0).batch(1, 4)[0]


def test_what_does_not_decode_is_named_or_left_out(root):
    file = root / "train" / "a" / "04.png"
    file.write_bytes(file.read_bytes()[:-30])
    with pytest.raises(ValueError, match=r"04\.png: it cannot be read as an image \(.*\): replace it or delete it"):
        InMemory(root, 9, 0)
    source = InMemory(root, 9, 0, bad="skip")
    assert source.steps(1) == 11 and [(one.place, one.kind) for one in source.skipped] == [
        (str(file), "undecodable image")
    ]
    for other in (root / "val").rglob("*.png"):
        other.write_text("no image at all")
    with pytest.raises(ValueError, match=r"none of 5 images can be read: .*val/a/0\.png is the first"):
        InMemory(root, 9, 0, bad="skip")
    (root / "val.txt").write_text("0.png c\n")
    with pytest.raises(ValueError, match=r"val\.txt names no image of a class in .*train: write a file and its class"):
        InMemory(root, 9, 0, bad="skip")


def test_an_image_of_too_many_pixels_is_named(root, monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 10)
    assert fits(root, 9)
    with pytest.raises(ValueError, match=r"00\.png: it cannot be read as an image \(.*decompression bomb"):
        InMemory(root, 9, 0)


def test_only_what_fits_is_kept(root, monkeypatch):
    assert fits(root, 9)
    monkeypatch.setattr(folder, "MEMORY", 17 * 3 * 9 * 9)
    assert not fits(root, 9)  # the cut images alone fit, the whole ones do not
    picture(root / "train" / "a" / "99.png", 99)
    monkeypatch.setattr(folder, "dimensions", None)
    assert not fits(root, 9)  # too many by their number, and none of them is opened
