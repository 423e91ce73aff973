"""Files on disks that fail, fill up or refuse: whole or untouched, and a sentence."""

import errno
import os
import subprocess
import sys
from contextlib import contextmanager

import pytest
import torch

from ssgd.files import (
    DiskProblem,
    append_line,
    drop_cut_line,
    remove_drafts,
    write_whole,
)
from ssgd.lab.train.checkpoint import DTYPES, read_safetensors, write_safetensors

NUMBERS = {
    "weight": torch.randn(3, 5),
    "tall": torch.randn(4, 6).T,
    "every second": torch.arange(10)[::2],
    "scalar": torch.tensor(3, dtype=torch.int64),
    "empty": torch.empty(2, 0),
    "größe/Ω": torch.ones(1, requires_grad=True),
    **{f"as {name}": torch.tensor([0, 1, 5, 7, 1]).to(dtype) for name, dtype in DTYPES.items()},
}


@contextmanager
def small_disk(folder, options="size=1m"):
    """A real file system of 1 MB in ``folder``, where the tests may mount one."""
    folder.mkdir(exist_ok=True)
    command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)]
    if sys.platform != "linux" or subprocess.run(command, capture_output=True).returncode:
        pytest.skip("mounting a small disk needs root on Linux")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def make_read_only(folder):
    subprocess.run(["mount", "-o", "remount,ro", str(folder)], check=True)


@contextmanager
def largest_file(size):
    resource = pytest.importorskip("resource", reason="no file size limits here")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.fixture
def old(tmp_path):
    """A file that must not be lost."""
    path = tmp_path / "file"
    path.write_bytes(b"old")
    return path


def only(path):
    """Nothing else was left in the folder."""
    return os.listdir(path.parent) == [path.name]


def test_writes_bytes_and_what_a_function_writes(old):
    write_whole(old, b"new")
    assert old.read_bytes() == b"new"
    write_whole(str(old), lambda file: [file.write(b"ne"), file.write(b"wer")])
    assert old.read_bytes() == b"newer" and only(old)


def test_the_file_is_on_the_disk_before_it_gets_its_name(old, monkeypatch):
    events, fsync, replace = [], os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda fd: (events.append(os.fstat(fd).st_size == 3), fsync(fd)))
    monkeypatch.setattr(os, "replace", lambda *names: (events.append("rename"), replace(*names)))
    write_whole(old, b"new")
    assert events == [True, "rename", False]  # the file with its three bytes, then the folder


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_torn_half_way_the_old_file_stays(old, error):
    def torn(file):
        file.write(b"n" * 100_000)
        raise error

    with pytest.raises(error):
        write_whole(old, torn)
    assert old.read_bytes() == b"old" and only(old)


@pytest.mark.parametrize("call", ["fsync", "replace"])
@pytest.mark.parametrize(
    ("code", "sentence"),
    [
        (errno.ENOSPC, r"no space left for .*file: free some"),
        (errno.EDQUOT, r"no space left for .*file: free some"),
        (errno.EFBIG, r"file would be larger .*: raise the limit"),
        (errno.EROFS, r"file cannot be written .* read-only: choose another folder"),
        (errno.EACCES, r"file cannot be written .* permission: choose another folder"),
        (errno.EPERM, r"file cannot be written .* permission: choose another folder"),
        (errno.EIO, r"file could not be written \(the disk's own words\): check the disk"),
    ],
)
def test_each_refusal_is_one_sentence(old, monkeypatch, call, code, sentence):
    def refuse(*_):
        raise OSError(code, "the disk's own words")

    monkeypatch.setattr(os, call, refuse)
    with pytest.raises(DiskProblem, match=sentence) as caught:
        write_whole(old, b"new")
    assert caught.value.errno == code and "\n" not in str(caught.value)
    assert old.read_bytes() == b"old" and only(old)


def test_a_folder_that_cannot_be_synced_is_no_error_one_that_fails_is(old, monkeypatch):
    fsync, code = os.fsync, errno.EINVAL

    def refuse_folders(descriptor):
        if os.path.isdir(f"/proc/self/fd/{descriptor}"):
            raise OSError(code, "no")
        fsync(descriptor)

    if not os.path.exists("/proc/self/fd"):
        pytest.skip("cannot tell folders from files here")
    monkeypatch.setattr(os, "fsync", refuse_folders)
    write_whole(old, b"new")
    assert old.read_bytes() == b"new"
    code = errno.EIO
    with pytest.raises(DiskProblem, match="could not be written"):
        write_whole(old, b"newer")


def test_a_full_disk(tmp_path):
    with small_disk(tmp_path / "disk") as disk:
        write_whole(disk / "file", b"o" * 600_000)
        with pytest.raises(DiskProblem, match=r"no space left for .*file") as caught:
            write_whole(disk / "file", b"n" * 600_000)
        assert caught.value.errno == errno.ENOSPC
        assert (disk / "file").read_bytes() == b"o" * 600_000 and only(disk / "file")


