"""Training with several processes: it ends as with one, goes on after cuts, and no rank waits for one that is gone."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from ssgd.lab import experiments
from ssgd.lab.train import Execution, Recipe, compare, train
from ssgd.lab.train.distributed import Ranks as Place
from ssgd.lab.train.distributed import fresh_part, joined
from ssgd.lab.train.engine import Listener, Stopped, alone, drive
from ssgd.lab.train.job import Job, Sources
from ssgd.lab.train.running import Diverged

from .by_hand import Weights, assert_bitwise, objects_of_every_rank
from .nets import MARKERS
from .spawn import Ranks

ROOT = Path(__file__).parents[2]
RECIPE = Recipe(
    name="digits",
    model="tests.distributed.nets:plain",
    data="digits",
    train_limit=192,
    test_limit=101,
    phases="1-1",
    lr=(0.1, 0.05),
    batch=8,
    per_rank=False,
)
CLOSE = {"rtol": 1e-6, "atol": 1e-6}  # float32 sums in another order; 2e-7 was seen
CUT_AT = 10  # of 24 steps an epoch; ranks agree to stop at the next round of 20


def execution(out: Path) -> Execution:
    return Execution(out=str(out), device="cpu", progress=False)


def trained(rank: int, recipe: Recipe, out: Path, cut: bool = False) -> Weights:
    """This rank's replica after the training, its running statistics included, or when it was stopped in mid-epoch."""
    with joined("cpu") as ranks:
        job = Job(recipe, 0, execution(out), ranks, print)
        job.begin(Sources(job.execution))
        run = job.run
        assert run is not None
        while not job.over and not job.stopped:
            job.stop_asked |= cut and run.position >= CUT_AT and rank == ranks.count - 1
            job.advance()
        job.close()
        return run.weights()


def folder(out: Path) -> Path:
    return out / "digits" / "seed-0"


def metrics(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder(out) / "metrics.jsonl").read_text().splitlines()]


def assert_close(found: Weights, expected: Weights) -> None:
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, **CLOSE)


def assert_metrics_close(found: Path, expected: Path) -> None:
    assert len(metrics(found)) == len(metrics(expected)) == 2
    for row, other in zip(metrics(found), metrics(expected), strict=True):
        assert row.keys() == other.keys() >= {"loss", "accuracy", "test_loss", "test_accuracy"}
        numbers = [key for key, value in row.items() if isinstance(value, float)]
        assert [row[key] for key in numbers] == pytest.approx([other[key] for key in numbers], rel=1e-6)


def assert_same_files(found: Path, expected: Path) -> None:
    for name in ("weights.safetensors", "metrics.jsonl"):
        assert (folder(found) / name).read_bytes() == (folder(expected) / name).read_bytes(), name


# --- as one process -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["base", "both", "split", "sam"])
def test_one_two_and_four_processes_end_alike(ranks: Ranks, tmp_path: Path, method: str) -> None:
    """With the same global batch, shared noise and no batch-norm, up to the order of sums; metrics too."""
    recipe = replace(RECIPE, method=method, batch=16)
    (alone,) = ranks(1, trained, recipe, tmp_path / "1")
    for count in (2, 4):
        replicas = ranks(count, trained, recipe, tmp_path / str(count))
        assert_close(replicas[0], alone)
        assert_metrics_close(tmp_path / str(count), tmp_path / "1")
        for replica in replicas[1:]:
            assert_bitwise(replica, replicas[0])


def test_sharded_weights_end_alike_too(ranks: Ranks, tmp_path: Path) -> None:
    recipe = replace(RECIPE, batch=16)
    ddp, *_ = ranks(2, trained, recipe, tmp_path / "ddp")
    fsdp, *_ = ranks(2, trained, replace(recipe, parallel="fsdp"), tmp_path / "fsdp")
    assert_close(fsdp, ddp)
    assert_metrics_close(tmp_path / "fsdp", tmp_path / "ddp")


