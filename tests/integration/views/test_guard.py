"""What the dashboard refuses, asked over a real socket."""

from __future__ import annotations

import http.server
import re
import socket
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import pytest

from tests.conftest import home_of_its_own
from tests.support import reference_run
from tests.support.dashboard import Dashboard, dashboard
from tests.support.workspace import Workspace

SECRET = "top-secret-of-another-file"


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dashboard]:
    with pytest.MonkeyPatch.context() as patch, home_of_its_own(patch) as home:
        workspace = Workspace(tmp_path_factory.mktemp("ui") / "ws", home)
        folder = reference_run.install(workspace.root / "results")
        (folder / "steps/bench/log.txt").write_text("<b>bold</b>\x1b[31m red\n")
        (workspace.root / "secret.txt").write_text(SECRET)
        (folder / "steps/check").joinpath("log.txt").symlink_to(workspace.root / "secret.txt")
        raw = (folder / "run.json").read_text()
        for step in ("bench", "check"):
            raw = raw.replace(f'"id": "{step}"', f'"id": "{step}", "log": "steps/{step}/log.txt"')
        (folder / "run.json").write_text(raw.replace('"id": "peaks"', '"id": "peaks", "log": "../../../secret.txt"'))
        with dashboard(workspace) as running:
            assert running.ask("/").status == 401, "before the link was opened"
            assert running.enter().status == 303
            yield running


RUN = reference_run.H200.name


def test_the_link_opens_one_browser_and_no_second(opened: Dashboard) -> None:
    second = Dashboard(opened.process, opened.link)
    assert second.enter().status == 403
    assert not second.cookie
    assert opened.ask("/").status == 200


def test_the_cookie_is_for_this_server_only(opened: Dashboard) -> None:
    with_it = opened.ask("/")
    assert with_it.status == 200
    cookie, opened.cookie = opened.cookie, opened.cookie[:-1] + "x"
    try:
        assert opened.ask("/").status == 401
        opened.cookie = ""
        assert opened.ask("/live").status == 401
        assert opened.ask("/static/app.js").status == 401
    finally:
        opened.cookie = cookie


@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1", "127.0.0.1:1", "localhost.evil:80", "", "169.254.1.1:80"]
)
def test_another_host_name_is_refused(opened: Dashboard, host: str) -> None:
    assert opened.ask("/", Host=host).status == 421


@pytest.mark.parametrize("name", ["127.0.0.1", "localhost"])
def test_its_own_names_are_not(opened: Dashboard, name: str) -> None:
    assert opened.ask("/hosts", Host=f"{name}:{opened.port}").status == 200


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "https://127.0.0.1", "http://127.0.0.1:1"])
def test_another_origin_is_refused(opened: Dashboard, origin: str) -> None:
    assert opened.ask("/", Origin=origin).status == 403
    assert opened.ask("/live", Sec_Fetch_Site="cross-site").status == 403


class Listener(http.server.BaseHTTPRequestHandler):
    """Another program's server; keeps the cookies that it is sent."""

    cookies: ClassVar[list[str | None]] = []

    def do_GET(self) -> None:
        self.cookies.append(self.headers["Cookie"])
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_: object) -> None: ...


def test_a_server_on_another_port_never_gets_the_cookie(tmp_path: Path, private_home: Path) -> None:
    """A browser sends cookies to every port of a host: to a path that begins as it should, and nobody else knows it."""
    browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
    with (
        dashboard(Workspace(tmp_path / "ws", private_home)) as own,
        http.server.HTTPServer(("127.0.0.1", 0), Listener) as other,
    ):
        assert b"Runs" in browser.open(own.link).read()
        assert browser.open(own.pages + "hosts").status == 200, "the cookie is there"
        threading.Thread(target=other.serve_forever, daemon=True).start()
        for path in ("/", "/hosts", "/runs/x"):
            assert browser.open(f"http://127.0.0.1:{other.server_port}{path}").status == 204
        other.shutdown()
    assert Listener.cookies == [None] * 3
    assert len(own.root) > 20


def test_nothing_is_answered_outside_its_path(opened: Dashboard) -> None:
    for path in (
        "/",
        "/hosts",
        "/static/app.js",
        opened.root,
        f"{opened.root}x/",
        f"/x{opened.root}/",
        "/.." + opened.root,
    ):
        assert opened.ask_whole(path).status == 401, path
    assert opened.ask_whole(f"{opened.root}/hosts").status == 200
    page = opened.ask("/")
    inside = re.findall(r'(?:href|src|action|data-live)="(/[^"]*)"', page.text)
    assert len(inside) > 5
    assert all(link.startswith(f"{opened.root}/") for link in inside)


