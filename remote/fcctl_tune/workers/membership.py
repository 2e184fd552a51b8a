"""How hosts and a search find each other: the file that names the scheduler, and what workers tell it of their host;
Dask's settings for a search (quiet, with a key of its own, and nothing that runs beside a timing), and its folders on
one machine: for builds and logs, for its workers' files, and a member's own."""

from __future__ import annotations

import contextlib
import dataclasses
import glob
import importlib.util
import json
import logging
import operator
import os
import re
import shutil
import tempfile
import warnings
from dataclasses import dataclass
from typing import Any, Callable, Dict, Iterator, Mapping, Optional, Sequence, Set

from fcctl_remote.base import files
from fcctl_remote.base.programs import run
from fcctl_remote.base.text import one_line
from fcctl_remote.base.tree import remove_tree
from fcctl_tune.errors import MissingDependency, TuneError
from fcctl_tune.workers.hosts import Host, worker_name

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


#: The topic of dismissals, ``{"to": a host's key or "" for all, "say": reason}``. Hosts ask for it, also later ones.
CONTROL = "fcctl-tune-control"
#: The key of the facts that a worker sends of its host.
FACTS = "fcctl_tune"
#: A host is lost after so many seconds without any worker; a worker that died is back sooner.
GONE_S = 10.0
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")


def is_name(text: str) -> bool:
    return _NAME.fullmatch(text) is not None


def facts(host: Host) -> Dict[str, Any]:
    """The facts that each worker of ``host`` sends. All hosts of a search have the same libraries: they are sent with
    its plan."""
    return {"host": dataclasses.asdict(host)}


@dataclass
class JoinedHost:
    host: Host
    seen: float  # when one of its workers was there last
    is_complete: bool = False  # all its workers are there


class Membership:
    """The hosts of a search.

    Args:
        dismiss: called with the key of a host that is excluded, and the reason.
        own: the host of the search itself, which does not join; others need GPUs of its model.
    """

    def __init__(
        self, notice: Callable[[str], None], dismiss: Callable[[str, str], None], own: Host
    ) -> None:  # fmt: skip
        self.own = own
        self._notice, self._dismiss = notice, dismiss
        self._joined: Dict[str, JoinedHost] = {}  # by name, as what follows
        self._known: Set[str] = set()  # were complete once
        self._excluded: Set[str] = set()  # keys of members that were left out or replaced

    @property
    def hosts(self) -> Sequence[Host]:
        """Those that are complete, or were and are not lost yet."""
        return tuple(joined.host for joined in self._joined.values() if joined.is_complete)

    def look(self, workers: Mapping[str, Mapping[str, Any]], now: float) -> None:
        """``workers``: those that the scheduler lists at ``now``, by address. A replaced member's workers, if they are
        still listed, were seen earlier than those of the new one."""
        there: Dict[str, Set[str]] = {}  # workers' names, by member's key
        for worker in sorted(workers.values(), key=lambda one: float(one.get("last_seen", 0.0))):
            host = self._host_of(worker)
            if host is not None:
                there.setdefault(host.key, set()).add(str(worker.get("name")))
                self._seen(host, now)
        for name, joined in list(self._joined.items()):
            self._completed(joined, there.get(joined.host.key, set()))
            if now - joined.seen > GONE_S:
                self._forget(name)

    def _host_of(self, worker: Mapping[str, Any]) -> Optional[Host]:
        """None for another program's worker, and for a host that cannot be used."""
        entry: Any = worker.get(FACTS)
        try:
            host = Host.of(entry["host"])
        except (TypeError, LookupError):
            return None
        if host.name == self.own.name or host.key in self._excluded:
            return None
        if host.model != self.own.model:
            problem = "its GPU is %s, but the search uses %s: their times cannot be compared"
            self.leave_out(host.key, problem % (host.model, self.own.model))
        return None if host.key in self._excluded else host

    def _seen(self, host: Host, now: float) -> None:
        joined = self._joined.get(host.name)
        if joined is not None and joined.host.key != host.key:
            self._forget(host.name)
            self._excluded.add(joined.host.key)
            joined = None
        if joined is None:
            joined = self._joined[host.name] = JoinedHost(host, now)
        joined.seen = now

    def _completed(self, joined: JoinedHost, there: Set[str]) -> None:
        host = joined.host
        names = {worker_name(host.key, own) for own in ("cpu", *(d.worker for d in host.devices))}
        if not joined.is_complete and names <= there:
            joined.is_complete = True
            back = "back, " if host.name in self._known else ""
            self._notice("host %s: %s%s" % (host.name, back, host.outline()))
            self._known.add(host.name)

    def _forget(self, name: str) -> None:
        if self._joined.pop(name).is_complete:
            self._notice("host %s: lost" % name)

    def leave_out(self, key: str, reason: str) -> None:
        """Exclude a member for good; another one of that host may join."""
        if key in self._excluded:
            return
        name = key.partition(":")[0]
        self._excluded.add(key)
        joined = self._joined.get(name)
        if joined is not None and joined.host.key == key:
            del self._joined[name]
        self._notice("host %s: not used: %s" % (name, one_line(reason)))
        self._dismiss(key, reason)


SCHEMA = 1
#: Seconds that a member waits for a search out of reach, while its machine costs money. A network that broke is there
#: again by then; after the death of fcctl nothing comes, and a host cannot tell one from the other.
PATIENCE_S = 300.0


def offer(path: str, port: int, pem: Optional[str]) -> None:
    """Write the file, for its owner alone, that names the scheduler and its key. Raises: OSError."""
    os.makedirs(os.path.dirname(path) or ".", mode=0o700, exist_ok=True)
    tls = None if pem is None else {"pem": pem}
    entry = {"schema": SCHEMA, "port": port, "tls": tls}
    files.write_atomic(path, files.to_json(entry), durable=False, mode=0o600)


@dataclass(frozen=True)
class Join:
    """The ``port`` of this host's loopback that leads to the scheduler; ``pem`` is the search's key and certificate, if
    it has one: a new one for each start of a search. Who has the key can run anything there."""

    port: int
    pem: Optional[str] = None

    @classmethod
    def read(cls, path: str) -> Optional[Join]:
        """None if there is no such file. Raises: TuneError, if it is not valid; it is replaced as a whole."""
        try:
            with open(path, "rb") as stream:
                entry = json.load(stream)
            return cls(operator.index(entry["scheduler"]), (entry["tls"] or {}).get("pem"))
        except FileNotFoundError:
            return None
        except (ValueError, TypeError, LookupError, AttributeError) as error:
            problem = "%s is not valid: %s: %s" % (path, type(error).__name__, error)
            raise TuneError(problem, "fcctl help tune, its section A fleet") from None

    @property
    def address(self) -> str:
        """As Dask writes it."""
        return "%s://127.0.0.1:%d" % ("tls" if self.pem else "tcp", self.port)