@pytest.mark.parametrize(
    ("changes", "told", "near"),
    [
        ({"lr": (0.1,)}, ("test_loss", "test_accuracy", "train_loss", "train_accuracy"), 1e-6),
        ({"precision": "bf16"}, ("test_loss", "train_loss"), 0.05),
        ({"model": "sgcn-small", "data": "fake-speech"}, ("test_loss", "test_cer", "valid_loss", "valid_wer"), 1e-5),
    ],
    ids=["images", "bf16", "speech"],
)
def test_shares_of_different_length_are_evaluated_with_sharded_weights(
    ranks: Ranks, tmp_path: Path, changes: dict[str, Any], told: Sequence[str], near: float
) -> None:
    """Of 3 test images a fourth rank has none, and must still help to gather the weights."""
    short = {"test_limit": 3, "phases": "1", "lr": (0.01,), "train_limit": 32, "parallel": "fsdp"}
    recipe = replace(RECIPE, **{**short, **changes})
    ranks(4, trained, recipe, tmp_path / "4")
    ranks(1, trained, recipe, tmp_path / "1")
    found, expected = (json.loads((folder(tmp_path / n) / "result.json").read_text()) for n in "41")
    for key in told:
        assert found[key] == pytest.approx(expected[key], rel=near)


@pytest.mark.parametrize(
    "changes",
    [
        {"method": "base"},
        {"method": "both"},
        {"method": "both", "per_rank": False},
        {"method": "both", "bn_stats": "once", "clip": 1.0},
        {"method": "both-x2"},
        {"method": "split"},
        {"method": "swa"},
    ],
    ids=lambda changes: " ".join(str(value) for value in changes.values()),
)
def test_one_process_stands_for_four_devices(ranks: Ranks, tmp_path: Path, changes: dict[str, Any]) -> None:
    """Batch-norm over a quarter of the batch, noise of each device's own, rank 0's running statistics."""
    short = {"model": "small-cnn", "batch": 32, "train_limit": 64, "lr": (0.02, 0.01), "per_rank": None}
    recipe = replace(RECIPE, **{**short, **changes})
    four, *_ = ranks(4, trained, recipe, tmp_path / "4")
    (alone,) = ranks(1, trained, replace(recipe, devices=4), tmp_path / "1")
    (whole,) = ranks(1, trained, recipe, tmp_path / "whole")
    differences = [max((found[name] - four[name]).abs().max() for name in four) for found in (alone, whole)]
    assert differences[0] < 1e-6 < 1e-2 < differences[1]  # 1.2e-7 was seen
    assert_metrics_close(tmp_path / "1", tmp_path / "4")
    again, *_ = ranks(4, trained, replace(recipe, devices=4), tmp_path / "again")
    assert_bitwise(again, four)


# --- replicas stay alike --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "changes",
    [
        {"method": "both"},
        {"method": "both", "bn_stats": "once", "recompute_bn": True},
        {"method": "mirror"},
        {"model": "tests.distributed.nets:with_dropout_before_batch_norm", "recompute_bn": True},
        {"method": "swa"},
        {"method": "split", "parallel": "fsdp"},
    ],
    ids=lambda changes: " ".join(str(value) for value in changes.values()),
)
def test_replicas_are_bitwise_alike_also_in_their_statistics(
    ranks: Ranks, tmp_path: Path, changes: dict[str, Any]
) -> None:
    recipe = replace(RECIPE, batch=32, phases="2", lr=(0.1,), per_rank=None, **{"model": "small-cnn", **changes})
    first, second = ranks(2, trained, recipe, tmp_path)
    assert any("running_mean" in name for name in first)
    assert_bitwise(second, first)
    assert metrics(tmp_path)[-1]["loss"] < metrics(tmp_path)[0]["loss"]


@pytest.mark.parametrize(("per_rank", "alike"), [(None, False), (True, False), (False, True)])
def test_ranks_draw_noise_of_their_own_unless_it_is_shared(
    ranks: Ranks, tmp_path: Path, per_rank: bool | None, alike: bool
) -> None:
    first, second = ranks(2, noisy_weight, replace(RECIPE, method="both", per_rank=per_rank), tmp_path)
    assert torch.equal(first, second) == alike


