"""Commands that use what was trained: a language model writes, a speech model listens."""

import json
import re

import pytest

from ssgd.cli.compare import variants
from ssgd.cli.main import main
from ssgd.lab.experiments import get

from .speech_files import sound, write_wav

QUICK = ["phases=1", "device=cpu", "progress=false"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A language model and a speech model, hardly trained."""
    folder = tmp_path_factory.mktemp("runs")
    for i in range(4):
        write_wav(folder / "data" / f"{i}.wav", sound(0.6, seed=i))
    rows = "\n".join(json.dumps({"audio": f"{i}.wav", "text": "yes", "speaker": str(i)}) for i in range(4))
    for part in ("train", "test"):
        (folder / "data" / f"{part}.jsonl").write_text(rows)
    assert main(["train", "words", "name=words", *QUICK, "lr=1", f"out={folder}"]) == 0
    assert (
        main(
            [
                "train",
                "utterances",
                "name=utterances",
                *QUICK,
                f"data={folder}/data",
                "batch=2",
                "lr=0.01",
                f"out={folder}",
            ]
        )
        == 0
    )
    return folder


def said(capsys, *words):
    assert main([str(word) for word in words]) == 0
    return capsys.readouterr().out


def test_a_language_model_writes(runs, capsys):
    run = runs / "words" / "seed-0"
    first = said(capsys, "sample", run, "--words", "w2 w3", "--length", 12)
    assert first.startswith("w2 w3") and 2 <= len(first.split()) <= 14  # ends of sentences are lines
    assert all(re.fullmatch(r"w\d+|<unk>", word) for word in first.split())
    assert first == said(capsys, "sample", run / "weights.safetensors", "--words", "w2 w3", "--length", 12)
    assert first != said(capsys, "sample", run, "--words", "w2 w3", "--length", 12, "--seed", 1)
    assert main(["sample", str(run), "--words", "w2 zebra"]) == 2
    assert "'zebra' is not in the vocabulary" in capsys.readouterr().err
    assert main(["sample", str(run), "--seed", str(10**20)]) == 2
    assert "seed must be a whole number from 0 to" in capsys.readouterr().err


def test_a_text_that_has_changed_is_not_trained_on(tmp_path, capsys):
    data, run = tmp_path / "data", tmp_path / "words" / "seed-0"
    data.mkdir()

    def write(*words):
        for part in ("train", "valid", "test"):
            (data / f"my.{part}.txt").write_text(f"{' '.join(words)}\n" * 30)

    write("a", "b", "c")
    training = ["train", "words", "name=words", *QUICK, "lr=1", "batch=2", f"data={data}", f"out={tmp_path}"]
    assert main(training) == 0
    capsys.readouterr()
    written = said(capsys, "sample", run)
    for words in (("a", "c", "b"), ("a", "b", "c", "d")):
        write(*words)
        assert said(capsys, "sample", run) == written  # by the vocabulary that the run keeps
    (run / "result.json").unlink()
    assert main(training) != 0 and f"the files of {data}, by their names and sizes, changed" in capsys.readouterr().err


@pytest.mark.parametrize("beam", [[], ["--beam", 2]])
def test_a_speech_model_listens(runs, capsys, beam):
    run, files = runs / "utterances" / "seed-0", [runs / "data" / f"{i}.wav" for i in (0, 1)]
    lines = said(capsys, "transcribe", run, *files, *beam).splitlines()
    assert [line.partition(": ")[0] for line in lines] == [str(file) for file in files]
    assert f"{files[0]}: {said(capsys, 'transcribe', run, files[0], *beam)}".strip() == lines[0].strip()
    assert main(["transcribe", str(run), str(runs / "nothing.wav")]) == 2
    assert "nothing.wav is not there" in capsys.readouterr().err


def test_made_up_speech_is_not_in_files(tmp_path, capsys):
    assert main(["train", "utterances", "name=utterances", *QUICK, "lr=0.01", "train_limit=24", f"out={tmp_path}"]) == 0
    assert main(["transcribe", str(tmp_path / "utterances" / "seed-0"), "a.wav"]) == 2
    assert "fake-speech is made up from texts and hears no files" in capsys.readouterr().err


def test_models_of_another_kind_are_refused(runs, capsys):
    assert main(["sample", str(runs / "utterances" / "seed-0")]) == 2
    assert "learned from recordings, not from words" in capsys.readouterr().err
    assert main(["transcribe", str(runs / "words" / "seed-0"), "a.wav"]) == 2
    assert "learned from words, not from recordings" in capsys.readouterr().err


def test_variants_stay_below_the_recipe_s_name():
    found = variants(get("digits"), ["data=../mine,/their/own", "method=base,split:0.15"])
    ends = [f"{data}/{method}" for data in ("data-..-mine", "data--their-own") for method in ("base", "split-0.15")]
    assert [recipe.name for recipe in found] == [f"digits/{end}" for end in ends]


def test_the_details_of_a_method_are_set_flush(capsys):
    shown = said(capsys, "methods", "split")
    assert "\n1 pass a step, built by SSGD\n" in shown
    assert "\nEach step averages the gradients" in shown
