"""Files of a fleet's runs, by way of a real shell: written whole, refused for good, or to be tried again."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from orchestrator.base.errors import HostUnusable, LinkLost
from orchestrator.machines.connect.tunnels import LocalTunnelConnection
from orchestrator.machines.targets import LocalTarget

RUN = "20261121t081530z-tune-box-3fa9c1"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = tmp_path / "root" / "runs" / RUN
    folder.mkdir(parents=True)
    return folder


@pytest.fixture
def passage(run: Path) -> LocalTunnelConnection:
    return LocalTunnelConnection(LocalTarget(name="here", root=str(run.parents[1])))


def programs(folder: Path, monkeypatch: pytest.MonkeyPatch, **scripts: str) -> None:
    """Programs of the machine that do something else today."""
    for name, script in scripts.items():
        (folder / name).write_text(f"#!/bin/sh\n{script}\n")
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")


def test_a_file_is_whole_and_its_owners(passage: LocalTunnelConnection, run: Path) -> None:
    assert passage.write(RUN, "join.json", b"a key")
    written = run / "fleet" / "join.json"
    assert written.read_bytes() == b"a key"
    assert written.stat().st_mode & 0o077 == 0
    assert os.listdir(run / "fleet") == ["join.json"]
    assert passage.read(RUN, "join.json", 100) == b"a key"
    assert passage.read(RUN, "join.json", 4) is None, "more than was to be expected"
    passage.remove(RUN, "join.json")
    assert os.listdir(run) == []


def test_where_there_is_no_run_yet_nothing_is_made(passage: LocalTunnelConnection, run: Path) -> None:
    run.rmdir()
    assert not passage.write(RUN, "join.json", b"a key")
    assert not run.exists()


@pytest.mark.parametrize("program", ["cat", "mv"])
def test_what_a_machine_that_goes_down_killed_is_tried_again(
    passage: LocalTunnelConnection, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str
) -> None:
    programs(tmp_path, monkeypatch, **{program: "kill -9 $$"})
    with pytest.raises(LinkLost):
        passage.write(RUN, "join.json", b"a key")
    assert os.listdir(run / "fleet") == []


@pytest.mark.parametrize("program", ["cat", "mv"])
def test_a_disk_without_room_is_no_way(
    passage: LocalTunnelConnection, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str
) -> None:
    programs(tmp_path, monkeypatch, **{program: "exit 1"})
    with pytest.raises(HostUnusable, match="does not let fcctl write"):
        passage.write(RUN, "join.json", b"a key")
    assert os.listdir(run / "fleet") == []
