"""Training on a CUDA device: graphs, passes at the same time, runs side by side, and resume, to the bit.

Without pytest: PYTHONPATH=src python tests/test_cuda_train.py
"""

from __future__ import annotations

import gc
import os
import sys
import tempfile
import time
import traceback
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from ssgd.lab.train import Execution, Recipe, compare, train
from ssgd.lab.train.checkpoint import read_safetensors
from ssgd.lab.train.distributed import Ranks
from ssgd.lab.train.engine import set_up
from ssgd.lab.train.job import Job, Sources
from ssgd.lab.train.running import Run
from ssgd.lab.train.steps import PairStep
from ssgd.methods.registry import METHODS

try:
    import pytest

    pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
except ImportError:  # then the last lines run the tests
    pass

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

SHORT = Recipe(name="short", model="resnet20", data="fake", phases="2-1", lr=(0.05, 0.005), batch=64)
EXACT = Execution(deterministic=True, progress=False, checkpoint_seconds=0.0)
NEAR = 0.2  # of a first update's norm: bf16 alone makes 0.13


def test_a_run_repeats_itself_to_the_bit() -> None:
    with folders() as (one, other):
        for method in ("base", "both", "split", "sam"):
            recipe = replace(SHORT, method=method, name=method)
            train(recipe, replace(EXACT, out=one))
            train(recipe, replace(EXACT, out=other))
            same_end(one, other, method)


def test_runs_side_by_side_are_those_of_each_alone() -> None:
    recipes = [replace(SHORT, method=m, name=m, seeds=(0, 1)) for m in ("base", "both", "split", "sam")]
    with folders() as (together, alone):
        jobs = compare(recipes, replace(EXACT, out=together))
        assert all(job.failure is None for job in jobs), [job.failure for job in jobs]
        for recipe in recipes:
            for seed in recipe.seeds:
                train(replace(recipe, seeds=(seed,)), replace(EXACT, out=alone))
                same_end(together, alone, recipe.name, seed)


def test_what_is_read_of_a_busy_run_is_there() -> None:
    """Its figures and its checkpoint are those of all steps taken, though the device is far behind."""
    found = []
    for cycles in (0, 10**9):  # about half a second
        run = fresh("base", [], graph=True)
        run.step()
        with run._on_stream():
            torch.cuda._sleep(cycles)
        run.step()
        saved = {name: value.cpu() for name, value in run.state()["model"].items()}
        with run._on_stream():
            torch.cuda._sleep(cycles)
        found.append((saved, run.finish_epoch()))
    (one, row), (other, late) = found
    assert all(torch.equal(value, other[name]) for name, value in one.items())
    assert row == late


def test_a_run_that_was_cut_ends_as_one_that_was_not() -> None:
    with folders() as (whole, cut):
        recipe = replace(SHORT, phases="1-1S-1", lr=(0.05, 0.01, 0.005), method="split", level=0.15)
        train(recipe, replace(EXACT, out=whole))
        for steps in (3, 5, 6, 2):
            advance(recipe, replace(EXACT, out=cut), steps)
        train(recipe, replace(EXACT, out=cut))
        same_end(whole, cut, recipe.name)


def test_statistics_gathered_again_are_those_of_a_run_that_is_judged_so() -> None:
    with folders() as (one, other):
        recipe = replace(SHORT, method="both", level=0.5)
        (row,) = train(recipe, replace(EXACT, out=one))
        (asked,) = train(replace(recipe, recompute_bn=True), replace(EXACT, out=other))
        assert row["test_accuracy_recomputed_bn"] == asked["test_accuracy"]


def test_the_graph_of_every_method_is_its_eager_step() -> None:
    for name in METHODS:
        if name in ("mirror", "base-2x", "sgdr", "both-sgdr"):  # ranks; the others are steps of sgd and ssgd
            continue
        said, (graph, _) = graph_and_eager(name)
        assert bool(said) == (graph.opt.rule.not_capturable is not None), f"{name} said {said}"


def test_a_graph_that_is_garbage_does_not_spoil_the_next() -> None:
    """A run and its steps know each other: its graph is let go when the collector comes by."""
    thresholds = gc.get_threshold()
    gc.collect()
    old = fresh("both", [], graph=True)
    for _ in range(2):
        old.step()
    torch.cuda.synchronize()
    gc.disable()
    del old
    new = fresh("both", [], graph=True)
    gc.set_threshold(1, 1, 1)
    gc.enable()
    try:
        for _ in range(2):
            new.step()
    finally:
        gc.set_threshold(*thresholds)
    torch.cuda.synchronize()
    assert all(tensor.isfinite().all() for tensor in tensors(new))


def test_the_graph_of_four_devices_is_their_eager_step() -> None:
    for name in ("base", "both", "split", "smoothout-x2"):
        said, _ = graph_and_eager(name, devices=4, pair=True)  # which they are not
        assert not said, f"{name} said {said}"


