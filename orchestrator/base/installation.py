"""The installed version, the commands that install what is missing, and findings of doctor and preflight."""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal


def version() -> str:
    """The installed version, or that of the source tree next to this package."""
    from importlib import metadata

    try:
        return metadata.version("fcctl")
    except metadata.PackageNotFoundError:
        import tomllib
        from pathlib import Path

        with (Path(__file__).resolve().parents[2] / "pyproject.toml").open("rb") as file:
            return str(tomllib.load(file)["project"]["version"])


def to_install(extra: str) -> str:
    """The command that adds ``fcctl[extra]`` to this installation: from its checkout, file, repository or index."""
    from importlib import metadata

    try:
        installed = metadata.distribution("fcctl")
    except metadata.PackageNotFoundError:  # run from its source as it lies there
        checkout = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))  # noqa: PTH100, PTH120
        url = f"file://{checkout}" if os.path.exists(os.path.join(checkout, "pyproject.toml")) else None  # noqa: PTH110, PTH118
        return command([extra], {"url": url, "dir_info": {"editable": True}} if url else None, "pip install")
    tool, present = _tool(sys.prefix)
    install = tool or _PIPS.get((installed.read_text("INSTALLER") or "").strip(), "pip install")
    try:
        origin = json.loads(installed.read_text("direct_url.json") or "null")
    except ValueError:
        origin = None
    return command([*present, extra], origin if isinstance(origin, dict) else None, install)


def command(extras: Sequence[str], origin: dict[str, Any] | None, install: str) -> str:
    """``install`` with ``fcctl[extras]`` of an installation whose ``direct_url.json`` says ``origin`` (PEP 610).

    https://packaging.python.org/en/latest/specifications/direct-url-data-structure/
    """
    from urllib.parse import unquote, urlsplit

    extra = ",".join(sorted(set(extras)))
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


def to_repair(package: str) -> str:
    """The command that installs ``package``, which fcctl needs, again and newer."""
    tool, _ = _tool(sys.prefix)
    pip = f"{shlex.quote(sys.executable)} -m pip install --upgrade --force-reinstall {package}"
    return {"uv tool install": "uv tool upgrade --reinstall fcctl", None: pip}.get(tool, "pipx reinstall fcctl")


_PIPS = {"uv": "uv pip install"}
#: The receipt in a tool's environment, and the command that installs the tool again with other extras.
_RECEIPTS = {"uv-receipt.toml": "uv tool install", "pipx_metadata.json": "pipx install --force"}


def _tool(prefix: str) -> tuple[str | None, list[str]]:
    """The command of the tool that made the environment ``prefix`` for fcctl alone, None for pip, and the extras that
    fcctl has there: a tool that installs it again removes those that are not named."""
    for receipt, install in _RECEIPTS.items():
        try:
            with open(os.path.join(prefix, receipt), encoding="utf-8") as file:  # noqa: PTH118, PTH123
                text = file.read(100_000)
        except OSError:
            continue
        # uv: requirements = [{ name = "fcctl", extras = ["web"] }]; pipx: "package_or_url": "fcctl[web]"
        match = re.search(r'name = "fcctl", extras = \[([^\]]*)\]|"package_or_url": "[^"\[]*\[([^\]"]*)\]', text)
        return install, re.findall(r"[a-z]+", " ".join(filter(None, match.groups()))) if match else []
    return None, []


Status = Literal["ok", "warn", "fail"]


_INSTALLERS = (
    ("apt-get", "sudo apt-get install -y"),
    ("dnf", "sudo dnf install -y"),
    ("pacman", "sudo pacman -S"),
    ("zypper", "sudo zypper install"),
    ("brew", "brew install"),
)


_PACKAGES = {"ssh": "openssh-client", "ssh-keygen": "openssh-client"}


@dataclass(frozen=True)
class Finding:
    section: str
    id: str
    status: Status
    message: str
    fix: str | None = None

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def sshd_program() -> str | None:
    """The absolute path of sshd, which insists on being started by it; None: it is not installed."""
    import shutil

    return shutil.which("sshd", path=os.environ.get("PATH", "") + ":/usr/sbin:/usr/local/sbin:/sbin")


def install_command(program: str) -> str:
    """The command that installs ``program`` on this machine."""
    import shutil

    package = _PACKAGES.get(program, program)
    for installer, command in _INSTALLERS:
        if shutil.which(installer):
            return f"{command} {'openssh' if installer == 'brew' and package == 'openssh-client' else package}"
    return f"install {package}"
