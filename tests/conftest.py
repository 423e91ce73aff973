"""Fixtures that several files share; what they need is imported when they are asked for."""

import pytest


@pytest.fixture
def quiet(tmp_path):
    """Trainings on the CPU, into a folder of the test's own."""
    from ssgd.lab.train import Execution

    return Execution(out=str(tmp_path / "runs"), device="cpu", progress=False)


@pytest.fixture(scope="module")
def plane():
    """The plane through three solutions of the surfaces' net."""
    from ssgd.analysis import Plane

    from .surface_problems import net, solution

    return Plane(*map(solution, range(3)), net(), names=("SGD", "S-SGD", "SAM"))


@pytest.fixture
def quick_compilation():
    import jax

    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)


@pytest.fixture
def usual_compilation(quick_compilation):
    import jax

    jax.config.update("jax_disable_most_optimizations", False)


@pytest.fixture
def double_precision():
    import jax

    jax.config.update("jax_enable_x64", True)
    yield
    jax.config.update("jax_enable_x64", False)
