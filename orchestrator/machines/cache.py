"""The machine cache: a small JSON file for each machine, by which a warm start logs in without querying the cloud.

The pinned host keys are in it. A damaged or foreign file counts as absent, which costs one request."""

from __future__ import annotations

import base64
import contextlib
import functools
import json
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.base.files import alone_in, disk_errors, make_folders, user_folder, write_atomic
from orchestrator.machines.provision.endpoint import is_host_key, key_alias

if TYPE_CHECKING:  # a run on an SSH host does not open the cache
    from pydantic import TypeAdapter

    from orchestrator.machines.cloud import Endpoint

_PROJECT = re.compile(r"(?:[a-z0-9.-]+:)?[a-z][a-z0-9-]{4,28}[a-z0-9]")
_NAME = re.compile(r"[a-z](?:[a-z0-9-]{0,61}[a-z0-9])?")
_MAX_BYTES = 64 * 1024
_VERSION = 1
#: Ends the name of the file that says that a start is requested.
ASKED = ".asked"


def state_folder() -> Path:
    """``~/.local/state/fcctl/machines`` or its like."""
    return user_folder("state") / "machines"


class FileMachineCache:
    """The ``MachineCache``; safe for concurrent processes."""

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
                endpoint = _endpoint(file.read(_MAX_BYTES))
        except (OSError, ValueError, TypeError, LookupError, RecursionError):
            return None
        return endpoint if (endpoint.project, endpoint.name) == (project, name) else None

    def remember(self, endpoint: Endpoint, *, instead_of: Endpoint | None = None) -> None:
        """See the port. On disk, whole, before this returns. Raises ValueError: it is no endpoint that could be read
        again; FcctlError: the folder cannot be written."""
        data = json.dumps({"version": _VERSION, **asdict(endpoint)}, indent=1).encode()
        _endpoint(data)
        path = self._file(endpoint.project, endpoint.name)
        with disk_errors("remember a machine", path):
            make_folders(path.parent, 0o700)
            with alone_in(path.parent):
                if instead_of is None or self.known(endpoint.project, endpoint.name) == instead_of:
                    _write(path, data)

    def forget(self, project: str, name: str) -> None:
        if _are_names(project, name):
            path = self._file(project, name)
            with disk_errors("forget a machine", path), contextlib.suppress(FileNotFoundError), alone_in(path.parent):
                path.unlink()

    def pinned_elsewhere(self, instance_id: str) -> tuple[str, ...]:
        """See the port. ``~/.ssh/google_compute_known_hosts`` is where gcloud keeps them."""
        from orchestrator.machines.connect.ssh.config import lookup

        files = [Path.home() / ".ssh" / name for name in ("google_compute_known_hosts", "known_hosts")]
        keys = [key for key in lookup(files, key_alias(instance_id), 22) if not key.revoked]
        lines = [f"{key.kind} {base64.b64encode(key.blob).decode()}" for key in keys]
        return tuple(line for line in dict.fromkeys(lines) if is_host_key(line))

    @contextmanager
    def turning_on(self, project: str, name: str) -> Iterator[bool]:
        """See the port. The kernel's lock on a file beside the machine's own, which is never removed. Raises
        ValueError: there is no machine of such a name; FcctlError: the folder cannot be written."""
        if not _are_names(project, name):
            raise ValueError(f"not a machine name: {name!r} in {project!r}")
        from orchestrator.base.journal import OwnerLock
        from orchestrator.machines.cloud import IN_FLIGHT_S

        path = self._file(project, name).with_suffix(".lock")
        with disk_errors("lock a machine", path):
            make_folders(path.parent, 0o700)
            lock = OwnerLock.take(path, time.time())
        try:
            yield lock is not None and abs(time.time() - _written(path.with_suffix(ASKED))) >= IN_FLIGHT_S
        finally:
            if lock is not None:
                lock.release()

    @contextmanager
    def asking(self, project: str, name: str) -> Iterator[None]:
        """See the port. A file that only a kill leaves. Raises FcctlError: it cannot be written."""
        path = self._file(project, name).with_suffix(ASKED)
        with disk_errors("note a start", path):
            path.touch()
        try:
            yield
        finally:
            with contextlib.suppress(OSError):
                path.unlink()

    def known_hosts(self, endpoint: Endpoint) -> Path:
        """The pinned keys as a known_hosts file for OpenSSH, under the machine's alias. Raises FcctlError: the folder
        cannot be written."""
        path = self._file(endpoint.project, endpoint.name).with_suffix(".known_hosts")
        alias = key_alias(endpoint.instance_id)
        with disk_errors("write the host keys of a machine", path):
            make_folders(path.parent, 0o700)
            _write(path, "".join(f"{alias} {key}\n" for key in endpoint.host_keys).encode())
        return path

    def _file(self, project: str, name: str) -> Path:
        return self.folder / project.replace(":", "%") / f"{name}.json"


def _written(path: Path) -> float:
    """When the file was written, epoch seconds; 0 if there is none."""
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def _are_names(project: str, name: str) -> bool:
    return bool(_PROJECT.fullmatch(project) and _NAME.fullmatch(name))


def _write(path: Path, data: bytes) -> None:
    write_atomic(path.parent, path.name, data, mode=0o600)


@functools.cache
def _stored() -> TypeAdapter[Endpoint]:
    """The fields of a file, with the constraints of :class:`~orchestrator.machines.cloud.Endpoint`."""
    from pydantic import TypeAdapter

    from orchestrator.machines.cloud import Endpoint

    return TypeAdapter(Endpoint)


def _endpoint(text: bytes) -> Endpoint:
    """Raises ValueError or TypeError unless every field is what it should be."""
    if json.loads(text)["version"] != _VERSION:
        raise ValueError("another version's file")
    endpoint = _stored().validate_json(text, strict=True)
    if not all(map(is_host_key, endpoint.host_keys)) or not _are_names(endpoint.project, endpoint.name):
        raise ValueError("a host key or a name is invalid")
    return endpoint
