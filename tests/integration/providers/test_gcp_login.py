"""Into a machine of the cloud by what is remembered of it: pinned keys, no other files, and what to do when refused."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.app import ssh_command, terminal_command
from orchestrator.base.errors import ConfigError, HostUnreachable, NotFoundError
from orchestrator.machines.cache import FileMachineCache
from orchestrator.machines.cloud import Endpoint
from orchestrator.machines.connect.reconnect import Connector
from orchestrator.machines.targets import LocalTarget
from tests.integration.providers.conftest import World, rid
from tests.support.scripts import script
from tests.support.sshd import generate_key

Worlds = Callable[..., World]
RUN = "20261121t081530z-phase1-l4-3fa9c1"


@pytest.fixture
def here(world: Worlds, private_home: Path) -> World:
    """A running machine that the book knows."""
    made = world()
    FileMachineCache().remember(made.endpoint(made.made()))
    return made


def known(here: World) -> Endpoint:
    found = FileMachineCache().known(here.target.project, here.target.instance)
    assert found is not None
    return found


def connector(here: World) -> Connector:
    return Connector(book=FileMachineCache(), resolve=here.clouds.resolve)


def refused(here: World) -> HostUnreachable:
    with pytest.raises(HostUnreachable) as error:
        connector(here).connect(here.target).close()
    return error.value


def test_logging_in_asks_no_cloud_and_reads_no_file_of_the_user_s(here: World, private_home: Path) -> None:
    here.emulator.faults.add(do={"http": 500})
    ssh = private_home / ".ssh"
    ssh.mkdir(mode=0o700)
    (ssh / "config").write_text("Host *\n  ProxyCommand false\n  User nobody\n  Port 1\n")
    session = connector(here).connect(here.target)
    try:
        assert session.hello.root.startswith(str(here.emulator.home("vm")))
    finally:
        session.close()
    assert [path.name for path in ssh.iterdir()] == ["config"]


def test_a_warm_start_does_not_wait_for_google_s_library(here: World) -> None:
    """Importing it takes longer than logging in and running a short job."""
    text = (
        "import sys\nfrom orchestrator.app import clouds, connector, services\nfrom orchestrator.machines.targets "
        f"import GcpTarget\ntarget = GcpTarget.model_validate_json({here.target.model_dump_json()!r})\nknown = "
        "clouds()\nconnector(known).connect(target).close()\nknown.open(target)\nassert "
        "known.login(target).user\nprint([name for name in sys.modules if name.startswith(('google', 'requests', "
        "'sqlite3'))])\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=False, env=environment)
    assert done.stdout == "[]\n", done.stderr


def test_a_machine_nobody_has_started_from_here(world: Worlds) -> None:
    error = refused(world())
    assert (error.reason, error.hint) == ("config", "fcctl hosts up l4")


def test_a_machine_whose_keys_were_never_seen(here: World) -> None:
    FileMachineCache().remember(replace(known(here), host_keys=()))
    assert refused(here).hint == "fcctl hosts up l4"
    with pytest.raises(HostUnreachable):
        ssh_command(here.target)


def test_another_key_is_refused_by_us_and_by_openssh(here: World) -> None:
    here.emulator.control.rotate_host_keys("vm")
    error = refused(here)
    assert error.reason == "key"
    assert "HAS CHANGED" in error.message
    assert "through the cloud" in str(error.cause)
    assert "fcctl hosts up l4" in str(error.hint)
    assert "ssh-keygen" not in str(error.hint)
    done = subprocess.run(ssh_command(here.target, ["true"]), capture_output=True, text=True, check=False)
    assert done.returncode == 255
    assert "REMOTE HOST IDENTIFICATION HAS CHANGED" in done.stderr


def test_a_machine_that_stopped_meanwhile(here: World) -> None:
    here.ok(here.cloud.stop(here.get(), rid()))
    error = refused(here)
    assert error.reason in ("port", "timeout")
    assert "fcctl hosts up l4" in str(error.hint)


def test_a_key_the_machine_does_not_take(here: World, tmp_path: Path) -> None:
    FileMachineCache().remember(replace(known(here), identity_file=str(generate_key(tmp_path / "other"))))
    error = refused(here)
    assert error.reason == "login"
    assert f"puts the key {tmp_path / 'other'}" in str(error.hint)


def test_no_other_key_is_offered(here: World, private_home: Path) -> None:
    """Machines of a cloud are not told which keys a person has elsewhere."""
    (private_home / ".ssh").mkdir(mode=0o700)
    generate_key(private_home / ".ssh" / "id_ed25519")
    FileMachineCache().remember(replace(known(here), identity_file=str(private_home / "none")))
    error = refused(here)
    assert error.reason == "login"
    assert str(error.cause).startswith("no key was found to try")


# ------------------------------------------------------------------------------------------------- through a tunnel
@pytest.fixture
def tunnel(here: World, private_home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A ``gcloud`` whose tunnel leads to the machine, since there is no Identity-Aware Proxy here; its arguments."""
    endpoint = known(here)
    programs, said = private_home / "bin", private_home / "said"
    programs.mkdir()
    reach = (
        f"import sys,socket,threading;s=socket.create_connection(('127.0.0.1',{endpoint.port}))\ndef up():\n    "
        "while d := sys.stdin.buffer.read1(65536): s.sendall(d)\n    s.shutdown(1)\nthreading.Thread(target=up, "
        "daemon=True).start()\nwhile d := s.recv(65536): sys.stdout.buffer.write(d); sys.stdout.buffer.flush()\n"
    )
    (programs / "tunnel.py").write_text(reach)
    script(programs / "gcloud", f'echo "$*" > {said}\nexec python3 {programs}/tunnel.py')
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
    way = replace(here.get(), metadata={}, external_ip=None)
    iap = here.target.model_copy(update={"iap": True, "api_endpoint": None})
    from orchestrator.machines.provision.endpoint import endpoint as built

    FileMachineCache().remember(
        built(way, endpoint.host_keys, user=endpoint.user, identity_file=endpoint.identity_file, target=iap, now=0)
    )
    return said


