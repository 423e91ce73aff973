"""What came out of several recipes, as rows of figures: a table, JSON, CSV and a picture of the differences."""

from __future__ import annotations

import csv
import io
import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from ..files import make_room, write_whole
from ..lab.columns import in_columns
from ..lab.experiments.running import figures
from ..lab.experiments.statistics import paired, sample
from ..lab.train.kinds import figure
from ..lab.train.recipe import Recipe

Row = dict[str, Any]


def rows_of(recipes: Sequence[Recipe], outcomes: Mapping[str, Any]) -> list[Row]:
    """Returns a row for each recipe: its figures of the last epoch, and the differences to the first recipe's.

    ``outcomes`` are those of ``lab.experiments.running``, which trained the recipes.
    ``test`` has the figure of each seed. Differences are taken seed by seed, for one initialisation and one order of
    the data serve all recipes; ``low`` and ``high`` are the ends of the 95 % interval. What is not known is None.
    """
    first = figures(recipes[0], outcomes)
    rows = []
    for recipe in recipes:
        ended = [outcomes[f"{recipe.name}/seed-{seed}"] for seed in recipe.seeds]
        results = [one["result"] for one in ended if "result" in one]
        test = figures(recipe, outcomes)
        train = [value for result in results if (value := figure(result, "train")) is not None]
        ours = sample(test.values()) if test else None
        minus = paired(test, first) if recipe is not recipes[0] else None
        schedule = recipe.resolved("cpu").schedule
        row = {
            "recipe": recipe.name,
            "method": " then ".join(dict.fromkeys(phase.label for phase in schedule.phases)),
            "passes": schedule.passes,
            "seeds": len(ended),
            "finished": len(results),
            "test": test,
            "mean": ours and ours.mean,
            "sd": ours and ours.sd,
            "min": min(test.values(), default=None),
            "max": max(test.values(), default=None),
            "difference": minus and minus.mean,
            "difference_sd": minus and minus.sd,
            "low": minus and minus.low,
            "high": minus and minus.high,
            "train": mean(train) if train else None,
            "seconds": mean(result["seconds"] for result in results) if results else None,
        }
        rows.append({key: None if value != value else value for key, value in row.items()})  # nan: of a single seed
    return rows


def table(rows: Sequence[Row]) -> str:
    """Returns the rows in columns; those of differences are there only where something has a difference."""
    compared = len(rows) > 1 and bool(rows[0]["test"])
    head = ["recipe", "method", "passes", "seeds", "test", "min", "max"]
    head += ["minus the first", "95 % interval"] if compared else []
    lines = [[*head, "train", "seconds a run"]]
    for row in rows:
        complete = row["finished"] == row["seeds"]
        line = [row["recipe"], row["method"], f"{row['passes']:g}"]
        line += [str(row["seeds"]) if complete else f"{row['finished']} of {row['seeds']}"]
        line += [_number(row["mean"]) + _spread(row["sd"]), _number(row["min"]), _number(row["max"])]
        if compared:
            signed = [_number(row[key], "+.2f") for key in ("difference", "low", "high")]
            line += [signed[0] + _spread(row["difference_sd"]), "–" if row["low"] is None else " to ".join(signed[1:])]
        lines.append([*line, _number(row["train"]), _number(row["seconds"], ".0f")])
    return in_columns(lines)


def check_places(json: Path | None, csv: Path | None, plot: Path | None) -> None:
    """Raises where the files cannot be written, before anything is trained."""
    if plot is not None:
        from ..analysis.pictures import check_ending, empty_figure

        check_ending(plot)
        empty_figure(1, 1)
    for path in filter(None, (json, csv, plot)):
        if path.is_dir():
            raise IsADirectoryError(f"{path} is a folder: name a file in it")
        make_room(path)


def write_json(rows: Sequence[Row], path: Path) -> None:
    write_whole(path, (json.dumps(rows, indent=2, ensure_ascii=False, allow_nan=False) + "\n").encode())


def write_csv(rows: Sequence[Row], path: Path) -> None:
    """A line for each recipe; ``test`` has the figures of its seeds, one after the other."""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows({**row, "test": " ".join(map(str, row["test"].values()))} for row in rows)
    write_whole(path, text.getvalue().encode())


def draw(rows: Sequence[Row], path: Path) -> None:
    """Draws the differences to the first recipe: a dot for each seed, their mean, and its 95 % interval."""
    from ..analysis.pictures import empty_figure, saved

    first = rows[0]
    start = len(os.path.commonpath([row["recipe"] for row in rows])) + 1  # what they have in common is not repeated
    shown = [row for row in rows[1:] if row["difference"] is not None]
    figure = empty_figure(7, 1.2 + 0.4 * max(1, len(shown)))
    axes = figure.add_subplot()
    axes.axvline(0, color="0.6", linewidth=1)
    for place, row in enumerate(shown):
        if row["low"] is not None:
            axes.plot([row["low"], row["high"]], [place, place], color="C0", linewidth=2)
        seeds = [value - first["test"][seed] for seed, value in row["test"].items() if seed in first["test"]]
        axes.plot(seeds, [place] * len(seeds), "o", color="0.5", markersize=4, alpha=0.7)
        axes.plot(row["difference"], place, "o", color="C0", markersize=8)
    axes.set_yticks(range(len(shown)), [row["recipe"][start:] for row in shown])
    axes.set_ylim(len(shown) - 0.5, -0.5)
    axes.set_xlabel(f"test figure minus that of {first['recipe']}; mean, 95 % interval, and single seeds")
    saved(figure, path)


WRITERS: Mapping[str, Callable[[Sequence[Row], Path], None]] = {"json": write_json, "csv": write_csv, "plot": draw}


def _number(value: float | None, form: str = ".2f") -> str:
    return "–" if value is None or not math.isfinite(value) else f"{value:{form}}".replace("-", "−")


def _spread(value: float | None) -> str:
    return "" if value is None else f" ± {value:.2f}"
