"""Lists of utterances: manifests, Kaldi folders, AN4, spoken digits, WSJ's discs, and their faults."""

import json
from functools import partial

import pytest

from ssgd.lab.data.corpora.free import connected, read_an4, read_fsdd
from ssgd.lab.data.corpora.lists import read_kaldi, read_manifest
from ssgd.lab.data.corpora.wsj import read_wsj, transcript
from ssgd.lab.data.faults import Faults, counts
from ssgd.lab.data.speech.utterances import Clip, Utterance, held_out

from .speech_files import sound, write_sphere


def lines(path, *rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{row}\n" for row in rows))
    return path


def faulty(read, *where):
    """What was read with ``bad="skip"``, and the faults; each must be fatal with ``bad="raise"``."""
    faults = Faults("skip")
    found = read(*where, faults)
    with pytest.raises(ValueError) as fatal:
        read(*where, Faults("raise"))
    assert str(fatal.value).startswith(faults.skipped[0].place) and faults.skipped[0].sentence in str(fatal.value)
    return found, [(skipped.place.rpartition("/")[2], skipped.kind) for skipped in faults.skipped], faults


# --- manifests ------------------------------------------------------------------------------------------------------


def test_a_manifest(tmp_path):
    path = lines(
        tmp_path / "train.jsonl",
        json.dumps({"audio_filepath": "a.wav", "text": "yes", "duration": 1.5, "speaker": "x"}),
        json.dumps({"audio": "/else/where.flac", "text": "no", "offset": 2, "duration": 0.5, "id": "second"}),
    )
    first, second = read_manifest(path, Faults())
    assert first == Utterance("train-1", "yes", (Clip(tmp_path / "a.wav"),), "x", f"{path}:1")
    assert (second.key, second.speaker, str(second.clips[0].path)) == ("second", "", "/else/where.flac")
    assert (second.clips[0].start, second.clips[0].end) == (2.0, 2.5)


def test_speakers_may_be_numbers(tmp_path):
    rows = [{"audio": "a.wav", "text": "yes", "speaker": speaker} for speaker in (0, 1, "", None)]
    found = read_manifest(lines(tmp_path / "train.jsonl", *map(json.dumps, rows)), Faults())
    assert [utterance.speaker for utterance in found] == ["0", "1", "", ""]


def test_faults_of_a_manifest_are_named_with_their_row(tmp_path):
    path = lines(
        tmp_path / "train.jsonl",
        '{"audio": "a.wav", "text": "yes"}',
        "",
        '{"audio": "a.wav"',
        '["a.wav", "yes"]',
        '{"audio": "a.wav"}',
        '{"text": "yes"}',
        '{"audio": "a.wav", "text": "yes", "offset": -1}',
        '{"audio": "a.wav", "text": "yes", "duration": "long"}',
        '{"audio": "a.wav", "text": "yes", "offset": 1' + 400 * "0" + "}",
        '{"audio": "a.wav", "text": "yes", "offset": 1' + 5000 * "0" + "}",
        100_000 * "[",
    )
    found, faults, all_faults = faulty(read_manifest, path)
    assert [utterance.key for utterance in found] == ["train-1"]
    assert faults == [("train.jsonl:2", "empty line"), *((f"train.jsonl:{n}", "broken row") for n in range(3, 12))]
    assert counts(all_faults.skipped) == {"empty line": 1, "broken row": 9}


# --- Kaldi ----------------------------------------------------------------------------------------------------------


def test_a_kaldi_folder(tmp_path):
    lines(tmp_path / "wav.scp", "u1 one.wav", "u2 /abs/two.wav")
    lines(tmp_path / "text", "u1 HELLO  THERE", "u2 YES")
    lines(tmp_path / "utt2spk", "u1\tann", "u2  bob")  # tabs are Kaldi's too
    first, second = read_kaldi(tmp_path, Faults())
    assert first == Utterance("u1", "HELLO  THERE", (Clip(tmp_path / "one.wav"),), "ann", f"{tmp_path / 'text'}:1")
    assert (str(second.clips[0].path), second.speaker) == ("/abs/two.wav", "bob")


def test_segments(tmp_path):
    lines(tmp_path / "wav.scp", "r1 one.wav")
    lines(tmp_path / "segments", "u1 r1 0.5 1.25", "u2 r1 2 -1", "u3 r1 x 3", "u4 r9 0 1")
    lines(tmp_path / "text", "u1 YES", "u2 NO", "u3 OH", "u4 AH", "u5 UH")
    found, faults, _ = faulty(read_kaldi, tmp_path)
    path = tmp_path / "one.wav"
    assert [utterance.clips[0] for utterance in found] == [Clip(path, 0.5, 1.25), Clip(path, 2.0, None)]
    assert faults == [("text:3", "broken row"), ("text:4", "missing audio"), ("text:5", "missing audio")]


def test_faults_of_a_kaldi_folder(tmp_path):
    lines(tmp_path / "wav.scp", "u1 one.wav", "", "u2 sph2pipe -f wav two.wv1 |", "u4 four.wav", "u1 again.wav")
    lines(tmp_path / "text", "u1 YES", "u2 NO", "u3 OH")
    found, faults, all_faults = faulty(read_kaldi, tmp_path)
    assert [utterance.key for utterance in found] == ["u1"]
    assert faults == [
        ("wav.scp:2", "empty line"),
        ("wav.scp:5", "broken row"),
        ("text:2", "command"),
        ("text:3", "missing audio"),
        ("wav.scp:4", "no transcript"),
    ]
    assert "wav.scp:3 is a command, which is not run" in all_faults.skipped[2].sentence


# --- AN4 ------------------------------------------------------------------------------------------------------------


def test_an4(tmp_path):
    lines(tmp_path / "etc" / "an4_train.fileids", "an4_clstk/fash/an251-fash-b", "an4_clstk/mblb/cen1-mblb-b")
    lines(tmp_path / "etc" / "an4_train.transcription", "YES (an251-fash-b)", "<s> P I T </s> (cen1-mblb-b)")
    first, second = read_an4(tmp_path, "train", Faults())
    assert (first.key, first.text, first.speaker) == ("an251-fash-b", "YES", "fash")
    assert first.clips == (Clip(tmp_path / "feat" / "an4_clstk" / "fash" / "an251-fash-b.mfc"),)
    assert (second.text, second.speaker) == ("P I T", "mblb")
    with pytest.raises(FileNotFoundError, match=r"an4_test.fileids is not there: unpack AN4"):
        read_an4(tmp_path, "test", Faults())


def test_transcripts_of_an4_that_do_not_belong(tmp_path):
    lines(tmp_path / "etc" / "an4_train.fileids", "an4_clstk/fash/an251-fash-b", "an4_clstk/fash/an252-fash-b")
    lines(tmp_path / "etc" / "an4_train.transcription", "YES (an251-fash-b)", "NO (an253-fash-b)", "OH (an9-fash-b)")
    found, faults, _ = faulty(read_an4, tmp_path, "train")
    assert len(found) == 1
    assert faults == [("an4_train.transcription:2", "broken row"), ("an4_train.transcription:3", "broken row")]


# --- not UTF-8 ------------------------------------------------------------------------------------------------------


KALDI = {"wav.scp": "u1 a.wav", "text": "u1 YES", "segments": "u1 u1 0 1", "utt2spk": "u1 ann"}
AN4 = {"etc/an4_train.fileids": "an4_clstk/fash/u1", "etc/an4_train.transcription": "YES (u1)"}
LISTS = {"train.jsonl": '{"audio": "a.wav", "text": "yes"}', **KALDI, **AN4}


@pytest.fixture(params=LISTS)
def a_list(tmp_path, request):
    """One list of a corpus of one utterance, and how the corpus is read."""
    for name, row in LISTS.items():
        lines(tmp_path / name, row)
    name = request.param
    reader, *where = read_manifest, tmp_path / name
    if name in KALDI:
        reader, *where = read_kaldi, tmp_path
    elif name in AN4:
        reader, *where = read_an4, tmp_path, "train"
    return tmp_path / name, partial(reader, *where)


@pytest.mark.parametrize("bad", ["raise", "skip"])
def test_a_list_that_is_not_utf8_is_named_with_its_line(a_list, bad):
    file, read = a_list
    file.write_bytes(file.read_bytes() + b"\xff\xfe")
    with pytest.raises(ValueError, match=rf"{file.name}:2 is not text in UTF-8: convert the file"):
        read(Faults(bad))


def test_a_byte_order_mark_is_no_part_of_a_list(a_list):
    file, read = a_list
    plain = read(Faults())
    file.write_bytes(b"\xef\xbb\xbf" + file.read_bytes())
    assert len(plain) == 1 and read(Faults()) == plain


# --- digits ---------------------------------------------------------------------------------------------------------


def test_recordings_of_digits(tmp_path):
    for name in ("7_ann_10", "7_ann_9", "0_bob_0", "0_bob_x"):
        lines(tmp_path / "recordings" / f"{name}.wav")
    found, faults, _ = faulty(read_fsdd, tmp_path)
    assert [(u.key, u.text, u.speaker) for u in found] == [
        ("7_ann_9", "SEVEN", "ann"),
        ("7_ann_10", "SEVEN", "ann"),
        ("0_bob_0", "ZERO", "bob"),
    ]
    assert faults == [("0_bob_x.wav", "broken row")]
    with pytest.raises(FileNotFoundError, match=r"recordings is not there: unpack the Free Spoken Digit"):
        read_fsdd(tmp_path / "recordings", Faults())


def recordings(speakers="ab", each=5):
    return [
        Utterance(f"{digit}_{speaker}_0", f"D{digit}", (Clip(f"{digit}_{speaker}_0.wav"),), speaker)
        for speaker in speakers
        for digit in range(each)
    ]


def test_connected_digits_are_of_one_speaker_with_pauses_around_each():
    made = connected(recordings(), 40, digits=(2, 4), pause=(0.1, 0.2))
    assert {utterance.speaker for utterance in made} == {"a", "b"}
    assert {len(utterance.text.split()) for utterance in made} == {2, 3, 4}
    for utterance in made:
        pauses, said = utterance.clips[::2], utterance.clips[1::2]
        assert all(clip.path is None and 0.1 <= clip.end <= 0.2 for clip in pauses)
        assert [str(clip.path)[0] for clip in said] == [name[1:] for name in utterance.text.split()]
        assert all(f"_{utterance.speaker}_" in str(clip.path) for clip in said)


def test_connected_digits_use_every_recording_alike_and_depend_on_the_seed():
    made = connected(recordings("a"), 50, digits=(1, 1))
    said = [utterance.text for utterance in made]
    assert {said.count(text) for text in said} == {10}
    assert made == connected(recordings("a"), 50, digits=(1, 1)) != connected(recordings("a"), 50, 1, digits=(1, 1))
    with pytest.raises(ValueError, match="no recordings to connect"):
        connected([], 5)


# --- WSJ ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def discs(tmp_path):
    """Discs with their folders, indices, transcripts and sphere files; what is on which disc is as with LDC."""
    audio = sound(0.2)
    for disc, file in (
        ("11-1.1", "wsj0/si_tr_s/011/011c0201.wv1"),
        ("11-1.1", "wsj0/si_tr_s/011/011c0202.wv1"),
        ("11-2.1", "wsj0/si_tr_s/401/401c0201.wv1"),
        ("13-2.1", "wsj1/si_tr_s/46h/46hc0201.wv1"),
        ("13-16.1", "wsj1/si_dt_20/4k0/4k0c0301.wv1"),
        ("11-14.1", "wsj0/si_et_20/440/440c0401.wv1"),
    ):
        write_sphere(tmp_path / disc / file, audio)
    lines(
        tmp_path / "11-13.1/wsj0/doc/indices/train/tr_s_wv1.ndx",
        ";; a comment",
        "11_1_1:wsj0/si_tr_s/011/011c0201.wv1",
        "11_1_1:wsj0/si_tr_s/011/011c0202.wv1",
        "11_2_1:wsj0/si_tr_s/401/401c0201.wv1",
    )
    lines(tmp_path / "13-34.1/wsj1/doc/indices/si_tr_s.ndx", "13_2_1:wsj1/si_tr_s/46h/46hc0201.wv1")
    lines(tmp_path / "13-34.1/wsj1/doc/indices/h1_p0.ndx", "13_16_1: wsj1/si_dt_20/4k0/4k0c0301.wv1")
    lines(tmp_path / "11-13.1/wsj0/doc/indices/test/nvp/si_et_20.ndx", "11_14_1:wsj0/si_et_20/440/440c0401")
    for dot, *rows in (
        ("11-13.1/wsj0/transcrp/dots/si_tr_s/011/011c0200.dot", "It rose ,COMMA (011c0201)", "Mr. Poe (011c0202)"),
        ("13-34.1/wsj1/trans/wsj1/si_tr_s/46h/46hc0200.dot", "[tongue_click] YES (46hc0201)"),
        ("13-34.1/wsj1/trans/wsj1/si_dt_20/4k0/4k0c0300.dot", "NO (4k0c0301)"),
        ("11-14.1/wsj0/transcrp/dots/si_et_20/440/440c0400.dot", "PERHAPS (440c0401)"),
    ):
        lines(tmp_path / dot, *rows)
    return tmp_path


def test_the_parts_of_wsj(discs):
    train = read_wsj(discs, "si284", Faults())
    assert [(u.key, u.text, u.speaker) for u in train] == [  # without speaker 401
        ("011c0201", "It rose COMMA", "011"),
        ("011c0202", "Mr Poe", "011"),
        ("46hc0201", "YES", "46h"),
    ]
    assert train[0].clips == (Clip(discs / "11-1.1/wsj0/si_tr_s/011/011c0201.wv1"),)
    (dev,), (test,) = read_wsj(discs, "dev93", Faults()), read_wsj(discs, "eval92", Faults())
    assert (dev.key, dev.text, test.key, test.text) == ("4k0c0301", "NO", "440c0401", "PERHAPS")
    assert test.clips[0].path.is_file() and test.clips[0].path.name == "440c0401.wv1"
    with pytest.raises(ValueError, match="no part of WSJ called 'si84': there are si284, dev93, eval92"):
        read_wsj(discs, "si84", Faults())


def test_wsj_merged_into_two_folders(discs, tmp_path_factory):
    merged = tmp_path_factory.mktemp("merged")
    for disc in sorted(discs.iterdir()):
        for path in sorted(disc.rglob("*")):
            if path.is_file():
                target = merged / path.relative_to(disc)
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(path.read_bytes())
    (test,) = read_wsj(merged, "eval92", Faults())
    assert test.clips[0].path == merged / "wsj0/si_et_20/440/440c0401.wv1"


def test_discs_may_lie_deeper_and_audio_may_be_missing(discs, tmp_path):
    missing = discs / "11-14.1/wsj0/si_et_20/440/440c0401.wv1"
    missing.unlink()
    (test,) = read_wsj(discs, "eval92", Faults())
    assert test.clips == (Clip(missing),)  # so that its name is told when it is to be read
    deeper = tmp_path / "LDC93S6"
    deeper.mkdir()
    for disc in ("11-1.1", "11-13.1"):
        (tmp_path / disc).rename(deeper / disc)
    first, *_ = read_wsj(tmp_path, "si284", Faults())
    assert first.clips == (Clip(deeper / "11-1.1/wsj0/si_tr_s/011/011c0201.wv1"),)


def test_a_wav_beside_a_compressed_file_is_taken(discs):
    wav = discs / "11-14.1/wsj0/si_et_20/440/440c0401.wav"
    wav.write_bytes(b"")
    assert read_wsj(discs, "eval92", Faults())[0].clips[0].path == wav


def test_faults_of_wsj(discs):
    lines(discs / "11-13.1/wsj0/transcrp/dots/si_tr_s/011/011c0200.dot", "Something else (011c0203)")
    (discs / "13-34.1/wsj1/trans/wsj1/si_tr_s/46h/46hc0200.dot").unlink()
    found, faults, all_faults = faulty(read_wsj, discs, "si284")
    assert found == []
    assert faults == [
        ("si_tr_s.ndx:1", "no transcript"),
        ("tr_s_wv1.ndx:2", "no transcript"),
        ("tr_s_wv1.ndx:3", "no transcript"),
    ]
    assert all_faults.skipped[0].sentence == "no disc has 46hc0200.dot, with the transcript of 46hc0201"
    (discs / "13-34.1/wsj1/doc/indices/h1_p0.ndx").unlink()
    with pytest.raises(FileNotFoundError, match=r"h1_p0\.ndx is on none of the discs in .*put the discs there"):
        read_wsj(discs, "dev93", Faults())


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ('He said ,COMMA "DOUBLE-QUOTE no .PERIOD', "He said COMMA DOUBLE-QUOTE no PERIOD"),
        (r"\(LEFT-PAREN seven \%PERCENT \)RIGHT-PAREN", "LEFT-PAREN seven PERCENT RIGHT-PAREN"),
        ("'SINGLE-QUOTE 'bout John's", "SINGLE-QUOTE 'bout John's"),
        ("the <very> *odd* wor:d . -- [lip_smack] th~ M. (un)done", "the very odd word th M undone"),
        ("B. A. T. two-thirds", "B A T two-thirds"),
    ],
)
def test_what_was_said_according_to_a_dot_file(written, said):
    assert transcript(written) == said


# --- what becomes of faults, and who is held out --------------------------------------------------------------------


def test_bad_is_raise_or_skip():
    with pytest.raises(ValueError, match="bad must be one of 'raise', 'skip', not 'ignore'"):
        Faults("ignore")


def test_whole_speakers_are_held_out():
    everyone = recordings("abcd", 3)
    rest, held = held_out(everyone, 4)
    assert {utterance.speaker for utterance in rest} == {"a", "b"}
    assert len(held) == 6 and {utterance.speaker for utterance in held} == {"c", "d"}
    with pytest.raises(ValueError, match="no one would be left to train on"):
        held_out(everyone, 10)
