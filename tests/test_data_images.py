"""Sets of images: their parts, cut short and held out."""

import pytest
import torch

from ssgd.lab.data import ImageSet, Options, digit_images, digits
from ssgd.lab.data.images import DeviceImages, fake_images


def numbered(train: int = 10, test: int = 4) -> ImageSet:
    """Every pixel of an image says which one it is; test images go on from 100."""
    images = torch.arange(train + test, dtype=torch.uint8)
    images[train:] += 100 - train
    pixels = images[:, None, None, None].expand(-1, 2, 4, 4).contiguous()
    labels = images.long() % 3
    return ImageSet("numbered", pixels[:train], labels[:train], pixels[train:], labels[train:], 3)


def which(images: torch.Tensor) -> list[int]:
    return images[:, 0, 0, 0].tolist()


def test_limits_take_the_first() -> None:
    def labels(part: str, **limits: int) -> list[int]:
        source = DeviceImages.of(numbered(), Options(**limits))
        assert source.channels == 2 and source.name == "numbered"
        return torch.cat([y for _, y in source.in_order(part)]).tolist()

    assert labels("train", train_limit=3) == [0, 1, 2] and labels("test", test_limit=2) == labels("test")[:2]
    assert len(labels("train", test_limit=1)) == 10 == len(labels("train", train_limit=99))
    with pytest.raises(ValueError, match="test_limit must be at least 1 sample, not 0"):
        labels("test", test_limit=0)


def test_held_out_images_come_from_the_training_part_alone() -> None:
    data = numbered().held_out(4)
    assert sorted(which(data.train_images) + which(data.test_images)) == list(range(10))
    assert which(data.train_images) == sorted(which(data.train_images))
    assert which(data.test_images) == sorted(which(data.test_images))
    assert len(data.test_labels) == 4 and data.test_labels.tolist() == [i % 3 for i in which(data.test_images)]
    assert data.train_labels.tolist() == [i % 3 for i in which(data.train_images)]
    assert which(numbered().held_out(4).test_images) == which(data.test_images)
    assert which(numbered().held_out(4, seed=1).test_images) != which(data.test_images)


@pytest.mark.parametrize("count", [0, 10, -1])
def test_no_part_is_left_empty(count: int) -> None:
    with pytest.raises(ValueError, match=f"between 1 and 9 of the 10 training images, not {count}"):
        numbered().held_out(count)


def test_digits_as_bytes_are_the_digits() -> None:
    data, split = digit_images(200, seed=3), digits(200, seed=3)
    assert data.train_images.dtype == torch.uint8 and data.train_images.shape == (200, 1, 8, 8)
    assert torch.equal(data.train_images / 16, split.train_images) and torch.equal(data.test_labels, split.test_labels)
    assert (len(digit_images().train_labels), data.classes, data.flip, data.padding) == (1000, 10, False, 1)


def test_fake_images_can_be_learned() -> None:
    """Nearest class mean, far above the 10 % of chance."""
    data = fake_images()
    assert data.train_images.shape == (512, 3, 32, 32) and data.test_images.shape == (128, 3, 32, 32)
    train, test = data.train_images.float().flatten(1), data.test_images.float().flatten(1)
    means = torch.stack([train[data.train_labels == label].mean(0) for label in range(data.classes)])
    assert (torch.cdist(test, means).argmin(1) == data.test_labels).float().mean() > 0.9
    assert torch.equal(fake_images().train_images, data.train_images)