def test_an_action_needs_the_token(opened: Dashboard) -> None:
    origin = {"Origin": opened.base}
    for path in (f"/runs/{RUN}/cancel", f"/runs/{RUN}/again"):
        assert opened.ask(path, "POST", "", **origin).status == 403
        assert opened.ask(path, "POST", "token=wrong", **origin).status == 403
        assert opened.ask(path, "POST", f"token={opened.cookie.split('=')[1]}", **origin).status == 403
    assert opened.ask(f"/runs/{RUN}/cancel").status == 405, "nothing is changed by a link"


def test_a_body_is_small(opened: Dashboard) -> None:
    try:
        answer = opened.ask(f"/runs/{RUN}/cancel", "POST", "token=" + "x" * 200_000, Origin=opened.base)
        assert answer.status >= 400
    except OSError:
        pass  # it hung up, which is as good
    assert opened.ask("/hosts").status == 200


@pytest.mark.parametrize("path", [
    "/static/../guard.py", "/static/%2e%2e/guard.py", "/static/..%2fguard.py", "/static//etc/passwd",
    "/static/app.css/..", "/runs/..", "/runs/%2e%2e", "/runs/..%2f..%2fsecret.txt",
    f"/runs/{RUN}/log/..%2f..%2frun.json",
    f"/runs/{RUN}/log/%2e%2e", f"/runs/{RUN}/log/check", f"/runs/{RUN}/log/peaks", f"/runs/{RUN}/log/nope",
    "/runs/nope/report", "/runs/last", "//evil.example/",
])  # fmt: skip
def test_no_path_leads_outside(opened: Dashboard, path: str) -> None:
    answer = opened.ask(path)
    assert answer.status in (404, 400), answer.text
    assert SECRET not in answer.text
    assert "class Guard" not in answer.text


def test_the_links_code_never_stays_in_the_address(opened: Dashboard) -> None:
    answer = opened.ask("/history?job=x&token=whatever")
    assert answer.status == 303
    assert answer.headers["location"] == f"{opened.root}/history?job=x"
    assert opened.ask("//evil.example/?token=whatever").headers["location"] == f"{opened.root}/evil.example/"


def test_every_answer_forbids_scripts_of_others(opened: Dashboard) -> None:
    for path in ("/", "/history", "/nope", "/static/app.js", f"/runs/{RUN}/log/bench?raw"):
        headers = opened.ask(path).headers
        assert "default-src 'none'" in headers["content-security-policy"]
        assert "unsafe" not in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["x-frame-options"] == "DENY"
    report = opened.ask(f"/runs/{RUN}/report").headers["content-security-policy"]
    assert report.startswith("default-src 'none'")
    assert "script-src" not in report


def test_a_logs_text_is_no_markup(opened: Dashboard) -> None:
    page = opened.ask(f"/runs/{RUN}/log/bench")
    assert "&lt;b&gt;bold&lt;/b&gt; red" in page.text
    assert "\x1b" not in page.text
    found = opened.ask(f"/runs/{RUN}/log/bench?q=BOLD").text
    assert "1 of 1 line" in found
    assert 'href="?#L1"' in found, "a line that is found leads to its place in the log"
    assert "0 of 1 line" in opened.ask(f"/runs/{RUN}/log/bench?q=%3Cscript%3E").text
    raw = opened.ask(f"/runs/{RUN}/log/bench?raw")
    assert raw.headers["content-type"].startswith("text/plain")
    assert "\x1b[31m" in raw.text


def test_only_loopback_is_listened_on(opened: Dashboard) -> None:
    listening = Path("/proc/net/tcp")
    if not listening.exists():
        pytest.skip("no /proc/net/tcp here")
    here = f":{opened.port:04X}"
    local = [line.split()[1] for line in listening.read_text().splitlines()[1:] if line.split()[3] == "0A"]
    assert [address for address in local if address.endswith(here)] == [f"0100007F{here}"]


def test_a_half_sent_request_harms_nobody(opened: Dashboard) -> None:
    with socket.create_connection(("127.0.0.1", opened.port)) as half:
        half.sendall(b"GET / HTTP/1.1\r\nHost: ")
        assert opened.ask("/hosts").status == 200
    with socket.create_connection(("127.0.0.1", opened.port)) as nonsense:
        nonsense.sendall(b"\x16\x03\x01" + b"\x00" * 100 + b"\r\n\r\n")
        assert b"400" in nonsense.recv(100)
