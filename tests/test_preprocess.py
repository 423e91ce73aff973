"""What a run keeps, so that a user's own inputs become what its net takes, without the data it learned from."""

import json

import pytest
import torch

from ssgd.lab.data import Options
from ssgd.lab.data.folder import image_folder
from ssgd.lab.data.preprocess import from_json, to_json
from ssgd.lab.data.speech import LogMel, SpeechSource
from ssgd.lab.data.speech.utterances import Clip, Corpus, Utterance
from ssgd.lab.data.text import TextSource, fake_text

from .speech_files import sound, write_wav


def kept(source):
    return from_json(json.loads(json.dumps(to_json(source.preprocess))))


def test_image_files_are_cut_as_they_are_tested_on(tmp_path):
    image = pytest.importorskip("PIL.Image", reason="needs pillow")
    for part, name in (("train", "a"), ("train", "b"), ("val", "a"), ("val", "b")):
        (tmp_path / part / name).mkdir(parents=True)
        image.linear_gradient("L").resize((20, 16)).save(tmp_path / part / name / "one.png")
    source = image_folder(tmp_path, Options(workers=0, image_size=8))
    ((x, _),) = source.in_order("test", 2)
    files = [tmp_path / "val" / name / "one.png" for name in "ab"]
    assert torch.equal(kept(source)(files), x)


def test_words_have_the_numbers_of_the_training_text():
    source = TextSource(fake_text())
    words = kept(source)
    assert [source.vocabulary[number] for number in words("w2 w7 zebra")[0]] == ["<eos>", "w2", "w7", "<unk>"]
    few = from_json({"kind": "Words", "vocabulary": ["<eos>", "a", " "], "characters": True})
    assert few("a a").tolist() == [[0, 1, 2, 1]]
    with pytest.raises(ValueError, match="'b' is not in the vocabulary of the training text"):
        few("ab")


@pytest.mark.parametrize("normalise", ["speaker", "global", "none"])
def test_a_recording_is_heard_as_the_corpus_is(tmp_path, normalise):
    made = []
    for i in range(3):
        path = write_wav(tmp_path / f"{i}.wav", sound(0.4 + 0.1 * i, seed=i))
        made.append(Utterance(str(i), "A", (Clip(path),), f"speaker {i}", f"list:{i}"))
    source = SpeechSource(Corpus("a", made, made[:1], made[:1], LogMel()), normalise=normalise)
    (batch,) = source.in_order("train", 3)
    for i in range(3):
        features, length = kept(source)(tmp_path / f"{i}.wav")
        assert length.item() == batch[1][i]
        torch.testing.assert_close(features[0], batch[0][i, :, : length.item()])
