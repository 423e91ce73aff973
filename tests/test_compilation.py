"""torch's compilers are started while there is other work to do, and are not needed."""

import pytest
import torch

from ssgd.lab.compilation import allow_many_compilations, compiled_for, start_compilers
from ssgd.lab.experiments import get
from ssgd.lab.train import engine, train
from ssgd.lab.train.engine import set_up
from ssgd.lab.train.recipe import Execution
from ssgd.lab.versions import recompile_limit


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
    monkeypatch.setattr(engine, "start_compilers", lambda: calls.append(1))
    monkeypatch.setattr(Execution, "kind", kind)
    first, *others = map(get, names)
    set_up(first, Execution(compile=compile), *others)
    assert len(calls) == started
    monkeypatch.setenv("WORLD_SIZE", "4")  # where nothing is compiled unless asked for
    set_up(first, Execution(compile=compile), *others)
    assert len(calls) == started + (compile is True)


def test_more_than_eight_shapes_of_a_function_are_compiled():
    from torch._dynamo.testing import CompileCounter

    torch._dynamo.reset()
    allow_many_compilations()
    counter = CompileCounter()
    function = torch.compile(lambda x: x + 1, dynamic=False, backend=counter)
    for size in range(2, 14):
        function(torch.zeros(size))
    assert counter.frame_count == 12


@pytest.fixture(autouse=True)
def same_switches():
    """Those that set_up sets for the whole process."""
    from torch._dynamo import config

    compilations = getattr(config, recompile_limit())
    cudnn, matmul = torch.backends.cudnn, torch.backends.cuda.matmul
    before = matmul.allow_tf32, cudnn.allow_tf32, cudnn.benchmark
    yield
    matmul.allow_tf32, cudnn.allow_tf32, cudnn.benchmark = before
    setattr(config, recompile_limit(), compilations)


def test_compilers_are_there_soon_after():
    from torch._inductor import config
    from torch._inductor.async_compile import AsyncCompile, shutdown_compile_workers

    if not hasattr(AsyncCompile, "_ready_future"):
        pytest.skip("this torch does not tell when its compilers are there")
    try:
        with config.patch(compile_threads=2):
            start_compilers()
            assert AsyncCompile._ready_future is not None  # asked for
            AsyncCompile._ready_future.result(timeout=120)
            assert AsyncCompile.use_process_pool()
    finally:
        shutdown_compile_workers()


@pytest.fixture
def no_compiler():
    from torch._inductor import config

    torch._dynamo.reset()
    with config.patch({"cpp.cxx": (None, "/nonexistent/g++"), "force_disable_caches": True}):
        yield
    torch._dynamo.reset()


def test_without_a_compiler_a_function_is_called_as_it_is(no_compiler, recwarn):
    def function(x):
        return (2 * x + 1).sin()

    compiled, x = compiled_for(torch.device("cpu"), function), torch.randn(64)
    assert torch.equal(compiled(x), function(x)) and torch.equal(compiled(x), function(x))
    (warning,) = [one for one in recwarn if "torch.compile does not work here" in str(one.message)]  # once
    assert "No working C++ compiler" in str(warning.message)


def test_a_functions_own_error_is_its_own(recwarn):
    def function(x):
        return x @ torch.ones(3)

    with pytest.raises(RuntimeError, match="size"):
        compiled_for(torch.device("cpu"), function)(torch.ones(2, 2))
    assert not [one for one in recwarn if "torch.compile does not work here" in str(one.message)]


def test_a_training_goes_on_without_a_compiler(no_compiler, tmp_path):
    recipe = get("digits").with_changes(["phases=1", "lr=0.1", "train_limit=100", "test_limit=50"])
    (plain,) = train(recipe, Execution(out=str(tmp_path / "plain"), device="cpu", compile=False))
    with pytest.warns(UserWarning, match="torch.compile does not work here"):
        (found,) = train(recipe, Execution(out=str(tmp_path / "compiled"), device="cpu", compile=True))
    assert found["test_loss"] == plain["test_loss"]
