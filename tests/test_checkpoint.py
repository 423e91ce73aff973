"""Checkpoints that are killed, cut, flipped or squeezed out: the newest whole one is found, or an error is."""

import os
import subprocess
import sys
import zipfile
from fractions import Fraction

import pytest
import torch

from ssgd.files import DiskProblem, write_whole
from ssgd.lab.train import checkpoint as module
from ssgd.lab.train.checkpoint import Checkpoints, weights

from .test_files import small_disk


def state(position, size=3):
    return {"model": {"w": torch.full((size,), float(position))}, "epoch": position, "history": [{"loss": 0.5}]}


def names(folder):
    return sorted(os.listdir(folder))


@pytest.fixture
def two(tmp_path):
    """Checkpoints at 1 and 2."""
    found = Checkpoints(tmp_path / "checkpoints")
    for position in (1, 2):
        found.save(position, state(position))
    return found


def test_nothing_was_saved(tmp_path):
    assert Checkpoints(tmp_path / "missing").load() is None


def test_what_was_saved_comes_back(two):
    position, found = two.load()
    assert position == 2 and torch.equal(found["model"]["w"], torch.full((3,), 2.0))
    assert found["epoch"] == 2 and found["history"] == [{"loss": 0.5}]


def test_the_file_is_one_that_torch_and_zip_read(two):
    path = two.folder / "step-00000002.pt"
    assert torch.load(path, weights_only=True)["epoch"] == 2
    assert torch.load(path, weights_only=True, mmap=True)["epoch"] == 2
    with zipfile.ZipFile(path) as file:
        assert file.testzip() is None and len(file.comment) == 64


def test_the_last_few_are_kept(tmp_path):
    for keep, expected in ((1, [12]), (3, [7, 9, 12])):
        found = Checkpoints(tmp_path / str(keep), keep)
        for position in (1, 5, 7, 9, 12):
            found.save(position, state(position))
        assert names(found.folder) == [f"step-{position:08d}.pt" for position in expected]
    with pytest.raises(ValueError, match="keep must be 1 or more"):
        Checkpoints(tmp_path, keep=0)


def test_steps_are_counted_beyond_the_digits_of_the_name(tmp_path):
    found = Checkpoints(tmp_path)
    for position in (99_999_999, 100_000_000):
        found.save(position, state(1))
    assert found.load()[0] == 100_000_000


def test_saved_again_at_the_same_step(two):
    two.save(2, state(7))
    assert two.load()[1]["epoch"] == 7 and len(names(two.folder)) == 2


def test_a_save_that_fails_leaves_the_others(two, monkeypatch):
    def torn(path, write):
        def half(file):
            write(file)
            file.truncate(500)
            raise OSError(28, "No space left on device")

        write_whole(path, half)

    monkeypatch.setattr(module, "write_whole", torn)
    with pytest.raises(DiskProblem, match=r"no space left for .*step-00000003\.pt"):
        two.save(3, state(3))
    assert names(two.folder) == ["step-00000001.pt", "step-00000002.pt"] and two.load()[0] == 2


def test_any_flipped_byte_is_noticed(two):
    newest = two.folder / "step-00000002.pt"
    content = newest.read_bytes()
    for place in [*range(0, len(content), 13), *range(len(content) - 100, len(content))]:
        newest.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
        with pytest.warns(UserWarning, match=r"step-00000002\.pt is damaged or cut short.*passed over"):
            assert two.load()[0] == 1, place


def test_any_cut_is_noticed(two):
    newest = two.folder / "step-00000002.pt"
    content = newest.read_bytes()
    for length in [*range(0, len(content), 29), *range(len(content) - 70, len(content))]:
        newest.write_bytes(content[:length])
        with pytest.warns(UserWarning, match=r"step-00000002\.pt is damaged or cut short.*passed over"):
            assert two.load()[0] == 1, length
    newest.write_bytes(content + b"0")
    with pytest.warns(UserWarning, match="passed over"):
        assert two.load()[0] == 1


