"""Damages shared out among processes end as with one."""

from pathlib import Path

import numpy as np
import torch

from ssgd.analysis import Task, Tolerance, tolerance

from ..surface_problems import TEST, TRAIN, files, loss, net, wrong
from .spawn import Ranks


def measured(rank: int, out: Path) -> Tolerance:
    torch.manual_seed(rank)  # chance is the seed's of the damage alone
    task = Task(net(9), loss, TEST, wrong=wrong, as_trained=TRAIN)
    return tolerance(task, ["noise", "channel-bits"], draws=2, out=out, progress=False)


def test_any_number_of_processes_gives_the_same_files(ranks: Ranks, tmp_path: Path) -> None:
    alone = measured(0, tmp_path / "alone")
    for found in ranks(2, measured, tmp_path / "shared"):
        np.testing.assert_array_equal(found.losses, alone.losses)
    assert files(tmp_path / "shared") == files(tmp_path / "alone")