def test_lines_on_a_full_disk_are_whole(tmp_path):
    with small_disk(tmp_path / "disk") as disk:
        (disk / "ballast").write_bytes(b"b" * 1_000_000)
        with pytest.raises(DiskProblem, match=r"no space left for .*lines"):
            for _ in range(100):
                append_line(disk / "lines", "x" * 999)
        content = (disk / "lines").read_bytes()
        assert content and content == (b"x" * 999 + b"\n") * (len(content) // 1000)


def test_a_limit_on_the_size_of_files(old):
    with largest_file(50_000), pytest.raises(DiskProblem, match="larger than a file may be"):
        write_whole(old, b"n" * 60_000)
    assert old.read_bytes() == b"old" and only(old)
    with largest_file(50_000), pytest.raises(DiskProblem, match="larger than a file may be"):
        append_line(old, "n" * 60_000)
    assert old.read_bytes() == b"old"


def test_a_line_that_fails_does_not_take_another_process_s_with_it(old, monkeypatch):
    def late(descriptor):
        with open(old, "ab") as other:
            other.write(b"theirs\n")
        raise OSError(errno.EIO, "too late")

    monkeypatch.setattr(os, "fsync", late)
    with pytest.raises(DiskProblem, match="too late"):
        append_line(old, "ours")
    assert old.read_bytes().endswith(b"theirs\n")


def test_a_read_only_disk(tmp_path):
    with small_disk(tmp_path / "disk") as disk:
        write_whole(disk / "file", b"old")
        make_read_only(disk)
        for write in (write_whole, append_line):
            with pytest.raises(DiskProblem, match="file cannot be written because its disk is read-only"):
                write(disk / "file", b"new" if write is write_whole else "new")
        assert (disk / "file").read_bytes() == b"old" and only(disk / "file")


def test_a_folder_that_is_not_there(tmp_path):
    with pytest.raises(DiskProblem, match=r"file could not be written \(No such file"):
        write_whole(tmp_path / "missing" / "file", b"")


def test_lines_are_appended_and_cut_ones_dropped(tmp_path):
    path = tmp_path / "lines"
    drop_cut_line(path)
    append_line(path, "one")
    append_line(path, "zwölf")
    assert path.read_text(encoding="utf-8") == "one\nzwölf\n"
    path.write_bytes(path.read_bytes()[:-3])
    drop_cut_line(path)
    append_line(path, "three")
    assert path.read_text() == "one\nthree\n"


def test_drafts_are_removed_and_nothing_else(old):
    for name in (".file.1234abcd.tmp", ".hidden", "other.tmp"):
        (old.parent / name).touch()
    remove_drafts(old.parent)
    assert sorted(os.listdir(old.parent)) == [".hidden", "file", "other.tmp"]


def assert_same(found, expected):
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert found[name].dtype == tensor.dtype and torch.equal(found[name], tensor)


def test_safetensors_there_and_back(tmp_path):
    write_safetensors(tmp_path / "file", NUMBERS)
    assert_same(read_safetensors(tmp_path / "file"), NUMBERS)
    assert int.from_bytes((tmp_path / "file").read_bytes()[:8], "little") % 8 == 0  # the data is aligned
    write_safetensors(tmp_path / "file", {})
    assert read_safetensors(tmp_path / "file") == {} and only(tmp_path / "file")


def test_safetensors_are_those_of_the_package(tmp_path):
    package = pytest.importorskip("safetensors.torch", reason="compares with the safetensors package")
    write_safetensors(tmp_path / "ours", NUMBERS)
    assert_same(package.load_file(tmp_path / "ours"), NUMBERS)
    package.save_file({name: tensor.contiguous() for name, tensor in NUMBERS.items()}, tmp_path / "theirs", {"a": "b"})
    assert_same(read_safetensors(tmp_path / "theirs"), NUMBERS)


def test_safetensors_cut_short_or_of_another_kind_are_refused(tmp_path):
    write_safetensors(tmp_path / "file", {"a": torch.ones(7), "b": torch.ones(2, dtype=torch.int8)})
    content = (tmp_path / "file").read_bytes()
    for length in range(len(content)):
        (tmp_path / "file").write_bytes(content[:length])
        with pytest.raises(ValueError, match=r"file is damaged.*: write it again"):
            read_safetensors(tmp_path / "file")
    for strange in (content + b"\0", b"PK" + content, content.replace(b"F32", b"F31")):
        (tmp_path / "file").write_bytes(strange)
        with pytest.raises(ValueError, match=r"file is damaged.*: write it again"):
            read_safetensors(tmp_path / "file")


@pytest.mark.parametrize("tensors", [{"w": torch.ones(1, dtype=torch.complex64)}, {"__metadata__": torch.ones(1)}])
def test_safetensors_that_do_not_fit(tmp_path, tensors):
    with pytest.raises(ValueError, match=r"does not fit into .*: rename it, or use F64, F32"):
        write_safetensors(tmp_path / "file", tensors)
    assert not os.listdir(tmp_path)
