"""A small web server for tests: whole, without ranges, or one that hangs up."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from unittest import mock


class Server(ThreadingHTTPServer):
    """Serves ``files`` and notes in ``asked`` which path was wanted from which byte.

    ``ranges=False`` sends all whatever is asked for; ``cut`` hangs up after so many bytes of each answer, or with
    ``stall`` sends no more until the client has gone. ``length`` is how an answer tells its length: ``"true"``,
    ``"chunked"``, ``"none"``, or with another word as its Content-Length.
    """

    def __init__(self, files: dict[str, bytes], ranges: bool, cut: int | None, length: str, stall: bool) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.files, self.ranges, self.cut, self.length, self.stall = files, ranges, cut, length, stall
        self.asked: list[tuple[str, int]] = []
        self.address = f"http://127.0.0.1:{self.server_port}/"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        start = int(self.headers.get("Range", "bytes=0-").removeprefix("bytes=").removesuffix("-"))
        self.server.asked.append((self.path, start))
        content = self.server.files.get(self.path)
        if content is None:
            return self.send_error(404)
        if not self.server.ranges:
            start = 0
        if start and start >= len(content):
            return self.send_error(416)
        self.send_response(206 if start else 200)
        length, sent = self.server.length, content[start:][: self.server.cut]
        if length == "chunked":
            self.send_header("Transfer-Encoding", "chunked")
        elif length != "none":
            self.send_header("Content-Length", str(len(content) - start) if length == "true" else length)
        self.end_headers()
        if length == "chunked":
            sent = b"%x\r\n%s\r\n" % (len(sent), sent) + (b"0\r\n\r\n" if start + len(sent) == len(content) else b"")
        self.wfile.write(sent)
        if self.server.stall and start + len(sent) < len(content):
            self.connection.recv(1)

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def serving(
    files: dict[str, bytes], ranges: bool = True, cut: int | None = None, length: str = "true", stall: bool = False
) -> Iterator[Server]:
    with Server(files, ranges, cut, length, stall) as server, mock.patch.dict(os.environ, {"no_proxy": "127.0.0.1"}):
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
