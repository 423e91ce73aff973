"""CUDA graphs are captured without the garbage collector; tests/test_cuda_train.py does it in earnest."""

import gc
from contextlib import contextmanager

import pytest
import torch

from ssgd.analysis.acceleration import captured_in


@pytest.fixture
def asked(monkeypatch):
    """In place of torch's capture, which needs a GPU: what it was asked for."""
    found = []

    @contextmanager
    def capture(*given, **named):
        found.append((*given, named["stream"], named["capture_error_mode"]))
        yield

    monkeypatch.setattr(torch.cuda, "graph", capture)
    return found


def test_no_garbage_is_collected_meanwhile(asked):
    with captured_in("graph", "stream", "pool"):
        assert not gc.isenabled()
    assert gc.isenabled() and asked == [("graph", "pool", "stream", "thread_local")]


def test_it_is_collected_again_after_an_error(asked):
    with pytest.raises(RuntimeError, match="out"), captured_in("graph", "stream"):
        raise RuntimeError("out")
    assert gc.isenabled()


def test_who_collects_none_goes_on_so(asked):
    gc.disable()
    try:
        with captured_in("graph", "stream"):
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
