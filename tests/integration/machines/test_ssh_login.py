"""Getting in over SSH, or being told what stands in the way. Real sshd, real keys; the agent is a script."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import paramiko
import pytest

from orchestrator.base.errors import HostFault, HostUnreachable, HostUnusable
from orchestrator.machines.connect.reconnect import Connector
from orchestrator.machines.connect.ssh import auth, terminal
from orchestrator.machines.connect.ssh.auth import KeyLogin, load_key
from orchestrator.machines.connect.ssh.config import Destination, resolve
from orchestrator.machines.targets import SshTarget
from orchestrator.workspace.doctor import check_target
from tests.support.agents import fake_runner, scripted_python
from tests.support.link import LinkProxy
from tests.support.scripts import script
from tests.support.sshd import LoopbackSshd, generate_key, port_of_nobody
from tests.support.waiting import wait_for

pytestmark = pytest.mark.usefixtures("private_home")

SSH_ADD = "ssh-add --apple-use-keychain" if sys.platform == "darwin" else "ssh-add"
SERVE = """
hello()
while True:
    request = receive()
    send({"id": request["id"], "result": {"runs": []}})
"""


class Client:
    """Connects with a scripted agent on the far side."""

    def __init__(self, folder: Path) -> None:
        self.connector = Connector(lambda: fake_runner(folder))
        self.python = scripted_python(folder, SERVE)

    def works(self, target: SshTarget) -> bool:
        session = self.connector.connect(target.model_copy(update={"python": self.python}))
        try:
            return session.status() == []
        finally:
            session.close()

    def refused(self, target: SshTarget, reason: str, *words: str) -> HostUnreachable:
        """That what is told has the reason, and these words."""
        with pytest.raises(HostUnreachable) as caught:
            self.works(target)
        error = caught.value
        assert error.cause
        assert error.hint
        assert error.reason == reason
        told = f"{error.message}\n{error.cause}\n{error.hint}"
        assert [word for word in words if word.lower() not in told.lower()] == []
        return error


def alias(config: Path | str, host: str = "box", **given: Any) -> SshTarget:
    return SshTarget(name="b", host=host, ssh_config=str(config), **given)


@pytest.fixture
def client(tmp_path: Path) -> Client:
    return Client(tmp_path)


# ------------------------------------------------------------------------------------------------ the way there
def test_plain_by_an_alias_and_past_a_dead_agent(
    client: Client, sshd: LoopbackSshd, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert client.works(sshd.target())
    assert client.works(alias(sshd.ssh_config))
    monkeypatch.setenv("SSH_AUTH_SOCK", str(sshd.folder / "gone"))
    assert client.works(sshd.target())


def test_no_such_name_and_a_closed_port(client: Client, sshd: LoopbackSshd) -> None:
    client.refused(sshd.target(host="no-such-host.invalid"), "name", "no-such-host.invalid")
    with port_of_nobody() as port:
        client.refused(sshd.target(port=port), "port", "refused")


def test_port_of_something_else(client: Client, sshd: LoopbackSshd) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]

        def serve() -> None:
            peer, _ = server.accept()
            with peer:
                peer.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        threading.Thread(target=serve, daemon=True).start()
        client.refused(sshd.target(port=port), "port", "not a usable SSH server")


def test_port_that_never_speaks(client: Client, sshd: LoopbackSshd, link: LinkProxy) -> None:
    link.stall()

    def is_soon() -> bool:
        began = time.monotonic()
        client.refused(sshd.target(port=link.port, connect_timeout_s=1.0), "timeout")
        return time.monotonic() - began < 9

    assert any(is_soon() for _ in range(3)), "not the ten seconds of the defaults, which no try takes less than"


def test_link_reset_during_the_login(client: Client, sshd: LoopbackSshd, link: LinkProxy) -> None:
    link.cut_after(1500, "down")
    with pytest.raises(HostUnreachable) as caught:
        client.works(sshd.target(port=link.port))
    assert caught.value.reason in ("port", "login")


def test_proxy_command(client: Client, sshd: LoopbackSshd, tmp_path: Path) -> None:
    relay = tmp_path / "re lay.py"
    relay.write_text(
        "import socket, sys, threading, os\ns = socket.create_connection((sys.argv[1], "
        "int(sys.argv[2])))\nprint('noise of the relay', file=sys.stderr, flush=True)\ndef up():\n    while d := "
        "os.read(0, 65536): s.sendall(d)\n    s.shutdown(1)\nthreading.Thread(target=up, daemon=True).start()\nwhile "
        "d := s.recv(65536): os.write(1, d)\n"
    )
    config = tmp_path / "config"
    config.write_text(
        sshd.ssh_config.read_text() + f'  ProxyCommand {sys.executable} "{relay}" %h %p\n'
        f"Host astray\n  ProxyCommand echo astray >&2; exit 3\n"
    )
    assert client.works(alias(config))
    client.refused(alias(config, "astray", connect_timeout_s=30), "proxy", "astray")


@pytest.fixture
def server() -> Iterator[Callable[..., LoopbackSshd]]:
    """``server("AllowTcpForwarding no")``: one more sshd, with these settings."""
    started: list[LoopbackSshd] = []

    def start(*settings: str, **given: Any) -> LoopbackSshd:
        started.append(LoopbackSshd(settings=settings, **given))
        return started[-1].start()

    yield start
    for one in started:
        one.close()


@pytest.fixture
def jump(server: Callable[..., LoopbackSshd]) -> LoopbackSshd:
    return server()


def jump_config(sshd: LoopbackSshd, jump: LoopbackSshd, tmp_path: Path) -> str:
    """``box`` behind ``hop``, and ``far`` behind ``hop`` and ``box``."""
    config = tmp_path / "config"
    hop = jump.ssh_config.read_text().replace("Host box", "Host hop")
    box = sshd.ssh_config.read_text()
    config.write_text(
        f"{hop}{box}  ProxyJump hop\n{box.replace('Host box', 'Host inner')}{hop.replace('Host hop', 'Host far')}  "
        f"ProxyJump hop,inner\nHost loop\n  ProxyJump loop2\nHost loop2\n  ProxyJump loop\n"
    )
    return str(config)


def test_proxy_jump(client: Client, sshd: LoopbackSshd, jump: LoopbackSshd, tmp_path: Path) -> None:
    config = jump_config(sshd, jump, tmp_path)
    assert client.works(alias(config))
    assert client.works(alias(config, "far"))
    assert client.works(alias(config, "inner", proxy_jump="hop"))
    assert "direct-tcpip" in jump.log.read_text() or "Accepted publickey" in jump.log.read_text()
    sshd.stop()
    client.refused(alias(config), "proxy")
    jump.stop()
    client.refused(alias(config), "proxy", "hop", "refused")
    client.refused(alias(config, "loop"), "config")


def test_key_of_the_jump_host_is_checked_too(
    client: Client, sshd: LoopbackSshd, jump: LoopbackSshd, tmp_path: Path
) -> None:
    config = jump_config(sshd, jump, tmp_path)
    jump.known_hosts.write_text("")
    client.refused(alias(config), "key", "hop")


@pytest.mark.parametrize(
    ("only", "what", "usual"),
    [
        ("KexAlgorithms sntrup761x25519-sha512", "key exchange", "curve25519-sha256"),
        ("Ciphers chacha20-poly1305@openssh.com", "cipher", "aes256-gcm@openssh.com"),
        ("MACs umac-128-etm@openssh.com", "message code", "hmac-sha2-256-etm@openssh.com"),
    ],
)
def test_a_server_that_knows_only_what_paramiko_does_not(
    client: Client, server: Callable[..., LoopbackSshd], only: str, what: str, usual: str
) -> None:
    """Refused, with what to change; and with that changed, the login works."""
    setting = only.partition(" ")[0]
    strict = server(only)
    fix = f"on the machine, add {usual} to {setting} in /etc/ssh/sshd_config"
    client.refused(strict.target(), "config", f"have no {what} in common", fix)
    strict.settings = (f"{only},{usual}",)
    strict.restart()
    assert client.works(strict.target())


def test_a_key_exchange_by_its_newer_name(client: Client, server: Callable[..., LoopbackSshd]) -> None:
    """Which Paramiko 5 does not know; the exchange itself it has."""
    assert client.works(server("KexAlgorithms curve25519-sha256").target())


# ------------------------------------------------------------------------------------------------ the host's key
def test_unknown_key(client: Client, sshd: LoopbackSshd, tmp_path: Path) -> None:
    empty = tmp_path / "kh"
    said = subprocess.run(["ssh-keygen", "-lf", f"{sshd.host_keys[0]}.pub"], capture_output=True, text=True, check=True)
    error = client.refused(sshd.target(known_hosts=str(empty)), "key", "is not known", said.stdout.split()[1])
    # The hint does what it says.
    scan = (error.hint or "").partition("equal: ")[2]
    assert scan.startswith("ssh-keyscan")
    subprocess.run(scan, shell=True, check=True, capture_output=True)
    assert client.works(sshd.target(known_hosts=str(empty)))


def test_unknown_key_where_none_are_kept(client: Client, sshd: LoopbackSshd, private_home: Path) -> None:
    """``UserKnownHostsFile /dev/null``: a key that is added there is gone."""
    place = private_home / ".ssh/known_hosts"
    fix = f'>> {place}, and set `known_hosts = "{place}"` in the target'
    client.refused(sshd.target(known_hosts="/dev/null"), "key", fix)


def test_changed_key_is_loud(client: Client, sshd: LoopbackSshd, tmp_path: Path) -> None:
    other = generate_key(tmp_path / "other")
    kind, blob = Path(f"{other}.pub").read_text().split()[:2]
    sshd.known_hosts.write_text(f"[127.0.0.1]:{sshd.port} {kind} {blob}\n")
    error = client.refused(sshd.target(), "key", "HAS CHANGED", f"{sshd.known_hosts}:1")
    # Following the hint removes the old key.
    command = (error.hint or "").partition(": ")[2].partition(", then")[0]
    assert command.startswith("ssh-keygen -R")
    subprocess.run(command, shell=True, check=True, capture_output=True)
    client.refused(sshd.target(), "key", "is not known")


def test_revoked_key(client: Client, sshd: LoopbackSshd) -> None:
    with sshd.known_hosts.open("a") as known:
        known.write("@revoked * " + Path(f"{sshd.host_keys[0]}.pub").read_text())
    client.refused(sshd.target(), "key", "revoked")


def test_hashed_names_host_key_alias_and_portless_names(client: Client, sshd: LoopbackSshd) -> None:
    subprocess.run(["ssh-keygen", "-q", "-H", "-f", str(sshd.known_hosts)], check=True, capture_output=True)
    assert "127.0.0.1" not in sshd.known_hosts.read_text()
    assert client.works(sshd.target())
    public = Path(f"{sshd.host_keys[0]}.pub").read_text()
    sshd.known_hosts.write_text(f"the-alias {public}")
    with sshd.ssh_config.open("a") as config:
        config.write("  HostKeyAlias the-alias\n")
    assert client.works(alias(sshd.ssh_config))
    sshd.known_hosts.write_text(f"127.0.0.1 {public}")
    assert client.works(sshd.target())


@pytest.mark.parametrize("known", ["rsa", "ecdsa", "ed25519"])
def test_the_kind_of_key_that_is_known_is_asked_for(
    client: Client, server: Callable[..., LoopbackSshd], known: str
) -> None:
    many = server(host_key_kinds=("ed25519", "ecdsa", "rsa"))
    lines = many.known_hosts.read_text().splitlines()
    many.known_hosts.write_text("\n".join(line for line in lines if known in line) + "\n")
    assert client.works(many.target())
    # With the other kinds known wrongly, a match is still a match, and a mismatch is still one.
    many.known_hosts.write_text(f"[127.0.0.1]:{many.port} ssh-dss AAAAB3NzaC1kc3MAAAAA\n")
    client.refused(many.target(), "key")


# ------------------------------------------------------------------------------------------------ the login
def test_a_refused_login_names_what_was_tried(client: Client, sshd: LoopbackSshd, tmp_path: Path) -> None:
    stranger, broken = generate_key(tmp_path / "stranger"), tmp_path / "broken"
    broken.write_text("not a key")
    cases: list[tuple[dict[str, Any], list[str]]] = [
        ({"user": "nobody-here"}, ["nobody-here", str(sshd.identity)]),
        ({"identity_file": str(stranger)}, [str(stranger)]),
        ({"identity_file": None}, ["no key was found", "publickey"]),
        ({"identity_file": str(broken)}, ["cannot be read"]),
    ]
    for changes, words in cases:
        client.refused(sshd.target(**changes), "login", *words)


@pytest.mark.parametrize("kind", ["rsa", "ecdsa"])
def test_other_kinds_of_keys(client: Client, sshd: LoopbackSshd, tmp_path: Path, kind: str) -> None:
    mine = generate_key(tmp_path / "mine", kind)
    shutil.copy(f"{mine}.pub", sshd.folder / "authorized_keys")
    assert client.works(sshd.target(identity_file=str(mine)))
    # The format of before 2014, without and with a passphrase.
    subprocess.run(["ssh-keygen", "-q", "-p", "-m", "PEM", "-N", "", "-f", str(mine)], check=True, capture_output=True)
    assert "OPENSSH" not in mine.read_text()
    assert client.works(sshd.target(identity_file=str(mine)))
    subprocess.run(["ssh-keygen", "-q", "-p", "-N", "sesame", "-f", str(mine)], check=True, capture_output=True)
    client.refused(sshd.target(identity_file=str(mine)), "login", f"{SSH_ADD} {mine}")
    pem = ["ssh-keygen", "-q", "-p", "-P", "sesame", "-N", "sesame", "-m", "PEM", "-f", str(mine)]
    subprocess.run(pem, check=True, capture_output=True)
    client.refused(sshd.target(identity_file=str(mine)), "login", f"{SSH_ADD} {mine}")


def test_keys_of_every_length_without_a_comment(tmp_path: Path) -> None:
    for number in range(12):  # about half of them end at a block's end, which Paramiko's reader takes for padding
        key = load_key(generate_key(tmp_path / f"k{number}", "ecdsa"), None)
        assert key.can_sign()


def test_server_that_wants_a_password(client: Client, server: Callable[..., LoopbackSshd]) -> None:
    wants = server("PubkeyAuthentication no", "KbdInteractiveAuthentication yes", "UsePAM no")
    client.refused(wants.target(), "login")


class Agent:
    """A real ssh-agent."""

    def __init__(self, folder: Path) -> None:
        self.socket = str(folder / "agent")
        self.process = subprocess.Popen(["ssh-agent", "-D", "-a", self.socket], stdout=subprocess.DEVNULL)
        wait_for(self._answers)

    def _answers(self) -> bool:
        with socket.socket(socket.AF_UNIX) as probe:
            return probe.connect_ex(self.socket) == 0

    def add(self, key: Path, **options: Any) -> None:
        environment = {**os.environ, "SSH_AUTH_SOCK": self.socket, **options}
        subprocess.run(["ssh-add", "-q", str(key)], check=True, env=environment, stdin=subprocess.DEVNULL)

    def close(self) -> None:
        self.process.terminate()
        self.process.wait()


@pytest.fixture
def agent(sshd: LoopbackSshd) -> Iterator[Agent]:
    agent = Agent(sshd.folder)
    yield agent
    agent.close()


def test_agent(
    client: Client, sshd: LoopbackSshd, agent: Agent, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("other1", "other2"):
        agent.add(generate_key(tmp_path / name))
    agent.add(sshd.identity)
    monkeypatch.setenv("SSH_AUTH_SOCK", agent.socket)
    assert client.works(sshd.target(identity_file=None))
    # Only IdentityFile's key of the agent, although its private file is gone.
    public = tmp_path / "only"
    shutil.copy(f"{sshd.identity}.pub", f"{public}.pub")
    public.write_text("")
    config = tmp_path / "config"
    text = sshd.ssh_config.read_text().replace(str(sshd.identity), str(public))
    config.write_text(text)
    assert client.works(alias(config))
    monkeypatch.delenv("SSH_AUTH_SOCK")
    config.write_text(text + f"  IdentityAgent {agent.socket}\n")
    assert client.works(alias(config))
    config.write_text(text + "  IdentityAgent none\n")
    client.refused(alias(config), "login")


def test_agent_with_more_keys_than_the_host_allows(
    client: Client, sshd: LoopbackSshd, agent: Agent, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for number in range(8):
        agent.add(generate_key(tmp_path / f"k{number}"))
    monkeypatch.setenv("SSH_AUTH_SOCK", agent.socket)
    assert client.works(sshd.target())  # the chosen file goes first
    error = client.refused(sshd.target(identity_file=None), "login")
    assert "too many" in (error.cause or "") or "closed the connection" in (error.cause or "")


@pytest.fixture
def locked(sshd: LoopbackSshd, tmp_path: Path) -> Path:
    """A key that the machine knows, and that has a passphrase."""
    key = generate_key(tmp_path / "locked", passphrase="sesame")
    with (sshd.folder / "authorized_keys").open("a") as known:
        known.write(Path(f"{key}.pub").read_text())
    return key


def test_key_with_a_passphrase(
    client: Client, sshd: LoopbackSshd, locked: Path, agent: Agent, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert client.refused(sshd.target(identity_file=str(locked)), "login").hint == f"{SSH_ADD} {locked}"
    ask = script(tmp_path / "ask", "echo sesame")
    agent.add(locked, SSH_ASKPASS=str(ask), SSH_ASKPASS_REQUIRE="force", DISPLAY="x")
    monkeypatch.setenv("SSH_AUTH_SOCK", agent.socket)
    assert client.works(sshd.target(identity_file=str(locked)))


def test_passphrase_in_the_keychain_of_macos(
    client: Client, sshd: LoopbackSshd, locked: Path, agent: Agent, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The agent is empty after a restart; Apple's ssh-add fills it from the Keychain, without a question."""
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setenv("SSH_AUTH_SOCK", agent.socket)
    monkeypatch.setattr(auth, "APPLE_SSH_ADD", "/bin/false")
    client.refused(sshd.target(identity_file=str(locked)), "login", f"ssh-add --apple-use-keychain {locked}")
    ask = script(tmp_path / "ask", "echo sesame")
    keychain = script(
        tmp_path / "ssh-add",
        f'[ "$*" = "-q --apple-load-keychain" ] || exit 1\n'
        f"SSH_ASKPASS={ask} SSH_ASKPASS_REQUIRE=force DISPLAY=x exec ssh-add -q {locked}",
    )
    monkeypatch.setattr(auth, "APPLE_SSH_ADD", str(keychain))
    assert client.works(sshd.target(identity_file=str(locked)))
    assert client.works(sshd.target(identity_file=str(locked)))


