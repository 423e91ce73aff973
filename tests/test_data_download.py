"""Downloads that go well, are cut, are wrong or never begin; archives that are whole, damaged or hostile."""

import builtins
import hashlib
import io
import socket
import tarfile
import threading
from contextlib import nullcontext
from pathlib import Path

import pytest

from ssgd.lab.data import download
from ssgd.lab.data.download import fetch, one_at_a_time, unpack

from .server import serving

CONTENT = bytes(i * i % 251 for i in range(100_000))
MD5 = hashlib.md5(CONTENT).hexdigest()


# --- downloads ------------------------------------------------------------------------------------------------------


def test_a_file_arrives_whole(tmp_path) -> None:
    target = tmp_path / "new" / "file"
    with serving({"/file": CONTENT}) as server:
        assert fetch(server.address + "file", target, MD5) == target
        fetch(server.address + "file", target, MD5)  # it is there already
    assert target.read_bytes() == CONTENT and server.asked == [("/file", 0)]
    assert [path.name for path in target.parent.iterdir()] == ["file"]


def test_a_download_goes_on_where_it_was_cut(tmp_path) -> None:
    with serving({"/file": CONTENT}, cut=30_000) as server:
        fetch(server.address + "file", tmp_path / "file", MD5)
    assert (tmp_path / "file").read_bytes() == CONTENT
    assert [start for _, start in server.asked] == [0, 30_000, 60_000, 90_000]


@pytest.mark.parametrize("ranges", [True, False])
def test_what_an_earlier_try_left_is_used_where_the_server_can(tmp_path, ranges: bool) -> None:
    (tmp_path / "file.part").write_bytes(CONTENT[:40_000])
    with serving({"/file": CONTENT}, ranges) as server:
        fetch(server.address + "file", tmp_path / "file", MD5)
    assert (tmp_path / "file").read_bytes() == CONTENT and server.asked == [("/file", 40_000)]


def test_an_earlier_try_may_lack_only_the_name(tmp_path) -> None:
    (tmp_path / "file.part").write_bytes(CONTENT)
    with serving({"/file": CONTENT}) as server:
        fetch(server.address + "file", tmp_path / "file", MD5)
    assert (tmp_path / "file").read_bytes() == CONTENT


@pytest.mark.parametrize("length", ["none", "chunked", "abc"])
def test_a_download_of_unknown_length_goes_on_where_it_was_cut(tmp_path, length: str) -> None:
    with serving({"/file": CONTENT}, cut=30_000, length=length) as server:
        fetch(server.address + "file", tmp_path / "file", MD5)
    assert (tmp_path / "file").read_bytes() == CONTENT
    assert [start for _, start in server.asked] == [0, 30_000, 60_000, 90_000]


@pytest.mark.parametrize("length", ["none", "chunked", "abc"])
def test_of_unknown_length_what_never_comes_whole_is_kept(tmp_path, length: str) -> None:
    with (
        serving({"/file": CONTENT}, ranges=False, cut=30_000, length=length) as server,
        pytest.raises(OSError, match=r"was cut after 30000 bytes: run this again"),
    ):
        fetch(server.address + "file", tmp_path / "file", MD5)
    assert (tmp_path / "file.part").read_bytes() == CONTENT[:30_000]


def test_a_server_that_sends_a_byte_a_reply_is_not_asked_for_ever(tmp_path) -> None:
    with (
        serving({"/file": CONTENT}, cut=1) as server,
        pytest.raises(OSError, match=r"was cut after \d+ bytes: run this again to go on from there"),
    ):
        fetch(server.address + "file", tmp_path / "file", MD5)
    assert len(server.asked) <= 100 and (tmp_path / "file.part").stat().st_size == len(server.asked)


@pytest.mark.parametrize("ranges", [True, False])
def test_a_stall_keeps_what_had_come(tmp_path, monkeypatch, ranges: bool) -> None:
    monkeypatch.setattr(download, "TIMEOUT", 0.2)
    (tmp_path / "file.part").write_bytes(CONTENT[:40_000])
    with (
        serving({"/file": CONTENT}, ranges, cut=30_000, stall=True) as server,
        pytest.raises(OSError, match=r"was cut after \d+ bytes: run this again") if not ranges else nullcontext(),
    ):
        fetch(server.address + "file", tmp_path / "file", MD5)
    assert ranges or (tmp_path / "file.part").read_bytes() == CONTENT[:40_000]
    assert [start for _, start in server.asked] == [40_000, 70_000] if ranges else [40_000, 40_000]


def test_a_server_that_always_cuts_is_given_up(tmp_path) -> None:
    with (
        serving({"/file": CONTENT}, ranges=False, cut=30_000) as server,
        pytest.raises(OSError, match=r"was cut after 30000 bytes: run this again.*put it into .*"),
    ):
        fetch(server.address + "file", tmp_path / "file", MD5)
    assert [path.name for path in tmp_path.iterdir()] == ["file.part"]


@pytest.mark.parametrize("length", ["true", "none", "chunked"])
def test_a_wrong_sum_leaves_nothing(tmp_path, length: str) -> None:
    with (
        serving({"/file": CONTENT}, length=length) as server,
        pytest.raises(ValueError, match=r"the file from .* is not the published one \(its md5 is"),
    ):
        fetch(server.address + "file", tmp_path / "file", "0" * 32)
    assert not list(tmp_path.iterdir())


