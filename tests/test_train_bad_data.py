"""Data that cannot all be used: what a training says of it, counts and keeps; and how recipes choose."""

import json
import os
import re
from contextlib import redirect_stderr
from dataclasses import replace
from io import StringIO

import pytest
import torch

from ssgd.lab.experiments import get
from ssgd.lab.train import Execution, Recipe, train
from ssgd.lab.train.job import Sources

from .speech_files import sound, write_wav
from .test_data_folder import picture


def texts(folder):
    for part, lines in {"train": "a b <unk>\n\nb a a\n", "valid": "a zoo\n", "test": "b zoo a\n"}.items():
        (folder / f"my.{part}.txt").write_text(lines * 40)
    small = replace(get("words"), data=str(folder), batch=2, phases="1", lr=(0.1,))
    places = [f"{folder}/my.train.txt:2", f"{folder}/my.train.txt:5"]
    return small, places, {"empty line": 40, "unknown word": 80}


def recordings(folder):
    for i in range(4):
        write_wav(folder / f"{i}.wav", sound(0.4))
    (folder / "3.wav").write_bytes(b"RIFF, and no more")
    row = {"audio_filepath": "0.wav", "text": "no", "speaker": "x"}
    faulty = [{"audio_filepath": "9.wav"}, {"audio_filepath": "3.wav"}, {"text": "no " * 40}, {}]
    rows = [json.dumps({**row, **changes}) for changes in faulty]
    for part in ("train", "valid", "test"):
        (folder / f"{part}.jsonl").write_text("\n".join([*rows, *[rows[3]] * 3]))
    small = replace(get("utterances"), data=str(folder), batch=2, phases="1", lr=(0.1,))
    expected = {"transcript too long": 3, "missing audio": 3, "broken audio": 3}
    return small, [f"{folder}/train.jsonl:1", f"{folder}/train.jsonl:2", f"{folder}/train.jsonl:3"], expected


def pictures(folder):
    pytest.importorskip("PIL.Image", reason="needs pillow")
    for part in ("train", "val"):
        for i in range(6):
            picture(folder / part / "ab"[i % 2] / f"{i}.png", i, (8, 8))
    (folder / "train" / "a" / "2.png").write_bytes(b"no image at all")
    small = Recipe(data=str(folder), model=f"{__name__}:colours", image_size=8, batch=2, phases="1", lr=(0.1,))
    return small, [f"{folder}/train/a/2.png"], {"undecodable image": 1}


def colours(classes):
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 8 * 8, classes))


@pytest.mark.parametrize("make", [texts, recordings, pictures])
def test_it_is_named_once_counted_and_kept_or_fatal(tmp_path, make, capsys):
    (tmp_path / "data").mkdir()
    recipe, places, expected = make(tmp_path / "data")
    execution = Execution(out=str(tmp_path / "runs"), device="cpu", workers=0, progress=False)
    with pytest.raises(ValueError, match=re.escape(places[0])):
        train(recipe, execution)
    capsys.readouterr()
    results = train(replace(recipe, bad="skip", seeds=(0, 1)), replace(execution, results=str(tmp_path / "rows.jsonl")))
    said = capsys.readouterr().err
    assert all(said.count(f"skipped: {place}: ") == 1 for place in places)
    assert f"{sum(expected.values())} skipped (" in said and said.count("all of them are named in") == 1
    rows = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
    assert [result["skipped"] for result in (*results, *rows)] == [expected] * 4
    for seed in (0, 1):
        file = tmp_path / "runs" / recipe.name / f"seed-{seed}" / "skipped.jsonl"
        kept = [json.loads(line) for line in file.read_text().splitlines()]
        assert len(kept) == sum(expected.values()) and {row["place"] for row in kept} >= set(places)


def test_a_name_that_is_not_text_is_kept_too(tmp_path):
    recipe, _, _ = pictures(tmp_path / "data")
    broken = tmp_path / "data" / "train" / "a" / "2.png"
    named = broken.rename(os.fsdecode(os.fsencode(broken.parent) + b"/\xff.png"))
    with redirect_stderr(StringIO()):  # as a terminal does, it takes what is not text
        train(replace(recipe, bad="skip"), Execution(out=str(tmp_path / "runs"), device="cpu", workers=0))
    (kept,) = (tmp_path / "runs" / recipe.name / "seed-0" / "skipped.jsonl").read_text().splitlines()
    assert json.loads(kept)["place"] == str(named)


def test_where_nothing_was_skipped_nothing_is_told(tmp_path, capsys):
    (result,) = train(replace(get("words"), phases="1", lr=(1.0,)), Execution(out=str(tmp_path), progress=False))
    assert result["skipped"] == {} and "skipped" not in capsys.readouterr().err
    assert not (tmp_path / "words" / "seed-0" / "skipped.jsonl").exists()


def test_how_speech_is_heard_is_the_recipes(tmp_path):
    sources = Sources(Execution(out=str(tmp_path)))

    def first_batch(**changes):
        source = sources.get(replace(get("utterances"), **changes), torch.device("cpu"))
        return source.epoch(0, 0).batch(0, 8)[0]

    plain, all_alike, masked = first_batch(), first_batch(normalise="global"), first_batch(spec_augment=True)
    assert not torch.equal(plain, all_alike) and torch.allclose(plain, all_alike, atol=0.3)
    assert (masked == 0).sum() > (plain == 0).sum()
    kept = masked != 0
    assert torch.equal(masked[kept], plain[kept])


def test_fields_are_read_and_checked():
    changed = Recipe().with_changes(["bad=skip", "normalise=global", "spec_augment=true"])
    assert (changed.bad, changed.normalise, changed.spec_augment) == ("skip", "global", True)
    with pytest.raises(ValueError, match="bad must be one of 'raise', 'skip', not 'fatal'"):
        Recipe(bad="fatal")
    with pytest.raises(ValueError, match="normalise must be one of 'speaker', 'global', 'none', not 'all'"):
        Recipe(normalise="all")
