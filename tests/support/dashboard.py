"""``fcctl ui`` as a process, and plain requests to it."""

from __future__ import annotations

import http.client
import json
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from urllib.parse import urlsplit

from tests.support.waiting import wait_for
from tests.support.workspace import Workspace


@dataclass(frozen=True)
class Answer:
    status: int
    headers: Mapping[str, str]
    text: str


@dataclass
class Dashboard:
    process: subprocess.Popen[str]
    link: str
    cookie: str = ""

    @property
    def port(self) -> int:
        return urlsplit(self.link).port or 0

    @property
    def base(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def root(self) -> str:
        """Of all its paths."""
        return urlsplit(self.link).path.rstrip("/")

    @property
    def pages(self) -> str:
        """The first page's address, to which the others' are relative."""
        return f"{self.base}{self.root}/"

    def ask(self, path: str, method: str = "GET", body: str | None = None, **headers: str) -> Answer:
        """One request for ``path`` below the root, with the session's cookie if :meth:`enter` got one; follows
        nothing."""
        return self.ask_whole(f"{self.root}{path}", method, body, **headers)

    def ask_whole(self, path: str, method: str = "GET", body: str | None = None, **headers: str) -> Answer:
        """The same for a whole path."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=240)
        try:
            sent = {"Cookie": self.cookie} if self.cookie else {}
            if body is not None:
                sent["Content-Type"] = "application/x-www-form-urlencoded"
            connection.request(method, path, body, {**sent, **{k.replace("_", "-"): v for k, v in headers.items()}})
            answer = connection.getresponse()
            return Answer(answer.status, dict(answer.getheaders()), answer.read().decode(errors="replace"))
        finally:
            connection.close()

    def enter(self) -> Answer:
        """Open the link as a browser would, and keep the cookie."""
        parts = urlsplit(self.link)
        answer = self.ask(f"/?{parts.query}")
        self.cookie = answer.headers.get("set-cookie", "").split(";")[0]
        return answer

    def rss_mb(self) -> float:
        """Memory of the server's process, MiB (Linux)."""
        with open(f"/proc/{self.process.pid}/status") as status:
            line = next(line for line in status if line.startswith("VmRSS"))
        return int(line.split()[1]) / 1024


@contextmanager
def dashboard(workspace: Workspace) -> Iterator[Dashboard]:
    """A running dashboard of ``workspace``, ended at the end."""
    process = workspace.start("ui", "--no-open", "--json")
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        assert line, process.stderr.read() if process.stderr else ""
        yield Dashboard(process, json.loads(line)["url"])
    finally:
        process.terminate()
        wait_for(lambda: process.poll() is not None)
        for stream in (process.stdout, process.stderr):
            if stream is not None:
                stream.close()
