"""Runs a function in gloo processes, which stay alive from one test to the next: starting torch is what costs."""

from __future__ import annotations

import pickle
import tempfile
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing

TIMEOUT = 120.0  # seconds a function may take, start of the processes included
GRACE = 2.0  # seconds the other ranks get to report when one has failed


class Ranks:
    """``ranks(2, function, *arguments)`` calls ``function(rank, *arguments)`` in two processes of a fresh gloo group.

    Returns what they returned, in the order of ranks. A failure in one of them is raised here, with its traceback, and
    ends all processes: the next call starts new ones.
    """

    def __init__(self) -> None:
        self._processes: list[tuple[Any, Connection]] = []

    def __call__(
        self, count: int, function: Callable[..., Any], *arguments: Any, timeout: float = TIMEOUT
    ) -> list[Any]:
        while len(self._processes) < count:
            self._processes.append(_start())
        connections = [connection for _, connection in self._processes[:count]]
        with tempfile.TemporaryDirectory() as folder:
            for rank, connection in enumerate(connections):
                store = str(Path(folder) / "store")
                connection.send_bytes(pickle.dumps((rank, count, store, timeout, function, arguments)))
            answers, failures = _collect(connections, timeout)
        if failures:
            self.close()
            raise AssertionError(
                "\n".join(f"rank {rank} of {count}: {text}" for rank, text in sorted(failures.items()))
            )
        return [answers[rank] for rank in range(count)]

    def close(self) -> None:
        """End the processes."""
        for process, connection in self._processes:
            connection.close()
            process.kill()
            process.join()
        self._processes = []


def _start() -> tuple[Any, Connection]:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(theirs,), daemon=True)
    process.start()
    theirs.close()
    return process, ours


def _collect(connections: list[Connection], timeout: float) -> tuple[dict[int, Any], dict[int, str]]:
    """The answers and the failures, by rank."""
    answers: dict[int, Any] = {}
    failures: dict[int, str] = {}
    waiting = {connection: rank for rank, connection in enumerate(connections)}
    end = time.monotonic() + timeout
    while waiting:
        ready = wait(list(waiting), max(0.0, end - time.monotonic()))
        if not ready:
            break
        for connection in ready:
            rank = waiting.pop(connection)  # type: ignore[index]
            try:
                good, answer = pickle.loads(connection.recv_bytes())  # type: ignore[union-attr]
            except EOFError:
                good, answer = False, "the process died"
            (answers if good else failures)[rank] = answer
        if failures:
            end = min(end, time.monotonic() + GRACE)
    if waiting and not failures:
        failures |= dict.fromkeys(waiting.values(), f"no answer within {timeout:.0f} s")
    return answers, failures


def _serve(connection: Connection) -> None:
    """What each process does: answer one call after the other."""
    torch.set_num_threads(1)
    while True:
        try:
            call = connection.recv_bytes()
        except EOFError:
            return
        try:
            answer = True, _answer(*pickle.loads(call))
        except BaseException:
            answer = False, traceback.format_exc()
        connection.send_bytes(pickle.dumps(answer))


def _answer(
    rank: int, count: int, store: str, timeout: float, function: Callable[..., Any], arguments: tuple[Any, ...]
) -> Any:
    dist.init_process_group(
        "gloo",
        store=dist.FileStore(store, count),
        rank=rank,
        world_size=count,
        timeout=timedelta(seconds=timeout),
    )
    try:
        torch.manual_seed(0)
        answer = function(rank, *arguments)
        dist.barrier()
        return answer
    finally:
        dist.destroy_process_group()
