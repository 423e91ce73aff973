"""The digits that come with the package, and how they are split."""

import pytest
import torch

from ssgd.lab.data import ImageSet, digits


def everything(split: ImageSet) -> torch.Tensor:
    """One row an image, its label in the last column."""
    images = torch.cat([split.train_images, split.test_images]).flatten(1)
    labels = torch.cat([split.train_labels, split.test_labels])
    return torch.cat([images, labels[:, None]], dim=1)


def test_counts_shapes_and_range() -> None:
    split = digits(train=100, seed=0)
    assert split.train_images.shape == (100, 1, 8, 8)
    assert split.test_images.shape == (1697, 1, 8, 8)
    assert split.train_labels.shape == (100,) and split.train_labels.dtype == torch.int64
    assert (split.train_images.min(), split.train_images.max()) == (0, 1)
    counts = torch.cat([split.train_labels, split.test_labels]).bincount()
    assert counts.tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]  # as scikit-learn documents them


def test_parts_are_disjoint() -> None:
    # All 1,797 images differ, so an image in both parts would leave fewer distinct rows.
    assert len(everything(digits(train=100, seed=0)).unique(dim=0)) == 1797


def test_every_split_holds_the_same_images() -> None:
    one, other = (everything(digits(train, seed)).unique(dim=0) for train, seed in [(100, 0), (200, 1)])
    assert torch.equal(one, other)


def test_seed_decides() -> None:
    first, again, other = digits(50, seed=3), digits(50, seed=3), digits(50, seed=4)
    assert torch.equal(everything(first), everything(again))
    assert not torch.equal(first.train_images, other.train_images)


def test_global_random_stream_is_untouched() -> None:
    before = torch.get_rng_state()
    digits(train=100, seed=0)
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize("train", [-1, 0, 1797, 5000])
def test_a_part_without_images_is_refused(train: int) -> None:
    with pytest.raises(ValueError, match=r"between 1 and 1796.*got"):
        digits(train=train, seed=0)
