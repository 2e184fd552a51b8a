"""Folders of a search on one machine: temporary ones, the one for builds and logs, and a worker's build directory."""

from __future__ import annotations

import contextlib
import dataclasses
import glob
import json
import os
import shutil
import stat
import tempfile
from dataclasses import dataclass
from typing import Dict, Iterator, Optional

from fcctl_remote.base import files
from fcctl_tune.errors import MissingDependency, TuneError
from fcctl_tune.trial.folder import remove
from fcctl_tune.trial.tasks import TrialSpec

PREFIX = "fcctl-tune-"
#: In each folder, locked for as long as somebody needs it.
LOCK = "lock"


@contextlib.contextmanager
def temporary() -> Iterator[str]:
    """A new folder for a search's key and its workers' files, removed at the end.

    After a power cut it may stay. The next search or member of this user removes it: the kernel holds the lock on a
    folder for as long as its owner lives. Raises: OSError.
    """
    path = tempfile.mkdtemp(prefix=PREFIX)
    lock = None
    try:
        with contextlib.suppress(OSError):  # without locks, as on some file systems, no other search removes it
            lock = files.try_lock(os.path.join(path, "new"))
            os.rename(os.path.join(path, "new"), os.path.join(path, LOCK))  # it is locked as soon as it exists
        yield path
    finally:
        _remove(path)
        if lock is not None:
            os.close(lock)


def sweep() -> None:
    """Remove this user's folders whose owner has ended."""
    with contextlib.suppress(OSError):
        for name in os.listdir(tempfile.gettempdir()):
            if name.startswith(PREFIX):
                _remove_if_left(os.path.join(tempfile.gettempdir(), name))


def _remove_if_left(path: str) -> None:
    with contextlib.suppress(OSError):
        status = os.lstat(path)
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
            return
        lock = files.try_lock(os.path.join(path, LOCK), create=False)
        if lock is not None:
            _remove(path)
            os.close(lock)


def _remove(path: str) -> None:
    """Remove the lock last: a folder without it is never removed."""
    with contextlib.suppress(OSError):
        for name in os.listdir(path):
            one = os.path.join(path, name)
            if name == LOCK:
                continue
            if os.path.isdir(one) and not os.path.islink(one):
                shutil.rmtree(one, ignore_errors=True)
            else:
                os.unlink(one)
    shutil.rmtree(path, ignore_errors=True)


#: The folder for builds and logs, unless another is named.
WORK = ".fcctl-tune"


def claim(work: str) -> int:
    """Make the folder ``work``, hidden from Git; the descriptor that holds its lock. Raises MissingDependency: it
    cannot be made; TuneError: another search uses it."""
    try:
        for folder in (os.path.join(work, "builds"), os.path.join(work, "logs")):
            os.makedirs(folder, exist_ok=True)
        ignore = os.path.join(work, ".gitignore")
        if not os.path.exists(ignore):
            files.write_atomic(ignore, b"*\n", durable=False)
        lock = files.try_lock(os.path.join(work, "lock"))
    except OSError as error:
        raise MissingDependency("%s: %s" % (error.filename, error.strerror), "choose another folder: --work") from None
    if lock is None:
        raise TuneError(
            "another search uses %s" % work, "wait until that search ends, or choose another folder: --work"
        )
    for path in glob.glob(os.path.join(glob.escape(work), "builds", "*.room")):  # of a worker that was killed
        with contextlib.suppress(OSError):  # reported when it is used
            remove(path)
    return lock


#: A member's workers find their :class:`BuildDirectory` here, as JSON.
VARIABLE = "FCCTL_TUNE_SITE"


@dataclass(frozen=True)
class BuildDirectory:
    """A member's own folders: ``folder`` is for builds and logs, ``source`` identifies the content of ``cwd``."""

    cwd: str
    folder: str
    source: str

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self))

    @property
    def ledger(self) -> str:
        """A line for each task: its name, and seconds."""
        return os.path.join(self.folder, "done.log")


def build_directory() -> Optional[BuildDirectory]:
    """This worker's; None on the machine that searches."""
    text = os.environ.get(VARIABLE)
    return BuildDirectory(**json.loads(text)) if text else None


def localized(trial_spec: TrialSpec, place: Optional[BuildDirectory]) -> TrialSpec:
    """``trial_spec`` with the folders of ``place``."""
    return trial_spec if place is None else dataclasses.replace(trial_spec, **dataclasses.asdict(place))


def record_task(place: Optional[BuildDirectory], name: str, seconds: float) -> None:
    """Append a line to the ledger; workers do so at the same time."""
    if place is not None:
        with contextlib.suppress(OSError), open(place.ledger, "a", encoding="ascii") as stream:
            stream.write("%s %.3f\n" % (name, seconds))


def task_totals(ledger: str) -> Dict[str, float]:
    """Counts of builds and timings, and their seconds together."""
    totals: Dict[str, float] = {"builds": 0, "timings": 0, "busy_s": 0.0}
    with contextlib.suppress(OSError), open(ledger, encoding="ascii") as stream:
        for line in stream:
            name, _, seconds = line.partition(" ")
            totals["builds" if name == "build" else "timings"] += 1
            totals["busy_s"] = round(totals["busy_s"] + float(seconds), 3)
    return totals
