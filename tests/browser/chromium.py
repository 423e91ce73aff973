"""Debian's Chromium without a window, spoken to in DevTools messages over a pair of pipes."""

import base64
import itertools
import json
import os
import select
import shutil
import subprocess
import tempfile
import time

PROGRAM = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
)
OPTIONS = [
    "--headless=new",
    "--remote-debugging-pipe",
    "--no-sandbox",  # root has none
    "--disable-gpu",
    "--hide-scrollbars",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--host-resolver-rules=MAP * ~NOTFOUND",  # no network
]


class Chromium:
    """A page at a time: ``open`` a file, then ask it with ``ask`` and touch it with ``move``, ``press``, ``key``."""

    def __init__(self):
        self.profile = tempfile.mkdtemp(prefix="chromium-")
        read, self.write_end = os.pipe()  # Chromium reads messages from 3 and answers on 4
        self.read_end, write = os.pipe()
        command = f'exec "$@" 3<&{read} 4>&{write}'
        self.process = subprocess.Popen(
            ["bash", "-c", command, "bash", PROGRAM, *OPTIONS, f"--user-data-dir={self.profile}", "about:blank"],
            pass_fds=(read, write),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(read)
        os.close(write)
        self.numbers, self.buffer, self.session = itertools.count(1), b"", None
        self.complaints = []  # what the console said, and exceptions

        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")

    def open(self, path, width=1000, height=800, dark=False):
        self.complaints.clear()
        self.send(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 500
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.send("Emulation.setEmulatedMedia", features=[scheme])
        self.send("Page.navigate", url=path.resolve().as_uri())
        deadline = time.monotonic() + 20
        while self.ask("document.readyState") != "complete" or "report" not in self.ask("location.href"):
            assert time.monotonic() < deadline, "the page did not load in 20 s"
            time.sleep(0.05)

    def ask(self, expression):
        """The value of a JavaScript expression."""
        answer = self.send("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def place(self, selector, x=0.5, y=0.5):
        """Where an element is on the screen, after scrolling to it: a point at these shares of its box."""
        return self.ask(
            f"(() => {{ const e = document.querySelector({json.dumps(selector)});"
            "e.scrollIntoView({block: 'center', behavior: 'instant'}); const b = e.getBoundingClientRect();"
            f"return [b.left + b.width * {x}, b.top + b.height * {y}]; }})()"
        )

    def mouse(self, kind, x, y, held=False):
        button = {"button": "left", "buttons": 1, "clickCount": 1} if held else {}
        self.send("Input.dispatchMouseEvent", type=kind, x=x, y=y, **button)

    def drag(self, start, end):
        self.mouse("mousePressed", *start, held=True)
        self.mouse("mouseMoved", *end, held=True)
        self.mouse("mouseReleased", *end, held=True)

    def key(self, name):
        for kind in ("keyDown", "keyUp"):
            self.send("Input.dispatchKeyEvent", type=kind, key=name, code=name)

    def picture(self):
        return base64.b64decode(self.send("Page.captureScreenshot", format="png")["data"])

    def send(self, method, **parameters):
        number = next(self.numbers)
        message = {"id": number, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.write_end, json.dumps(message).encode() + b"\0")
        while True:
            found = self._message()
            if found.get("id") == number:
                assert "error" not in found, f"{method}: {found['error']}"
                return found["result"]
            self._note(found)

    def close(self):
        self.process.terminate()
        self.process.wait(10)
        os.close(self.write_end)
        os.close(self.read_end)
        shutil.rmtree(self.profile, ignore_errors=True)

    def _note(self, event):
        what = event.get("method")
        if what == "Runtime.exceptionThrown" or (
            what == "Runtime.consoleAPICalled" and event["params"]["type"] in ("error", "warning", "assert")
        ):
            self.complaints.append(event["params"])
        elif what == "Log.entryAdded" and event["params"]["entry"]["level"] in ("error", "warning"):
            self.complaints.append(event["params"]["entry"])
        elif what == "Network.requestWillBeSent":
            url = event["params"]["request"]["url"]
            if not url.startswith(("file:", "data:", "about:")):
                self.complaints.append(f"asked the network for {url}")

    def _message(self):
        while b"\0" not in self.buffer:
            ready, _, _ = select.select([self.read_end], [], [], 30)
            assert ready, "Chromium has not answered for 30 s"
            got = os.read(self.read_end, 1 << 20)
            assert got, "Chromium ended"
            self.buffer += got
        text, _, self.buffer = self.buffer.partition(b"\0")
        return json.loads(text)
