"""What doctor and preflight report: a finding, and the command that installs a missing program."""

from __future__ import annotations

import shutil
from dataclasses import asdict, dataclass
from typing import Any, Literal

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


def install_command(program: str) -> str:
    """The command that installs ``program`` on this machine."""
    package = _PACKAGES.get(program, program)
    for installer, command in _INSTALLERS:
        if shutil.which(installer):
            return f"{command} {'openssh' if installer == 'brew' and package == 'openssh-client' else package}"
    return f"install {package}"
