"""What to type for a part of fcctl that is not installed, according to where the rest of it came from."""

from __future__ import annotations

import json
import os
import shlex
from typing import Any
from urllib.parse import unquote, urlsplit


def to_install(extra: str) -> str:
    """The command that adds ``fcctl[extra]`` to this installation: from its checkout, file, repository or index."""
    from importlib import metadata

    try:
        installed = metadata.distribution("fcctl")
    except metadata.PackageNotFoundError:  # run from its source as it lies there
        checkout = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))  # noqa: PTH100, PTH120
        url = f"file://{checkout}" if os.path.exists(os.path.join(checkout, "pyproject.toml")) else None  # noqa: PTH110, PTH118
        return command(extra, {"url": url, "dir_info": {"editable": True}} if url else None, "pip")
    installer = (installed.read_text("INSTALLER") or "").strip()
    try:
        origin = json.loads(installed.read_text("direct_url.json") or "null")
    except ValueError:
        origin = None
    return command(extra, origin if isinstance(origin, dict) else None, installer)


def command(extra: str, origin: dict[str, Any] | None, installer: str) -> str:
    """The same of an installation by ``installer``, whose ``direct_url.json`` says ``origin`` (PEP 610).

    https://packaging.python.org/en/latest/specifications/direct-url-data-structure/
    """
    install = "uv pip install" if installer == "uv" else "pip install"
    url = str((origin or {}).get("url") or "")
    if not origin or not url:
        return f"{install} 'fcctl[{extra}]'"
    if "vcs_info" in origin:
        vcs = origin["vcs_info"]
        revision = f"@{vcs['requested_revision']}" if vcs.get("requested_revision") else ""
        source = f"{vcs.get('vcs', 'git')}+{url}{revision}"
        return f"{install} {shlex.quote(f'fcctl[{extra}] @ {source}')}"
    if urlsplit(url).scheme != "file":
        return f"{install} {shlex.quote(f'fcctl[{extra}] @ {url}')}"
    editable = "-e " if origin.get("dir_info", {}).get("editable") else ""
    return f"{install} {editable}{shlex.quote(f'{unquote(urlsplit(url).path)}[{extra}]')}"
