"""Speech corpora: the readers of their lists and licensed formats, every one by name, and your own by its folder."""

from __future__ import annotations

from pathlib import Path

from ssgd.lab.data.batches import Options
from ssgd.lab.data.corpora.free import connected, fake_speech, read_an4, read_fsdd
from ssgd.lab.data.corpora.lists import read_kaldi, read_manifest
from ssgd.lab.data.corpora.wsj import MAGIC, read_sphere, read_wsj
from ssgd.lab.data.download import data_folder
from ssgd.lab.data.faults import Faults, Unusable, counts
from ssgd.lab.data.speech.audio import FORMATS, read_audio
from ssgd.lab.data.speech.features import Cepstra, LogMel, SpecAugment
from ssgd.lab.data.speech.source import SpeechSource
from ssgd.lab.data.speech.utterances import Corpus, Utterance, held_out

FORMATS[MAGIC] = read_sphere  # wherever a file of that kind is listed
FSDD_SPEAKERS = {"valid": ("yweweler",), "test": ("theo",)}  # the others are trained on


def load_speech(name: str, wanted: Options) -> SpeechSource:
    """Loads one of ``SPEECH`` of the registry, or a path for which :func:`is_speech` is true.

    ``bad="skip"`` leaves out utterances that cannot be used and counts them, ``"raise"`` ends with the first.
    """
    faults, folder = Faults(wanted.bad), data_folder(wanted.folder)
    corpus = _corpus(name, folder, faults)
    if wanted.held_out:
        corpus = corpus.held_out(wanted.held_out)
    source = SpeechSource(
        corpus.limited(wanted.train_limit, wanted.test_limit),
        wanted.device,
        wanted.dtype,
        faults=faults,
        normalise=wanted.normalise,
        spec_augment=SpecAugment() if wanted.spec_augment else None,
        frames_folder=folder / "frames" if name == "wsj" else None,  # 81 hours are 4.7 GB
    )
    for part, utterances in source.utterances.items():
        if not utterances:
            left_out = counts(faults.skipped) or "none"
            raise ValueError(f"{name} has no utterance in its {part} part (left out: {left_out}): put some there")
    return source


def is_speech(folder: Path) -> bool:
    """Whether a folder has ``train.jsonl`` (a manifest) or ``train/wav.scp`` (a Kaldi folder)."""
    return (folder / "train.jsonl").is_file() or (folder / "train" / "wav.scp").is_file()


def _corpus(name: str, folder: Path, faults: Faults) -> Corpus:
    if name == "fake-speech":
        return fake_speech()
    if name == "an4":
        return an4(folder / "an4", faults)
    if name == "fsdd":
        return digits(folder / "fsdd", faults)
    if name == "connected-digits":
        return connected_digits(folder / "fsdd", faults)
    if name == "wsj":
        train, valid, test = (read_wsj(folder / "wsj", part, faults) for part in ("si284", "dev93", "eval92"))
        return Corpus(name, train, valid, test, LogMel())
    return your_own(Path(name).expanduser(), faults)


def an4(folder: Path, faults: Faults, valid: int = 100) -> Corpus:
    """Returns AN4. It has no validation part: the last training speakers are taken, at least ``valid`` utterances."""
    train, valid_part = held_out(read_an4(folder, "train", faults), valid)
    return Corpus("an4", train, valid_part, read_an4(folder, "test", faults), Cepstra())


def digits(folder: Path, faults: Faults) -> Corpus:
    """Returns single digits, the parts without a speaker in common."""
    return Corpus("fsdd", *_by_speaker(read_fsdd(folder, faults)), LogMel(rate=8000))


def connected_digits(folder: Path, faults: Faults, train: int = 2000, test: int = 300) -> Corpus:
    """Returns several digits one after the other, always the same utterances; no speaker is in two parts."""
    parts = zip(_by_speaker(read_fsdd(folder, faults)), (train, test, test), strict=True)
    made = [connected(recordings, count, seed) for seed, (recordings, count) in enumerate(parts)]
    return Corpus("connected-digits", made[0], made[1], made[2], LogMel(rate=8000))


def your_own(folder: Path, faults: Faults) -> Corpus:
    """Reads ``train``, ``valid`` and ``test``, each a manifest (``train.jsonl``) or a Kaldi folder (``train/wav.scp``).

    Without ``valid``, a tenth of the training utterances, of whole speakers. The rate is that of the first file.
    """
    parts = {}
    for part in ("train", "valid", "test"):
        manifest = folder / f"{part}.jsonl"
        if manifest.is_file():
            parts[part] = read_manifest(manifest, faults)
        elif (folder / part / "wav.scp").is_file():
            parts[part] = read_kaldi(folder / part, faults)
        elif part != "valid":
            raise FileNotFoundError(f"{folder} has neither {part}.jsonl nor {part}/wav.scp: add one of them")
    if "valid" not in parts:
        parts["train"], parts["valid"] = held_out(parts["train"], max(1, len(parts["train"]) // 10))
    return Corpus(folder.name, parts["train"], parts["valid"], parts["test"], LogMel(rate=_rate(parts["train"])))


def _by_speaker(recordings: list[Utterance]) -> tuple[list[Utterance], list[Utterance], list[Utterance]]:
    valid, test = ([u for u in recordings if u.speaker in FSDD_SPEAKERS[part]] for part in ("valid", "test"))
    trained = [u for u in recordings if not any(u.speaker in speakers for speakers in FSDD_SPEAKERS.values())]
    return trained, valid, test


def _rate(utterances: list[Utterance]) -> int:
    for utterance in utterances:
        path = utterance.clips[0].path
        try:
            if path is not None:
                return read_audio(path)[1]
        except Unusable:
            continue  # it is named when its features are made
    return LogMel().rate
