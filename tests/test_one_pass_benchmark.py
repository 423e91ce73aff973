"""The benchmark of loops of one's own runs from end to end, all but the capture of a graph."""

import importlib
import time
from pathlib import Path

import torch

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"


def test_every_way_in_every_kind_of_loop(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    own_loop = importlib.import_module("own_loop")
    task = own_loop.tasks(torch.device("cpu"), tiny=True)[0]
    monkeypatch.setattr(own_loop.ways, "has_sam", lambda: False)
    rows = own_loop.rows(task, torch.device("cpu"), 2, ["eager"], time.perf_counter)
    found = {row.name: row.value for row in rows}
    for way in ("one_pass", "one_pass_repeated", "split", "both"):
        assert f"own_loop_gpt_{way}_eager_over_sgd" in found
    operators = {way: found[f"own_loop_gpt_{way}_operators"] for way in ("sgd", "one_pass", "split")}
    assert operators["one_pass"] < 1.6 * operators["sgd"] and operators["one_pass"] < 0.7 * operators["split"]
    net = own_loop.tasks(torch.device("cpu"), tiny=True)[1]
    operators = {
        way: own_loop.counts(own_loop.Loop(net, way, "eager", torch.device("cpu")), way)[0].value
        for way in ("sgd", "one_pass", "one_pass_batch", "split")
    }
    assert operators["one_pass"] < 1.15 * operators["split"] and operators["one_pass_batch"] < 0.8 * operators["split"]
    own_loop.Loop(task, "one_pass", "graph", torch.device("cpu")).ready()()
