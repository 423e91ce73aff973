"""What changed behind a run's back is told: its net, its data, its folder; nothing of another training is reported."""

import json
import os
import shutil
import sys
from dataclasses import replace

import pytest
import torch

import ssgd.lab
from ssgd.cli.main import main
from ssgd.lab.data import digit_images
from ssgd.lab.experiments import get
from ssgd.lab.train import Execution, RunDir, train
from ssgd.lab.train.distributed import Ranks
from ssgd.lab.train.job import Job, Sources
from ssgd.lab.train.rundir import of_model

from .small_trainings import folder, small, source, trained
from .test_data_folder import picture

MODULE = """
from torch import nn

def build(classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, classes))
"""


@pytest.fixture
def net(tmp_path, monkeypatch):
    """Writes the module of a user's model, and forgets what was imported from it."""
    monkeypatch.syspath_prepend(tmp_path)

    def write(text=MODULE):
        sys.modules.pop("mine", None)
        shutil.rmtree(tmp_path / "__pycache__", ignore_errors=True)
        (tmp_path / "mine.py").write_text(text)

    write()
    yield write
    sys.modules.pop("mine", None)


@pytest.mark.parametrize("finished", [True, False])
def test_a_model_that_has_changed_is_neither_reported_nor_trained_on(net, quiet, finished):
    recipe = small(model="mine:build")
    before = train(recipe, quiet)
    assert train(recipe, quiet) == before
    if not finished:
        (folder(quiet) / "result.json").unlink()
    net(MODULE.replace("ReLU", "Tanh"))
    for look in (lambda: train(recipe, quiet), lambda: ssgd.lab.load(folder(quiet))):
        with pytest.raises(
            ValueError, match=r"the source of mine:build, .* changed since .*seed-0 was begun: bring it"
        ):
            look()


def test_weights_that_begin_otherwise_are_noticed_also_where_no_source_tells(net, quiet, monkeypatch):
    recipe = small(model="mine:build")
    train(recipe, quiet)
    monkeypatch.setattr("ssgd.lab.train.rundir._sources", lambda *_: ())
    file = folder(quiet) / "fingerprint.json"
    known = json.loads(file.read_text())
    del known["source"]
    net(MODULE.replace("8", "9"))
    file.write_text(json.dumps({**known, "source": of_model(recipe, 10, 1)["source"]}))
    with pytest.raises(ValueError, match="the shape or the initialisation of mine:build changed since"):
        train(recipe, quiet)


@pytest.mark.parametrize("finished", [True, False])
def test_data_whose_files_have_changed_are_noticed(tmp_path, quiet, finished):
    data = tmp_path / "text"
    data.mkdir()
    for part in ("train", "valid", "test"):
        (data / f"my.{part}.txt").write_text("a b c\n" * 30)
    recipe = replace(get("words"), phases="1", lr=(1.0,), batch=2, data=str(data))
    train(recipe, quiet)
    run = RunDir(quiet.run_folder(recipe, 0))
    if not finished:
        (run.path / "result.json").unlink()
    (data / "my.test.txt").write_text("a b c\n" * 40)
    with pytest.raises(ValueError, match=r"the files of .*, by their names and sizes, changed since .* was begun"):
        train(recipe, quiet)
    (data / "my.test.txt").write_text("a b c\n" * 30)
    assert train(recipe, quiet)


@pytest.mark.parametrize("change", ["another class", "other images of a class", "another net"])
def test_a_comparison_on_ones_own_images_is_not_repeated_from_before_a_change(net, tmp_path, capsys, change):
    net(MODULE.replace("64", "192"))
    for part in ("train", "val"):
        for i in range(8):
            picture(tmp_path / "mine" / part / f"class{i % 2}" / f"{i}.png", i, (8, 8))
    words = ["compare", "--model", "mine:build", "--data", str(tmp_path / "mine"), "--out", str(tmp_path / "runs")]
    words += ["--device", "cpu", "--image-size", "8", "--phases", "1", "--batch", "4", "--seeds", "0", "--workers", "0"]
    assert main(words) == 0 == main(words)
    if change == "another class":
        picture(tmp_path / "mine" / "train" / "class2" / "9.png", 9, (8, 8))
        picture(tmp_path / "mine" / "val" / "class2" / "9.png", 9, (8, 8))
    elif change == "other images of a class":
        for i in (0, 2, 4, 6):
            picture(tmp_path / "mine" / "train" / "class0" / f"{i}.png", 50 + i, (9, 9))
    else:
        net(MODULE.replace("64", "192").replace("ReLU", "Tanh"))
    capsys.readouterr()
    assert main(words) == 1
    told = capsys.readouterr()
    assert "changed since" in told.err and "choose another --out, or delete the folder" in told.err
    assert "base" not in told.out  # no table


