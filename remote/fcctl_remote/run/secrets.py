"""Secret values of a run: in memory only, from the call that submits it to its steps' environment; masked in logs."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import threading
from collections.abc import Mapping, Sequence

from fcctl_remote.base import files, hostfacts
from fcctl_remote.base.layout import RunLayout
from fcctl_remote.wire import Refusal

MASK = b"***"
MOST_BYTES = 256 * 1024
SCRIPT = ".sh"
#: In the environment of a search: the names of its secrets, for what masks the logs of trials.
NAMES = "FCCTL_SECRETS"
#: File systems that are memory, and no disk.
_IN_MEMORY = ("tmpfs", "ramfs")
#: A process that outlives its step may keep the log's pipe open for so long, seconds.
_END_PATIENCE_S = 5.0


def hand_over(run: RunLayout, values: Mapping[str, str]) -> None:
    """Leaves the values where :func:`take` finds them: a file in memory that only this user reads. Raises: Refusal:
    no_memory_files, bad_request."""
    text = files.to_json(dict(values))
    if len(text) > MOST_BYTES or any("\0" in value for value in values.values()):
        raise Refusal("bad_request", "the secrets of a run must be text of at most %d KiB" % (MOST_BYTES // 1024))
    path = _place(run)
    if path is None:
        raise Refusal(
            "no_memory_files", "secrets need a file system in memory (tmpfs), and this machine has none",
            "mount one on the machine: mount -t tmpfs tmpfs /dev/shm; or remove `secrets` from the job",
        )  # fmt: skip
    drop(run)
    _write(path, text)


def take(run: RunLayout, names: Sequence[str]) -> dict[str, str] | None:
    """The values, which are then nowhere but in this process; None if they are gone."""
    if not names:
        return {}
    path = _place(run)
    try:
        fd = os.open(path or "", os.O_RDONLY | os.O_NOFOLLOW)
    except OSError:
        return None
    with os.fdopen(fd, "rb") as stream:
        ours = os.fstat(fd).st_uid == os.getuid()
        values = json.loads(stream.read(MOST_BYTES)) if ours else {}
    drop(run)
    return {name: values[name] for name in names} if set(names) <= set(values) else None


def as_script(run: RunLayout, values: Mapping[str, str]) -> str | None:
    """A file in memory that sets the values in a shell, for a step in a container; None without values."""
    path = _place(run)
    if not values or path is None:
        return None
    drop(run)
    _write(path + SCRIPT, "".join("export %s=%s\n" % (k, shlex.quote(v)) for k, v in values.items()).encode())
    return path + SCRIPT


def _write(path: str, data: bytes) -> None:
    with files.closing(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)) as fd:
        files.write_all(fd, data)


def drop(run: RunLayout) -> None:
    """Deletes what :func:`hand_over` and :func:`as_script` left."""
    path = _place(run)
    for name in (path, path + SCRIPT) if path is not None else ():
        with contextlib.suppress(OSError):
            os.unlink(name)


def _place(run: RunLayout) -> str | None:
    mounts = [line.split() for line in hostfacts.read_text("/proc/mounts").splitlines()]
    in_memory = [words[1] for words in mounts if len(words) > 2 and words[2] in _IN_MEMORY]
    for folder in ("/dev/shm", "/run/user/%d" % os.getuid()):  # noqa: S108 - the file is made with O_EXCL
        if folder in in_memory and os.access(folder, os.W_OK):
            return os.path.join(folder, "fcctl-%d-%s" % (os.getuid(), run.run_id))
    return None


def values_in(env: Mapping[str, str]) -> list[str]:
    """The values of the secrets that :data:`NAMES` names."""
    return [env[name] for name in env.get(NAMES, "").split() if name in env]


def masked(data: bytes, values: Sequence[str]) -> bytes:
    """``data`` with :data:`MASK` for each value."""
    for value in sorted(values, key=len, reverse=True):
        data = data.replace(value.encode(), MASK)
    return data


class MaskedLog:
    """A pipe into a step's log that writes :data:`MASK` for each value. ``fd`` is the end for the step."""

    def __init__(self, log: int, values: Sequence[str]) -> None:
        self._log = os.dup(log)
        lines = [line for value in values for line in [value, *value.splitlines()] if len(line) >= 4]
        self._values = sorted({line.encode() for line in lines}, key=len, reverse=True)
        self._read, self.fd = os.pipe()
        self._held = b""
        self._thread = threading.Thread(target=self._pump, daemon=True)

    def start(self) -> None:
        """The step has its end: from here on all of its output passes."""
        os.close(self.fd)
        self._thread.start()

    def finish(self) -> None:
        """Waits until all output is in the log."""
        self._thread.join(_END_PATIENCE_S)

    def _pump(self) -> None:
        while True:
            data = os.read(self._read, 65536)
            try:
                files.write_all(self._log, self._masked(data))
            except OSError:
                pass  # the disk is full: the step goes on, as it would with a log of its own
            if not data:
                break
        os.close(self._read)
        os.close(self._log)

    def _masked(self, data: bytes) -> bytes:
        """What can be written now; the beginning of a value stays until its end is known. No ``data``: the end."""
        text = self._held + data
        for value in self._values:
            text = text.replace(value, MASK)
        keep = 0 if not data else max((_overlap(text, value) for value in self._values), default=0)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]


def _overlap(text: bytes, value: bytes) -> int:
    """How many bytes at the end of ``text`` are the beginning of ``value``."""
    return next((n for n in range(min(len(text), len(value) - 1), 0, -1) if text.endswith(value[:n])), 0)
