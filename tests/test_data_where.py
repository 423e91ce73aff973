"""Where data are looked for."""

import sys
from pathlib import Path

from ssgd.lab.data.download import data_folder


def test_the_folder_given_comes_before_the_environment_and_that_before_the_cache(monkeypatch) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setenv("SSGD_DATA", "/data")
    monkeypatch.setenv("XDG_CACHE_HOME", "/cache")
    monkeypatch.setenv("HOME", "/home/me")
    assert data_folder("here") == Path("here") and data_folder("~/there") == Path("/home/me/there")
    assert data_folder() == Path("/data")
    monkeypatch.setenv("SSGD_DATA", "")
    assert data_folder() == Path("/cache/ssgd")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert data_folder() == Path("/home/me/.cache/ssgd")
    monkeypatch.setattr(sys, "platform", "darwin")
    assert data_folder() == Path("/home/me/Library/Caches/ssgd")
