"""What this computer remembers of machines: one small JSON file each, in the user's state folder.

A warm start logs in by it without asking the cloud; the host keys in it are the pinned ones. Losing a file costs one
question to the cloud, so whatever is torn, foreign or out of shape counts as unknown.
"""

from __future__ import annotations

import base64
import contextlib
import json
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.base.files import alone_in, disk_errors, make_folders, write_atomic
from orchestrator.machines.provision.endpoint import is_host_key, key_alias

if TYPE_CHECKING:  # every run has the book at hand, one on a machine of no cloud does not open it
    from orchestrator.machines.cloud import Endpoint, Hardware

_PROJECT = re.compile(r"(?:[a-z0-9.-]+:)?[a-z][a-z0-9-]{4,28}[a-z0-9]")
_NAME = re.compile(r"[a-z](?:[a-z0-9-]{0,61}[a-z0-9])?")
_ID = re.compile(r"[0-9]{1,20}")
_WORD = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._:%-]{0,252}")
_MAX_BYTES = 64 * 1024
_VERSION = 1


def state_folder() -> Path:
    """``~/.local/state/fcctl/machines`` or its like."""
    import platformdirs

    return Path(platformdirs.user_state_dir("fcctl", appauthor=False)) / "machines"


class FileMachineBook:
    """The ``MachineBook``. Processes may use it side by side."""

    def __init__(self, folder: Path | None = None) -> None:
        self._given = folder

    @property
    def folder(self) -> Path:
        return self._given or state_folder()

    def known(self, project: str, name: str) -> Endpoint | None:
        if not _are_names(project, name):
            return None
        try:
            with self._file(project, name).open("rb") as file:
                data = json.loads(file.read(_MAX_BYTES))
            found = _endpoint(data)
        except (OSError, ValueError, TypeError, KeyError, RecursionError):
            return None
        return found if (found.project, found.name) == (project, name) else None

    def remember(self, endpoint: Endpoint, *, instead_of: Endpoint | None = None) -> None:
        """See the port. On disk, whole, before this returns.

        Raises:
            ValueError: it is no endpoint that could be read again.
            FcctlError: the folder cannot be written.
        """
        data = {"version": _VERSION, **asdict(endpoint)}
        _endpoint(json.loads(json.dumps(data)))
        path = self._file(endpoint.project, endpoint.name)
        with disk_errors("remember a machine", path):
            make_folders(path.parent, 0o700)
            with alone_in(path.parent):
                if instead_of is None or self.known(endpoint.project, endpoint.name) == instead_of:
                    _write(path, json.dumps(data, indent=1).encode())

    def forget(self, project: str, name: str) -> None:
        if _are_names(project, name):
            path = self._file(project, name)
            with disk_errors("forget a machine", path), contextlib.suppress(FileNotFoundError), alone_in(path.parent):
                path.unlink()

    def pinned_elsewhere(self, instance_id: str) -> tuple[str, ...]:
        """See the port. ``~/.ssh/google_compute_known_hosts`` is where gcloud keeps them."""
        from orchestrator.machines.connect.ssh.known_hosts import lookup

        files = [Path.home() / ".ssh" / name for name in ("google_compute_known_hosts", "known_hosts")]
        keys = [key for key in lookup(files, key_alias(instance_id), 22) if not key.revoked]
        lines = [f"{key.kind} {base64.b64encode(key.blob).decode()}" for key in keys]
        return tuple(line for line in dict.fromkeys(lines) if is_host_key(line))

    @contextmanager
    def turning_on(self, project: str, name: str) -> Iterator[bool]:
        """See the port. The kernel's lock on a file beside the machine's own, which is never removed.

        Raises:
            ValueError: there is no machine of such a name.
            FcctlError: the folder cannot be written.
        """
        if not _are_names(project, name):
            raise ValueError(f"no machine's name: {name!r} in {project!r}")
        from orchestrator.base.lock import OwnerLock

        path = self._file(project, name).with_suffix(".lock")
        with disk_errors("lock a machine", path):
            make_folders(path.parent, 0o700)
            lock = OwnerLock.take(path, time.time())
        try:
            yield lock is not None
        finally:
            if lock is not None:
                lock.release()

    def known_hosts(self, endpoint: Endpoint) -> Path:
        """The pinned keys as a known_hosts file for OpenSSH, under the machine's alias.

        Raises:
            FcctlError: the folder cannot be written.
        """
        path = self._file(endpoint.project, endpoint.name).with_suffix(".known_hosts")
        alias = key_alias(endpoint.instance_id)
        with disk_errors("write the host keys of a machine", path):
            make_folders(path.parent, 0o700)
            _write(path, "".join(f"{alias} {key}\n" for key in endpoint.host_keys).encode())
        return path

    def _file(self, project: str, name: str) -> Path:
        return self.folder / project.replace(":", "%") / f"{name}.json"


def _are_names(project: str, name: str) -> bool:
    return bool(_PROJECT.fullmatch(project) and _NAME.fullmatch(name))


def _write(path: Path, data: bytes) -> None:
    write_atomic(path.parent, path.name, data, mode=0o600)


# ------------------------------------------------------------------------------------------------ what a file may say
def _endpoint(data: Any) -> Endpoint:
    """Raises ValueError, TypeError or KeyError unless every field is what it should be."""
    from orchestrator.machines.cloud import Endpoint

    if data["version"] != _VERSION:
        raise ValueError("another version's file")
    port = data["port"]
    if not isinstance(port, int) or not 0 < port < 65536:
        raise ValueError("port")
    keys = _strings(data["host_keys"])
    if not all(map(is_host_key, keys)):
        raise ValueError("host_keys")
    return Endpoint(
        project=_matching(data["project"], _PROJECT),
        name=_matching(data["name"], _NAME),
        zone=_matching(data["zone"], _WORD),
        instance_id=_matching(data["instance_id"], _ID),
        address=_matching(data["address"], _WORD),
        port=port,
        user=_matching(data["user"], _WORD),
        identity_file=_text(data["identity_file"]),
        host_keys=keys,
        proxy_command=_strings(data["proxy_command"]),
        deadline=_moment(data["deadline"]),
        started=_moment(data["started"]),
        seen=_moment(data["seen"]) or 0.0,
        boot_id=_matching(data["boot_id"], _WORD) if data.get("boot_id") else "",
        hardware=_hardware(data["hardware"]) if data.get("hardware") is not None else None,
        our_stop=_matching(data["our_stop"], _WORD) if data.get("our_stop") else "",
    )


def _hardware(data: Any) -> Hardware:
    from orchestrator.machines.cloud import Hardware

    return Hardware(
        zone=_matching(data["zone"], _WORD),
        machine_type=_matching(data["machine_type"], _WORD) if data["machine_type"] else "",
        spot=data["spot"] is True,
        accelerators=tuple((_matching(kind, _WORD), _count(count)) for kind, count in data["accelerators"]),
        disks=tuple((_matching(kind, _WORD) if kind else "", _count(gb)) for kind, gb in data["disks"]),
        address=data["address"] is True,
    )


def _count(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1_000_000:
        raise ValueError("not a count")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value or not value.isprintable():
        raise ValueError("text")
    return value


def _matching(value: Any, shape: re.Pattern[str]) -> str:
    if not shape.fullmatch(_text(value)):
        raise ValueError("not of its shape")
    return str(value)


def _strings(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise TypeError("not a list")
    return tuple(_text(entry) for entry in value)


def _moment(value: Any) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e11:
        raise ValueError("not a time")
    return float(value)
