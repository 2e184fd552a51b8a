"""Who else is there: the hosts of a fleet, from what their workers say of themselves to the scheduler."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Set

from fcctl_remote.base.text import one_line
from fcctl_tune.workers.devices import Device
from fcctl_tune.workers.interfaces import Host, worker_name

#: What hosts and search must agree on.
PROTOCOL = 1
#: The topic of what hosts are told: ``{"to": a host's key or "", "say": reason}``, after which they end. Hosts ask for
#: it, so that one which comes later hears it, too.
CONTROL = "fcctl-tune-control"
#: The key under which a worker tells its host's facts.
FACTS = "fcctl_tune"
#: A host none of whose workers was seen for so long is lost, seconds; a worker that died is back sooner.
GONE_S = 10.0
#: What a host may claim.
MOST_CPUS, MOST_GPUS, MOST_HOSTS, LONGEST = 4096, 64, 256, 100
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")


def is_name(text: str) -> bool:
    return _NAME.fullmatch(text) is not None


def facts(host: Host, version: str) -> Dict[str, Any]:
    """What each worker of ``host`` tells; ``version`` is that of Dask distributed."""
    gpus = [{"worker": d.worker, "model": d.model, "uuid": d.uuid} for d in host.devices]
    return {
        "protocol": PROTOCOL, "distributed": version, "host": host.name, "cpus": host.cpus, "gpus": gpus,
        "sms": host.sms, "member": host.member,
    }  # fmt: skip


def parsed(entry: Any) -> Host:
    """The host that :func:`facts` tell of. Raises: ValueError, if that makes no sense."""
    try:
        name, cpus, gpus, sms = (entry[key] for key in ("host", "cpus", "gpus", "sms"))
        devices = tuple(Device("gpu-%d" % n, _text(g["model"]), _text(g["uuid"])) for n, g in enumerate(gpus))
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError("it says of itself what makes no sense: %s" % error) from None
    counts = isinstance(cpus, int) and 1 <= cpus <= MOST_CPUS and 1 <= len(devices) <= MOST_GPUS
    numbers = counts and isinstance(sms, (int, type(None)))
    if not isinstance(name, str) or not is_name(name) or not numbers:
        raise ValueError("it says of itself what makes no sense")
    if len({d.model for d in devices}) != 1:
        raise ValueError("it has several GPU models")
    return Host(name, cpus, devices, sms, _text(entry.get("member", "")))


def _key(entry: Mapping[str, Any]) -> str:
    return Host(str(entry.get("host")), 1, (), member=str(entry.get("member", ""))[:LONGEST]).key


def _text(entry: Any) -> str:
    if not isinstance(entry, str) or len(entry) > LONGEST:
        raise ValueError("it says of itself what makes no sense")
    return one_line(entry)


@dataclass
class JoinedHost:
    host: Host
    seen: float  # when one of its workers was there last
    is_complete: bool = False  # all its workers are there
    addresses: Set[str] = field(default_factory=set)  # of its workers, as they were last


class Membership:
    """Hosts that come and go. ``version`` is the search's own of Dask distributed, ``model`` its GPUs' (empty: not
    chosen yet); ``dismiss`` tells a host that it is not wanted."""

    def __init__(
        self,
        version: str,
        notice: Callable[[str], None],
        dismiss: Callable[[str, str], None],
        deaths: List[str],
        model: str = "",
        own: str = "",
    ) -> None:
        """``deaths`` gets the name of a host for each worker that died on it while it stayed; ``own`` is the host of
        the search itself, which does not join."""
        self.version, self.model, self.own = version, model, own
        self.deaths = deaths
        self.dismissed: Dict[str, str] = {}  # reasons, by key
        self._notice, self._dismiss = notice, dismiss
        self._joined: Dict[str, JoinedHost] = {}  # by name, as what follows
        self._known: Set[str] = set()  # were complete once
        self._told: Set[str] = set()  # are there, as far as was told; one that only joins anew is no news
        self._past: Set[str] = set()  # keys of members in whose place others came

    @property
    def hosts(self) -> Sequence[Host]:
        """Those that are complete, or were and have not been missed for long."""
        return tuple(joined.host for joined in self._joined.values() if joined.is_complete)

    def look(self, workers: Mapping[str, Mapping[str, Any]], now: float) -> None:
        """``workers``: those that the scheduler knows at ``now``, by address. What it has not yet missed of a member
        that is gone has been silent for longer than one that came in its place."""
        there: Dict[str, Dict[str, str]] = {}  # names of workers with their addresses, by their member's key
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
        entry = worker.get(FACTS)
        name = entry.get("host") if isinstance(entry, dict) else None
        if not isinstance(entry, dict) or not isinstance(name, str) or not is_name(name):
            return None  # somebody else's worker
        if name == self.own or _key(entry) in self.dismissed or _key(entry) in self._past:
            return None
        try:
            host = parsed(entry)
        except ValueError as error:
            self.leave_out(_key(entry), str(error))
            return None
        spoken = (entry.get("protocol"), entry.get("distributed"))
        if spoken != (PROTOCOL, self.version):
            self.leave_out(host.key, "it speaks %s of Dask %s, the search %s of %s" % (*spoken, PROTOCOL, self.version))
            return None
        if self.model and host.model != self.model:
            self.leave_out(host.key, "its GPU is %s, the search's %s: times do not compare" % (host.model, self.model))
            return None
        return host

    def _seen(self, host: Host, now: float) -> None:
        joined = self._joined.get(host.name)
        if joined is not None and joined.host.key != host.key:
            self._forget(host.name, joins_anew=joined.host.process == host.process)  # or another took its place
            self._past.add(joined.host.key)
            joined = None
        if joined is None:
            if len(self._joined) >= MOST_HOSTS:
                return
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
            if host.name not in self._told:
                self._notice("host %s: %s%s" % (host.name, back, host.outline()))
            self._told.add(host.name)
            self._known.add(host.name)

    def _forget(self, name: str, joins_anew: bool = False) -> None:
        del self._joined[name]
        if name in self._told and not joins_anew:
            self._told.remove(name)
            self._notice("host %s: lost" % name)

    def leave_out(self, key: str, reason: str) -> None:
        """For good; another member on that host may come in its place."""
        if key in self.dismissed:
            return
        name = key.partition(":")[0]
        self.dismissed[key] = reason
        joined = self._joined.get(name)
        if joined is not None and joined.host.key == key:
            del self._joined[name]
            self._told.discard(name)
        self._notice("host %s: left out: %s" % (name, one_line(reason)))
        self._dismiss(key, reason)

    def choose(self) -> None:
        """From now on only hosts with the GPU model that there is most of."""
        count: Dict[str, int] = {}
        for host in self.hosts:
            count[host.model] = count.get(host.model, 0) + len(host.devices)
        self.model = max(count, key=lambda model: count[model])
        for host in [joined.host for joined in self._joined.values() if joined.host.model != self.model]:
            self.leave_out(host.key, "its GPU is %s, the search's %s: times do not compare" % (host.model, self.model))
