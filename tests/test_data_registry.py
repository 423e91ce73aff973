"""Data sets by name."""

import pytest
import torch

from ssgd.lab.data import NAMES, Source, load
from ssgd.lab.data.images import DeviceImages, fake_images
from ssgd.lab.data.registry import SPEECH, TEXTS


def count(batches) -> int:
    return sum(len(y) for _, y in batches)


def loaded(name: str, **options) -> Source:
    return load(name, device="cpu", dtype=torch.float32, **options)


@pytest.mark.parametrize(("name", "sizes", "channels"), [("digits", (1000, 797), 1), ("fake", (512, 128), 3)])
def test_sets_without_files(name: str, sizes: tuple[int, int], channels: int) -> None:
    source = loaded(name)
    assert (count(source.in_order("train")), count(source.in_order("test"))) == sizes
    assert (source.name, source.classes, source.channels) == (name, 10, channels)


def test_names_with_files_are_read_from_the_folder(monkeypatch, tmp_path) -> None:
    asked = []
    for reader in ("cifar", "mnist"):
        monkeypatch.setattr(
            f"ssgd.lab.data.{reader}.{reader}",
            lambda *args, reader=reader: asked.append((reader, *args)) or fake_images(),
        )
    monkeypatch.setenv("SSGD_DATA", str(tmp_path))
    for name in sorted(set(NAMES) - {"digits", "fake", *TEXTS, *SPEECH}):
        assert isinstance(loaded(name, download=False), DeviceImages)
    assert asked == [
        ("cifar", "cifar10", tmp_path, False),
        ("cifar", "cifar100", tmp_path, False),
        ("mnist", "fashion-mnist", tmp_path, False),
        ("mnist", "mnist", tmp_path, False),
    ]
    load("mnist", tmp_path / "there", device="cpu", dtype=torch.float32)
    assert asked[-1] == ("mnist", "mnist", tmp_path / "there", True)


def test_a_path_is_a_folder_of_images(tmp_path) -> None:
    image = pytest.importorskip("PIL.Image", reason="needs pillow")
    for part, classes in (("train", "aabbb"), ("val", "ab")):
        for i, name in enumerate(classes):
            (tmp_path / part / name).mkdir(parents=True, exist_ok=True)
            image.new("RGB", (9, 9), (i, 0, 0)).save(tmp_path / part / name / f"{i}.png")
    source = loaded(str(tmp_path), workers=0, image_size=8, held_out=2, train_limit=2, augment=False)
    assert (source.classes, count(source.in_order("test")), count(source.in_order("train"))) == (2, 2, 2)
    assert source.epoch(0, 0).batch(0, 2)[0].shape == (2, 3, 8, 8)


def test_held_out_images_are_drawn_before_limits() -> None:
    held = [
        torch.cat([x for x, _ in loaded("fake", held_out=64, **o).in_order("test")]) for o in ({}, {"test_limit": 9})
    ]
    assert len(held[0]) == 64 and torch.equal(held[0][:9], held[1])
    source = loaded("fake", held_out=64, train_limit=100)
    assert (count(source.in_order("train")), count(source.in_order("test"))) == (100, 64)


def test_augmentation_can_be_left_out() -> None:
    zeros = [(loaded("fake", augment=augment).epoch(0, 0).batch(0, 512)[0] == 0).sum() for augment in (True, False)]
    assert zeros[0] > 100_000 > 1000 > zeros[1]  # what moves into an image is zero


def test_an_unknown_name_lists_the_known() -> None:
    with pytest.raises(
        ValueError,
        match=r"no data set called 'cifar': use cifar10, .*fake, .* the path of a folder .* there is no folder /.*/cif",
    ):
        loaded("cifar")
