"""What to type for a part of fcctl that is not installed."""

from __future__ import annotations

from importlib import metadata
from typing import Any, NoReturn

import pytest

from orchestrator.base import extras
from tests.support.workspace import REPOSITORY


@pytest.mark.parametrize(
    ("origin", "installer", "typed"),
    [
        (None, "pip", "pip install 'fcctl[web]'"),
        ({}, "pip", "pip install 'fcctl[web]'"),
        (None, "uv", "uv pip install 'fcctl[web]'"),
        ({"url": "file:///home/me/fcctl", "dir_info": {"editable": True}}, "pip",
         "pip install -e '/home/me/fcctl[web]'"),
        ({"url": "file:///home/me/my%20fcctl", "dir_info": {}}, "pip", "pip install '/home/me/my fcctl[web]'"),
        ({"url": "file:///tmp/fcctl-0.1.0-py3-none-any.whl", "archive_info": {}}, "pip",
         "pip install '/tmp/fcctl-0.1.0-py3-none-any.whl[web]'"),
        ({"url": "https://example.org/fcctl.whl", "archive_info": {}}, "uv",
         "uv pip install 'fcctl[web] @ https://example.org/fcctl.whl'"),
        ({"url": "https://example.org/fcctl.git", "vcs_info": {"vcs": "git", "commit_id": "ab"}}, "pip",
         "pip install 'fcctl[web] @ git+https://example.org/fcctl.git'"),
        ({"url": "https://example.org/fcctl.git", "vcs_info": {"vcs": "git", "requested_revision": "v1"}}, "pip",
         "pip install 'fcctl[web] @ git+https://example.org/fcctl.git@v1'"),
    ],
)  # fmt: skip
def test_from_where_the_rest_of_it_came(origin: dict[str, Any] | None, installer: str, typed: str) -> None:
    assert extras.command("web", origin, installer) == typed


def test_run_from_its_source_it_is_installed_from_there(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> NoReturn:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "distribution", absent)
    assert extras.to_install("tune") == f"pip install -e '{REPOSITORY}[tune]'"


def test_what_is_beside_it_may_be_damaged(monkeypatch: pytest.MonkeyPatch) -> None:
    class Damaged:
        def read_text(self, name: str) -> str:
            return "{"

    monkeypatch.setattr(metadata, "distribution", lambda _: Damaged())
    assert extras.to_install("web") == "pip install 'fcctl[web]'"
