"""Utterances as batches: lengths, order, ranks, normalisation, masks, faults, files; and every corpus by name."""

import itertools
import json
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from ssgd.lab.data import Options, load
from ssgd.lab.data.corpora import load_speech
from ssgd.lab.data.corpora.free import fake_speech
from ssgd.lab.data.faults import Faults, Unusable, counts
from ssgd.lab.data.speech.features import LogMel, SpecAugment
from ssgd.lab.data.speech.source import SpeechSource
from ssgd.lab.data.speech.utterances import Clip, Corpus, Utterance

from .speech_files import sound, write_mfc, write_sphere, write_wav


class Counting:
    """Features made of an utterance's number and of time: which frames are whose can be told from them."""

    count = 2

    def __init__(self):
        self.calls = 0

    def __repr__(self):
        return "Counting"

    def __call__(self, utterance):
        self.calls += 1
        number = int(utterance.key)
        if number < 0:
            raise Unusable("broken audio", "it cannot be heard")
        time = torch.arange(1.0, 1 + 10 + 7 * number % 50)
        return torch.stack([torch.full_like(time, number + 1.0), time], 1)


def corpus(train=24, test=5, features=None):
    made = [Utterance(str(i), "AB", (), f"s{i % 3}", f"list:{i}") for i in range(train + 2 * test)]
    return Corpus("tones", made[:train], made[train:-test], made[-test:], features or Counting())


def flat(lists):
    return list(itertools.chain.from_iterable(lists))


def numbers(batch):
    return (batch[0][:, 0, 0] - 1).long().tolist()


# --- batches --------------------------------------------------------------------------------------------------------


def test_a_batch():
    source = SpeechSource(corpus(), normalise="none")
    assert (source.kind, source.name, source.classes, source.channels) == ("speech", "tones", 29, 2)
    x, lengths, targets, target_lengths = batch = source.epoch(0, 0).batch(0, 4)
    assert x.shape == (4, 2, lengths.max()) and x.dtype == torch.float32
    assert targets.tolist() == [[3, 4]] * 4 and target_lengths.tolist() == [2] * 4
    for row, number, length in zip(x, numbers(batch), lengths.tolist(), strict=True):
        assert length == 10 + 7 * number % 50
        assert row[0].tolist() == [number + 1.0] * length + [0.0] * (x.shape[2] - length)
        assert row[1, :length].tolist() == list(range(1, 1 + length)) and not row[1, length:].any()


def test_an_epoch_has_each_utterance_once_in_batches_of_similar_length():
    source = SpeechSource(corpus(), normalise="none")
    epoch = source.epoch(0, 0)
    batches = [epoch.batch(step, 4) for step in range(source.steps(4))]
    assert sorted(flat(map(numbers, batches))) == list(range(24))
    lengths = torch.stack([batch[1] for batch in batches])
    assert (lengths.max(1).values - lengths.min(1).values).float().mean() < 10  # of 10 to 59
    assert lengths.max(1).values.diff().lt(0).any()  # not from short to long


def test_the_halves_of_a_batch_are_alike_in_length():
    source = SpeechSource(corpus(), normalise="none")
    lengths = torch.stack([source.epoch(0, n).batch(step, 4)[1] for n in range(40) for step in range(6)])
    longer = (lengths[:, 2:].sum(1) > lengths[:, :2].sum(1)).float().mean()
    assert 0.35 < longer < 0.6  # a little under one half: some are equal


