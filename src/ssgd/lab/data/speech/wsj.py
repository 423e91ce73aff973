"""The Wall Street Journal corpus as it lies on LDC's discs (LDC93S6, LDC94S13): si-284, dev93 and eval92."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from ssgd.lab.data.faults import Faults, Unusable
from ssgd.lab.data.speech.utterances import Clip, Utterance

INDICES = {  # the closed-talk microphone, the largest vocabulary, punctuation not spoken in the tests
    "si284": ("wsj1/doc/indices/si_tr_s.ndx", "wsj0/doc/indices/train/tr_s_wv1.ndx"),
    "dev93": ("wsj1/doc/indices/h1_p0.ndx",),
    "eval92": ("wsj0/doc/indices/test/nvp/si_et_20.ndx",),
}
LEFT_OUT = ("11_2_1", "wsj0/si_tr_s/401/")  # as is usual: 37,416 utterances remain for si284


def read_wsj(root: str | Path, part: str, faults: Faults) -> list[Utterance]:
    """``part`` is ``"si284"``, ``"dev93"`` or ``"eval92"``.

    ``root`` has the discs as folders (``11-13.1/wsj0/…``, perhaps inside others) or merged (``wsj0``, ``wsj1``).
    Where a ``.wav`` lies beside a ``.wv1``, it is read instead.
    """
    if part not in INDICES:
        raise ValueError(f"no part of WSJ called {part!r}: there are {', '.join(INDICES)}")
    root = Path(root)
    tops = [root, *sorted(folder for depth in ("*", "*/*") for folder in root.glob(depth) if folder.is_dir())]
    transcripts = {path.stem.lower(): path for path in root.rglob("*") if path.suffix.lower() == ".dot"}
    opened: dict[Path, dict[str, str]] = {}
    found = []
    for name in INDICES[part]:
        for place, disc, relative in _entries(_index(tops, name)):
            try:
                found.append(_utterance(place, disc, relative, tops, transcripts, opened))
            except Unusable as fault:
                faults.add(place, fault)
    return sorted(found, key=lambda utterance: utterance.key)


def transcript(text: str) -> str:
    """What was said, from the marks of a ``.dot`` file.

    Noises in [ ] and pauses go; of <deleted>, *mispronounced*, (un)finished and leng:thened words the marks go; spoken
    punctuation (``,COMMA``) becomes the word; ``\\`` only protects the sign after it.
    """
    text = re.sub(r"\[[^]]*\]", " ", text.replace("\\", ""))
    words = []
    for word in text.split():
        spoken = re.fullmatch(r"[^A-Za-z]([A-Za-z]{3,}(?:-[A-Za-z]+)*)", word)
        if spoken and (word[0] != "'" or "QUOTE" in word.upper()):
            word = spoken[1]
        words.append(re.sub(r"[<>*~:().!/]", "", word))
    return " ".join(word for word in words if re.search(r"[^\W_]", word))


def _index(tops: list[Path], name: str) -> Path:
    for top in tops:
        if (top / name).is_file():
            return top / name
    raise FileNotFoundError(
        f"{name} is on none of the discs in {tops[0]}: put the discs there as folders named 11-1.1, 13-34.1, …"
    )


def _entries(index: Path) -> Iterator[tuple[str, str, str]]:
    """Place, disc and file of every line: ``11_13_1:wsj0/si_et_20/440/440c0401``, with an extension or without."""
    with index.open(encoding="latin1") as lines:
        for number, line in enumerate(lines, 1):
            disc, _, relative = line.strip().rpartition(":")
            disc, relative = disc.strip(), relative.strip().lstrip("/")
            left_out = disc == LEFT_OUT[0] and relative.lower().startswith(LEFT_OUT[1])
            if not relative or line.startswith(";") or left_out:
                continue
            if not relative.lower().endswith(".wv1"):
                relative += ".wv1"
            yield f"{index}:{number}", disc, relative


def _utterance(
    place: str,
    disc: str,
    relative: str,
    tops: list[Path],
    transcripts: dict[str, Path],
    opened: dict[Path, dict[str, str]],
) -> Utterance:
    key = Path(relative).stem.lower()
    dot = transcripts.get(f"{key[:6]}00")
    if dot is None:
        raise Unusable("no transcript", f"no disc has {key[:6]}00.dot, with the transcript of {key}")
    if dot not in opened:
        lines = dot.read_text(encoding="latin1").splitlines()
        opened[dot] = {m[2].lower(): m[1] for line in lines if (m := re.fullmatch(r"(.*)\((\w+)\)\s*", line))}
    if key not in opened[dot]:
        raise Unusable("no transcript", f"{dot} has no transcript of {key}")
    audio = _audio(disc, relative, tops)
    return Utterance(key, transcript(opened[dot][key]), (Clip(audio),), key[:3], place)


def _audio(disc: str, relative: str, tops: list[Path]) -> Path:
    """Where the file lies: on its disc, which ``11_13_1`` in an index names and a folder ``11-13.1``, or anywhere."""
    its_own = [top for top in tops if re.sub(r"\W", "_", top.name) == disc]
    for top in (*its_own, *tops):
        for name in (relative, relative.lower(), relative.upper()):
            for file in ((top / name).with_suffix(".wav"), top / name):
                if file.is_file():
                    return file
    return (its_own or tops)[0] / relative  # named as missing when it is to be read
