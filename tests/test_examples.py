"""Every file of examples/ is short, is listed, and runs once, shortened: here, or in the tests of its package."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
ELSEWHERE = {
    "jax_digits.py": "test_jax_page.py",
    "lightning_cifar.py": "test_lightning.py",
    "own_data.py": "test_data_own.py",
    "own_method.py": "test_data_own.py",
    "own_model.py": "test_data_own.py",
    "transformers_text.py": "test_transformers.py",
}
ACCURACY = r"(\d+\.\d\d) % of the test digits"


def printed(*command):
    for _ in range(2):
        found = subprocess.run([sys.executable, *map(str, command)], capture_output=True, text=True)
        if "terminate called without an active exception" not in found.stderr:  # gloo, now and then, as it is torn down
            break
    assert found.returncode == 0, found.stderr
    return found.stdout


def figures(name, options, pattern):
    return [float(figure) for figure in re.findall(pattern, printed(ROOT / "examples" / name, *options))]


def test_plain_loop():
    (accuracy,) = figures("plain_loop.py", ["--epochs", "2"], ACCURACY)
    assert accuracy > 70


def test_one_pass():
    options = ["--epochs", "2", "--repeated", "--batch-norm", "batch"]
    (accuracy,) = figures("one_pass.py", options, ACCURACY)
    assert accuracy > 60


def test_amp_accumulation_and_ddp_give_about_the_same_alone_and_on_two_ranks():
    example = ROOT / "examples" / "amp_accumulation_ddp.py"
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    for command, ranks in (([], 1), (torchrun, 2)):
        shown = printed(*command, example, "--epochs", "1")
        (accuracy,) = re.findall(rf"{ACCURACY}, {ranks} of", shown)
        assert float(accuracy) > 40


def test_large_batch():
    accuracies = figures("large_batch.py", ["--epochs", "4"], ACCURACY)
    assert len(set(accuracies)) == 3 and min(accuracies) > 40


def test_lstm():
    (perplexity,) = figures("lstm.py", ["--epochs", "4"], r"perplexity (\d+\.\d\d) of 30 words")
    assert 3 < perplexity < 20


def test_transformer_text():
    losses = figures("transformer_text.py", ["--steps", "8"], r"(\d\.\d\d\d) nats a letter")
    assert len(set(losses)) == 2 and max(losses) < 4  # 128 letters: 4.85 by chance


def test_every_example_is_run_by_a_test():
    for example in EXAMPLES:
        file = ROOT / "tests" / ELSEWHERE.get(example.name, "test_examples.py")
        assert f'"{example.name}"' in file.read_text(), example.name


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_examples_are_short_take_options_and_are_listed(example):
    assert len(example.read_text().splitlines()) < 60
    if not example.name.startswith("own_"):  # a module for the commands, and no program
        assert re.search(r'add_argument\("--(epochs|steps)"', example.read_text())
    assert f"[{example.name}]({example.name})" in (ROOT / "examples" / "README.md").read_text()
