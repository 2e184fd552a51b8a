"""What a host name means: ssh_config files, resolved as OpenSSH resolves them."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from orchestrator.base.errors import HostUnreachable, NotFoundError
from orchestrator.machines.connect.ssh.config import Destination, SshSettings, aliases, resolve
from orchestrator.workspace.workspace import find_workspace


@pytest.fixture
def home(private_home: Path) -> Path:
    (private_home / ".ssh").mkdir()
    return private_home


def settings(home: Path, text: str, name: str = "box", **options: Any) -> SshSettings:
    (home / ".ssh" / "config").write_text(text)
    return resolve(Destination.parse(name), **options)


FULL = """
Include extra/*.conf
Host box
  HostName 10.1.2.3
  Port 2200
  User ada
  IdentityFile ~/.ssh/id_box
  IdentityFile %d/.ssh/id_other
  IdentitiesOnly yes
  HostKeyAlias gpu-box
  UserKnownHostsFile ~/.ssh/kh1 ~/.ssh/kh2
  GlobalKnownHostsFile /etc/kh
  ProxyJump bob@jump:2022,second
  IdentityAgent none
"""


def test_all_that_is_honoured(home: Path) -> None:
    found = settings(home, FULL)
    assert (found.host, found.port, found.user) == ("10.1.2.3", 2200, "ada")
    assert found.identity_files[0] == home / ".ssh/id_box"
    assert found.identities_only
    assert found.identity_agent == "none"
    assert found.known_hosts == (home / ".ssh/kh1", home / ".ssh/kh2", Path("/etc/kh"))
    assert found.key_name == ("gpu-box", 22)
    assert found.proxy_jump == (Destination("jump", "bob", 2022), Destination("second"))
    assert found.proxy_command is None


def test_target_wins_over_the_file(home: Path) -> None:
    found = settings(
        home, FULL, "eve@box:22", identity_file="~/mine", known_hosts="/k", proxy_jump="none", config_file=None
    )
    assert (found.user, found.port) == ("eve", 22)
    assert found.identity_files == (home / "mine",)
    assert found.chosen_identities
    assert found.known_hosts == (Path("/k"), Path("/etc/kh"))
    assert found.proxy_jump == ()


def test_include_and_match(home: Path) -> None:
    (home / ".ssh" / "extra").mkdir()
    (home / ".ssh" / "extra" / "a.conf").write_text("Host box\n  User included\n")
    text = f"Include {home}/.ssh/extra/*.conf\nMatch host box user included\n  Port 77\n"
    found = settings(home, text)
    assert (found.user, found.port) == ("included", 77)


def test_tokens_of_a_proxy_command(home: Path) -> None:
    found = settings(home, "Host box\n HostName 10.0.0.1\n Port 99\n User u\n ProxyCommand relay %h %p %r\n")
    assert found.proxy_command == "relay 10.0.0.1 99 u"


def test_proxy_command_none_and_proxy_jump_of_the_target(home: Path) -> None:
    assert settings(home, "Host box\n ProxyCommand none\n").proxy_command is None
    found = settings(home, "Host box\n ProxyCommand relay\n", proxy_jump="j1,u@j2")
    assert found.proxy_command is None
    assert [hop.name for hop in found.proxy_jump] == ["j1", "j2"]


def test_defaults_without_a_file(home: Path) -> None:
    found = resolve(Destination("plain"))
    assert (found.host, found.port) == ("plain", 22)
    assert home / ".ssh/id_ed25519" in found.identity_files
    assert found.known_hosts[0] == home / ".ssh/known_hosts" or found.known_hosts[0].name == "known_hosts"
    assert not found.chosen_identities


def test_broken_file_says_where(home: Path) -> None:
    with pytest.raises(HostUnreachable, match="SSH configuration") as caught:
        settings(home, "Host box\n  Port many\n")
    assert caught.value.reason == "config"
    assert "line 2" in (caught.value.cause or "")


def test_without_openssh_paramiko_reads_the_file(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    found = settings(home, FULL)
    assert (found.host, found.port, found.user) == ("10.1.2.3", 2200, "ada")
    assert found.known_hosts[:2] == (home / ".ssh/kh1", home / ".ssh/kh2")
    assert [hop.name for hop in found.proxy_jump] == ["jump", "second"]
    (home / ".ssh" / "config").unlink()
    assert resolve(Destination("box")).host == "box"


@pytest.mark.parametrize("name", ["-oProxyCommand=touch x", "", "a@", "host:port"])
def test_names_that_are_no_hosts(home: Path, name: str) -> None:
    with pytest.raises(HostUnreachable) as caught:
        resolve(Destination.parse(name))
    assert caught.value.reason == "config"


@pytest.mark.parametrize(
    ("text", "parsed"),
    [
        ("a", Destination("a")),
        ("u@a:5", Destination("a", "u", 5)),
        ("ssh://u@a:5/", Destination("a", "u", 5)),
        ("::1", Destination("::1")),
        ("u@[::1]:5", Destination("::1", "u", 5)),
        ("u@corp@a", Destination("a", "u@corp")),
    ],
)
def test_destinations(text: str, parsed: Destination) -> None:
    assert Destination.parse(text) == parsed


# -------------------------------------------------------------------------------------------------------------- aliases
def test_an_alias_is_a_target_without_a_word_in_fcctl_toml(home: Path, tmp_path: Path) -> None:
    assert aliases() == []
    (home / ".ssh/more").mkdir()
    (home / ".ssh/config").write_text(
        "Include more/*\nHost gpu-box other *.example !bad\n  HostName 127.0.0.1\nhost=equals\nHost *\n  User me\n"
    )
    (home / ".ssh/more/a").write_text('Host "quoted"\nInclude config\nInclude ../config\n')
    assert aliases() == ["quoted", "gpu-box", "other", "equals"], "in order, without patterns"
    (tmp_path / "fcctl.toml").write_text('[project]\nname = "x"\n')
    workspace = find_workspace(tmp_path)
    target = workspace.target("gpu-box")
    assert (target.kind, target.name) == ("ssh", "gpu-box")
    with pytest.raises(NotFoundError) as wrong:
        workspace.target("gpu-bx")
    assert "gpu-box" in (wrong.value.hint or "")
