"""The Wall Street Journal corpus as it lies on LDC's discs (LDC93S6, LDC94S13): lists and sphere files."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ssgd.lab.data.faults import Faults, Unusable
from ssgd.lab.data.speech.utterances import Clip, Utterance

MAGIC = b"NIST_1A\n"  # at the beginning of a sphere file
INDICES = {  # the closed-talk microphone, the largest vocabulary, punctuation not spoken in the tests
    "si284": ("wsj1/doc/indices/si_tr_s.ndx", "wsj0/doc/indices/train/tr_s_wv1.ndx"),
    "dev93": ("wsj1/doc/indices/h1_p0.ndx",),
    "eval92": ("wsj0/doc/indices/test/nvp/si_et_20.ndx",),
}
LEFT_OUT = ("11_2_1", "wsj0/si_tr_s/401/")  # as is usual: 37,416 utterances remain for si284


def read_wsj(root: str | Path, part: str, faults: Faults) -> list[Utterance]:
    """Reads ``part``, which is ``"si284"``, ``"dev93"`` or ``"eval92"``.

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
    """Returns the words of a row of a ``.dot`` file, without its marks.

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
    """Yields place, disc and file of every line: ``11_13_1:wsj0/si_et_20/440/440c0401``, perhaps with an extension."""
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
    """Finds the file: on its disc, which an index calls ``11_13_1`` and a folder ``11-13.1``, or anywhere."""
    its_own = [top for top in tops if re.sub(r"\W", "_", top.name) == disc]
    for top in (*its_own, *tops):
        for name in (relative, relative.lower(), relative.upper()):
            for file in ((top / name).with_suffix(".wav"), top / name):
                if file.is_file():
                    return file
    return (its_own or tops)[0] / relative  # named as missing when it is to be read


def read_sphere(path: Path) -> tuple[Tensor, int]:
    """Reads uncompressed 16-bit PCM from a NIST sphere file (``.wv1``, ``.sph``): samples, and how many a second."""
    content = path.read_bytes()
    header = _header(content, path)
    coding = header.get("sample_coding", "pcm")
    if "shorten" in coding:
        raise Unusable(
            "compressed audio",
            f"{path} is compressed by shorten: write `sph2pipe -f wav {path.name} {path.stem}.wav` beside it, which is"
            " then taken instead",
        )
    if coding != "pcm" or header.get("sample_n_bytes", "2") != "2" or header.get("channel_count", "1") != "1":
        raise Unusable("broken audio", f"{path} is not one channel of 16-bit PCM: convert it to that")
    try:
        count, rate, start = (int(header[name]) for name in ("sample_count", "sample_rate", "header size"))
    except (KeyError, ValueError) as problem:
        raise Unusable("broken audio", f"{path} lacks a number in its header ({problem}): get it again") from problem
    if count < 0 or rate < 1:
        raise Unusable("broken audio", f"{path} says it has {count} samples at {rate} a second: get it again")
    order = ">i2" if header.get("sample_byte_format", "01") == "10" else "<i2"
    if len(content) < start + 2 * count:
        raise Unusable("broken audio", f"{path} is cut short: it should have {count} samples. Get it again")
    return torch.from_numpy(np.frombuffer(content, order, count, start).astype(np.float32) / 32768), rate


def _header(content: bytes, path: Path) -> dict[str, str]:
    if not content.startswith(MAGIC):
        raise Unusable("broken audio", f"{path} is not a NIST sphere file: it does not begin with NIST_1A")
    size = content[len(MAGIC) : len(MAGIC) + 8].strip()
    found = {"header size": size.decode("ascii", "replace")}
    for line in content[: int(size) if size.isdigit() else 0].decode("ascii", "replace").splitlines():
        fields = line.split(None, 2)
        if fields == ["end_head"]:
            return found
        if len(fields) == 3 and fields[1].startswith("-"):
            found[fields[0]] = fields[2].strip()
    raise Unusable("broken audio", f"the header of {path} has no end: get the file again")
