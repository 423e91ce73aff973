"""Manifests: a line of JSON for each utterance, with its audio file and transcript."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ssgd.lab.data.faults import Faults, Unusable
from ssgd.lab.data.lines import utf8_lines
from ssgd.lab.data.speech.utterances import Clip, Utterance


def read_manifest(path: str | Path, faults: Faults) -> list[Utterance]:
    """Rows with ``audio_filepath`` (or ``audio``) and ``text``, and perhaps ``speaker``, ``offset`` and ``duration``.

    Audio paths are relative to the manifest's folder. A blank line is a fault like any other.
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
