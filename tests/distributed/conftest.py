"""The processes that the tests of this folder share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
import torch.distributed as dist

if TYPE_CHECKING:
    from .spawn import Ranks


def pytest_pycollect_makemodule() -> None:
    """Before a test file imports what this torch may lack."""
    if not dist.is_available() or not dist.is_gloo_available():
        pytest.skip("this torch was built without torch.distributed or gloo")


@pytest.fixture(scope="session")
def ranks() -> Iterator[Ranks]:
    """``ranks(2, function, *arguments)`` runs ``function(rank, *arguments)`` in two gloo processes."""
    from .spawn import Ranks

    processes = Ranks()
    yield processes
    processes.close()
