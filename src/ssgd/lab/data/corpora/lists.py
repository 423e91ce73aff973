"""Lists of recordings: manifests, with a line of JSON for each utterance, and Kaldi's data folders."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ssgd.lab.data.faults import Faults, Unusable, utf8_lines
from ssgd.lab.data.speech.utterances import Clip, Utterance

Rows = dict[str, tuple[str, str]]  # by key: the place of a row, and the rest of it


def read_manifest(path: str | Path, faults: Faults) -> list[Utterance]:
    """Reads rows with ``audio_filepath`` (or ``audio``) and ``text``.

    They may have ``id``, ``speaker``, and ``offset`` and ``duration`` in seconds. Audio paths are relative to the
    manifest's folder. A blank line is a fault like any other.
    """
    path = Path(path)
    found = []
    for place, line in utf8_lines(path):
        try:
            found.append(_utterance(line, path, place))
        except Unusable as fault:
            faults.add(place, fault)
    return found


def _utterance(line: str, path: Path, place: str) -> Utterance:
    if not line.strip():
        raise Unusable("empty line", "an empty line: delete it")
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as problem:
        raise Unusable("broken row", f"not a line of JSON ({problem}): write one object a line") from problem
    if not isinstance(row, dict):
        raise Unusable("broken row", 'not an object: write {"audio_filepath": …, "text": …}')
    audio, text, speaker = row.get("audio_filepath", row.get("audio")), row.get("text"), row.get("speaker")
    speaker = "" if speaker is None else str(speaker)
    if not isinstance(audio, str) or not isinstance(text, str):
        raise Unusable("broken row", "audio_filepath (or audio) and text are needed, both as strings")
    start, duration = _seconds(row, "offset"), _seconds(row, "duration")
    # a duration without an offset tells how long the file is, which the file itself knows better
    end = None if start is None or duration is None else start + duration
    key = str(row.get("id", f"{path.stem}-{place.rpartition(':')[2]}"))
    return Utterance(key, text, (Clip(path.parent / audio, start or 0.0, end),), speaker, place)


def _seconds(row: dict[str, Any], name: str) -> float | None:
    value = row.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 1e9:
        raise Unusable("broken row", f"{name} is {value!r}: give seconds, as a number that is not negative")
    return float(value)


def read_kaldi(folder: str | Path, faults: Faults) -> list[Utterance]:
    """Reads the utterances of ``text``, in its order. Commands in ``wav.scp`` (``… |``) are faults and never run."""
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
