"""Which samples a batch and a rank take."""

import pytest

from ssgd.lab.data.batches import generator, in_order, part_of_batch, whole_batches


def test_the_ranks_share_each_batch_and_the_batches_share_the_epoch() -> None:
    taken = [
        place
        for step in range(whole_batches(50, 12))
        for rank in range(3)
        for place in range(50)[part_of_batch(50, step, 12, rank, 3)]
    ]
    assert taken == list(range(48))


@pytest.mark.parametrize(("samples", "ranks"), [(50, 1), (50, 3), (2, 4)])
def test_in_order_every_sample_is_in_one_share(samples: int, ranks: int) -> None:
    shares = [[list(range(samples)[part]) for part in in_order(samples, 8, rank, ranks)] for rank in range(ranks)]
    assert [i for share in shares for part in share for i in part] == list(range(samples))
    assert all(1 <= len(part) <= 8 for share in shares for part in share)
    sizes = [sum(map(len, share)) for share in shares]
    assert max(sizes) - min(sizes) <= 1


def test_what_cannot_be_is_a_sentence() -> None:
    with pytest.raises(ValueError, match="a batch of 64 cannot be filled from 50 training samples"):
        whole_batches(50, 64)
    with pytest.raises(ValueError, match="at least 1 sample, not 0"):
        whole_batches(50, 0)
    with pytest.raises(ValueError, match="at least 1 sample, not 0"):
        in_order(50, 0, 0, 1)
    with pytest.raises(ValueError, match="a batch of 10 cannot be divided evenly among 4 ranks"):
        part_of_batch(50, 0, 10, 0, 4)
    with pytest.raises(ValueError, match="step 5 is not in this epoch: it has the steps 0 to 4"):
        part_of_batch(50, 5, 10, 0, 1)
    with pytest.raises(ValueError, match="rank 2 of 2 does not exist"):
        part_of_batch(50, 0, 10, 2, 2)


def test_neighbouring_epochs_and_seeds_share_no_numbers() -> None:
    seeds = {generator(seed, epoch).initial_seed() for seed in range(20) for epoch in range(20)}
    assert len(seeds) == 400