def test_order_depends_on_seed_and_epoch_alone():
    def order(seed, number, size=4):
        epoch = SpeechSource(corpus(), normalise="none").epoch(seed, number)
        return [numbers(epoch.batch(step, size)) for step in reversed(range(24 // size))]  # any step comes first

    assert order(0, 0) == order(0, 0)
    assert len({str(order(*which)) for which in ((0, 0), (0, 1), (1, 0))}) == 3
    together = [{frozenset(batch) for batch in order(0, number)} for number in (0, 1)]
    assert together[0] != together[1]  # not always the same neighbours


def test_an_epoch_is_drawn_once_for_all_its_steps(monkeypatch):
    source, drawn = SpeechSource(corpus(), normalise="none"), []
    monkeypatch.setattr("torch.randperm", lambda *_, permute=torch.randperm, **by: drawn.append(1) or permute(*_, **by))
    for seed, number in ((0, 0), (1, 0), (0, 0), (0, 1), (0, 0)):
        for step in range(3):
            source.epoch(seed, number).batch(step, 4)
    assert len(drawn) == 3


def test_what_does_not_fill_a_batch_sits_out_and_changes():
    source = SpeechSource(corpus(train=23), normalise="none")
    assert source.steps(5) == 4
    out = set()
    for number in range(10):
        epoch = source.epoch(0, number)
        seen = flat(numbers(epoch.batch(step, 5)) for step in range(4))
        assert len(set(seen)) == 20
        out |= set(range(23)) - set(seen)
    assert len(out) > 10


def test_ranks_share_a_batch_and_an_evaluation():
    source = SpeechSource(corpus(), normalise="none")
    epoch = source.epoch(3, 1)
    parts = [numbers(epoch.batch(2, 6, rank, 3)) for rank in range(3)]
    assert flat(parts) == numbers(epoch.batch(2, 6))
    for part in ("test", "valid", "train"):
        everyone = flat(numbers(batch) for batch in source.in_order(part))
        shared = [flat(numbers(batch) for batch in source.in_order(part, 2, rank, 2)) for rank in range(2)]
        assert flat(shared) == everyone and len(set(everyone)) == len(everyone)
    assert sorted(flat(numbers(b) for b in source.in_order("valid"))) == list(range(24, 29))
    assert sorted(flat(numbers(b) for b in source.in_order("test"))) == list(range(29, 34))
    with pytest.raises(ValueError, match="cannot be divided evenly"):
        epoch.batch(0, 4, 0, 3)


def test_the_precision_asked_for():
    assert SpeechSource(corpus(), dtype=torch.bfloat16).epoch(0, 0).batch(0, 4)[0].dtype == torch.bfloat16


# --- normalisation and masks ----------------------------------------------------------------------------------------


def test_by_speaker_every_speaker_has_mean_0_and_variance_1():
    source = SpeechSource(corpus(), normalise="speaker")
    (x, lengths, *_) = next(source.in_order("train", 100))
    order = sorted(source.utterances["train"], key=lambda u: 10 + 7 * int(u.key) % 50)
    for speaker in ("s0", "s1", "s2"):
        mine = [i for i, utterance in enumerate(order) if utterance.speaker == speaker]
        frames = torch.cat([x[i, :, : lengths[i]] for i in mine], 1)
        assert frames.mean(1).abs().max() < 1e-4 and (frames.var(1, correction=0) - 1).abs().max() < 1e-3


def test_globally_all_of_training_is_and_the_rest_follows_it():
    source = SpeechSource(corpus(), normalise="global")

    def frames(batches):
        return torch.cat([x[:, :n] for b in batches for x, n in zip(b[0], b[1].tolist(), strict=True)], 1)

    train, test = frames(source.in_order("train")), frames(source.in_order("test"))
    assert train.mean(1).abs().max() < 1e-4 and (train.var(1, correction=0) - 1).abs().max() < 1e-3
    assert test[0].mean() > 2  # the numbers of test utterances are larger than those of training
    assert list(SpeechSource(replace(corpus(), test=[]), normalise="global").in_order("test")) == []
    with pytest.raises(ValueError, match="normalise must be one of 'speaker', 'global', 'none', not 'both'"):
        SpeechSource(corpus(), normalise="both")


def test_without_a_speaker_an_utterance_is_normalised_by_itself():
    alone = [Utterance(str(i), "AB", (), "", str(i)) for i in range(6)]
    source = SpeechSource(Corpus("alone", alone, [], alone[:1], Counting()))
    x, lengths, *_ = next(source.in_order("train"))
    for row, length in zip(x, lengths.tolist(), strict=True):
        assert row[1, :length].mean().abs() < 1e-5


def test_masks_are_drawn_for_training_alone_by_seed_epoch_and_utterance():
    mask = SpecAugment(bands=0, stretches=1, stretch=0.5)
    source = SpeechSource(corpus(), normalise="none", spec_augment=mask)

    def masked(number, size):
        epoch = source.epoch(0, number)
        found = {}
        for step in range(24 // size):
            x, lengths, *_ = epoch.batch(step, size)
            for row, length in zip(x, lengths.tolist(), strict=True):
                key = int(row[0].max()) - 1
                found[key] = (row[0, :length] == 0).tolist()
        return found

    assert masked(0, 4) == masked(0, 8) != masked(1, 4)
    assert any(any(hidden) for hidden in masked(0, 4).values())
    for x, lengths, *_ in source.in_order("train"):
        assert all(row[0, :length].all() for row, length in zip(x, lengths.tolist(), strict=True))


# --- faults ---------------------------------------------------------------------------------------------------------


def faulty_corpus():
    rows = [("0", "AB"), ("-1", "AB"), ("1", ""), ("2", "A1"), ("3", "ABCDEFGHIJKLMNO"), ("0", "AAAA"), ("4", "AB")]
    train = [Utterance(key, text, (), "s", f"list:{row}") for row, (key, text) in enumerate(rows, 1)]
    return Corpus("faulty", train, train[:1], train[:1], Counting())


def test_what_cannot_be_used_is_listed_and_counted():
    source = SpeechSource(faulty_corpus(), faults=Faults("skip"), normalise="none")
    assert [(skipped.place, skipped.kind) for skipped in source.skipped] == [
        ("list:3", "empty transcript"),
        ("list:4", "unknown character"),
        ("list:2", "broken audio"),
        ("list:6", "transcript too long"),
    ]
    assert source.skipped[3].sentence.startswith("its transcript needs 7 frames, and 5 are left of its 10")
    assert counts(source.skipped)["transcript too long"] == 1
    assert [utterance.place for utterance in source.utterances["train"]] == ["list:1", "list:5", "list:7"]
    x, lengths, targets, _ = next(source.in_order("train"))
    assert numbers((x,)) == [0, 3, 4] and lengths.tolist() == [10, 31, 38]  # whose frames are whose is still right
    assert targets[1].tolist() == list(range(3, 18))


def test_or_the_first_is_fatal():
    with pytest.raises(ValueError, match=r"list:3: the transcript is empty \(bad='skip' goes on without it"):
        SpeechSource(faulty_corpus())


def test_subsampling_decides_what_ctc_can_emit():
    with pytest.raises(ValueError, match="needs 7 frames, and 3 are left of its 10"):
        SpeechSource(Corpus("a", [Utterance("0", "AAAA", (), "s", "list:1")], [], [], Counting()), subsampling=4)
    made = Corpus("a", [Utterance("0", "AAAA", (), "s", "list:1")], [], [], Counting())
    assert SpeechSource(made, subsampling=1).steps(1) == 1


def test_nothing_left_to_train_on():
    with pytest.raises(ValueError, match=r"faulty has no utterance to train on; left out: \{'broken audio': 1\}"):
        bad = [Utterance("-1", "AB", (), "s", "list:1")]
        SpeechSource(Corpus("faulty", bad, [], [], Counting()), faults=Faults("skip"))


# --- frames in files ------------------------------------------------------------------------------------------------


def test_frames_in_files_give_the_same_batches_and_are_made_once(tmp_path):
    features = Counting()
    expected = SpeechSource(corpus()).epoch(0, 0).batch(1, 4)
    for calls in (34, 34):  # the second time nothing is computed
        source = SpeechSource(corpus(features=features), frames_folder=tmp_path / "frames")
        assert features.calls == calls
        for ours, theirs in zip(source.epoch(0, 0).batch(1, 4), expected, strict=True):
            assert torch.equal(ours, theirs)
    assert {path.name for path in (tmp_path / "frames").iterdir()} == {
        f"tones-{part}.pt" for part in ("train", "valid", "test")
    }


def test_frames_in_files_are_made_again_when_something_changed(tmp_path):
    path = write_wav(tmp_path / "a.wav", sound(0.1))
    features = Counting()

    def calls(*clips):
        before = features.calls
        made = [Utterance("1", "AB", clips, "s", "list:1"), Utterance("-1", "AB", clips, "s", "list:2")]
        source = SpeechSource(
            Corpus("a", made, [], [], features), frames_folder=tmp_path / "frames", faults=Faults("skip")
        )
        assert counts(source.skipped) == {"broken audio": 1}  # told every time
        return features.calls - before

    assert [calls(Clip(path)), calls(Clip(path)), calls(Clip(path, 0.05)), calls(Clip(path))] == [2, 0, 2, 2]
    write_wav(path, sound(0.2))
    assert [calls(Clip(path)), calls(Clip(path))] == [2, 0]
    with pytest.raises(ValueError, match="list:2: it cannot be heard"):
        made = [Utterance(key, "AB", (), "s", f"list:{row}") for row, key in enumerate(("1", "-1"), 1)]
        SpeechSource(Corpus("b", made, [], [], features), frames_folder=tmp_path / "frames")
    assert not list((tmp_path / "frames").glob("b-*"))  # nothing half-made is left
    file = tmp_path / "frames" / "a-train.pt"
    content, found = file.read_bytes(), torch.load(file)
    for damaged in (content[:-4], content[:20], b""):
        file.write_bytes(damaged)
        assert calls(Clip(path)) == 2
    for other in ([], {"key": found["key"]}, {**found, "lengths": [None]}, {**found, "failed": 3}):
        torch.save(other, file)
        assert calls(Clip(path)) == 2
    assert calls(Clip(tmp_path / ("yes " * 100))) == 2  # longer than a name may be


# --- by name --------------------------------------------------------------------------------------------------------


def sizes(source):
    return [len(source.utterances[part]) for part in ("train", "valid", "test")]


def by_name(name, folder=None, **options):
    return load(name, folder, device="cpu", dtype=torch.float32, **options)


def test_made_up_speech():
    source = by_name("fake-speech")
    assert sizes(source) == [96, 24, 24] and source.channels == 12
    assert {utterance.text for utterance in source.utterances["train"]} <= {u.text for u in fake_speech().train}
    assert sizes(by_name("fake-speech", held_out=20, train_limit=10, test_limit=5)) == [10, 24, 5]
    masked = [(by_name("fake-speech", spec_augment=on).epoch(0, 0).batch(0, 96)[0] == 0).sum() for on in (False, True)]
    assert masked[1] > masked[0]


@pytest.mark.parametrize("name", ["fake-speech", "fake-text", "fake", "digits"])
def test_less_than_one_is_refused(name):
    for count in (0, -1):
        for part in ("train", "test"):
            with pytest.raises(ValueError, match=f"{part}_limit must be at least 1 sample, not {count}"):
                by_name(name, **{f"{part}_limit": count})
    if name != "fake-text":
        with pytest.raises(ValueError, match=r"hold out .*, not -1"):
            by_name(name, held_out=-1)


def test_an4_from_its_folder(tmp_path):
    numbers = np.random.default_rng(0)
    for part, speakers in (("train", ["fash", "mjgm", "zyxw"]), ("test", ["fcaw"])):
        ids = [f"an4_clstk/{speaker}/an{i}-{speaker}-b" for speaker in speakers for i in range(50)]
        (tmp_path / "an4" / "etc").mkdir(parents=True, exist_ok=True)
        (tmp_path / "an4" / "etc" / f"an4_{part}.fileids").write_text("\n".join(ids))
        rows = [f"YES NO ({name.rpartition('/')[2]})" for name in ids]
        (tmp_path / "an4" / "etc" / f"an4_{part}.transcription").write_text("\n".join(rows))
        for name in ids:
            write_mfc(tmp_path / "an4" / "feat" / f"{name}.mfc", numbers.standard_normal((30, 13)).astype(np.float32))
    source = by_name("an4", tmp_path)
    assert sizes(source) == [50, 100, 50] and source.channels == 13
    assert {u.speaker for u in source.utterances["valid"]} == {"zyxw", "mjgm"}


def test_digits_keep_their_speakers_apart(tmp_path, monkeypatch):
    monkeypatch.setenv("SSGD_DATA", str(tmp_path))
    for seed, speaker in enumerate(("george", "lucas", "theo", "yweweler")):
        for digit in range(2):
            path = tmp_path / "fsdd" / "recordings" / f"{digit}_{speaker}_0.wav"
            write_wav(path, sound(0.3, 8000, seed), 8000)
    single = by_name("fsdd")
    assert sizes(single) == [4, 2, 2] and single.channels == 40
    source = by_name("connected-digits", train_limit=20, test_limit=8)
    assert sizes(source)[::2] == [20, 8]
    heard = {part: {u.speaker for u in utterances} for part, utterances in source.utterances.items()}
    assert heard == {"train": {"george", "lucas"}, "valid": {"yweweler"}, "test": {"theo"}}


def test_wsj_from_its_discs(tmp_path):
    for disc, index, stem in (
        ("13-34.1", "wsj1/doc/indices/si_tr_s.ndx", "46hc0201"),
        ("11-13.1", "wsj0/doc/indices/train/tr_s_wv1.ndx", "011c0201"),
        ("13-34.1", "wsj1/doc/indices/h1_p0.ndx", "4k0c0301"),
        ("11-13.1", "wsj0/doc/indices/test/nvp/si_et_20.ndx", "440c0401"),
    ):
        top = tmp_path / "wsj" / disc
        (top / index).parent.mkdir(parents=True, exist_ok=True)
        (top / index).write_text(f"{disc.replace('-', '_').replace('.', '_')}:a/{stem}.wv1\n")
        write_sphere(top / "a" / f"{stem}.wv1", sound(0.5))
        (top / f"{stem[:6]}00.dot").write_text(f"Yes ({stem})\n")
    source = by_name("wsj", tmp_path)
    assert sizes(source) == [2, 1, 1] and source.channels == 40
    assert (tmp_path / "frames" / "wsj-train.pt").stat().st_size > 2 * 48 * 40 * 4


def manifest(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_a_folder_of_manifests(tmp_path):
    for i in range(6):
        write_wav(tmp_path / f"{i}.wav", sound(0.4, 8000, i), 8000)
    rows = [{"audio": f"{i}.wav", "text": "yes no", "speaker": f"s{i}"} for i in range(6)]
    manifest(tmp_path / "train.jsonl", rows[:5])
    with pytest.raises(FileNotFoundError, match=r"has neither test\.jsonl nor test/wav\.scp"):
        by_name(str(tmp_path))
    manifest(tmp_path / "test.jsonl", rows[5:])
    assert sizes(by_name(str(tmp_path))) == [4, 1, 1]  # a tenth, and at least one, for validation
    (tmp_path / "1.wav").write_bytes(b"no sound")
    manifest(tmp_path / "valid.jsonl", [rows[0], {"audio": "none.wav", "text": "yes"}])
    with pytest.raises(ValueError, match=r"train\.jsonl:2: .*1\.wav cannot be read as audio.*bad='skip'"):
        by_name(str(tmp_path))
    source = by_name(str(tmp_path), bad="skip")
    assert sizes(source) == [4, 1, 1]
    assert [skipped.kind for skipped in source.skipped] == ["broken audio", "missing audio"]
    assert source.skipped[1].place == f"{tmp_path / 'valid.jsonl'}:2"
    manifest(tmp_path / "valid.jsonl", [{"audio": "none.wav", "text": "yes"}])
    with pytest.raises(ValueError, match=r"no utterance in its valid part \(left out: \{.*'missing audio': 1\}\): put"):
        by_name(str(tmp_path), bad="skip")


def test_an_id_may_hold_half_a_character(tmp_path):
    write_wav(tmp_path / "a.wav", sound(0.4))
    rows = [{"audio": "a.wav", "text": "yes", "id": "a\ud800b", "speaker": "\ud800"}]
    for part in ("train", "valid", "test"):
        manifest(tmp_path / f"{part}.jsonl", rows)
    source = by_name(str(tmp_path))
    assert sizes(source) == [1, 1, 1] and source.utterances["train"][0].key == "a\ud800b"
    corpus = Corpus("a", *source.utterances.values(), LogMel())
    assert SpeechSource(corpus, frames_folder=tmp_path / "frames").steps(1) == 1
    manifest(tmp_path / "train.jsonl", [*rows, {**rows[0], "text": "a\ud800b"}, {**rows[0], "audio": "\ud800.wav"}])
    with pytest.raises(ValueError, match=r"train\.jsonl:2: '\\ud800' in .* is not in the alphabet"):
        by_name(str(tmp_path))
    kinds = [skipped.kind for skipped in by_name(str(tmp_path), bad="skip").skipped]
    assert kinds == ["unknown character", "missing audio"]


def test_a_folder_of_kaldi_folders(tmp_path):
    write_wav(tmp_path / "a.wav", sound(1.0))
    for part in ("train", "valid", "test"):
        (tmp_path / part).mkdir()
        (tmp_path / part / "wav.scp").write_text(f"r {tmp_path / 'a.wav'}\n")
        (tmp_path / part / "segments").write_text("u1 r 0 0.5\nu2 r 0.5 1\n")
        (tmp_path / part / "text").write_text("u1 YES\nu2 NO\n")
    source = by_name(str(tmp_path))
    assert sizes(source) == [2, 2, 2]
    assert next(source.in_order("test"))[1].tolist() == [48, 48]


# --- the real ones --------------------------------------------------------------------------------------------------


@pytest.fixture
def real(request):
    """SSGD_DATA, where the data set of that name has been unpacked."""
    folder = os.environ.get("SSGD_DATA")
    if not folder or not (Path(folder) / request.param).is_dir():
        pytest.skip(f"SSGD_DATA names no folder with {request.param}/")
    return Path(folder)


@pytest.mark.parametrize("real", ["an4"], indirect=True)
def test_the_real_an4(real):
    source = load_speech("an4", Options(real))
    assert sizes(source) == [848, 100, 130] and source.skipped == []
    speakers = [{u.speaker for u in source.utterances[part]} for part in ("train", "valid", "test")]
    assert len(speakers[0] | speakers[1]) == 74 and len(speakers[2]) == 10 and not speakers[0] & speakers[1]


@pytest.mark.parametrize("real", ["fsdd"], indirect=True)
def test_the_real_fsdd(real):
    source = load_speech("fsdd", Options(real))
    assert sum(sizes(source)) == 3000 and source.skipped == []
    assert len({u.speaker for part in source.utterances.values() for u in part}) == 6