def test_through_identity_aware_proxy(here: World, tunnel: Path) -> None:
    connector(here).connect(here.target).close()
    words = tunnel.read_text().split()
    assert words[:5] == ["compute", "start-iap-tunnel", "vm", "22", "--listen-on-stdin"]
    assert {"--project=proj-one", "--zone=us-central1-a"} <= set(words)
    done = subprocess.run(ssh_command(here.target, ["echo", "in"]), capture_output=True, text=True, check=False)
    assert done.stdout == "in\n", done.stderr


def test_a_tunnel_that_does_not_open(here: World, tunnel: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tunnel.parent / "bin" / "gcloud"
    script(program, "echo 'ERROR: not authorized' >&2\nexit 1")
    error = refused(here)
    assert error.reason == "proxy"
    assert "not authorized" in str(error.cause)
    assert error.hint == "check the connection: fcctl doctor --on l4"
    program.unlink()
    with monkeypatch.context() as nowhere:
        nowhere.setenv("PATH", str(program.parent))
        assert "gcloud" in str(refused(here).cause)


# ------------------------------------------------------------------------------------------------- a person's terminal
def test_a_person_s_shell_and_a_run_s_session(here: World, private_home: Path) -> None:
    argv = ssh_command(here.target, ["echo", "$HOME"])
    done = subprocess.run(argv, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    assert (done.returncode, done.stdout.strip()) == (0, str(here.emulator.home("vm"))), done.stderr
    assert ssh_command(here.target)[-3:-1] == ["--", "127.0.0.1"]
    session = terminal_command(here.target, RUN)
    assert session[:2] == ["ssh", "-t"]
    assert session[-1] == f"tmux attach -t =fcctl-{RUN}"
    create = [*session[:-1], f"tmux new-session -d -s fcctl-{RUN} 'sleep 60'; tmux has-session -t =fcctl-{RUN}"]
    subprocess.run(create, check=True, capture_output=True, stdin=subprocess.DEVNULL)
    assert not (private_home / ".ssh").exists()
    with pytest.raises(NotFoundError):
        terminal_command(here.target, "-x; rm -rf /")


def test_this_machine_needs_no_ssh() -> None:
    with pytest.raises(ConfigError):
        ssh_command(LocalTarget(name="local"))
    assert terminal_command(LocalTarget(name="local"), RUN)[0] == "tmux"
