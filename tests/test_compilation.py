"""torch's compilers are started while there is other work to do."""

import pytest
import torch

from ssgd.recipes import get
from ssgd.train import execution
from ssgd.train.compilation import start_compilers
from ssgd.train.execution import Execution, set_up


@pytest.mark.parametrize(
    ("names", "kind", "compile", "started"),
    [
        (["cifar100"], "cuda", None, 1),
        (["words", "cifar100"], "cuda", True, 1),
        (["cifar100"], "cuda", False, 0),
        (["words", "utterances"], "cuda", None, 0),
        (["cifar100"], "cpu", None, 0),
    ],
)
def test_compilers_are_started_where_something_will_be_compiled(names, kind, compile, started, monkeypatch):
    calls = []
    monkeypatch.setattr(execution, "start_compilers", lambda: calls.append(1))
    monkeypatch.setattr(Execution, "kind", kind)
    first, *others = map(get, names)
    set_up(first, Execution(compile=compile), *others)
    assert len(calls) == started
    monkeypatch.setenv("WORLD_SIZE", "4")  # where nothing is compiled unless asked for
    set_up(first, Execution(compile=compile), *others)
    assert len(calls) == started + (compile is True)


@pytest.fixture(autouse=True)
def same_switches():
    """Those that set_up sets for the whole process."""
    cudnn, matmul = torch.backends.cudnn, torch.backends.cuda.matmul
    before = matmul.allow_tf32, cudnn.allow_tf32, cudnn.benchmark
    yield
    matmul.allow_tf32, cudnn.allow_tf32, cudnn.benchmark = before


def test_compilers_are_there_soon_after(monkeypatch):
    from torch._inductor import config
    from torch._inductor.async_compile import AsyncCompile, shutdown_compile_workers

    monkeypatch.setattr(config, "compile_threads", 2)
    try:
        start_compilers()
        assert AsyncCompile._ready_future is not None  # asked for
        AsyncCompile._ready_future.result(timeout=120)
        assert AsyncCompile.use_process_pool()
    finally:
        shutdown_compile_workers()