def test_a_file_put_there_by_hand_is_checked(tmp_path) -> None:
    (tmp_path / "file").write_bytes(CONTENT[:-1])
    with pytest.raises(ValueError, match=r"file is damaged or cut short .*: delete it"):
        fetch("http://127.0.0.1:9/file", tmp_path / "file", MD5)
    (tmp_path / "file").write_bytes(CONTENT)
    fetch("http://127.0.0.1:9/file", tmp_path / "file", MD5)


def test_without_a_network_one_is_told_what_to_do(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with socket.socket() as taken:  # bound but not listening: refused
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}/file"
        with pytest.raises(OSError, match=f"no network .*: download {url} by hand and put it into {tmp_path}"):
            fetch(url, tmp_path / "file", MD5)


def test_a_missing_page_is_said_so(tmp_path) -> None:
    with serving({}) as server, pytest.raises(OSError, match=r"the server answered 404 \(.*\): download .* by hand"):
        fetch(server.address + "file", tmp_path / "file", MD5)


def test_a_folder_that_cannot_be_made_is_named(tmp_path) -> None:
    folder = tmp_path / "file" / "mnist"
    folder.parent.touch()
    refused = rf"{folder} cannot be written to \(Not a directory\): .* choose another folder for data"
    with pytest.raises(OSError, match=refused), one_at_a_time(folder):
        pass


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full, a disk without space")
def test_a_full_disk_is_named(tmp_path) -> None:
    (tmp_path / "file.part").symlink_to("/dev/full")
    refused = rf"{tmp_path} cannot be written to \(No space left on device\): free some space there"
    with serving({"/file": CONTENT}) as server, pytest.raises(OSError, match=refused):
        fetch(server.address + "file", tmp_path / "file", MD5)


def test_progress_goes_to_stderr_with_and_without_tqdm(tmp_path, monkeypatch, capsys) -> None:
    real = builtins.__import__

    def without_tqdm(name, *args):
        if name == "tqdm":
            raise ImportError(name)
        return real(name, *args)

    long = CONTENT * 21
    md5 = hashlib.md5(long).hexdigest()
    with serving({"/file": long}) as server:
        fetch(server.address + "file", tmp_path / "one", md5)
        shown = capsys.readouterr()
        assert "one: 100%" in shown.err and not shown.out
        monkeypatch.setattr(builtins, "__import__", without_tqdm)
        fetch(server.address + "file", tmp_path / "two", md5)
    shown = capsys.readouterr()
    assert shown.err == "two: downloading 2 MiB\n" and not shown.out


def test_processes_wait_for_each_other(tmp_path) -> None:
    def rank() -> None:
        with one_at_a_time(tmp_path):
            fetch(server.address + "file", tmp_path / "file", MD5)

    with serving({"/file": CONTENT}) as server:
        threads = [threading.Thread(target=rank) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert server.asked == [("/file", 0)] and (tmp_path / "file").read_bytes() == CONTENT


# --- archives -------------------------------------------------------------------------------------------------------


def packed(path: Path, *members: tarfile.TarInfo) -> Path:
    with tarfile.open(path, "w:gz") as tar:
        for member in members:
            member.size = len(CONTENT) if member.isfile() else 0
            tar.addfile(member, io.BytesIO(CONTENT))
    return path


def test_archives_are_unpacked(tmp_path) -> None:
    unpack(packed(tmp_path / "a.tar.gz", tarfile.TarInfo("set/one"), tarfile.TarInfo("set/two")), tmp_path)
    assert (tmp_path / "set" / "one").read_bytes() == CONTENT
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.tar.gz", "set"]


def test_a_cut_archive_leaves_nothing(tmp_path) -> None:
    archive = packed(tmp_path / "a.tar.gz", tarfile.TarInfo("set/one"), tarfile.TarInfo("set/two"))
    archive.write_bytes(archive.read_bytes()[:-300])
    with pytest.raises(ValueError, match=r"a\.tar\.gz is damaged or cut short"):
        unpack(archive, tmp_path)
    assert list(tmp_path.iterdir()) == [archive]


def test_a_full_disk_leaves_no_half_of_a_folder(tmp_path, monkeypatch) -> None:
    def full(self, path, *_, **__):
        (Path(path) / "set").mkdir()
        raise OSError("No space left on device")

    archive = packed(tmp_path / "a.tar.gz", tarfile.TarInfo("set/one"))
    monkeypatch.setattr(tarfile.TarFile, "extractall", full)
    with pytest.raises(OSError, match="No space left"):
        unpack(archive, tmp_path)
    assert list(tmp_path.iterdir()) == [archive]


@pytest.mark.parametrize("name", ["../out", "/tmp/ssgd-out", "set/../../out"])
@pytest.mark.parametrize("filters", [True, False])
def test_an_archive_stays_in_its_folder(tmp_path, name: str, filters: bool, monkeypatch) -> None:
    if not filters:  # as on the first versions of Python 3.10
        monkeypatch.delattr(tarfile, "data_filter", raising=False)
    archive = packed(tmp_path / "a.tar.gz", tarfile.TarInfo("set/one"), tarfile.TarInfo(name))
    with pytest.raises(ValueError, match=r"a\.tar\.gz wants to write .*out, which no data set needs"):
        unpack(archive, tmp_path)
    assert list(tmp_path.iterdir()) == [archive] and not Path("/tmp/ssgd-out").exists()


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE])
def test_links_and_pipes_are_refused(tmp_path, kind: bytes) -> None:
    link = tarfile.TarInfo("set/link")
    link.type, link.linkname = kind, "/etc/passwd"
    with pytest.raises(ValueError, match="wants to write set/link"):
        unpack(packed(tmp_path / "a.tar.gz", link), tmp_path)