def test_all_damaged_is_an_error_not_a_new_start(two):
    for path in two.folder.iterdir():
        path.write_bytes(b"")
    with (
        pytest.warns(UserWarning, match="passed over"),
        pytest.raises(ValueError, match=r"none of the 2 checkpoints .* is whole: .*delete the run's folder"),
    ):
        two.load()


def test_going_on_behind_a_damaged_one_keeps_what_is_whole(two):
    (two.folder / "step-00000002.pt").write_bytes(b"")
    once = Checkpoints(two.folder, keep=1)
    with pytest.warns(UserWarning, match="passed over"):
        assert once.load()[0] == 1
    once.save(1, state(8))
    position, found = once.load()
    assert (position, found["epoch"]) == (1, 8) and names(two.folder) == ["step-00000001.pt"]


def test_drafts_of_a_killed_save_are_removed_by_the_next_alone(two):
    draft = two.folder / ".step-00000003.pt.1234abcd.tmp"
    draft.write_bytes(b"half")
    assert Checkpoints(two.folder).load()[0] == 2 and draft.exists()  # it may be that of a training that goes on
    two.save(3, state(3))
    assert names(two.folder) == ["step-00000002.pt", "step-00000003.pt"]


def test_other_files_are_left_alone(two):
    (two.folder / "step-best.pt").write_bytes(b"")
    two.save(3, state(3))
    assert two.load()[0] == 3 and "step-best.pt" in names(two.folder)


def test_objects_are_refused_not_passed_over(two):
    two.save(3, {"model": Fraction(1, 3)})
    with pytest.raises(ValueError, match=r"step-00000003\.pt is no checkpoint of ssgd") as caught:
        two.load()
    assert "fractions.Fraction" in str(caught.value.__cause__)


def test_weights_of_a_file_a_folder_and_a_run(two, tmp_path):
    assert weights(two.folder / "step-00000001.pt")["w"].tolist() == [1.0] * 3
    for folder in (two.folder, tmp_path, str(tmp_path)):
        assert weights(folder)["w"].tolist() == [2.0] * 3
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileNotFoundError, match=r"no checkpoint in .*empty"):
        weights(tmp_path / "empty")
    torch.save({"model": {}}, tmp_path / "other.pt")
    with pytest.raises(ValueError, match=r"other\.pt is damaged or cut short, or no checkpoint of ssgd"):
        weights(tmp_path / "other.pt")


def test_a_full_disk(tmp_path):
    with small_disk(tmp_path / "disk") as disk:
        found = Checkpoints(disk / "checkpoints")
        for position in (1, 2):
            found.save(position, state(position, size=100_000))
        with pytest.raises(DiskProblem, match=r"no space left for .*step-00000003\.pt: free some"):
            found.save(3, state(3, size=100_000))
        assert names(found.folder) == ["step-00000001.pt", "step-00000002.pt"] and found.load()[0] == 2


KILLED = """
import multiprocessing, random, sys, time
import torch
from ssgd.lab.train.checkpoint import Checkpoints

fork = multiprocessing.get_context("fork")
done = fork.Value("q", 0, lock=False)
found = Checkpoints(sys.argv[1])

def save_for_ever(position):
    while True:
        position += 1
        found.save(position, {"w": torch.full((50_000,), float(position))})
        done.value = position

for attempt in range(20):
    before = done.value
    process = fork.Process(target=save_for_ever, args=(before,))
    process.start()
    while done.value < before + 3:
        time.sleep(0.001)
    time.sleep(random.Random(attempt).random() * 0.01)
    process.kill()
    process.join()
    position, state = found.load()
    assert done.value <= position <= done.value + 1, (position, done.value)
    assert bool((state["w"] == position).all())
    done.value = position
found.save(position + 1, {})
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_killed_while_saving_again_and_again(tmp_path):
    """The warnings of a damaged checkpoint are errors here: a kill leaves none."""
    command = [sys.executable, "-W", "error::UserWarning", "-c", KILLED, str(tmp_path)]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=60, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    assert done.returncode == 0, done.stderr
    assert len(names(tmp_path)) == 2  # no drafts
