"""Folders of image files: how they are cut, streamed, and refused."""

import gc
import multiprocessing
import os
import random
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from ssgd.lab.data import Options, load
from ssgd.lab.data.folder import MEAN, STD, image_folder, opened, random_crop, read
from ssgd.lab.data.map_style import Stream

Image = pytest.importorskip("PIL.Image", reason="needs pillow")


def picture(path: Path, number: int, size: tuple[int, int] = (20, 16)) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = random.Random(number).randbytes(size[0] * size[1] * 3)
    Image.frombytes("RGB", size, pixels).save(path)


@pytest.fixture
def root(tmp_path) -> Path:
    """12 training and 5 test images of two classes; which file it is can be told from its pixels alone."""
    for i in range(12):
        picture(tmp_path / "train" / "ab"[i % 2] / f"{i:02}.png", i)
    for i in range(5):
        picture(tmp_path / "val" / "ab"[i % 2] / f"{i}.png", 100 + i)
    return tmp_path


def source_of(root, size=224, workers=None, in_memory=False, **options):
    return image_folder(root, Options(image_size=size, workers=workers, **options), in_memory)


def all_of(pairs) -> tuple[Tensor, Tensor]:
    images, labels = zip(*pairs, strict=True)
    return torch.cat(images), torch.cat(labels)


# --- one image ------------------------------------------------------------------------------------------------------


def test_test_images_are_scaled_and_cut_in_the_centre(tmp_path) -> None:
    Image.linear_gradient("L").resize((512, 256)).save(tmp_path / "wide.png")
    whole = Image.open(tmp_path / "wide.png").convert("RGB")
    expected = whole.resize((128, 64), Image.Resampling.BILINEAR).crop((36, 4, 92, 60))  # 56 of 64 is 224 of 256
    assert read(str(tmp_path / "wide.png"), 56, None).tobytes() == expected.tobytes()


def test_crops_keep_to_area_and_shape() -> None:
    areas, ratios, lefts = [], [], set()
    for seed in range(2000):
        left, top, right, bottom = random_crop(100, 80, random.Random(seed))
        assert 0 <= left < right <= 100 and 0 <= top < bottom <= 80
        areas.append((right - left) * (bottom - top) / 8000)
        ratios.append((right - left) / (bottom - top))
        lefts.add(left)
    assert 0.07 < min(areas) < 0.1 and 0.95 < max(areas) <= 1  # whole pixels, so not to the last digit
    assert 0.7 < min(ratios) < 0.8 and 1.25 < max(ratios) < 1.4
    assert len(lefts) > 50 and random_crop(100, 80, random.Random(1)) == random_crop(100, 80, random.Random(1))


def test_of_a_long_image_the_middle_is_taken() -> None:
    assert random_crop(900, 9, random.Random(0)) == (444, 0, 456, 9)
    assert random_crop(9, 900, random.Random(0)) == (0, 444, 9, 456)


def test_half_of_the_images_are_flipped(tmp_path) -> None:
    Image.linear_gradient("L").rotate(90).save(tmp_path / "sideways.png")  # darker to one side
    sides = [read(str(tmp_path / "sideways.png"), 8, seed)[:, :, 0].astype(int) for seed in range(200)]
    assert 70 < sum(side[0, 0] < side[0, -1] for side in sides) < 130


# --- batches --------------------------------------------------------------------------------------------------------


def test_images_are_normalised_as_imagenets(tmp_path) -> None:
    for part in ("train", "val"):
        (tmp_path / part / "grey").mkdir(parents=True)
        Image.new("L", (30, 20), 77).save(tmp_path / part / "grey" / "one.JPEG")
    source = source_of(tmp_path, 8, workers=0, dtype=torch.bfloat16)
    expected = (77 / 255 - torch.tensor(MEAN)) / torch.tensor(STD)
    for x, y in (source.epoch(0, 0).batch(0, 1), *source.in_order("test"), *source.in_order("train")):
        assert x.shape == (1, 3, 8, 8) and x.dtype == torch.bfloat16 and y.tolist() == [0]
        assert x.is_contiguous(memory_format=torch.channels_last)
        torch.testing.assert_close(x[0, :, 3, 3].float(), expected, rtol=1e-2, atol=0)