def noisy_weight(rank: int, recipe: Recipe, out: Path) -> torch.Tensor:
    with joined("cpu") as ranks:
        job = Job(recipe, 0, execution(out), ranks, print)
        job.begin(Sources(job.execution))
        assert job.run is not None and job.run.opt is not None
        with next(iter(job.run.opt.points())):  # type: ignore[attr-defined]
            weight: torch.Tensor = job.run.net[0].weight.detach().clone()  # type: ignore[index, union-attr]
        job.close()
        return weight


# --- cut and taken up -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("count", "changes"),
    [
        (2, {"method": "both", "model": "small-cnn", "per_rank": None}),
        (4, {"method": "split"}),
        (2, {"method": "dropout", "optimizer": "adam", "lr": (0.003,)}),
        (2, {"method": "both", "parallel": "fsdp"}),
    ],
    ids=lambda value: " ".join(map(str, value.values())) if isinstance(value, dict) else str(value),
)
def test_cut_in_mid_epoch_and_taken_up_by_as_many_ranks_is_bitwise_the_same(
    ranks: Ranks, tmp_path: Path, count: int, changes: dict[str, Any]
) -> None:
    recipe = replace(RECIPE, **changes)
    ranks(count, trained, recipe, tmp_path / "unbroken")
    ranks(count, trained, recipe, tmp_path / "cut", True)
    assert not (folder(tmp_path / "cut") / "result.json").exists()
    assert sorted(path.name for path in (folder(tmp_path / "cut") / "checkpoints").iterdir()) == ["step-00000020.pt"]
    ranks(count, trained, recipe, tmp_path / "cut")
    assert_same_files(tmp_path / "cut", tmp_path / "unbroken")


@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_taken_up_by_another_number_of_ranks_it_ends_alike(ranks: Ranks, tmp_path: Path, parallel: str) -> None:
    """Momentum comes along: without it the weights would end far apart."""
    recipe = replace(RECIPE, parallel=parallel, method="both" if parallel == "ddp" else "base")
    unbroken, _ = ranks(2, trained, recipe, tmp_path / "unbroken")
    for count, later in ((2, 4), (2, 1), (1, 2)):
        out = tmp_path / f"{count}, then {later}"
        ranks(count, trained, recipe, out, True)
        end, *_ = ranks(later, trained, recipe, out)
        assert_close(end, unbroken)
        assert_metrics_close(out, tmp_path / "unbroken")


def test_a_signal_to_one_rank_between_two_runs_stops_all(ranks: Ranks, tmp_path: Path) -> None:
    recipe = replace(RECIPE, seeds=(0, 1), train_limit=32)
    assert ranks(2, stopped_after_the_first, recipe, tmp_path) == [(True, False)] * 2
    ranks(2, trained_by_name, recipe, tmp_path)
    assert (tmp_path / "digits" / "seed-1" / "result.json").exists()


def stopped_after_the_first(rank: int, recipe: Recipe, out: Path) -> tuple[bool, bool]:
    with joined("cpu") as ranks:
        jobs = [Job(recipe, seed, execution(out), ranks, print) for seed in recipe.seeds]

        def stop() -> int | None:
            return signal.SIGTERM if rank == 1 and jobs[0].over else None

        with pytest.raises(Stopped):
            drive(jobs, 1, Sources(jobs[0].execution), Listener(), stop)
        return jobs[0].over, jobs[1].over


def trained_by_name(rank: int, recipe: Recipe, out: Path) -> None:
    train(recipe, execution(out))


# --- what goes wrong ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("count", "changes", "sentence"),
    [
        (2, {"batch": 15}, "batch=15 cannot be divided evenly among 2 processes: use a multiple of 2"),
        (2, {"sync_batchnorm": True}, "sync_batchnorm=true needs GPUs"),
        (1, {"method": "mirror"}, "method=mirror needs an even number of processes, not 1"),
        (2, {"method": "ema", "parallel": "fsdp"}, "method=ema does not go with sharded weights"),
        (2, {"per_rank": True, "parallel": "fsdp"}, "per_rank=true does not go with sharded weights"),
        (2, {"devices": 4}, "devices=4 takes one process or 4, not 2: use torchrun --nproc-per-node 4, or none"),
        (2, {"pair": True}, "graph=true and pair=true are for one process"),
    ],
    ids=["batch", "sync", "mirror", "average", "noise by rank", "devices", "pair"],
)
def test_what_so_many_processes_cannot_do_is_refused_before_a_folder_is_made(
    ranks: Ranks, tmp_path: Path, count: int, changes: dict[str, Any], sentence: str
) -> None:
    pair = changes.pop("pair", None)
    first, *others = ranks(count, refused, replace(RECIPE, **changes), replace(execution(tmp_path), pair=pair))
    assert first.startswith(f"ValueError: {sentence}")
    assert others == ["SystemExit: 1"] * (count - 1)
    assert not list(tmp_path.iterdir())


