"""Dask's settings for a search (quiet, with a key of its own, and nothing that runs beside a timing), and its folders
on one machine: for builds and logs, for its workers' files, and a member's own."""

from __future__ import annotations

import contextlib
import glob
import importlib.util
import logging
import os
import shutil
import tempfile
import warnings
from typing import Any, Dict, Iterator, Optional

from fcctl_remote.base import files
from fcctl_remote.base.programs import run
from fcctl_remote.base.tree import remove_tree
from fcctl_tune.errors import MissingDependency, TuneError

#: Seconds for a new key.
OPENSSL_S = 30.0
#: Tries of a trial whose workers die; then it is lost.
TRIES = 3
SETTINGS: Dict[str, Any] = {
    "distributed.admin.system-monitor.disk": False,
    "distributed.admin.system-monitor.gil.enabled": False,
    "distributed.admin.tick.limit": "1h",  # a busy machine is no news
    "distributed.comm.timeouts.connect": "30s",
    "distributed.comm.timeouts.tcp": "60s",
    "distributed.diagnostics.nvml": False,  # no worker but the server of trials touches a GPU
    "distributed.scheduler.allowed-failures": TRIES - 1,
    "distributed.scheduler.work-stealing": False,  # a task's slot is chosen once
    "distributed.worker.daemon": False,
    "distributed.worker.profile.enabled": False,
}


@contextlib.contextmanager
def applied(**more: Any) -> Iterator[None]:
    """With these settings and ``more``, and only critical messages of Dask. Raises: TuneError, if it is missing."""
    try:
        import dask

        if importlib.util.find_spec("distributed") is None:
            raise ImportError("No module named 'distributed'")
    except ImportError as error:
        raise TuneError("the search needs Dask distributed: %s" % error, "pip install 'fcctl[tune]'") from None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with dask.config.set({**SETTINGS, **more}):
            import distributed  # noqa: F401 - its configuration is in place before it is imported

            for name in ("distributed", "distributed.worker", "distributed.scheduler", "tornado", "bokeh"):
                logging.getLogger(name).setLevel(logging.CRITICAL)
            # At a stop our client closes first, which the scheduler calls critical.
            logging.getLogger("distributed.scheduler").setLevel(logging.CRITICAL + 1)
            yield


def certificate() -> Optional[str]:
    """A new key with its certificate, as PEM, by ``openssl``; None where that is missing.

    Who can connect to a scheduler can run anything there: on loopback every user, with a key only who can read it.
    """
    openssl = shutil.which("openssl")
    if openssl is None:
        return None
    argv = [
        openssl, "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "30",
        "-subj", "/CN=fcctl-tune", "-keyout", "-", "-out", "-",
    ]  # fmt: skip
    made = run(argv, OPENSSL_S)
    return made.out if made.ok and made.out else None


def security(pem: Optional[str]) -> Any:
    """``distributed.Security`` for a key with its certificates; None without one."""
    if pem is None:
        return None
    from distributed.security import Security

    roles = {f"tls_{role}_{part}": pem for role in ("client", "scheduler", "worker") for part in ("cert", "key")}
    return Security(require_encryption=True, tls_ca_file=pem, **roles)  # type: ignore[no-untyped-call]


#: The folder for builds and logs, unless another is named; within it, the folder of workers' files.
WORK, WORKERS = ".fcctl-tune", "workers"


def claim(work: str) -> int:
    """Make the folder ``work``, hidden from Git; the descriptor that holds its lock. Raises MissingDependency: it
    cannot be made; TuneError: another search uses it."""
    try:
        for name in ("builds", "logs", WORKERS):
            os.makedirs(os.path.join(work, name), exist_ok=True)
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
    for pattern in (os.path.join("builds", "*.room"), os.path.join(WORKERS, "*")):  # of workers that were killed
        for path in glob.glob(os.path.join(glob.escape(work), pattern)):
            with contextlib.suppress(OSError):  # reported when it is used
                remove_tree(path)
    return lock


@contextlib.contextmanager
def for_workers(work: str) -> Iterator[str]:
    """A new folder for the files of a pool of workers, removed at the end."""
    path = tempfile.mkdtemp(dir=os.path.join(work, WORKERS))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
