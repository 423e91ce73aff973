"""Sound files and discs made for the tests."""

import wave
from pathlib import Path

import numpy as np


def sound(seconds=0.5, rate=16000, seed=0):
    """16-bit samples: a tone that wanders, under noise."""
    numbers = np.random.default_rng(seed)
    time = np.arange(int(seconds * rate)) / rate
    tone = np.sin(2 * np.pi * (300 + 200 * seed % 700) * time * (1 + 0.2 * time))
    return (4000 * tone + 500 * numbers.standard_normal(len(time))).astype("<i2")


def write_wav(path, samples, rate=16000):
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes(samples.astype("<i2").tobytes())
    return path


def write_sphere(path, samples, rate=16000, coding="pcm", order="01", **more):
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    fields = {
        "channel_count": "-i 1",
        "sample_count": f"-i {len(samples)}",
        "sample_rate": f"-i {rate}",
        "sample_n_bytes": "-i 2",
        "sample_byte_format": f"-s2 {order}",
        "sample_coding": f"-s{len(coding)} {coding}",
        **more,
    }
    lines = ["NIST_1A", "   1024", *(f"{name} {value}" for name, value in fields.items()), "end_head", ""]
    content = samples.astype(">i2" if order == "10" else "<i2").tobytes()
    path.write_bytes("\n".join(lines).encode().ljust(1024) + content)
    return path


def write_mfc(path, frames, order=">"):
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(np.array(frames.size, f"{order}i4").tobytes() + frames.astype(f"{order}f4").tobytes())
    return path