def test_a_run_s_net_comes_back_without_its_data(quiet):
    recipe = small()
    train(recipe, quiet)
    net, preprocess = ssgd.lab.load(folder(quiet))
    images = digit_images()
    x, _ = next(source(recipe).in_order("test", 100))
    assert torch.equal(preprocess(images.test_images[:100]), x)
    assert not net.training and net(x).shape == (100, 10)
    with pytest.raises(ValueError, match=r"takes bytes of 1 channels, .* not torch.float32"):
        preprocess(x)
    with pytest.raises(ValueError, match="learned from images in bytes, not from files"):
        preprocess(["one.png"])
    state = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    newest = max((folder(quiet) / "checkpoints").iterdir())
    for path in (folder(quiet) / "weights.safetensors", newest):
        again = ssgd.lab.load(path)[0].state_dict()
        assert all(torch.equal(tensor, again[name]) for name, tensor in state.items())


# --- a folder that was deleted ----------------------------------------------------------------------------------------


@pytest.mark.skipif(sys.platform == "win32", reason="needs flock")
def test_a_run_whose_folder_was_deleted_writes_nothing_into_that_of_another(quiet, tmp_path):
    first, second = small(lr=(0.1,)), small(lr=(0.01,))
    job = Job(first, 0, quiet, Ranks(), print)
    job.begin(Sources(quiet))
    job.advance()
    shutil.rmtree(folder(quiet))
    other = Job(second, 0, quiet, Ranks(), print)
    other.begin(Sources(quiet))
    other.advance()
    other.close()
    with pytest.raises(ValueError, match="seed-0 was deleted or replaced while"):
        while not job.over:
            job.advance()
    job.close()
    alone = replace(quiet, out=str(tmp_path / "alone"))
    assert trained(second, quiet) == trained(second, alone)
    assert RunDir(folder(quiet)).result()["recipe"]["lr"] == [0.01]


def test_a_result_of_another_recipe_is_not_reported(quiet):
    train(small(), quiet)
    file = folder(quiet) / "result.json"
    row = json.loads(file.read_text())
    row["recipe"]["lr"] = [0.5]
    file.write_text(json.dumps(row))
    with pytest.raises(ValueError, match=r"seed-0 has the result\.json of another recipe: delete the folder"):
        train(small(), quiet)


# --- damaged and forged files -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("forged", [[1], {"format": 2}, {"format": 2, "epoch": 99, "step": 0, "history": []}])
def test_a_forged_checkpoint_ends_with_a_sentence(quiet, forged):
    recipe = small()
    train(recipe, quiet)
    run = RunDir(folder(quiet))
    (run.path / "result.json").unlink()
    run.checkpoints.save(999, forged)
    with pytest.raises(ValueError, match=r"is no checkpoint of ssgd|the checkpoint does not fit the run"):
        train(recipe, quiet)
    with pytest.raises(ValueError, match=r"is no checkpoint of ssgd|holds no weights of a model"):
        ssgd.lab.load(run.path / "checkpoints" / "step-00000999.pt")


def test_a_checkpoint_of_another_format_is_refused(quiet):
    train(small(), quiet)
    run = RunDir(folder(quiet))
    (run.path / "result.json").unlink()
    position, state = run.checkpoints.load()
    run.checkpoints.save(position + 1, {**state, "format": 1})
    with pytest.raises(ValueError, match="the checkpoint is of format 1, and this ssgd reads format 2: go on with the"):
        train(small(), quiet)


def test_a_name_flipped_in_the_weights_ends_with_a_sentence(quiet, capsys):
    train(small(), quiet)
    file = folder(quiet) / "weights.safetensors"
    file.write_bytes(file.read_bytes().replace(b'"head.weight"', b'"head.wEight"'))
    assert main(["sharpness", str(folder(quiet)), "--device", "cpu", "--limit", "20"]) == 2
    assert "seed-0 do not fit small-cnn: " in capsys.readouterr().err


@pytest.mark.parametrize("name", ["recipe.json", "result.json", "fingerprint.json", "weights.safetensors"])
def test_deep_json_in_a_run_s_folder_ends_with_a_sentence(quiet, name, capsys):
    train(small(), quiet)
    deep = b"[" * 100_000
    if name == "weights.safetensors":
        deep = len(deep).to_bytes(8, "little") + deep
    (folder(quiet) / name).write_bytes(deep)
    with pytest.raises(ValueError, match=r"is not JSON: repair it|is damaged, or no safetensors file"):
        train(small(), quiet) if name.endswith(".json") else ssgd.lab.load(folder(quiet))


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_a_results_file_without_end_is_not_read(quiet):
    with pytest.raises(OSError, match="there is no space left for /dev/full"):
        train(small(phases="1"), replace(quiet, results="/dev/full"))


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"workers": -1}, "workers must be a whole number of at least 0, not -1"),
        ({"checkpoint_seconds": float("nan")}, "checkpoint_seconds must be a finite number of at least 0, not nan"),
        ({"at_once": 0}, "at_once must be a whole number of at least 1, not 0"),
        ({"keep": 1.5}, "keep must be a whole number, not 1.5"),
        ({"device": "tpu"}, "device must be one of 'auto', 'cpu', 'cuda', not 'tpu'"),
    ],
)
def test_an_execution_that_cannot_be_is_refused(values, sentence):
    with pytest.raises(ValueError, match=sentence):
        Execution(**values)


def test_a_name_that_reads_back_as_a_number_is_refused():
    with pytest.raises(ValueError, match="name=nan would be read back as a number"):
        small(name="nan")
