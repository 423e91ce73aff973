"""Where the processes of one start meet, out of sight of those of an earlier one."""

from __future__ import annotations

import secrets
import time
from typing import Any

import torch.distributed as dist


def fresh_part(store: Any, rank: int, count: int) -> Any:
    """A part of torch's ``store`` that no process started earlier has written to, the same on all ranks.

    ``torchrun`` keeps one store over all restarts, and torch would find in it the addresses of processes that are gone
    (pytorch issue 135712). So rank 0 hands a new name to whoever asks, until each rank has said that it got it.
    """
    own = secrets.token_hex(8)
    if rank:
        store.set(f"asks {rank}", own)
        name = store.get(f"for {own}").decode()
        store.set(f"{name} has {rank}", "")
        return dist.PrefixStore(name, store)  # type: ignore[attr-defined]
    missing, end = set(range(1, count)), time.monotonic() + store.timeout.total_seconds()
    while missing:
        if time.monotonic() > end:
            raise TimeoutError(
                f"{len(missing)} of {count} processes did not come: see why, and start all of them again"
            )
        for other in missing:
            if store.check([f"asks {other}"]):  # perhaps one that is gone: the next look finds who took its place
                store.set(f"for {store.get(f'asks {other}').decode()}", own)
        missing = {other for other in missing if not store.check([f"{own} has {other}"])}
        time.sleep(0.01)
    return dist.PrefixStore(own, store)  # type: ignore[attr-defined]
