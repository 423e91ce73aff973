"""The experiments run from start to result, on made-up data."""

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent


def test_side_by_side_appends_a_row_a_run(tmp_path):
    out = tmp_path / "rows.jsonl"
    out.write_text('{"earlier": true}\n')
    command = [sys.executable, "experiments/cifar_side_by_side.py", "--methods", "sgd", "split:0.15", "--epochs", "1"]
    subprocess.run([*command, "--out", str(out)], cwd=ROOT, check=True, capture_output=True, timeout=300)
    earlier, sgd, split = map(json.loads, out.read_text().splitlines())
    assert earlier == {"earlier": True}
    assert (sgd["method"], split["method"], split["level"], split["passes"]) == ("sgd", "split", 0.15, 1)
    assert 0 <= split["test_accuracy"] <= 100 and split["epochs"] == 1