def test_the_graph_of_adam_is_its_eager_step() -> None:
    for optimizer in ("adam", "adamw"):
        for name in ("base", "both"):
            said, runs = graph_and_eager(name, pair=True, optimizer=optimizer, lr=(1e-3,))
            assert not said, f"{name} said {said}"
            assert all(tensor.is_cuda for run in runs for tensor in tensors(run)), name


def test_adam_cut_with_shards_goes_on_with_whole_weights() -> None:
    """There it is not fused, and counts on the CPU."""
    said: list[str] = []
    cut, run = (fresh("sgd", said, graph=graph, optimizer="adam", lr=(1e-3,)) for graph in (False, True))
    cut.step()
    state = cut.state()
    for group in state["optimizer"]["param_groups"]:
        group.update(fused=False, capturable=False)
    for entry in state["optimizer"]["state"].values():
        entry["step"] = entry["step"].cpu()
    run.load(state)
    for one in (cut, run):
        one.step()
        torch.cuda.synchronize()
    assert not said, said
    for a, b in zip(tensors(cut), tensors(run), strict=True):
        assert b.is_cuda and torch.equal(a, b)


def test_an_average_taken_up_is_the_one_that_was_saved() -> None:
    """However far the default stream is behind."""
    saved, taken = fresh("swa", []), fresh("swa", [])
    for _ in range(3):
        saved.step()
    state = saved.state()
    torch.cuda._sleep(10**9)
    taken.load(state)
    torch.cuda.synchronize()
    for a, b in zip(saved._average.parameters(), taken._average.parameters(), strict=True):
        assert torch.equal(a, b)


def test_twelve_runs_share_no_stream() -> None:
    runs = [fresh("both", [], pair=True) for _ in range(12)]
    for run in runs:
        run._take_up(run.phase)  # as at the end of a phase
    assert len({stream.cuda_stream for run in runs for stream in (run.stream, run._eager.side)}) == 24


def test_both_passes_at_the_same_time_are_the_passes_in_turn() -> None:
    for name in ("both", "split"):
        for graph in (True, False):
            pair, turn = (fresh(name, [], graph=graph, pair=pair) for pair in (True, False))
            for run in (pair, turn):
                for _ in range(4):
                    run.step()
                torch.cuda.synchronize()
            for a, b in zip(pair.net.parameters(), turn.net.parameters(), strict=True):
                assert torch.equal(a, b), name
            for a, b in zip(pair.net.buffers(), turn.net.buffers(), strict=True):
                assert torch.allclose(a.float(), b.float(), rtol=1e-4, atol=1e-5), name


def test_a_compiled_step_is_near_the_eager_one() -> None:
    compiled, eager = (fresh("both", [], compile=c, precision="fp32") for c in (True, False))
    for run in (compiled, eager):
        run.step()
        torch.cuda.synchronize()
    for a, b in zip(compiled.net.parameters(), eager.net.parameters(), strict=True):
        assert torch.allclose(a, b, rtol=1e-3, atol=1e-4)


def test_the_fastest_way_of_a_step_is_near_the_plainest() -> None:
    """Compiled, captured, its passes at once, by our kernels, in bf16, against fp32 without any of it; a step's noise
    makes much more of a difference than the way does.
    """
    fastest = {"compile": True, "graph": True, "pair": True, "kernels": True}
    for name in ("both", "split"):
        plain, fast, clean = (
            update(method, **options)
            for method, options in ((name, {"precision": "fp32"}), (name, fastest), ("base", {"precision": "fp32"}))
        )
        off, of_noise = (float((one - plain).norm() / plain.norm()) for one in (fast, clean))
        assert off < NEAR < of_noise / 2, f"{name}: off by {off:.3f}, without noise by {of_noise:.3f}"


def test_nothing_waits_for_the_device_inside_an_epoch() -> None:
    for name in ("base", "both", "split", "sam"):
        run = fresh(name, [], graph=True, pair=True)
        run.step()  # captures
        with run._on_stream():
            torch.cuda._sleep(2 * 10**9)  # about a second
            awake = torch.cuda.Event()
            awake.record()
        while not run.epoch_is_over:
            run.step()
        assert not awake.query(), name
        torch.cuda.synchronize()


def test_one_that_diverges_ends_alone() -> None:
    with folders() as (out, _):
        good, bad = replace(SHORT, name="good"), replace(SHORT, name="bad", lr=(1e9, 1e9))
        jobs = compare([good, bad], Execution(progress=False, out=out))
        assert jobs[0].failure is None and jobs[0].result is not None
        assert "the loss is" in str(jobs[1].failure)


