"""CMU's AN4: words, letters and numbers, as cepstra."""

from __future__ import annotations

import re
from itertools import zip_longest
from pathlib import Path

from ssgd.lab.data.faults import Faults, Unusable
from ssgd.lab.data.lines import utf8_lines
from ssgd.lab.data.speech.utterances import Clip, Utterance


def read_an4(folder: str | Path, part: str, faults: Faults) -> list[Utterance]:
    """``part`` is ``"train"`` or ``"test"``: the ids of ``etc/an4_{part}.fileids`` with the transcripts beside them."""
    etc, feat = Path(folder) / "etc", Path(folder) / "feat"
    ids, transcripts = etc / f"an4_{part}.fileids", etc / f"an4_{part}.transcription"
    if not ids.exists():
        raise FileNotFoundError(f"{ids} is not there: unpack AN4 so that {folder} has etc/ and feat/")
    names, rows = ([line for _, line in utf8_lines(file)] for file in (ids, transcripts))
    found = []
    for number, (name, row) in enumerate(zip_longest(names, rows, fillvalue=""), 1):
        place = f"{transcripts}:{number}"
        try:
            text = _text(row, name.strip())
        except Unusable as fault:
            faults.add(place, fault)
        else:
            path = feat / f"{name.strip()}.mfc"
            found.append(Utterance(path.stem, text, (Clip(path),), path.parent.name, place))
    return found


def _text(row: str, name: str) -> str:
    match = re.fullmatch(r"(?:<s>)?(.*?)(?:</s>)?\s*\((\S+)\)\s*", row)
    if not match or match[2] != name.rpartition("/")[2]:
        raise Unusable("broken row", f"{row!r} is not the transcript of {name!r}: it ends with its id in brackets")
    return match[1].strip()