def test_a_folder_of_another_recipe_is_refused_by_rank_0_and_all_end(ranks: Ranks, tmp_path: Path) -> None:
    ranks(2, trained, RECIPE, tmp_path)
    first, *others = ranks(4, refused, replace(RECIPE, weight_decay=0.5), execution(tmp_path))
    assert "holds a run of another recipe" in first and "weight_decay: here 0.0001, asked 0.5" in first
    assert others == ["SystemExit: 1"] * 3


def refused(rank: int, recipe: Recipe, execution: Execution) -> str:
    try:
        train(recipe, execution)
    except (ValueError, SystemExit) as problem:
        return f"{type(problem).__name__}: {problem}"
    return "trained"


def test_a_run_that_diverges_does_so_alone(ranks: Ranks, tmp_path: Path) -> None:
    wild = replace(RECIPE, name="wild", lr=(1e9,), train_limit=64)
    ranks(2, one_diverges, [wild, replace(RECIPE, train_limit=64)], tmp_path)
    assert (folder(tmp_path) / "result.json").exists()


def one_diverges(rank: int, recipes: Sequence[Recipe], out: Path) -> None:
    wild, tame = compare(recipes, execution(out))
    assert isinstance(wild.failure, Diverged) and wild.result is None
    assert tame.failure is None
    assert objects_of_every_rank(tame.result and tame.result["test_loss"])[0] == metrics(out)[-1]["test_loss"]


def test_memory_that_runs_out_on_one_rank_ends_the_job(tmp_path: Path) -> None:
    job = Job(RECIPE, 0, execution(tmp_path), Place(rank=1, count=2), print)
    with pytest.raises(torch.cuda.OutOfMemoryError), alone(job):
        raise torch.cuda.OutOfMemoryError


# --- torchrun -------------------------------------------------------------------------------------------------------