def test_without_memory_for_its_graph_a_run_waits_for_the_other() -> None:
    """In the − pass, while the branches are apart. It ends as it does alone."""
    asked = []

    def wanting(step: PairStep, *arguments: Any, act: Any = PairStep._pass) -> Any:
        if torch.cuda.is_current_stream_capturing() and arguments[1] is step.moved[1]:
            asked.append(step)
            if len(asked) == 1:
                torch.empty(1 << 50, device="cuda")
        return act(step, *arguments)

    plain, how = PairStep._pass, replace(EXACT, compile=False)
    recipe = replace(SHORT, method="both", seeds=(0, 1))
    with folders() as (together, alone):
        PairStep._pass = wanting  # type: ignore[method-assign]
        try:
            jobs = compare([recipe], replace(how, out=together))
        finally:
            PairStep._pass = plain  # type: ignore[method-assign]
        assert all(job.failure is None for job in jobs), [job.failure for job in jobs]
        assert len(asked) == 3  # once in vain, and once for each
        train(recipe, replace(how, out=alone))
        for seed in recipe.seeds:
            same_end(together, alone, recipe.name, seed)


def test_a_run_is_let_go_when_the_device_is_done_with_it() -> None:
    with folders() as (out, _):
        execution = replace(EXACT, out=out)
        job = Job(SHORT, 0, execution, Ranks(), print)
        job.begin(Sources(execution))
        stream = job.run.stream
        with job.run._on_stream():
            torch.cuda._sleep(10**9)
        job.close()
        assert stream.query()


# --- how ------------------------------------------------------------------------------------------------------------


class folders:  # noqa: N801 - used as a function
    """Two empty folders."""

    def __enter__(self) -> tuple[str, str]:
        self._held = [tempfile.TemporaryDirectory() for _ in range(2)]
        return self._held[0].name, self._held[1].name

    def __exit__(self, *_: object) -> None:
        for held in self._held:
            held.cleanup()


def same_end(one: str, other: str, name: str, seed: int = 0) -> None:
    places = [Path(folder) / name / f"seed-{seed}" for folder in (one, other)]
    first, second = (read_safetensors(place / "weights.safetensors") for place in places)
    for key, value in first.items():
        assert torch.equal(value, second[key]), f"{name}: {key}"
    rows = [place.joinpath("metrics.jsonl").read_text().splitlines() for place in places]
    assert rows[0] == rows[1], f"{name}: {[pair for pair in zip(*rows, strict=True) if pair[0] != pair[1]]}"


def advance(recipe: Recipe, execution: Execution, steps: int) -> None:
    """Some steps of a job, as a process that is then killed takes them."""
    set_up(recipe.resolved("cuda"), execution)
    job = Job(recipe, 0, execution, Ranks(), print)
    job.begin(Sources(execution))
    for _ in range(steps):
        if job.over:
            break
        job.advance()
    torch.cuda.synchronize()
    job.close()


def fresh(name: str, said: list[str], **options: Any) -> Run:
    """A run without compilation, from the same first weights each time."""
    changes = {key: options.pop(key) for key in ("precision", "devices", "optimizer", "lr") if key in options}
    recipe = replace(
        SHORT, **{"method": name, "precision": "bf16", "phases": "9", "lr": (0.05,), "batch": 32, **changes}
    )
    set_up(recipe, EXACT)
    device = torch.device("cuda", 0)
    return Run(recipe, 0, Sources(EXACT).get(recipe, device), device, Ranks(), Execution(**options), said.append)


def update(name: str, **options: Any) -> torch.Tensor:
    """What the first step of a method adds to the weights."""
    run = fresh(name, [], **options)
    before = torch.cat([p.detach().flatten() for p in run.net.parameters()])
    run.step()
    torch.cuda.synchronize()
    return torch.cat([p.detach().flatten() for p in run.net.parameters()]) - before


def graph_and_eager(name: str, **options: Any) -> tuple[list[str], list[Run]]:
    """Four steps as a graph and four without: bitwise alike. What was said, and the two runs."""
    said: list[str] = []
    runs = [fresh(name, said, graph=graph, **options) for graph in (True, False)]
    for run in runs:
        for _ in range(4):
            run.step()
        torch.cuda.synchronize()
    for a, b in zip(*(tensors(run) for run in runs), strict=True):
        assert torch.equal(a, b), name
    return said, runs


def tensors(run: Run) -> list[torch.Tensor]:
    state = [t for s in run.opt.state.values() for t in s.values() if isinstance(t, torch.Tensor)]
    return [*run.net.parameters(), *run.net.buffers(), *state, run.sums]


def main() -> int:
    if not torch.cuda.is_available():
        print("skipped: needs a CUDA device")
        return 0
    failed = 0
    for name, test in list(globals().items()):
        if name.startswith("test_") and (len(sys.argv) == 1 or any(word in name for word in sys.argv[1:])):
            began = time.time()
            try:
                test()
                print(f"pass {name} {time.time() - began:.0f} s", flush=True)
            except Exception:
                failed += 1
                print(f"FAIL {name}\n{traceback.format_exc()}", flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(main())
