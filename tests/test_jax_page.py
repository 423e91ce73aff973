"""ssgd.jax's page and example run."""

import re
import runpy
from pathlib import Path

import pytest

from .jax_problems import jnp

pytestmark = pytest.mark.usefixtures("quick_compilation")
ROOT = Path(__file__).parent.parent


def test_the_page_runs_from_top_to_bottom():
    space = {}
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "jax.md").read_text(), re.DOTALL)
    for block in blocks:
        exec(compile(block, "docs/jax.md", "exec"), space)
    assert len(blocks) == 7 and space["excess"].shape == () and jnp.isfinite(space["value"].loss)


def test_the_example_learns():
    train = runpy.run_path(str(ROOT / "examples" / "jax_digits.py"))["last_test_accuracy"]
    assert train("split", 0.3, epochs=6) > 50
