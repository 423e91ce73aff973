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

    ``ranges=False`` sends all whatever is asked for; ``cut`` hangs up after so many bytes of each answer.
    """

    def __init__(self, files: dict[str, bytes], ranges: bool = True, cut: int | None = None) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.files, self.ranges, self.cut = files, ranges, cut
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
        self.send_header("Content-Length", str(len(content) - start))
        self.end_headers()
        self.wfile.write(content[start:][: self.server.cut])

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def serving(files: dict[str, bytes], ranges: bool = True, cut: int | None = None) -> Iterator[Server]:
    with Server(files, ranges, cut) as server, mock.patch.dict(os.environ, {"no_proxy": "127.0.0.1"}):
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
