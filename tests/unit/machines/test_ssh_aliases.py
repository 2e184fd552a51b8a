"""Names of ~/.ssh/config are targets without a word in fcctl.toml."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.base.errors import NotFoundError
from orchestrator.machines.connect.ssh.aliases import aliases
from orchestrator.workspace.workspace import find_workspace


@pytest.fixture
def home(private_home: Path) -> Path:
    (private_home / ".ssh/more").mkdir(parents=True)
    (private_home / ".ssh/config").write_text(
        "Include more/*\nHost gpu-box other *.example !bad\n  HostName 127.0.0.1\nhost=equals\nHost *\n  User me\n"
    )
    (private_home / ".ssh/more/a").write_text('Host "quoted"\nInclude config\nInclude ../config\n')
    return private_home


def test_names_in_order_without_patterns(home: Path) -> None:
    assert aliases() == ["quoted", "gpu-box", "other", "equals"]


def test_no_file_has_no_names(private_home: Path) -> None:
    assert aliases() == []


def test_an_alias_is_a_target(home: Path, tmp_path: Path) -> None:
    (tmp_path / "fcctl.toml").write_text('[project]\nname = "x"\n')
    workspace = find_workspace(tmp_path)
    target = workspace.target("gpu-box")
    assert (target.kind, target.name) == ("ssh", "gpu-box")
    with pytest.raises(NotFoundError) as wrong:
        workspace.target("gpu-bx")
    assert "gpu-box" in (wrong.value.hint or "")