@pytest.mark.parametrize("workers", [0, 2])
def test_ranks_workers_and_where_one_starts_change_nothing(root, workers: int) -> None:
    epoch = source_of(root, 8, workers=0).epoch(3, 1)
    plain = [epoch.batch(step, 4) for step in range(3)]
    labels = torch.cat([y for _, y in plain])
    assert sorted(labels.tolist()) == [0] * 6 + [1] * 6 and labels.tolist() != sorted(labels.tolist())
    before = torch.get_rng_state()
    ranks = [source_of(root, 8, workers).epoch(3, 1) for _ in range(2)]
    for step in (1, 2, 0, 1):  # on, and back again
        x, y = all_of(epoch.batch(step, 4, rank, 2) for rank, epoch in enumerate(ranks))
        assert torch.equal(x, plain[step][0]) and torch.equal(y, plain[step][1])
    assert torch.equal(before, torch.get_rng_state())


def test_images_are_not_enlarged_without_a_word(root) -> None:
    with pytest.warns(UserWarning, match=r"have at most 20 × 20 pixels and are enlarged to 21 × 21: image_size=20"):
        source_of(root, 21, workers=0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        source_of(root, 20, workers=0)
        picture(root / "train" / "a" / "large.png", 1, (21, 9))
        source_of(root, 21, workers=0)


def test_each_epoch_and_seed_has_its_own_crops_and_order(root) -> None:
    source = source_of(root, 8, workers=0)
    first = source.epoch(0, 0).batch(0, 12)[0]
    assert not torch.equal(first, source.epoch(0, 1).batch(0, 12)[0])
    assert not torch.equal(first, source.epoch(1, 0).batch(0, 12)[0])
    assert torch.equal(first, source.epoch(0, 0).batch(0, 12)[0])


def test_each_place_in_an_epoch_has_its_own_crop(root) -> None:
    for file in (root / "train").rglob("*.png"):
        picture(file, number=0)
    x, _ = source_of(root, 8, workers=0).epoch(0, 0).batch(0, 12)
    assert len(x.flatten(1).unique(dim=0)) == 12


def test_without_augmentation_an_epoch_is_the_clean_images_shuffled(root) -> None:
    source = source_of(root, 8, workers=0, augment=False)
    clean, (x, _) = all_of(source.in_order("train", 5))[0].flatten(1), source.epoch(0, 0).batch(0, 12)
    places = torch.cdist(x.flatten(1), clean).argmin(1)
    assert sorted(places.tolist()) == list(range(12)) != places.tolist()
    assert torch.equal(clean[places], x.flatten(1))


@pytest.mark.parametrize("ranks", [1, 2])
def test_evaluation_sees_every_image_once(root, ranks: int) -> None:
    source = source_of(root, 8, workers=0)
    x, y = all_of(pair for rank in range(ranks) for pair in source.in_order("test", 2, rank, ranks))
    assert y.tolist() == [0, 0, 0, 1, 1] and len(x.flatten(1).unique(dim=0)) == 5
    x, y = all_of(pair for rank in range(ranks) for pair in source.in_order("train", 5, rank, ranks))
    assert y.tolist() == [0] * 6 + [1] * 6 and len(x.flatten(1).unique(dim=0)) == 12
    assert (source.classes, source.channels, source.steps(5), source.name) == (2, 3, 2, root.name)


def test_batches_in_turn_are_one_stream(root, monkeypatch) -> None:
    starts, start = [], Stream._start
    monkeypatch.setattr(Stream, "_start", lambda self, requests: starts.append(1) or start(self, requests))
    source = source_of(root, 8, workers=0)
    for step in range(4):
        assert torch.equal(source.epoch(0, 0).batch(step, 3)[0], source.epoch(0, 0).batch(step, 3)[0])
    assert len(starts) == 1
    source.epoch(0, 1).batch(0, 3)
    assert len(starts) == 2


def test_workers_end_with_their_folder(root) -> None:
    """Without waiting for the garbage collector, which would cost torch 5 s for each of them."""
    others = set(multiprocessing.active_children())  # of tests before this one
    gc.disable()
    try:
        source = source_of(root, 8, workers=2)
        assert len(list(source.in_order("test", 2))) == 3 and set(multiprocessing.active_children()) == others
        source.epoch(0, 0).batch(0, 4)
        source.epoch(0, 1).batch(0, 4)
        assert len(set(multiprocessing.active_children()) - others) == 2
        del source
        assert set(multiprocessing.active_children()) == others
    finally:
        gc.enable()


# --- which files ----------------------------------------------------------------------------------------------------


def test_limits_are_spread_over_the_classes(root) -> None:
    source = source_of(root, 8, workers=0, train_limit=4, test_limit=2)
    assert all_of(source.in_order("train"))[1].tolist() == [0, 0, 1, 1]
    assert all_of(source.in_order("test"))[1].tolist() == [0, 0] and source.steps(4) == 1
    assert source_of(root, 8, train_limit=100).steps(1) == 12
    with pytest.raises(ValueError, match="at least 1 sample, not 0"):
        source_of(root, 8, test_limit=0)


def test_held_out_images_come_from_the_training_part(root) -> None:
    everything = all_of(source_of(root, 8, workers=0).in_order("train"))[0].flatten(1)
    source = source_of(root, 8, workers=0, held_out=5)
    kept, held = (all_of(source.in_order(part))[0].flatten(1) for part in ("train", "test"))
    assert (len(kept), len(held)) == (7, 5)
    assert torch.equal(torch.cat([kept, held]).unique(dim=0), everything.unique(dim=0))


def test_test_may_stand_for_val_and_files_may_lie_deeper(root) -> None:
    (root / "val").rename(root / "test")
    picture(root / "train" / "a" / "deep" / "er.PNG", 50)
    (root / "train" / "a" / "._00.png").write_text("what a Mac leaves")
    (root / "train" / "a" / "notes.txt").write_text("not an image")
    (root / "train" / ".hidden").mkdir()
    picture(root / "train" / "a" / ".checkpoints" / "00.png", 51)
    picture(root / "elsewhere" / "51.png", 52)
    (root / "train" / "a" / "more").symlink_to(root / "elsewhere")
    (root / "train" / "a" / "round").symlink_to(root / "train" / "a")
    (root / "train" / "a" / "up").symlink_to(root / "train")
    source = source_of(root, 8, workers=0)
    assert source.classes == 2 and len(all_of(source.in_order("train"))[1]) == 14
    assert len(all_of(source.in_order("test"))[1]) == 5


def test_a_folder_that_may_not_be_read_is_named(root, monkeypatch) -> None:
    picture(root / "train" / "a" / "deep" / "er.png", 50)

    def scandir(path, real=os.scandir):
        if Path(path).name == "deep":
            raise PermissionError(13, "Permission denied", str(path))
        return real(path)

    monkeypatch.setattr(os, "scandir", scandir)
    with pytest.raises(PermissionError, match=r"train/a/deep"):
        source_of(root, 8, workers=0)


def test_grey_of_16_bits_keeps_its_shades_and_what_has_no_range_is_named(root) -> None:
    shades = np.linspace(0, 2**16 - 1, 320).astype(np.uint16).reshape(16, 20)
    Image.fromarray(shades).save(root / "16.png")
    torch.testing.assert_close(np.asarray(opened(str(root / "16.png")))[:, :, 0], (shades >> 8).astype(np.uint8))
    Image.fromarray(shades.astype(np.float32)).save(root / "train" / "a" / "float.tif")
    source = source_of(root, 8, workers=0, bad="skip")
    assert ["float.tif" in one.place for one in source.skipped] == [True]


def test_lists_beside_the_images_do_not_make_a_text_of_them(root) -> None:
    for part in ("train", "valid", "test"):
        (root / f"{part}.txt").write_text("a/0.png a\n")
    assert load(str(root), device="cpu", dtype=torch.float32).kind == "images"


def test_classes_called_by_numbers_may_be_counted(tmp_path) -> None:
    for name in "123":
        picture(tmp_path / "train" / name / "0.png", int(name))
        picture(tmp_path / "val" / f"{name}.png", int(name))
    for rows, labels in (("1 0", "2 1", "3 2"), [0, 1, 2]), (("1 1", "2 2", "3 3"), [0, 1, 2]):
        (tmp_path / "val.txt").write_text("\n".join(f"{row[0]}.png {row[2]}" for row in rows))
        assert all_of(source_of(tmp_path, 8, workers=0).in_order("test"))[1].tolist() == labels


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("content", [b"", b"no image at all", None])
def test_a_damaged_image_is_named(root, workers: int, content: bytes) -> None:
    file = root / "train" / "a" / "04.png"
    whole = file.read_bytes()
    file.write_bytes(whole[:-200] if content is None else content)
    source = source_of(root, 8, workers)
    says = r"^\S*train/a/04\.png cannot be read as an image \(.*\): replace it, or use bad='skip' to do without it$"
    epoch = source.epoch(0, 0)
    bad = epoch._order.tolist().index(2)  # 04.png is the third file
    for step in range(bad):
        epoch.batch(step, 1)
    for _ in range(2):
        with pytest.raises(ValueError, match=says):
            epoch.batch(bad, 1)
    file.write_bytes(whole)
    assert torch.equal(epoch.batch(bad, 1)[0], source_of(root, 8, workers=0).epoch(0, 0).batch(bad, 1)[0])


def test_a_file_may_tell_the_classes_of_the_test_images(root) -> None:
    by_folder = all_of(source_of(root, 8, workers=0).in_order("test"))
    flat = root / "val"
    for file in sorted(flat.rglob("*.png")):
        file.rename(flat / file.name)
    for name in "ab":
        (flat / name).rmdir()
    rows = [
        "0.png 0",
        "2.png a",
        "4.png a 0 0 62 62",
        "1.png 1",
        "3.png b",
    ]  # a number, a name, and Tiny ImageNet's box
    (root / "val.txt").write_text("\n".join(rows))
    found = all_of(source_of(root, 8, workers=0).in_order("test"))
    assert all(torch.equal(a, b) for a, b in zip(by_folder, found, strict=True))

    (flat / "images").mkdir()
    for file in flat.glob("*.png"):
        file.rename(flat / "images" / file.name)
    (root / "val.txt").rename(flat / "val_annotations.txt")
    assert torch.equal(all_of(source_of(root, 8, workers=0).in_order("test"))[0], by_folder[0])
    (flat / "val_annotations.txt").write_text("\n".join([*rows[:3], "1.png c", ""]))
    with pytest.raises(
        ValueError, match=r"val_annotations\.txt:4: '1\.png c' is not a file and its class: write one of"
    ):
        source_of(root, 8)
    source = source_of(root, 8, workers=0, bad="skip")
    assert len(all_of(source.in_order("test"))[1]) == 3 and [one.kind for one in source.skipped] == ["broken row"]
    (flat / "val_annotations.txt").write_text("1.png c\n2.png d\n")
    with pytest.raises(ValueError, match=r"val_annotations\.txt names no image of a class in .*train: write a file"):
        source_of(root, 8, workers=0, bad="skip")


@pytest.mark.parametrize("bad", ["raise", "skip"])
def test_a_label_file_is_in_utf8(root, bad: str) -> None:
    (root / "val.txt").write_bytes(b"\xef\xbb\xbfa/0.png a\n")  # with a byte-order mark
    assert len(all_of(source_of(root, 8, workers=0, bad=bad).in_order("test"))[1]) == 1
    (root / "val.txt").write_bytes(b"a/0.png a\n\xff\xfe")
    with pytest.raises(ValueError, match=r"val\.txt:2 is not text in UTF-8: convert the file"):
        source_of(root, 8, workers=0, bad=bad)


def test_images_that_do_not_decode_can_be_left_out(root) -> None:
    file = root / "train" / "a" / "04.png"
    file.write_bytes(file.read_bytes()[:-200])
    (root / "val" / "b" / "1.png").write_text("no image at all")
    source = source_of(root, 8, workers=0, bad="skip")
    assert (source.steps(1), len(all_of(source.in_order("test"))[1])) == (11, 4)
    assert [(one.place, one.kind) for one in source.skipped] == [
        (str(file), "undecodable image"),
        (str(root / "val" / "b" / "1.png"), "undecodable image"),
    ]
    assert len(all_of(source.in_order("train"))[1]) == 11
    for other in (root / "val").rglob("*.png"):
        other.write_text("no image at all")
    with pytest.raises(ValueError, match=r"none of 5 images can be read: .*val/a/0\.png is the first"):
        source_of(root, 8, workers=0, bad="skip")


def test_folders_of_another_shape_are_refused(root) -> None:
    with pytest.raises(FileNotFoundError, match=r"train is not there: an image folder has train/<class>"):
        source_of(root / "val")
    (root / "train" / "c").mkdir()
    with pytest.raises(ValueError, match=r"train/c has no images in it: fill it, or delete it"):
        source_of(root)
    picture(root / "train" / "c" / "0.png", 0)
    with pytest.raises(ValueError, match=r"train and .*val must have the same classes; only one of them has c$"):
        source_of(root)
    (root / "val").rename(root / "valid")
    with pytest.raises(FileNotFoundError, match="has neither val/ nor test/"):
        source_of(root)
    (root / "val").mkdir()
    with pytest.raises(ValueError, match="val has no folders in it"):
        source_of(root)


def test_a_missing_pillow_is_named(root, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(ImportError, match="reading image files needs pillow: pip install 'ssgd"):
        source_of(root)
