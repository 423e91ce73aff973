"""Say what this machine offers, and what to do about what is missing.

Exit status 1 if no device can train, or the results cannot be written here.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import shutil
import warnings
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

import torch
from torch import nn

from .. import SSGD, __version__
from ..lab.data.cifar import ARCHIVES, FOLDERS
from ..lab.data.download import data_folder
from ..lab.data.mnist import SERVERS
from ..lab.data.registry import NAMES
from ..lab.versions import OLDEST, at_least

EXTRAS = {
    "demo": "pictures of python -m ssgd.demo",
    "images": "folders of images",
    "speech": "audio files",
    "analysis": "spectra, and pictures of lines and planes",
    "report": "ssgd report",
    "tensorboard": "tensorboard=true",
    "ray": "--on ray",
    "lightning": "S-SGD in Lightning",
    "accelerate": "S-SGD in Accelerate",
    "transformers": "S-SGD in transformers' Trainer",
    "jax": "ssgd.jax",
}
SHARED = {**FOLDERS, "connected-digits": "fsdd"}  # where a data set lies in a folder of another name
INSIDE = ("digits", "fake", "fake-text", "fake-speech")  # no files are needed
GET_TORCH = "https://pytorch.org/get-started/locally/ has the command for a torch with CUDA"


@dataclass(frozen=True)
class Finding:
    """One line: whether it is there, what was found, and what to do."""

    part: str
    name: str
    there: bool
    found: str
    remedy: str = ""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="Prints JSON, for programs and bug reports.")


def run(options: argparse.Namespace) -> int:
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        found = [*versions(), *devices(), *speed(), *extras(), *data(), *folders()]
    found += [Finding("machine", "warning", False, str(w.message).split("\n")[0]) for w in warned if "CUDA" in str(w)]
    steps = [finding for finding in found if finding.name.startswith("a step")]
    able = any(f.there for f in steps) and all(f.there for f in found if f.name in ("torch", "results"))
    if options.json:
        print(json.dumps({"can_train": able, "findings": [asdict(finding) for finding in found]}, indent=2))
    else:
        show(found, able)
    return 0 if able else 1


def show(found: list[Finding], able: bool) -> None:
    for part in dict.fromkeys(finding.part for finding in found):
        print(f"{part}:")
        for finding in found:
            if finding.part == part:
                print(f"  {'✓' if finding.there else '–'} {finding.name}: {finding.found}")
                if finding.remedy:
                    print(f"      → {finding.remedy}")
    print()
    print(
        "This machine can train: `ssgd train digits method=split:0.15` takes a minute or two on two cores, "
        "`ssgd compare --model small-cnn --data FOLDER` compares on your own images."
        if able
        else "This machine cannot train yet: see the lines with → above."
    )


def versions() -> Iterator[Finding]:
    system = f"Python {platform.python_version()}, {platform.system()} {platform.machine()}, {os.cpu_count()} cores"
    yield Finding("machine", "ssgd", True, f"{__version__}, {system}")
    new_enough = at_least(OLDEST)
    remedy = "" if new_enough else f"ssgd needs torch {'.'.join(map(str, OLDEST))} or newer: pip install -U torch"
    yield Finding("machine", "torch", new_enough, f"{torch.__version__}, {torch.get_num_threads()} threads", remedy)


def devices() -> Iterator[Finding]:
    """GPUs, and whether a step of S-SGD succeeds on each device."""
    names = [torch.device("cuda", i) for i in range(torch.cuda.device_count())] if torch.cuda.is_available() else []
    for device in names:
        about = torch.cuda.get_device_properties(device)
        memory = f"{about.total_memory / 2**30:.0f} GiB"
        yield Finding("machine", str(device), True, f"{about.name}, {memory}, capability {about.major}.{about.minor}")
    if not names:
        yield Finding("machine", "GPU", False, "none that torch sees; training runs on the CPU", _why_no_gpu())
    for device in (*names, torch.device("cpu")):
        problem = _step(device)
        yield Finding(
            "machine", f"a step of S-SGD on {device}", not problem, problem or "done", GET_TORCH * bool(problem)
        )


def _why_no_gpu() -> str:
    if not shutil.which("nvidia-smi"):
        return ""
    if torch.version.cuda is None:
        return f"there is an NVIDIA driver, but this torch is built without CUDA: {GET_TORCH}"
    return f"torch is built for CUDA {torch.version.cuda}: look at nvidia-smi, and at CUDA_VISIBLE_DEVICES"


def _step(device: torch.device) -> str:
    """Returns the problem that a tiny step meets there, or an empty text."""
    try:
        net = nn.Linear(4, 2).to(device)
        before = net.weight.detach().clone()
        opt = SSGD(torch.optim.SGD(net.parameters(), lr=0.1), noise=0.2, seed=0)
        for point in opt.points():
            with point:
                net(torch.ones(3, 4, device=device)).square().sum().backward()
        opt.step()
        moved = bool((net.weight != before).any()) and bool(net.weight.isfinite().all())
        return "" if moved else "the weights did not move as they should"
    except RuntimeError as problem:
        return str(problem).split("\n")[0]


def speed() -> Iterator[Finding]:
    """Precision, compilation, graphs and processes, which make training fast."""
    cuda = torch.cuda.is_available()
    bf16 = cuda and torch.cuda.is_bf16_supported(including_emulation=False)
    tf32 = cuda and torch.cuda.get_device_capability()[0] >= 8
    formats = ", ".join(["fp32", *["tf32"] * tf32, *["bf16"] * bf16])
    yield Finding("machine", "precision", True, f"{formats}; precision=auto is {'bf16' if bf16 else 'fp32'} here")
    compiler = next(filter(None, map(shutil.which, (os.environ.get("CXX", "g++"), "clang++", "cl"))), None)
    triton = find_spec("triton") is not None
    found = ", ".join([compiler or "no C++ compiler", "Triton" if triton else "no Triton"])
    needs = [] if compiler else ["a C++ compiler (on Debian: apt install g++)"]
    needs += ["Triton (pip install triton)"] if cuda and not triton else []
    remedy = f"it needs {' and '.join(needs)}; compile=false trains without" if needs else ""
    yield Finding("machine", "torch.compile", not needs, found, remedy)
    yield Finding("machine", "CUDA graphs", cuda, "a step is one graph" if cuda else "they need an NVIDIA GPU")
    backends = [name for name in ("nccl", "gloo", "mpi") if _has(name)]
    remedy = "" if backends else "this torch is built without torch.distributed: training runs in one process"
    yield Finding("machine", "many processes", bool(backends), ", ".join(backends) or "no backend", remedy)


def _has(backend: str) -> bool:
    return torch.distributed.is_available() and bool(getattr(torch.distributed, f"is_{backend}_available")())


def extras() -> Iterator[Finding]:
    """Optional packages, as the installed ssgd lists them."""
    try:
        needs = metadata.requires("ssgd") or []
    except metadata.PackageNotFoundError:
        yield Finding("extras", "package", False, "ssgd runs from a folder and is not installed", "pip install .")
        return
    for extra, purpose in EXTRAS.items():
        packages = {name: _version(name) for name in _packages(extra, needs)}
        found = ", ".join(f"{name} {version}" if version else f"no {name}" for name, version in packages.items())
        complete = bool(packages) and all(packages.values())
        remedy = "" if complete else f"for {purpose}: pip install 'ssgd[{extra}]'"
        yield Finding("extras", extra, complete, found or "the installed ssgd is older and does not have it", remedy)


def _packages(extra: str, needs: list[str]) -> list[str]:
    """The packages of an extra, and of the extras that it names."""
    found: list[str] = []
    for need in needs:
        wanted, _, condition = need.partition(";")
        if re.search(rf"extra == ['\"]{extra}['\"]", condition):
            name, inner = re.match(r"([\w.-]+)(?:\[([\w,]+)\])?", wanted).groups()  # type: ignore[union-attr]
            found += [p for e in inner.split(",") for p in _packages(e, needs)] if name == "ssgd" else [name]
    return found


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def data() -> Iterator[Finding]:
    """Data sets that lie in the data folder, by what is there: nothing is read."""
    root = data_folder()
    yield Finding("data", "with the package", True, ", ".join(INSIDE))
    for name in NAMES:
        folder = root / SHARED.get(name, name)
        if name not in INSIDE:
            there = bool(_inside(folder))
            fetched = "downloaded when first used" if name in (*ARCHIVES, *SERVERS) else f"bring its files to {folder}"
            yield Finding("data", name, there, str(folder) if there else "not here", "" if there else fetched)
    images = [name for name in _inside(root) if os.path.isdir(root / name / "train")]
    yield Finding("data", "folders with train/", bool(images), ", ".join(images) or f"none in {root}")


def _inside(folder: Path) -> list[str]:
    """The names in a folder; none where it is no folder, or is closed."""
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []


def folders() -> Iterator[Finding]:
    """Where results and data are written to."""
    for name, path, remedy in (
        ("results", Path("runs"), "give another folder: out=FOLDER"),
        ("downloads", data_folder(), "set SSGD_DATA to a folder that you may write to"),
    ):
        there = next(one for one in (path.absolute(), *path.absolute().parents) if os.path.lexists(one))
        problem = _closed(there)
        found = problem or f"{shutil.disk_usage(there).free / 1e9:.0f} GB free"
        yield Finding("folders", name, not problem, f"{path}, {found}", remedy if problem else "")


def _closed(folder: Path) -> str:
    """Why nothing can be written into a folder, or an empty text."""
    if not os.path.isdir(folder):
        return f"but {folder} is not a folder"
    return "" if os.access(folder, os.W_OK | os.X_OK) else "not to be written to"
