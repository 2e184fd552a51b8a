"""A fleet's ways between machines: bytes through a real sshd, on loopback only, refused and cut, nothing left over."""

from __future__ import annotations

import contextlib
import os
import random
import socket
import stat
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.base.errors import HostFault, HostUnusable, LinkLost
from orchestrator.machines.connect import tunnels as relay
from orchestrator.machines.connect.reconnect import Connector
from orchestrator.machines.connect.transport import LocalTransport, run_to_end
from orchestrator.machines.connect.tunnels import SshTunnelConnection, SshTunnels
from orchestrator.machines.interfaces import Stream, TunnelConnection
from orchestrator.machines.targets import LocalTarget, Target
from tests.support.link import LinkProxy
from tests.support.scripts import script
from tests.support.sshd import LoopbackSshd, port_of_nobody
from tests.support.waiting import wait_for

RUN = "20261121t081530z-tune-box-3fa9c1"
OURS = ("fcctl-relay", "fcctl-relay-back")


class Echo:
    """A server that gives everything back, and says when a client has nothing more to say."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self.clients: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self.clients.append(client)
            threading.Thread(target=self._give_back, args=(client,), daemon=True).start()

    def _give_back(self, client: socket.socket) -> None:
        try:
            while data := client.recv(65536):
                client.sendall(data)
            client.sendall(b"<end>")
        except OSError:
            pass
        finally:
            client.close()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


@pytest.fixture
def echo() -> Iterator[Echo]:
    server = Echo()
    yield server
    server.close()


class Tunnels(SshTunnels):
    """Closes what it opened when it is left."""

    def __init__(self, opened: contextlib.ExitStack) -> None:
        super().__init__(Connector())
        self._opened = opened

    def open(self, target: Target) -> TunnelConnection:
        return self._opened.enter_context(contextlib.closing(super().open(target)))


@pytest.fixture
def tunnels() -> Iterator[SshTunnels]:
    """Whatever a test opens through it is closed at its end, threads and all."""
    with contextlib.ExitStack() as opened:
        yield Tunnels(opened)
    wait_for(lambda: not [t.name for t in threading.enumerate() if t.name in OURS])


@pytest.fixture
def target(sshd: LoopbackSshd) -> Target:
    return sshd.target(link_timeout_s=30.0)


def said(port: int, data: bytes) -> bytes:
    """What comes back if ``data`` is sent, and nothing more."""
    got = b""
    with socket.create_connection(("127.0.0.1", port), 30) as client:

        def send() -> None:
            with contextlib.suppress(OSError):  # it may be closed at once
                client.sendall(data)
                client.shutdown(socket.SHUT_WR)

        sender = threading.Thread(target=send, daemon=True)
        sender.start()
        with contextlib.suppress(ConnectionResetError):
            while piece := client.recv(65536):
                got += piece
        sender.join()
    return got


def refuses(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 30).close()
    except ConnectionRefusedError:
        return True
    return False


def test_a_port_of_one_machine_leads_to_a_port_of_another(
    sshd: LoopbackSshd, target: Target, tunnels: SshTunnels, echo: Echo
) -> None:
    search, member = tunnels.open(sshd.target("a")), tunnels.open(target)
    port = member.listen(lambda: search.dial(echo.port))
    noise = random.Random(1).randbytes(3_000_000)  # more than any window on the way
    assert said(port, noise) == noise + b"<end>"
    assert [said(port, b"again"), said(port, b"")] == [b"again<end>", b"<end>"]
    for one in (search, member):
        one.check()
        one.close()
    wait_for(lambda: refuses(port))


def test_only_the_machine_itself_can_connect(sshd: LoopbackSshd, target: Target, tunnels: SshTunnels) -> None:
    del sshd
    passage = tunnels.open(target)
    port = passage.listen(lambda: passage.dial(1))
    listening = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    tcp6 = Path("/proc/net/tcp6")
    listening6 = [line.split() for line in tcp6.read_text().splitlines()[1:]] if tcp6.exists() else []
    bound = [row[1] for row in listening + listening6 if row[3] == "0A" and row[1].endswith(f":{port:04X}")]
    assert bound == [f"0100007F:{port:04X}"]


def test_a_connection_that_leads_nowhere_is_closed_and_the_next_one_may_lead_there(
    target: Target, tunnels: SshTunnels, echo: Echo
) -> None:
    there: list[Stream] = []
    passage = tunnels.open(target)

    def reach() -> Stream:
        if not there:
            raise LinkLost("not yet")
        return there.pop()

    port = passage.listen(reach)
    assert said(port, b"") == b""
    there.append(passage.dial(echo.port))
    assert said(port, b"now") == b"now<end>"
    with port_of_nobody() as nobody, pytest.raises(HostFault, match="no program listens"):
        passage.dial(nobody)


def test_a_machine_may_have_only_so_many_connections(
    target: Target, tunnels: SshTunnels, echo: Echo, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relay, "MAX_CONNECTIONS", 2)
    passage = tunnels.open(target)
    port = passage.listen(lambda: passage.dial(echo.port))
    held = [socket.create_connection(("127.0.0.1", port), 30) for _ in range(2)]
    for client in held:
        client.sendall(b"x")
        assert client.recv(1) == b"x"
    assert said(port, b"") == b""
    for client in held:
        client.close()
    wait_for(lambda: said(port, b"free") == b"free<end>")


def test_one_that_floods_us_is_not_listened_to(
    sshd: LoopbackSshd, tunnels: SshTunnels, echo: Echo, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relay, "MAX_REFUSED", 5)
    monkeypatch.setattr(relay, "MAX_CONNECTIONS", 0)
    passage = tunnels.open(sshd.target())
    port = passage.listen(lambda: passage.dial(echo.port))

    def gone() -> bool:
        try:
            said(port, b"")
            passage.check()
        except (OSError, LinkLost):
            return True
        return False

    wait_for(gone)
    assert not echo.clients


@pytest.mark.parametrize(
    ("setting", "does"),
    [("no", "listen"), ("no", "dial"), ("local", "listen"), ("remote", "dial")],
)
def test_a_server_that_does_not_forward_says_how_to_let_it(
    setting: str, does: str, tunnels: SshTunnels, echo: Echo
) -> None:
    with contextlib.closing(LoopbackSshd(settings=(f"AllowTcpForwarding {setting}",)).start()) as server:
        passage = tunnels.open(server.target("strict"))
        with pytest.raises(HostUnusable, match="strict does not forward ports") as refused:
            passage.listen(lambda: passage.dial(echo.port)) if does == "listen" else passage.dial(echo.port)
        assert "AllowTcpForwarding yes" in str(refused.value.hint)
        passage.check()  # the connection itself is fine


def test_a_link_that_is_cut_takes_its_connections_with_it_and_another_one_does_as_well(
    sshd: LoopbackSshd, link: LinkProxy, tunnels: SshTunnels, echo: Echo
) -> None:
    target = sshd.target(port=link.port)
    passage = tunnels.open(target)
    port = passage.listen(lambda: passage.dial(echo.port))
    client = socket.create_connection(("127.0.0.1", port), 30)
    client.sendall(b"x")
    assert client.recv(1) == b"x"
    link.reset()
    assert client.recv(1) == b"", "the other end is told"
    client.close()
    with pytest.raises(LinkLost):
        passage.check()
    with pytest.raises(LinkLost):
        passage.read(RUN, "fleet.json", 100)
    again = tunnels.open(target)
    assert said(again.listen(lambda: again.dial(echo.port)), b"back") == b"back<end>"


@pytest.mark.full
def test_a_link_that_falls_silent_is_noticed(sshd: LoopbackSshd, link: LinkProxy, tunnels: SshTunnels) -> None:
    passage = tunnels.open(sshd.target(port=link.port, link_timeout_s=5.0))
    try:
        link.stall()
        with pytest.raises(LinkLost):
            passage.check()
    finally:
        link.resume()
        passage.close()


# -------------------------------------------------------------------------------------------------------------- files
@pytest.fixture
def passage(target: Target, tunnels: SshTunnels) -> TunnelConnection:
    return tunnels.open(target)


@pytest.fixture
def run_folder(sshd: LoopbackSshd) -> Path:
    folder = sshd.home / ".fcctl/runs" / RUN
    folder.mkdir(parents=True)
    return folder


def test_a_file_of_a_run_is_written_for_its_owner_alone(passage: TunnelConnection, run_folder: Path) -> None:
    assert passage.write(RUN, "join.json", b'{"key": "secret"}')
    file = run_folder / "fleet/join.json"
    assert file.read_bytes() == b'{"key": "secret"}'
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    assert passage.write(RUN, "join.json", b"{}"), "and replaced"
    assert passage.read(RUN, "join.json", 2) == b"{}"
    assert passage.read(RUN, "join.json", 1) is None, "longer than it may be"
    assert [path.name for path in file.parent.iterdir()] == ["join.json"]
    passage.remove(RUN, "join.json")
    assert not file.parent.exists()
    assert passage.read(RUN, "join.json", 100) is None


def test_what_comes_home_can_be_read_before(passage: TunnelConnection, run_folder: Path) -> None:
    (run_folder / "artifacts/tune").mkdir(parents=True)
    (run_folder / "artifacts/tune/journal.log").write_text("found\n")
    assert passage.read(RUN, "artifacts/tune/journal.log", 100) == b"found\n"


def test_a_run_that_is_not_there_gets_no_file(passage: TunnelConnection, run_folder: Path) -> None:
    other = RUN.replace("3fa9c1", "3fa9c2")
    assert not passage.write(other, "join.json", b"{}")
    assert not run_folder.with_name(other).exists()


@pytest.mark.parametrize(
    ("run", "name"), [("..", "x.y"), (RUN, "../x.y"), (RUN, "a b.c"), (RUN, "$(x).y"), (RUN, "/x.y")]
)
def test_no_other_file_can_be_named(passage: TunnelConnection, run_folder: Path, run: str, name: str) -> None:
    del run_folder
    for act, words in ((passage.read, (1,)), (passage.write, (b"",)), (passage.remove, ())):
        with pytest.raises(ValueError, match="not a file of a run"):
            act(run, name, *words)


def test_where_nothing_can_be_written_that_is_said(passage: TunnelConnection, run_folder: Path) -> None:
    (run_folder / "fleet").write_text("a file is in the way")
    with pytest.raises(HostUnusable, match=RUN):
        passage.write(RUN, "join.json", b"{}")


@pytest.mark.parametrize("program", ["cat", "mv"])
@pytest.mark.parametrize(("body", "error"), [("kill -9 $$", LinkLost), ("exit 1", HostUnusable)])
def test_what_a_machine_that_goes_down_killed_is_tried_again_and_a_full_disk_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str, body: str, error: type[Exception]
) -> None:
    folder = tmp_path / "root/runs" / RUN
    folder.mkdir(parents=True)
    script(tmp_path / program, body)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    here: Any = LocalTransport()
    here.connection = None
    with pytest.raises(error):
        SshTunnelConnection(here, LocalTarget(name="here", root=str(tmp_path / "root"))).write(
            RUN, "join.json", b"a key"
        )
    assert os.listdir(folder / "fleet") == []


def test_a_machine_that_sends_a_byte_now_and_then_is_given_up() -> None:
    """Each byte is in time."""
    dripping: Any = SimpleNamespace(
        write=lambda data, timeout_s: None, end_input=lambda: None, read=lambda limit, timeout_s: b"x", close=list
    )
    transport: Any = SimpleNamespace(run=lambda script: dripping)
    with pytest.raises(TimeoutError, match=r"had not sent all after 0.2 s"):
        run_to_end(transport, "echo", b"", 10**12, 0.01)
