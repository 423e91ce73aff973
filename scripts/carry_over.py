"""Carries the rows under results/ over to today's names and units, once; no measured value changes.

    python scripts/carry_over.py                    converts results/, and compares checksums before and after
    python scripts/carry_over.py OLD.html NEW.html  compares the figures of two pages, section by section

Levels of uniform noise become the ratio ||n|| / ||w||, that is the paper's level divided by sqrt(3). Rows of noisy
trainings say that their random stream cannot be repeated.
"""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path

RESULTS = Path("results")
METHODS = {
    "sgd": "base",
    "sgd-2x": "base-2x",
    "ssgd": "both",
    "ssgd-x2": "both-x2",
    "ssgdr": "both-sgdr",
    "noise": "one-sided",
    "noise-halves": "one-sided-halves",
    "last ssgd": "last both",
}
EXPERIMENTS = {"price": "equal_cost", "setting": "ablations", "level": "noise_units", "beyond": "other_tasks"}
UNIFORM = ("ssgd", "split", "smoothout")
NOISY = ("ssgd", "split", "smoothout", "noise", "noise-halves")
RENAMED = {"experiment", "method", "level", "noise_stream"}  # all else of a row is as it was measured


def level_of(row: dict) -> tuple[float | None, float | None]:
    """Before and after."""
    level = row.get("level")
    uniform = row["method"] in UNIFORM and row["distribution"] == "uniform"
    return level, level / 3**0.5 if uniform and level is not None else level


def renamed(name: str, row: dict) -> str:
    first, *rest = name.split("/")
    if first == "side-by-side":
        return f"side-by-side/{METHODS.get(row['method'], row['method'])}" + (
            "-0.15" if row["method"] == "split" else ""
        )
    if first in ("cifar10", "cifar100"):
        first, rest = ("course", rest) if rest[0].startswith("resnet") else ("baseline", [first, *rest])
    parts = [EXPERIMENTS.get(first, first), *rest]
    if parts[:2] == ["other_tasks", "an4"] and row["phases"] == "40-20":
        parts[2] += "-60-epochs"
    before, after = level_of(row)
    last = parts[-1]
    if before is not None and (last == f"{before:g}" or last.endswith(f"-{before:g}")):
        stem = last.removesuffix(f"{before:g}")
        stem += "both-" if re.fullmatch(r"[\dS-]+S-", stem) else ""
        parts[-1] = f"{stem}{after:.2g}"
    parts = [re.sub(r"\bsgd\b", "base", re.sub(r"\bssgd\b", "both", part)) for part in parts]
    return "/".join(re.sub(r"^noise(?=-)", "one-sided", part) for part in parts[:1]) + "".join(
        "/" + re.sub(r"^noise(?=-[\dh])", "one-sided", part) for part in parts[1:]
    )


def carried(row: dict) -> dict:
    _, level = level_of(row)
    found = {}
    for key, value in row.items():
        found[key] = value
        if key == "distribution" and row["method"] in NOISY:
            found["noise_stream"] = "buckets"
    new = {"experiment": renamed(row["experiment"], row), "method": METHODS.get(row["method"], row["method"])}
    found |= {**new, "level": level}
    if recipe := row.get("recipe"):
        assert recipe["level"] == row["level"] and recipe["method"] == row["method"]
        name = renamed(recipe["name"], row)
        found["recipe"] = {**recipe, "name": name, "method": new["method"], "level": level}
    return found


def measured(row: dict) -> dict:
    recipe = {k: v for k, v in (row.get("recipe") or {}).items() if k not in ("name", "method", "level")}
    return {k: v for k, v in row.items() if k not in RENAMED and k != "recipe"} | {"recipe": recipe}


def checksum(files: list[Path]) -> tuple[str, int]:
    rows = sorted(
        json.dumps(measured(json.loads(line)), sort_keys=True)
        for file in files
        for line in file.read_text().splitlines()
    )
    return hashlib.sha256("\n".join(rows).encode()).hexdigest(), len(rows)


