"""Entries of the user's SSH configuration for cloud machines: plain ``ssh``, ``rsync`` and editors reach them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from orchestrator.base.files import disk_errors, make_folders, write_atomic

_HEAD = "# Written by fcctl hosts ssh-config; an entry ends with its machine.\n"


def write(name: str, values: Mapping[str, object]) -> Path:
    """Puts ``Host name`` with ``values`` into a file that ~/.ssh/config includes. Raises FcctlError."""
    folder = _folder()
    with disk_errors("write the SSH configuration", folder):
        make_folders(folder, 0o700)
        entries = {**_entries(), name: "".join(f"  {key} {value}\n" for key, value in values.items())}
        _store(entries)
        config, line = folder / "config", _include()
        text = _text(config)
        if line not in text:  # in front: an Include within a Host block counts for that host alone
            _put(config, line + text)
    return config


def remove(name: str) -> bool:
    """Removes the entry; with the last one the file and its Include go, too. Whether there was one."""
    entries = _entries()
    if entries.pop(name, None) is None:
        return False
    folder = _folder()
    with disk_errors("write the SSH configuration", folder):
        if entries:
            _store(entries)
            return True
        config = folder / "config"
        rest = _text(config).replace(_include(), "")
        if rest:
            _put(config, rest)
        else:
            config.unlink(missing_ok=True)
        _file().unlink(missing_ok=True)
    return True


def _folder() -> Path:
    return Path.home() / ".ssh"


def _file() -> Path:
    return _folder() / "fcctl_config"


def _include() -> str:
    return f'Include "{_file()}"\n'


def _put(path: Path, text: str) -> None:
    real = path.resolve()  # it may be a link into a folder of dotfiles
    write_atomic(real.parent, real.name, text.encode("utf-8", "surrogateescape"), mode=0o600)


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="surrogateescape") if path.exists() else ""


def _entries() -> dict[str, str]:
    parts = re.split(r"^Host (\S+)\n", _text(_file()), flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def _store(entries: Mapping[str, str]) -> None:
    text = _HEAD + "".join(f"Host {name}\n{body}" for name, body in entries.items())
    _put(_file(), text)