def torchrun(recipe: Recipe, out: Path, *options: str) -> tuple[subprocess.CompletedProcess[str], float]:
    """Trains with two processes as a user would; what came of it, and the seconds it took."""
    changes = [
        f"{key}={spelt(getattr(recipe, key))}" for key in {"name": "", **recipe.differences(experiments.get("digits"))}
    ]
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", *options]
    markers = out / "markers"
    markers.mkdir(parents=True, exist_ok=True)
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    began = time.monotonic()
    done = subprocess.run(
        [*command, "-m", "ssgd", "train", "digits", *changes, f"out={out}", "device=cpu", "checkpoint_seconds=0"],
        env={**os.environ, "PYTHONPATH": path, MARKERS: str(markers), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    return done, time.monotonic() - began


def spelt(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)


def test_torchrun_trains_and_one_rank_speaks(ranks: Ranks, tmp_path: Path) -> None:
    recipe = replace(RECIPE, method="both")
    ranks(2, trained, recipe, tmp_path / "here")
    done, _ = torchrun(recipe, tmp_path / "by torchrun")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("both(0.29)") == 1  # the table, of one rank
    assert done.stderr.count("method = 'both'") == 1  # the recipe
    assert_same_files(tmp_path / "by torchrun", tmp_path / "here")


def test_torchrun_restarts_a_training_whose_rank_was_killed_and_it_ends_bitwise_the_same(
    ranks: Ranks, tmp_path: Path
) -> None:
    recipe = replace(RECIPE, method="both")
    ranks(2, trained, recipe, tmp_path / "unbroken")
    killed = replace(recipe, model="tests.distributed.nets:killed_once")
    done, _ = torchrun(killed, tmp_path / "killed", "--max-restarts", "2")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "killed" / "markers" / "1").exists()
    assert len((folder(tmp_path / "killed") / "resumed.jsonl").read_text().splitlines()) == 1
    assert_same_files(tmp_path / "killed", tmp_path / "unbroken")


def test_sigterm_to_all_saves_in_mid_epoch_and_the_training_goes_on(ranks: Ranks, tmp_path: Path) -> None:
    recipe = replace(RECIPE, method="both")
    ranks(2, trained, recipe, tmp_path / "unbroken")
    stopped = replace(recipe, model="tests.distributed.nets:stopped_once")
    done, _ = torchrun(stopped, tmp_path / "stopped")
    assert done.returncode != 0
    assert done.stderr.count("stopped by SIGTERM; all is saved. The same torchrun command goes on.") == 1
    assert "Traceback" not in done.stderr.partition("all is saved")[0]
    assert not (folder(tmp_path / "stopped") / "result.json").exists()
    again, _ = torchrun(stopped, tmp_path / "stopped")
    assert again.returncode == 0, again.stderr
    assert "goes on in epoch 1 of 2" in again.stderr
    assert_same_files(tmp_path / "stopped", tmp_path / "unbroken")


def test_processes_meet_where_none_of_an_earlier_start_has_written() -> None:
    """torchrun's store lives on over restarts, and with it the addresses of those who were killed."""
    server = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    for attempt in ("first", "second", "third"):
        stores = [dist.TCPStore("127.0.0.1", server.port) for _ in range(3)]
        with ThreadPoolExecutor() as threads:
            parts = list(threads.map(fresh_part, stores, range(3), [3] * 3))
        assert not any(part.check(["address"]) for part in parts)
        parts[2].set("address", attempt)
        assert [part.get("address").decode() for part in parts] == [attempt] * 3


def test_a_rank_that_fails_ends_the_job(tmp_path: Path) -> None:
    done, seconds = torchrun(replace(RECIPE, model="tests.distributed.nets:failing"), tmp_path)
    assert done.returncode != 0
    assert "RuntimeError: out of luck" in done.stderr
    assert seconds < 60  # the start of three processes included; ranks that waited would do so for half an hour


ONE_OF_TWO = """
import os, signal, sys
from datetime import timedelta
from ssgd.cli.main import main
from ssgd.lab.train import distributed
from ssgd.lab.train.running import Run

distributed.PATIENCE = timedelta(seconds=6)
step = Run.step

def lost(run):
    if os.environ["RANK"] == "1" and run.position == 3:
        os.kill(os.getpid(), int(sys.argv[1]))
    step(run)

Run.step = lost
sys.exit(main(["train", "digits", "device=cpu", "progress=false", "out=" + sys.argv[2]]))
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_rank_that_is_killed_or_stopped_ends_the_others_with_a_sentence(tmp_path: Path, number: int) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": "2", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", ONE_OF_TWO, str(int(number)), str(tmp_path)]
    processes = [
        subprocess.Popen(command, env={**os.environ, **where, "RANK": str(rank)}, stderr=subprocess.PIPE, text=True)
        for rank in range(2)
    ]
    try:
        _, told = processes[0].communicate(timeout=90)
    finally:
        for process in processes:
            process.kill()
            process.communicate()
    assert processes[0].returncode == 1, told
    assert "ssgd: another process of this training ended, or did not answer for 0.1 minutes: see what it" in told
    assert "Traceback" not in told


# --- scaling --------------------------------------------------------------------------------------------------------


def test_the_rate_grows_with_the_batch_after_a_warm_up() -> None:
    """The rule of Goyal et al.: the batch four times as large, the rate too, from 0 over five epochs."""
    schedule = Recipe(batch=512, lr_for_batch=128, lr=(0.1, 0.01), phases="10-10", warm_up=5).schedule
    rates = [schedule.lr(epoch) for epoch in (0, 1, 2.5, 5, 9.9, 10, 19.9)]
    assert rates == pytest.approx([0, 0.08, 0.2, 0.4, 0.4, 0.04, 0.04])
    assert Recipe(batch=128, lr_for_batch=128, lr=(0.1, 0.01), phases="10-10").schedule.lr(0) == 0.1
