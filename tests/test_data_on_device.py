"""Batches made on the device: what is done to an image, and what a batch is a function of."""

import numpy as np
import pytest
import torch
from torch import Tensor

from ssgd.lab.data import ImageSet, digit_images
from ssgd.lab.data import batches as batch_arithmetic
from ssgd.lab.data import images as image_sets
from ssgd.lab.data.augment import augmented, mean_and_std, normal_table
from ssgd.lab.data.images import DeviceImages, fake_images


def small(count: int = 70, flip: bool = True) -> ImageSet:
    numbers = torch.Generator().manual_seed(1)
    images = torch.randint(256, (count, 3, 8, 8), generator=numbers, dtype=torch.uint8)
    return ImageSet("small", images, torch.arange(count), images[:11] // 2, torch.arange(11), count, flip, padding=2)


def by_hand(data: ImageSet, images: Tensor) -> Tensor:
    pixels = data.train_images.double().numpy()
    mean, std = pixels.mean((0, 2, 3), keepdims=True), pixels.std((0, 2, 3), keepdims=True)
    return torch.from_numpy(((images.double().numpy() - mean) / std).astype(np.float32))


# --- one image ------------------------------------------------------------------------------------------------------


def test_images_are_moved_flipped_and_padded_with_zeros_after_normalisation() -> None:
    data, moves, flips = small(6), [(0, 0), (2, -1), (-2, 2), (1, 1), (-1, 0), (8, 0)], [0, 0, 0, 1, 1, 0]
    table = normal_table(*mean_and_std(data.train_images)).float()
    chosen = torch.tensor([3, 0, 5, 5, 1, 2])
    x = augmented(
        data.train_images.permute(0, 2, 3, 1), table, chosen, torch.tensor(moves).T, torch.tensor(flips).bool()
    )
    padded = torch.nn.functional.pad(by_hand(data, data.train_images), (8,) * 4)
    for image, which, (down, right), flip in zip(x, chosen, moves, flips, strict=True):
        window = padded[which, :, 8 + down : 16 + down, 8 + right : 16 + right]
        torch.testing.assert_close(image, window.flip(2) if flip else window, rtol=1e-6, atol=1e-6)
        assert torch.equal(image == 0, (window.flip(2) if flip else window) == 0)
    assert not x[-1].any()


def test_mean_and_deviation_are_those_of_the_training_images() -> None:
    data = small()
    mean, std = mean_and_std(data.train_images)
    pixels = data.train_images.double()
    assert mean == pytest.approx(pixels.mean((0, 2, 3)).tolist(), rel=1e-12)
    assert std == pytest.approx(pixels.std((0, 2, 3), correction=0).tolist(), rel=1e-12)
    assert mean_and_std(torch.full((2, 1, 2, 2), 9, dtype=torch.uint8)) == ([9], [1])


# --- a batch --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_batches_are_channels_last_and_normal(dtype: torch.dtype) -> None:
    source = DeviceImages(fake_images(), "cpu", dtype)
    x, y = source.epoch(0, 0).batch(1, 256)
    assert x.shape == (256, 3, 32, 32) and x.dtype == dtype and y.dtype == torch.int64
    assert x.is_contiguous(memory_format=torch.channels_last)
    x, _ = next(source.in_order("train", 512))
    assert x.is_contiguous(memory_format=torch.channels_last) and x.dtype == dtype
    assert x.float().mean().abs() < 1e-3 and abs(x.float().std() - 1) < 1e-3
    assert (source.name, source.classes, source.channels, source.steps(100)) == ("fake", 10, 3, 5)


def test_an_epoch_has_every_image_once_with_its_own_label() -> None:
    data = small(64)
    source = DeviceImages(data, augment=False)
    batches = [source.epoch(5, 2).batch(step, 16) for step in range(4)]
    labels = torch.cat([y for _, y in batches])
    assert labels.sort().values.tolist() == list(range(64)) and labels.tolist() != list(range(64))
    torch.testing.assert_close(torch.cat([x for x, _ in batches]), by_hand(data, data.train_images[labels]))


def test_order_and_augmentation_are_a_function_of_seed_and_epoch() -> None:
    def batch(seed: int, epoch: int) -> Tensor:
        return DeviceImages(small()).epoch(seed, epoch).batch(1, 32)[0]

    before = torch.get_rng_state()
    assert torch.equal(batch(3, 4), batch(3, 4))
    assert not torch.equal(batch(3, 4), batch(3, 5)) and not torch.equal(batch(3, 4), batch(4, 4))
    assert torch.equal(before, torch.get_rng_state())


def test_the_order_is_the_same_with_and_without_augmentation() -> None:
    labels = [DeviceImages(small(), augment=augment).epoch(0, 0).batch(0, 32)[1] for augment in (True, False)]
    assert torch.equal(*labels)


@pytest.mark.parametrize("block", [1, 3, 32])
@pytest.mark.parametrize("ranks", [1, 2, 5])
def test_ranks_blocks_and_where_one_starts_change_nothing(block: int, ranks: int, monkeypatch) -> None:
    plain = [DeviceImages(small()).epoch(0, 1).batch(step, 10) for step in range(7)]
    monkeypatch.setitem(image_sets.BLOCKS, "cpu", block)
    for first in (0, 2, 6):
        epochs = [DeviceImages(small()).epoch(0, 1) for _ in range(ranks)]
        for step in range(first, 7):
            parts = [epoch.batch(step, 10, rank, ranks) for rank, epoch in enumerate(epochs)]
            assert all(len(y) == 10 // ranks for _, y in parts)
            assert torch.equal(torch.cat([x for x, _ in parts]), plain[step][0])
            assert torch.equal(torch.cat([y for _, y in parts]), plain[step][1])


def test_flips_and_moves_cover_what_they_may() -> None:
    """One bright pixel a third of the way in tells where an image went and which way round."""
    images = torch.zeros(400, 1, 8, 8, dtype=torch.uint8)
    images[:, :, 3, 2] = 255
    for flip, columns in ((True, {1, 2, 3, 4, 5, 6}), (False, {1, 2, 3})):
        data = ImageSet("dot", images, torch.zeros(400).long(), images, torch.zeros(400).long(), 1, flip, padding=1)
        x, _ = DeviceImages(data).epoch(0, 0).batch(0, 400)
        places = x.flatten(1).argmax(1)
        assert set((places // 8).tolist()) == {2, 3, 4} and set((places % 8).tolist()) == columns


def test_digits_are_never_flipped() -> None:
    source, data = DeviceImages(digit_images()), digit_images()
    assert not source.epoch(0, 0)._flips.any() and DeviceImages(small()).epoch(0, 0)._flips.any()
    assert source.epoch(0, 0)._moves.unique().tolist() == [-1, 0, 1] and data.padding == 1


# --- all images -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ranks", [1, 3])
def test_evaluation_sees_every_image_once_and_untouched(ranks: int) -> None:
    data = small()
    source = DeviceImages(data)
    for part, images in (("test", data.test_images), ("train", data.train_images)):
        parts = [pair for rank in range(ranks) for pair in source.in_order(part, 4, rank, ranks)]
        assert torch.cat([y for _, y in parts]).tolist() == list(range(len(images)))
        torch.testing.assert_close(torch.cat([x for x, _ in parts]), by_hand(data, images), rtol=1e-6, atol=1e-6)


# --- side by side ---------------------------------------------------------------------------------------------------


def test_trainings_with_one_seed_share_their_images() -> None:
    source = DeviceImages(small())
    one, other = source.epoch(0, 0), source.epoch(0, 0)
    assert one.batch(0, 8)[0].data_ptr() == other.batch(0, 8)[0].data_ptr()
    assert source.epoch(0, 1) is not one


def test_few_epochs_are_kept() -> None:
    source = DeviceImages(small())
    first = source.epoch(0, 0)
    for seed in range(1, batch_arithmetic.KEPT):
        source.epoch(seed, 0)
    assert source.epoch(0, 0) is first
    source.epoch(99, 0)
    assert len(source._epochs) == batch_arithmetic.KEPT and source.epoch(0, 0) is first


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_cuda_makes_the_same_bits(dtype: torch.dtype) -> None:
    here, there = (DeviceImages(fake_images(), device, dtype) for device in ("cpu", "cuda"))
    for step in range(here.steps(12)):
        x, y = there.epoch(0, 0).batch(step, 12, 1, 2)
        assert x.is_contiguous(memory_format=torch.channels_last)
        assert all(torch.equal(a.cpu(), b) for a, b in zip((x, y), here.epoch(0, 0).batch(step, 12, 1, 2), strict=True))