def convert() -> None:
    files = sorted(RESULTS.rglob("*.jsonl"))
    before = checksum(files)
    for file in files:
        lines = file.read_text().splitlines()
        assert all(json.dumps(json.loads(line)) == line for line in lines), file
        file.write_text("".join(json.dumps(carried(json.loads(line))) + "\n" for line in lines))
        stem = EXPERIMENTS.get(file.stem, file.stem).replace("price-sgd", "equal_cost-base")
        if stem != file.stem:
            subprocess.run(["git", "mv", str(file), str(file.with_name(f"{stem}.jsonl"))], check=True)
    for old, new in (("sgd", "base"), ("ssgd", "both")):
        for suffix in ("json", "npz"):
            where = RESULTS / "figA6"
            subprocess.run(["git", "mv", str(where / f"{old}.{suffix}"), str(where / f"{new}.{suffix}")], check=True)
    for name in ("recomputed-bn", "sharpness", "large-lstm-epochs"):
        other(RESULTS / f"{name}.json")
    benchmark(Path("benchmarks/results/methods-cuda.json"))
    after = checksum(sorted(RESULTS.rglob("*.jsonl")))
    print(f"before: {before[1]} rows, measured values {before[0]}")
    print(f"after:  {after[1]} rows, measured values {after[0]}")
    assert before == after


def other(file: Path) -> None:
    found = json.loads(file.read_text())
    figures = lambda: [[v for v in row.values() if not isinstance(v, str)] for row in found["rows"]]  # noqa: E731
    before = figures()
    for row in found["rows"]:
        for key, value in row.items():
            if key == "method":
                row[key] = METHODS.get(value, value)
            elif key == "experiment":
                noise = "ssgd" in value or "split" in value
                level = 0.26 if value.endswith("0.26") else 0.5 if value.endswith("0.5") else None
                like = {"method": "split" if noise else "sgd", "distribution": "uniform", "level": level, "phases": ""}
                row[key] = renamed(value, like)
    about = found["about"]
    for old, new in (
        ("reproduce price", "reproduce equal_cost"),
        ("reproduce beyond", "reproduce other_tasks"),
        ("split at 0.26", "split at 0.15"),
        ("both signs at 0.5", "both signs at 0.29"),
        ("--level 0.5 ", "--level 0.29 "),
        ("last ssgd: both signs at 0.29", "last both: both signs at 0.29"),
    ):
        about = about.replace(old, new)
    found["about"] = about
    assert before == figures()
    file.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n")


def benchmark(file: Path) -> None:
    """Its rows are named by methods: ``ssgd-x2_operator_calls``."""
    text = file.read_text()
    found = json.loads(text)
    before = [{k: v for k, v in row.items() if k != "name"} for row in found["rows"]]
    for row in found["rows"]:
        method, _, rest = row["name"].partition("_")
        row["name"] = f"{METHODS.get(method, method)}_{rest}"
    assert before == [{k: v for k, v in row.items() if k != "name"} for row in found["rows"]]
    file.write_text(json.dumps(found, indent=1) + "\n" * text.endswith("\n"))


class Page(HTMLParser):
    """The figures of each row of each section's tables: all cells but its head and its words."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.section, self.rows, self.row, self.cell = "", {}, None, None
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list) -> None:
        given = dict(attributes)
        if tag == "section":
            self.section = EXPERIMENTS.get(given["id"], given["id"])
        elif tag == "tr":
            self.row = []
        elif tag == "td" and self.row is not None:
            self.cell = ""

    def handle_data(self, data: str) -> None:
        if self.cell is not None:
            self.cell += f" {data}"

    def handle_endtag(self, tag: str) -> None:
        if tag == "td" and self.row is not None and self.cell is not None:
            self.row.append(" ".join(self.cell.split()))
            self.cell = None
        elif tag == "tr" and self.section and self.row:
            self.rows.setdefault(self.section, []).append(tuple(self.row))
            self.row = None


def compare(old: str, new: str) -> None:
    pages = [Counter() for _ in range(2)]
    for page, name in zip(pages, (old, new), strict=True):
        for section, rows in Page(Path(name).read_text()).rows.items():
            page.update(("tune" if section == "front" else section, row) for row in rows)
    for title, found in (("only before", pages[0] - pages[1]), ("only after", pages[1] - pages[0])):
        print(f"{title}: {sum(found.values())} of {sum(pages[0].values())} rows")
        for (section, row), count in sorted(found.items()):
            print(f"  {section}: {count} × {' | '.join(row)}")


if __name__ == "__main__":
    compare(*sys.argv[1:]) if len(sys.argv) == 3 else convert()
