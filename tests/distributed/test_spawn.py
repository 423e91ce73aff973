"""The helper of this folder: what happens in a process is seen here."""

import time

import pytest
import torch.distributed as dist

from .spawn import Ranks


def test_a_failure_is_raised_with_its_traceback_and_the_next_call_works(ranks: Ranks) -> None:
    with pytest.raises(AssertionError, match=r"(?s)rank 1 of 2: Traceback.*in fail_on_rank_1.*ValueError: only here"):
        ranks(2, fail_on_rank_1)
    assert ranks(2, rank_and_count) == [(0, 2), (1, 2)]
    assert ranks(1, rank_and_count) == [(0, 1)]


def fail_on_rank_1(rank: int) -> None:
    if rank == 1:
        raise ValueError("only here")
    dist.barrier()  # the other rank waits in vain


def rank_and_count(rank: int) -> tuple[int, int]:
    assert rank == dist.get_rank()
    return rank, dist.get_world_size()


def test_a_process_that_does_not_answer_is_given_up(ranks: Ranks) -> None:
    ranks(1, rank_and_count)
    with pytest.raises(AssertionError, match="rank 0 of 1: no answer within 1 s"):
        ranks(1, sleep, timeout=1.0)


def sleep(rank: int) -> None:
    time.sleep(60)
