"""Kaldi's data folders: ``wav.scp``, ``text`` and, where there are, ``segments`` and ``utt2spk``."""

from __future__ import annotations

from pathlib import Path

from ssgd.lab.data.faults import Faults, Unusable
from ssgd.lab.data.lines import utf8_lines
from ssgd.lab.data.speech.utterances import Clip, Utterance

Rows = dict[str, tuple[str, str]]  # by key: the place of a row, and the rest of it


def read_kaldi(folder: str | Path, faults: Faults) -> list[Utterance]:
    """The utterances of ``text``, in its order. Commands in ``wav.scp`` (``… |``) are never run: they are faults."""
    folder = Path(folder)
    recordings, texts = (_rows(folder / name, faults) for name in ("wav.scp", "text"))
    segments, speakers = (_rows(folder / name, faults, optional=True) for name in ("segments", "utt2spk"))
    found = []
    for key, (place, text) in texts.items():
        try:
            clip = _clip(key, folder, recordings, segments)
        except Unusable as fault:
            faults.add(place, fault)
        else:
            found.append(Utterance(key, text, (clip,), speakers.get(key, ("", ""))[1], place))
    for key, (place, _) in (segments or recordings).items():
        if key not in texts:
            faults.add(place, Unusable("no transcript", f"{key} is not in {folder / 'text'}: add it there"))
    return found


def _clip(key: str, folder: Path, recordings: Rows, segments: Rows) -> Clip:
    recording, start, end = key, 0.0, None
    if segments:
        if key not in segments:
            raise Unusable("missing audio", f"{key} is not in {folder / 'segments'}")
        fields = segments[key][1].split()
        try:
            recording, start, end = fields[0], float(fields[1]), float(fields[2])
        except (IndexError, ValueError):
            sentence = f"the segment of {key} reads {segments[key][1]!r}: write recording, start and end in seconds"
            raise Unusable("broken row", sentence) from None
        if end < 0:
            end = None  # Kaldi's −1: to the end
    if recording not in recordings:
        raise Unusable("missing audio", f"{recording} is not in {folder / 'wav.scp'}")
    where = recordings[recording][1]
    if where.endswith("|"):
        sentence = f"{recordings[recording][0]} is a command, which is not run: name a file with its output"
        raise Unusable("command", sentence)
    return Clip(folder / where, start, end)


def _rows(path: Path, faults: Faults, optional: bool = False) -> Rows:
    found: Rows = {}
    if optional and not path.exists():
        return found
    for place, line in utf8_lines(path):
        key, rest = [*line.split(None, 1), "", ""][:2]
        if not key:
            faults.add(place, Unusable("empty line", "an empty line: delete it"))
        elif key in found:
            faults.add(place, Unusable("broken row", f"{key} stands in {found[key][0]} already: keys are unique"))
        else:
            found[key] = place, rest.strip()
    return found
