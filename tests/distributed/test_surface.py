"""A grid shared out among processes ends as with one."""

import socket
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist

from ssgd.analysis import Plane, Surface, Task, evaluate
from ssgd.analysis.results import read_journal

from ..surface_problems import TRAIN, assert_same, files, loss, net, solution, tasks
from .spawn import Ranks

POINTS = 3 + 16


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """As many threads as the ranks have: the bits of a sum depend on them."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def plane() -> Plane:
    return Plane(*map(solution, range(3)), net())


@pytest.fixture(scope="module")
def alone(plane: Plane, tmp_path_factory: pytest.TempPathFactory) -> tuple[Surface, Path]:
    out = tmp_path_factory.mktemp("alone") / "plane"
    return evaluate(plane, tasks(net(9)), plane.grid(4), out=out, progress=False), out


class Failing:
    """The training set, until it is gone through once too often."""

    def __init__(self, after: int | None) -> None:
        self.after, self.passes = after, 0

    def __iter__(self) -> Any:
        self.passes += 1
        if self.passes == self.after:
            raise RuntimeError("this device is gone")
        return iter(TRAIN)


def shared(rank: int, plane: Plane, out: Path, fails: int | None = None) -> tuple[Surface | str, int]:
    """The result, or why there is none, and how often this rank went through the training set: twice a point."""
    data = Failing(fails if rank == 1 else None)
    both = tasks(net(9))
    try:
        both["train"] = replace(both["train"], batches=data)
        return evaluate(plane, both, plane.grid(4), out=out, progress=False), data.passes
    except RuntimeError as problem:
        return str(problem), data.passes


@pytest.mark.parametrize("count", [2, 3])
def test_any_number_of_processes_gives_the_same_files(
    ranks: Ranks, plane: Plane, alone: tuple[Surface, Path], tmp_path: Path, count: int
) -> None:
    answers = ranks(count, shared, plane, tmp_path / "plane")
    for surface, _ in answers:
        assert_same(surface, alone[0])
    assert [passes for _, passes in answers] == [2 * len(range(rank, POINTS, count)) for rank in range(count)]
    assert files(tmp_path / "plane") == files(alone[1])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["plane.json", "plane.jsonl", "plane.npz"]


def test_what_some_processes_did_before_one_failed_is_taken_up_by_another_number(
    ranks: Ranks, plane: Plane, alone: tuple[Surface, Path], tmp_path: Path
) -> None:
    out, start = tmp_path / "plane", time.monotonic()
    (first, _), (second, _) = ranks(2, shared, plane, out, 9)  # four points on the second rank, and no fifth
    assert second == "this device is gone" and isinstance(first, str) and time.monotonic() - start < 60
    assert len(read_journal(out)[1]) == 10 + 4
    data = Failing(None)
    both = tasks(net(9))
    both["train"] = replace(both["train"], batches=data)
    assert_same(evaluate(plane, both, plane.grid(4), out=out, progress=False), alone[0])
    assert data.passes == 2 * (POINTS - 14) and files(out) == files(alone[1])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["plane.json", "plane.jsonl", "plane.npz"]


def test_without_a_file_every_process_has_the_whole_result(ranks: Ranks, plane: Plane) -> None:
    first, second = ranks(2, without_a_file, plane)
    assert_same(first, second)
    assert np.isfinite(first.losses).all()


def without_a_file(rank: int, plane: Plane) -> Surface:
    return evaluate(plane, {"train": Task(net(9), loss, TRAIN)}, plane.grid(2), progress=False)


def test_processes_of_torchrun_find_each_other(
    ranks: Ranks, plane: Plane, alone: tuple[Surface, Path], tmp_path: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    for surface, passes in ranks(2, by_environment, plane, tmp_path, port):
        assert_same(surface, alone[0])
        assert passes < 2 * POINTS
    assert files(tmp_path / "plane") == files(alone[1])


def by_environment(rank: int, plane: Plane, folder: Path, port: int) -> Any:
    """In a process that knows of the others by its environment alone, and joins no group itself."""
    dist.barrier()
    dist.destroy_process_group()
    with pytest.MonkeyPatch.context() as patch:
        place = {"RANK": rank, "WORLD_SIZE": 2, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        for name, value in place.items():
            patch.setenv(name, str(value))
        answer = shared(rank, plane, folder / "plane")
    assert not dist.is_initialized()
    dist.init_process_group("gloo", store=dist.FileStore(str(folder / "store"), 2), rank=rank, world_size=2)
    return answer