def test_openssh_logs_in_and_fcctl_cannot(
    client: Client, sshd: LoopbackSshd, locked: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    target = sshd.target(identity_file=str(locked))
    client.refused(target, "login", f"refused the login of {sshd.user}")
    # It has a way to the key that fcctl has not.
    script(tmp_path / "ssh", f'exec {shutil.which("ssh")} -i {sshd.identity} "$@"')
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(terminal, "_LOGIN_S", 240.0)
    told = "OpenSSH can log in to 127.0.0.1, but fcctl cannot"
    client.refused(target, "login", told, str(locked), "Keychain", f"{SSH_ADD} {locked}")


def test_a_check_does_not_ask_for_a_passphrase(
    sshd: LoopbackSshd, locked: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    monkeypatch.setattr("getpass.getpass", lambda *_, **__: pytest.fail("it asks"))
    found = list(check_target(sshd.target(identity_file=str(locked)), Connector(may_ask=False), time.time))
    assert [(one.status, one.fix) for one in found] == [("fail", f"{SSH_ADD} {locked}")]


def test_passphrase_is_asked_for_on_a_terminal(
    sshd: LoopbackSshd, locked: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = iter(["wrong", "sesame"])
    monkeypatch.setattr("getpass.getpass", lambda prompt, stream: next(answers))
    settings = resolve(
        Destination("127.0.0.1", sshd.user, sshd.port), config_file="/dev/null", identity_file=str(locked)
    )
    with paramiko.Transport(socket.create_connection(("127.0.0.1", sshd.port))) as transport:
        transport.start_client(timeout=240)
        KeyLogin(settings, None, interactive=True).authenticate(transport)
        assert transport.is_authenticated()


# ------------------------------------------------------------------------------------------------ on the far side
@pytest.mark.parametrize(
    "noise",
    ["echo welcome; printf 'no newline \\033[31m'; echo oops >&2", "(yes noise | head -c 5000000) >&2"],
    ids=["a little", "much on standard error"],
)
def test_login_noise(client: Client, sshd: LoopbackSshd, noise: str) -> None:
    (sshd.home / ".bashrc").write_text(noise + "\n")
    assert client.works(sshd.target())


def test_endless_login_noise(client: Client, sshd: LoopbackSshd) -> None:
    (sshd.home / ".bashrc").write_text("yes noise\n")
    with pytest.raises(HostFault) as caught:
        client.works(sshd.target())
    assert caught.value.fault == "noise"
    assert ".bashrc" in (caught.value.hint or "")


@pytest.mark.parametrize(
    "startup",
    ["exec sh", "read -r mine", "echo this account is closed >&2; exit 3", "cat >/dev/null"],
    ids=["another shell", "reads", "ends", "eats"],
)
def test_a_startup_file_in_the_way_of_commands(sshd: LoopbackSshd, startup: str) -> None:
    (sshd.home / ".bashrc").write_text(f"{startup}\n")
    with pytest.raises(HostUnusable, match="does not run the commands") as caught:
        Connector().connect(sshd.target(link_timeout_s=5))
    assert ".bashrc" in (caught.value.cause or "")
    assert ("this account is closed" in (caught.value.cause or "")) == ("closed" in startup)
    (sshd.home / ".bashrc").write_text("[[ $- == *i* ]] || return\n" + startup)
    Connector().connect(sshd.target()).close()


def test_runner_is_uploaded_once(client: Client, sshd: LoopbackSshd, tmp_path: Path) -> None:
    shutil.rmtree(sshd.home / ".fcctl")
    assert client.works(sshd.target())
    stored = sshd.home / ".fcctl" / "runner" / (fake_runner(tmp_path).sha256 + ".pyz")
    first = stored.stat()
    assert stored.read_bytes() == fake_runner(tmp_path).path.read_bytes()
    assert client.works(sshd.target())
    assert stored.stat().st_ino == first.st_ino
    assert [path.name for path in stored.parent.iterdir()] == [stored.name]


def test_root_elsewhere(client: Client, sshd: LoopbackSshd) -> None:
    assert client.works(sshd.target(root=str(sshd.home / "odd 'root\" $x")))
    assert client.works(sshd.target(root="~/deep/er"))
    assert (sshd.home / "deep" / "er" / "runner").is_dir()
    (sshd.home / "file").write_text("")
    with pytest.raises(HostUnusable, match="cannot be written to"):
        client.works(sshd.target(root="~/file/root"))


def test_no_python_there(sshd: LoopbackSshd, tmp_path: Path) -> None:
    with pytest.raises(HostUnusable) as caught:
        Connector(lambda: fake_runner(tmp_path)).connect(sshd.target(python="/nowhere/python3"))
    assert "Python 3.8" in caught.value.message


def test_python_is_searched_for(sshd: LoopbackSshd, tmp_path: Path) -> None:
    """The first ``python3`` is a script that speaks as the agent; it is found without being named."""
    tools = tmp_path / "bin"
    tools.mkdir()
    scripted_python(tools, SERVE, "python3")
    (sshd.home / ".bashrc").write_text(f"export PATH={tools}:$PATH\n")
    session = Connector(lambda: fake_runner(tmp_path)).connect(sshd.target(python=None))
    assert session.hello.hostname == "h"
    session.close()
