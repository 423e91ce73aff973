"""The demo, at its smallest."""

import builtins
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from ssgd import demo

SMALL = ["--seeds", "1", "--epochs", "2", "--train-images", "40"]


@pytest.fixture(autouse=True)
def small_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "DAMAGED_SETTING", replace(demo.DAMAGED_SETTING, train_images=100, epochs=1))


def test_tables_and_picture(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    picture = tmp_path / "demo.png"
    before = torch.get_rng_state()
    runs, tolerances = demo.main([*SMALL, "--out", str(picture)])

    printed = capsys.readouterr().out
    assert torch.equal(before, torch.get_rng_state())
    assert picture.read_bytes().startswith(b"\x89PNG")
    for method in demo.METHODS:
        (run,) = runs[method]
        assert [epoch for epoch, _ in run.curve] == list(range(1, 2 * method.epochs + 1))
        assert run.test == run.curve[-1][1]
        assert f"{run.test:.2f}" in lines_of(method, printed)[0]
    assert "0.7, as it is  0.7, recalibrated" in printed
    for method in demo.DAMAGED:
        figures = tolerances[method][0].figures()
        found = figures["none"]["0"], figures["noise"]["0.4"], figures["noise"]["0.7"]
        shown = [f"{100 - error:.1f}" for columns in found for error in columns["error"]]
        assert lines_of(method, printed)[-1].removeprefix(method.name).split() == [str(method.passes), *shown]


def lines_of(method: demo.Method, printed: str) -> list[str]:
    return [line for line in printed.splitlines() if line.startswith(f"{method.name}  ")]


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
    setting = demo.Setting(train_images=40, epochs=2, noise=0)
    methods = [method for method in {*demo.METHODS, *demo.DAMAGED} if method.epochs == 1]
    first, *others = (demo.train(method, 0, setting)[0].curve for method in methods)
    assert len(others) == 4 and all(curve == first for curve in others)  # without noise all of them are SGD


def test_processes_change_nothing() -> None:
    todo = demo.jobs(demo.parse(["--seeds", "1", "--epochs", "1", "--train-images", "40"]))
    assert len(todo) == len(demo.METHODS) + len(demo.DAMAGED)
    for (job, result), (same_job, same) in zip(demo.done(todo, 1), demo.done(todo, 2), strict=True):
        assert job == same_job
        if job[0] is demo.damage:
            assert same.digest == result.digest and same.figures() == result.figures()
        else:
            (run, model), (same_run, same_model) = result, same
            assert (same_run.seed, same_run.curve) == (run.seed, run.curve)
            weights = same_model.state_dict()
            assert all(torch.equal(value, weights[name]) for name, value in model.state_dict().items())


@pytest.mark.parametrize("wrong", [["--processes", "0"], ["--seeds", "0"], ["--epochs", "0"], ["--train-images", "19"]])
def test_wrong_options_are_refused(wrong: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        demo.main(wrong)
    assert wrong[0] in capsys.readouterr().err
