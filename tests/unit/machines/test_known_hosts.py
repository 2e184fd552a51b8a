"""known_hosts as sshd(8) describes it, against files that OpenSSH's own ssh-keygen writes."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from orchestrator.machines.connect.ssh import config as known_hosts
from tests.support.sshd import generate_key


@pytest.fixture
def key(tmp_path: Path) -> str:
    return " ".join(Path(f"{generate_key(tmp_path / 'k')}.pub").read_text().split()[:2])


def lookup(tmp_path: Path, text: str, host: str, port: int = 22) -> list[known_hosts.KnownKey]:
    file = tmp_path / "known_hosts"
    file.write_text(text)
    return known_hosts.lookup([file], host, port)


@pytest.mark.parametrize(
    ("names", "host", "port", "found"),
    [
        ("box", "box", 22, True),
        ("box", "BOX", 22, True),
        ("box", "box", 2222, False),
        ("[box]:2222", "box", 2222, True),
        ("[box]:2222", "box", 22, False),
        ("a,box,c", "box", 22, True),
        ("*.lab", "gpu.lab", 22, True),
        ("*.lab,!gpu.lab", "gpu.lab", 22, False),
        ("[*.lab]:2222", "gpu.lab", 2222, True),
        ("gpu?", "gpu1", 22, True),
        ("gpu?", "gpu12", 22, False),
        ("[::1]:2222", "::1", 2222, True),
        ("[box]:2*", "box", 2222, True),
    ],
)
def test_names(tmp_path: Path, key: str, names: str, host: str, port: int, found: bool) -> None:
    assert bool(lookup(tmp_path, f"{names} {key} comment\n", host, port)) is found


def test_names_hashed_by_ssh_keygen(tmp_path: Path, key: str) -> None:
    file = tmp_path / "hashed"
    file.write_text(f"box {key}\n[box]:2222 {key}\n")
    subprocess.run(["ssh-keygen", "-q", "-H", "-f", str(file)], check=True, capture_output=True)
    assert "box" not in file.read_text()
    assert [k.where for k in known_hosts.lookup([file], "box", 22)] == [f"{file}:1"]
    assert [k.where for k in known_hosts.lookup([file], "box", 2222)] == [f"{file}:2"]
    assert not known_hosts.lookup([file], "other", 22)


def test_markers_comments_and_broken_lines(tmp_path: Path, key: str) -> None:
    text = (
        f"# box {key}\n\nbox\nbox ssh-rsa !!!\n|1|x|y {key}\n@cert-authority box {key}\n@revoked box {key}\nbox {key}\n"
    )
    found = lookup(tmp_path, text, "box")
    assert [(k.revoked, k.where.rpartition(":")[2]) for k in found] == [(True, "7"), (False, "8")]


def test_missing_file_knows_nobody(tmp_path: Path) -> None:
    assert known_hosts.lookup([tmp_path / "none", tmp_path], "box", 22) == []


def test_fingerprint_is_openssh_s(tmp_path: Path) -> None:
    path = generate_key(tmp_path / "id")
    said = subprocess.run(["ssh-keygen", "-lf", f"{path}.pub"], check=True, capture_output=True, text=True).stdout
    file = tmp_path / "kh"
    file.write_text("box " + Path(f"{path}.pub").read_text())
    assert known_hosts.fingerprint(known_hosts.lookup([file], "box", 22)[0].blob) == said.split()[1]
