"""The key that logs in to machines of a cloud, and the name it logs in as."""

from __future__ import annotations

import multiprocessing
import os
import pwd
import subprocess
from pathlib import Path

import pytest

from orchestrator.app import SystemClock
from orchestrator.base.errors import ConfigError
from orchestrator.machines.targets import GcpTarget
from orchestrator.providers.gcp import clouds
from orchestrator.providers.gcp.clouds import GcpClouds, linux_user
from orchestrator.providers.registry import ProviderClouds
from tests.support.sshd import generate_key


def target(**changes: object) -> GcpTarget:
    return GcpTarget(**{"name": "l4", "project": "proj-one", "instance": "vm", "zones": ["us-west1-c"], **changes})  # type: ignore[arg-type]


def fingerprint(path: Path) -> str:
    """As OpenSSH reads the private key, which it refuses if others may read it."""
    done = subprocess.run(["ssh-keygen", "-y", "-P", "", "-f", str(path)], capture_output=True, text=True, check=True)
    return " ".join(done.stdout.split()[:2])


def test_a_key_is_made_once_and_for_this_user_only(private_home: Path) -> None:
    login = GcpClouds(SystemClock()).login(target())
    assert login.identity_file.is_relative_to(private_home)
    assert login.identity_file.stat().st_mode & 0o777 == 0o600
    assert login.identity_file.parent.stat().st_mode & 0o777 == 0o700
    assert login.public_key == fingerprint(login.identity_file)
    assert login.public_key.startswith("ssh-ed25519 ")
    before = login.identity_file.read_bytes()
    assert GcpClouds(SystemClock()).login(target()) == login
    assert login.identity_file.read_bytes() == before
    assert not (private_home / ".ssh").exists()
    assert [path.name for path in login.identity_file.parent.iterdir()] == ["id_ed25519"]


def test_a_key_that_others_may_read_is_closed(private_home: Path) -> None:
    path = clouds.own_key()
    path.chmod(0o644)
    assert clouds.own_key().stat().st_mode & 0o777 == 0o600


def _make(folder: Path, out: Path) -> None:
    out.write_text(clouds.public_key(clouds.own_key(folder)))


def test_two_that_make_it_at_once_agree(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    makers = [context.Process(target=_make, args=(tmp_path / "keys", tmp_path / str(n))) for n in range(6)]
    for maker in makers:
        maker.start()
    for maker in makers:
        maker.join()
    assert len({(tmp_path / str(n)).read_text() for n in range(6)}) == 1


def test_a_folder_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("x")
    with pytest.raises(ConfigError, match="cannot create a login key") as error:
        clouds.own_key(tmp_path / "keys")
    assert "identity_file" in str(error.value.hint)


@pytest.mark.parametrize("kind", ["ed25519", "rsa", "ecdsa"])
@pytest.mark.parametrize("beside", [True, False], ids=["with .pub", "without"])
def test_a_key_of_the_user_s_is_used_as_it_is(private_home: Path, tmp_path: Path, kind: str, beside: bool) -> None:
    path = generate_key(tmp_path / "mine", kind)
    public = " ".join(Path(f"{path}.pub").read_text().split()[:2])
    if not beside:
        Path(f"{path}.pub").unlink()
    before = path.read_bytes()
    login = GcpClouds(SystemClock()).login(target(identity_file=str(path), user="ann"))
    assert (login.identity_file, login.public_key, login.user) == (path, public, "ann")
    assert path.read_bytes() == before
    assert not list(private_home.rglob("id_ed25519"))


def test_the_old_form_of_a_key_is_read_too(tmp_path: Path) -> None:
    path = tmp_path / "old"
    subprocess.run(["ssh-keygen", "-q", "-t", "rsa", "-b", "2048", "-m", "PEM", "-N", "", "-f", str(path)], check=True)
    Path(f"{path}.pub").unlink()
    assert clouds.public_key(path) == fingerprint(path)


def test_a_locked_key_needs_its_public_half(tmp_path: Path) -> None:
    path = generate_key(tmp_path / "locked", passphrase="secret")
    assert clouds.public_key(path).startswith("ssh-ed25519 ")
    Path(f"{path}.pub").unlink()
    with pytest.raises(ConfigError, match="cannot read the key") as error:
        clouds.public_key(path)
    assert error.value.cause == "it needs its passphrase"
    assert f"ssh-keygen -y -f {path}" in str(error.value.hint)


@pytest.mark.parametrize("content", ["", "no key", "-----BEGIN OPENSSH PRIVATE KEY-----\nAAAA\n"])
def test_what_is_no_key_is_told(tmp_path: Path, content: str) -> None:
    path = tmp_path / "x"
    path.write_text(content)
    with pytest.raises(ConfigError, match="cannot read the key"):
        clouds.public_key(path)


def test_a_missing_identity_file_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="does not exist") as error:
        GcpClouds(SystemClock()).login(target(identity_file=str(tmp_path / "none")))
    assert "ssh-keygen" in str(error.value.hint)


def test_home_is_meant_by_a_tilde(private_home: Path) -> None:
    generate_key(private_home / "k")
    found = GcpClouds(SystemClock()).login(target(identity_file="~/k"))
    assert found.identity_file == private_home / "k"


@pytest.mark.parametrize(
    ("name", "user"),
    [("ann", "ann"), ("Ann.Lee", "ann_lee"), ("root", "fcctl"), ("3d", "_3d"), ("x" * 40, "x" * 32), ("anné", "ann_")],
)
def test_login_names_are_what_linux_takes(name: str, user: str) -> None:
    assert linux_user(name) == user


def test_an_emulator_knows_only_who_runs_it(private_home: Path) -> None:
    here = pwd.getpwuid(os.getuid()).pw_name
    endpoint = "http://127.0.0.1:9/x"
    assert GcpClouds(SystemClock()).login(target(api_endpoint=endpoint, user="ann", login="os_login")).user == here


@pytest.mark.parametrize("url", ["https://compute.googleapis.com", "http://10.0.0.1:80", "http://127.0.0.1.example"])
def test_no_other_endpoint_gets_requests(url: str) -> None:
    with pytest.raises(ConfigError, match="not on this computer"):
        GcpClouds(SystemClock()).open(target(api_endpoint=url))


def test_a_target_of_google_s_is_what_it_is() -> None:
    assert ProviderClouds(SystemClock()).resolve(target()) == target()
