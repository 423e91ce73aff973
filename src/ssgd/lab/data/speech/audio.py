"""Sound from files: 16-bit wav, whatever soundfile reads where it is installed, and formats that are registered."""

from __future__ import annotations

import os
import struct
import wave
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ssgd.lab.data.faults import Unusable
from ssgd.lab.data.speech.utterances import Clip, Utterance

HUSH = 1e-3  # of full scale, about that of a quiet room; without any, a pause would stand out from all that is heard
FORMATS: dict[bytes, Callable[[Path], tuple[Tensor, int]]] = {}  # readers of other formats, by a file's first bytes
UNKNOWN = 0x7FFF0000  # bytes: what sox and ffmpeg write at least, where they could not know how many would follow


def samples(utterance: Utterance, rate: int) -> Tensor:
    """Reads an utterance's clips one after the other, between −1 and 1; all must have ``rate`` samples a second."""
    numbers = torch.Generator().manual_seed(zlib.crc32(utterance.key.encode("utf-8", "surrogatepass")))
    return torch.cat([_clip(clip, rate, numbers) for clip in utterance.clips])


def read_audio(path: Path) -> tuple[Tensor, int]:
    """Reads a file's samples between −1 and 1, and how many it has a second. Of several channels, their mean."""
    if not os.path.isfile(path) or not os.access(path, os.R_OK):
        raise Unusable("missing audio", f"{path} is not there, or may not be read")
    with path.open("rb") as file:
        start = file.read(max(map(len, FORMATS), default=0))
    for first, read in FORMATS.items():
        if start.startswith(first):
            return read(path)
    _check_whole(path)
    try:
        import soundfile
    except ImportError:
        return _wav(path)
    try:
        sound, rate = soundfile.read(str(path), dtype="float32", always_2d=True)
    except (RuntimeError, OSError, TypeError, ValueError, MemoryError) as problem:  # a headerless file lacks its rate
        raise Unusable("broken audio", f"{path} cannot be read as audio ({problem})") from problem
    return torch.from_numpy(sound).mean(1), int(rate)


def _clip(clip: Clip, rate: int, numbers: torch.Generator) -> Tensor:
    if clip.path is None:
        return HUSH * torch.randn(round((clip.end or 0.0) * rate), generator=numbers)
    sound, found = read_audio(clip.path)
    if found != rate:
        sentence = f"{clip.path} has {found} samples a second, not {rate}: resample it, or ask for features at {found}"
        raise Unusable("other rate", sentence)
    try:
        start, end = round(clip.start * rate), len(sound) if clip.end is None else round(clip.end * rate)
    except (ValueError, OverflowError):  # of what is no time at all
        start = end = -1
    if not 0 <= start < end <= len(sound):
        to_its_end = f"there is nothing from {clip.start} s on"
        why = to_its_end if clip.end is None else f"{clip.start} to {clip.end} s is not in it"
        sentence = f"{clip.path} lasts {len(sound) / rate:.2f} s: {why}"
        raise Unusable("broken audio", sentence)
    return sound[start:end]


def _wav(path: Path) -> tuple[Tensor, int]:
    try:
        with wave.open(str(path)) as file:
            rate, channels, width = file.getframerate(), file.getnchannels(), file.getsampwidth()
            content = file.readframes(min(file.getnframes(), path.stat().st_size))
    except (wave.Error, EOFError, RuntimeError) as problem:
        why = str(problem) or "it ends too early"
        sentence = f"{path} cannot be read as audio ({why}); more kinds can after `pip install soundfile`"
        raise Unusable("broken audio", sentence) from problem
    if width != 2:
        raise Unusable("broken audio", f"{path} has {8 * width} bits a sample: `pip install soundfile` to read it")
    sound = np.frombuffer(content, "<i2", len(content) // 2 // channels * channels).astype(np.float32) / 32768
    return torch.from_numpy(sound.reshape(-1, channels)).mean(1), rate


def _check_whole(path: Path) -> None:
    """Refuses a wav file that ends before its samples do: soundfile would read it as far as it goes."""
    with path.open("rb") as file:
        if not file.read(12).startswith(b"RIFF"):
            return
        while len(head := file.read(8)) == 8:
            name, size = struct.unpack("<4sI", head)
            if name == b"data":
                there = path.stat().st_size - file.tell()
                if there < size < UNKNOWN:
                    raise Unusable("broken audio", f"{path} is cut: {there} of its {size} bytes are there")
                return
            file.seek(size + size % 2, os.SEEK_CUR)
