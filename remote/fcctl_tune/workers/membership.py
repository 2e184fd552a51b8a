"""How hosts and a search find each other: the file that names the scheduler, and what workers tell it of their host."""

from __future__ import annotations

import dataclasses
import json
import operator
import os
import re
from dataclasses import dataclass, field
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Set

from fcctl_remote.base import files
from fcctl_remote.base.text import one_line
from fcctl_tune.workers.hosts import Host, worker_name

#: The version that hosts and search must share.
PROTOCOL = 2
#: The topic of dismissals, ``{"to": a host's key or "" for all, "say": reason}``. Hosts ask for it, also later ones.
CONTROL = "fcctl-tune-control"
#: The key of the facts that a worker sends of its host.
FACTS = "fcctl_tune"
#: A host is lost after so many seconds without any worker; a worker that died is back sooner.
GONE_S = 10.0
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")


def is_name(text: str) -> bool:
    return _NAME.fullmatch(text) is not None


def facts(host: Host, version: str) -> Dict[str, Any]:
    """The facts that each worker of ``host`` sends; ``version`` is that of Dask distributed."""
    return {"protocol": PROTOCOL, "distributed": version, "host": dataclasses.asdict(host)}


@dataclass
class JoinedHost:
    host: Host
    seen: float  # when one of its workers was there last
    is_complete: bool = False  # all its workers are there
    addresses: Set[str] = field(default_factory=set)  # of its workers, as they were last


class Membership:
    """The hosts of a search.

    Args:
        version: the search's version of Dask distributed.
        dismiss: called with the key of a host that is excluded, and the reason.
        deaths: gets a host's name for each worker that died on it.
        own: the host of the search itself, which does not join; others need GPUs of its model.
    """

    def __init__(
        self, version: str, notice: Callable[[str], None], dismiss: Callable[[str, str], None], deaths: List[str],
        own: Host,
    ) -> None:  # fmt: skip
        self.version, self.own, self.deaths = version, own, deaths
        self._notice, self._dismiss = notice, dismiss
        self._joined: Dict[str, JoinedHost] = {}  # by name, as what follows
        self._known: Set[str] = set()  # were complete once
        self._announced: Set[str] = set()  # present by the last notice; a new join of the same process gives none
        self._excluded: Set[str] = set()  # keys of members that were left out or replaced

    @property
    def hosts(self) -> Sequence[Host]:
        """Those that are complete, or were and are not lost yet."""
        return tuple(joined.host for joined in self._joined.values() if joined.is_complete)

    def look(self, workers: Mapping[str, Mapping[str, Any]], now: float) -> None:
        """``workers``: those that the scheduler lists at ``now``, by address. A replaced member's workers, if they are
        still listed, were seen earlier than those of the new one."""
        there: Dict[str, Dict[str, str]] = {}  # addresses by worker's name, by member's key
        for address, worker in sorted(workers.items(), key=lambda item: float(item[1].get("last_seen", 0.0))):
            host = self._host_of(worker)
            if host is not None:
                there.setdefault(host.key, {})[str(worker.get("name"))] = address
                self._seen(host, now)
        for name, joined in list(self._joined.items()):
            by_name = there.get(joined.host.key, {})
            if by_name:
                self.deaths += [name] * len(joined.addresses - set(by_name.values()))
                joined.addresses = set(by_name.values())
            self._completed(joined, by_name)
            if now - joined.seen > GONE_S:
                self._forget(name)

    def _host_of(self, worker: Mapping[str, Any]) -> Optional[Host]:
        """None for another program's worker, and for a host that cannot be used."""
        entry: Any = worker.get(FACTS)
        try:
            host, spoken = Host.of(entry["host"]), (entry["protocol"], entry["distributed"])
        except (TypeError, LookupError):
            return None
        if host.name == self.own.name or host.key in self._excluded:
            return None
        if spoken != (PROTOCOL, self.version):
            self.leave_out(
                host.key,
                "it uses protocol %s of Dask %s, but the search uses %s of %s" % (*spoken, PROTOCOL, self.version),
            )
        elif host.model != self.own.model:
            problem = "its GPU is %s, but the search uses %s: their times cannot be compared"
            self.leave_out(host.key, problem % (host.model, self.own.model))
        return None if host.key in self._excluded else host

    def _seen(self, host: Host, now: float) -> None:
        joined = self._joined.get(host.name)
        if joined is not None and joined.host.key != host.key:
            self._forget(host.name, joins_anew=joined.host.process == host.process)
            self._excluded.add(joined.host.key)
            joined = None
        if joined is None:
            joined = self._joined[host.name] = JoinedHost(host, now)
        if joined.host != host:
            joined.host, joined.is_complete = host, False
        joined.seen = now

    def _completed(self, joined: JoinedHost, there: Mapping[str, str]) -> None:
        host = joined.host
        names = {worker_name(host.key, own) for own in ("cpu", *(d.worker for d in host.devices))}
        if not joined.is_complete and names <= set(there):
            joined.is_complete = True
            back = "back, " if host.name in self._known else ""
            if host.name not in self._announced:
                self._notice("host %s: %s%s" % (host.name, back, host.outline()))
            self._announced.add(host.name)
            self._known.add(host.name)

    def _forget(self, name: str, joins_anew: bool = False) -> None:
        del self._joined[name]
        if name in self._announced and not joins_anew:
            self._announced.remove(name)
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
            self._announced.discard(name)
        self._notice("host %s: not used: %s" % (name, one_line(reason)))
        self._dismiss(key, reason)


SCHEMA = 1
#: Seconds that a member waits for a search out of reach, while its machine costs money.
PATIENCE_S = 900.0


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
        """None if there is no such file. Raises: ValueError, if it is not valid."""
        try:
            with open(path, "rb") as stream:  # once: it may be replaced or removed
                content = stream.read()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise ValueError("%s: %s" % (path, error.strerror)) from None
        return cls.from_dict(json.loads(content))

    @classmethod
    def from_dict(cls, entry: Any) -> Join:
        """Raises: ValueError."""
        try:
            if entry["schema"] != SCHEMA:
                raise ValueError("it is not a file of schema %d" % SCHEMA)
            pem = entry["tls"]["pem"] if entry.get("tls") else None
            port = operator.index(entry["scheduler"])
        except (TypeError, LookupError, AttributeError) as error:
            raise ValueError("it is not a file of schema %d: %s" % (SCHEMA, error)) from None
        return cls(port, pem)

    @property
    def address(self) -> str:
        """As Dask writes it."""
        return "%s://127.0.0.1:%d" % ("tls" if self.pem else "tcp", self.port)
