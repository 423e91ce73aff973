"""The demo, at its smallest."""

import builtins
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from ssgd import demo

SMALL = ["--seeds", "1", "--epochs", "2", "--train-images", "40"]


def test_table_json_and_picture(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    picture, raw = tmp_path / "demo.png", tmp_path / "demo.json"
    before = torch.get_rng_state()
    demo.main([*SMALL, "--out", str(picture), "--json", str(raw)])

    printed = capsys.readouterr().out
    record = json.loads(raw.read_text())
    assert torch.equal(before, torch.get_rng_state())
    for file in (picture, tmp_path / "demo-line.png", tmp_path / "demo-spectra.png"):
        assert file.read_bytes().startswith(b"\x89PNG")
    assert printed.count("the Hessian's largest eigenvalue is") == 2
    assert record["environment"]["torch"] == torch.__version__
    for method in demo.METHODS:
        (run,) = record["runs"][method.name]
        assert [epoch for epoch, _ in run["curve"]] == list(range(1, 2 * method.epochs + 1))
        assert run["test"] == run["curve"][-1][1]
        (line,) = [line for line in printed.splitlines() if line.startswith(f"{method.name}  ")]
        assert f"{run['test']:.2f}" in line


def test_table_without_matplotlib_and_tqdm(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    plain_import = builtins.__import__

    def without(name: str, *rest: Any) -> Any:
        if name.partition(".")[0] in ("matplotlib", "tqdm"):
            raise ImportError(name)
        return plain_import(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    demo.main([*SMALL, "--out", str(tmp_path / "demo.png")])

    printed = capsys.readouterr()
    assert "S-SGD split" in printed.out
    assert "No picture" in printed.err and "No progress bar" in printed.err
    assert not (tmp_path / "demo.png").exists()


def test_methods_share_data_and_initialisation() -> None:
    options = demo.parse([*SMALL, "--noise", "0"])
    sgd, _, both, split = (demo.train(method, 0, options)[0] for method in demo.METHODS)
    assert sgd.curve == both.curve == split.curve  # without noise all three are SGD


def test_processes_change_nothing() -> None:
    small = ["--seeds", "2", "--epochs", "1", "--train-images", "40"]
    alone, together = (list(demo.trained(demo.parse([*small, "--processes", count]))) for count in "12")
    assert len(alone) == 2 * len(demo.METHODS)
    for (method, run, model), (same_method, same_run, same_model) in zip(alone, together, strict=True):
        assert same_method == method and (same_run.seed, same_run.curve) == (run.seed, run.curve)
        weights = same_model.state_dict()
        assert all(torch.equal(value, weights[name]) for name, value in model.state_dict().items())


@pytest.mark.parametrize("wrong", [["--processes", "0"], ["--seeds", "0"], ["--epochs", "0"], ["--train-images", "19"]])
def test_wrong_options_are_refused(wrong: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        demo.main(wrong)
    assert wrong[0] in capsys.readouterr().err
