"""What to type for a part of fcctl that is not installed."""

from __future__ import annotations

import sys
from importlib import metadata
from pathlib import Path
from typing import Any, NoReturn

import pytest

from orchestrator.base import installation
from tests.support.workspace import REPOSITORY


@pytest.mark.parametrize(
    ("origin", "installer", "typed"),
    [
        (None, "pip", "pip install 'fcctl[web]'"),
        ({}, "pip", "pip install 'fcctl[web]'"),
        (None, "uv pip", "uv pip install 'fcctl[web]'"),
        (None, "uv tool", "uv tool install 'fcctl[web]'"),
        (None, "pipx", "pipx install --force 'fcctl[web]'"),
        ({"url": "file:///home/me/fcctl", "dir_info": {"editable": True}}, "pip",
         "pip install -e '/home/me/fcctl[web]'"),
        ({"url": "file:///home/me/my%20fcctl", "dir_info": {}}, "pip", "pip install '/home/me/my fcctl[web]'"),
        ({"url": "file:///tmp/fcctl-0.1.0-py3-none-any.whl", "archive_info": {}}, "pip",
         "pip install '/tmp/fcctl-0.1.0-py3-none-any.whl[web]'"),
        ({"url": "https://example.org/fcctl.whl", "archive_info": {}}, "uv pip",
         "uv pip install 'fcctl[web] @ https://example.org/fcctl.whl'"),
        ({"url": "https://example.org/fcctl.git", "vcs_info": {"vcs": "git", "commit_id": "ab"}}, "pip",
         "pip install 'fcctl[web] @ git+https://example.org/fcctl.git'"),
        ({"url": "https://example.org/fcctl.git", "vcs_info": {"vcs": "git", "requested_revision": "v1"}}, "pip",
         "pip install 'fcctl[web] @ git+https://example.org/fcctl.git@v1'"),
    ],
)  # fmt: skip
def test_from_where_the_rest_of_it_came(origin: dict[str, Any] | None, installer: str, typed: str) -> None:
    install = f"{installer} install" + (" --force" if installer == "pipx" else "")
    assert installation.command(["web"], origin, install) == typed


class Installed:
    """The distribution of an installation by ``installer``."""

    def __init__(self, installer: str) -> None:
        self.installer = installer

    def read_text(self, name: str) -> str | None:
        return self.installer + "\n" if name == "INSTALLER" else None


@pytest.mark.parametrize(
    ("receipt", "text", "installer", "install", "repair"),
    [
        ("uv-receipt.toml", '[tool]\nrequirements = [{ name = "fcctl" }]\n', "uv", "uv tool install 'fcctl[web]'",
         "uv tool upgrade --reinstall fcctl"),
        ("uv-receipt.toml", '[tool]\nrequirements = [{ name = "fcctl", extras = ["tune", "web"] }]\n', "uv",
         "uv tool install 'fcctl[tune,web]'", "uv tool upgrade --reinstall fcctl"),
        ("pipx_metadata.json", '{"main_package": {"package_or_url": "fcctl[tune]"}}', "pip",
         "pipx install --force 'fcctl[tune,web]'", "pipx reinstall fcctl"),
        ("other", "", "pip", "pip install 'fcctl[web]'", "-m pip install --upgrade --force-reinstall numpy"),
        ("other", "", "uv", "uv pip install 'fcctl[web]'", "-m pip install --upgrade --force-reinstall numpy"),
    ],
)  # fmt: skip
def test_as_the_installer_in_use_spells_it(
    receipt: str, text: str, installer: str, install: str, repair: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / receipt).write_text(text)
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    monkeypatch.setattr(metadata, "distribution", lambda _: Installed(installer))
    assert installation.to_install("web") == install
    assert installation.to_repair("numpy").endswith(repair)


def test_run_from_its_source_it_is_installed_from_there(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> NoReturn:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "distribution", absent)
    assert installation.to_install("tune") == f"pip install -e '{REPOSITORY}[tune]'"


def test_what_is_beside_it_may_be_damaged(monkeypatch: pytest.MonkeyPatch) -> None:
    class Damaged:
        def read_text(self, name: str) -> str:
            return "{"

    monkeypatch.setattr(metadata, "distribution", lambda _: Damaged())
    assert installation.to_install("web") == "pip install 'fcctl[web]'"
