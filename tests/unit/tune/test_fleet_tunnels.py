"""The ways of a fleet: found, told, made anew, given up; and what is heard of a search. Threads, but no machine."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator

import pytest

from orchestrator.base.errors import FcctlError, HostFault, HostUnusable, LinkLost
from orchestrator.machines.host_api import Stream, TunnelConnection
from orchestrator.machines.targets import SshTarget, Target
from orchestrator.tune import tunnels as fleet_ways
from orchestrator.tune.tunnels import LeaderTunnel, WorkerTunnel
from tests.support.waiting import wait_for

SEARCH, MEMBER, LATER = (f"20261121t08153{n}z-tune-box-3fa9c1" for n in range(3))
A, B = SshTarget(name="a", host="a"), SshTarget(name="b", host="b")


class Pipe:
    closed = False

    def recv(self, limit: int) -> bytes:
        return b""[:limit]

    def sendall(self, data: bytes) -> None: ...

    def end(self) -> None: ...

    def close(self) -> None:
        self.closed = True


class Machine:
    """A machine that lets everything happen, until it is told otherwise."""

    def __init__(self) -> None:
        self.files: dict[tuple[str, str], bytes] = {}
        self.ports: dict[int, Callable[[], Stream]] = {}
        self.opened = 0
        self.dialled: list[int] = []
        self.broken = self.off = False
        self.listens: FcctlError | None = None
        self.dials: FcctlError | None = None

    def listen(self, reach: Callable[[], Stream]) -> int:
        if self.listens is not None:
            raise self.listens
        self.ports[40000 + self.opened] = reach
        return 40000 + self.opened

    def dial(self, port: int) -> Stream:
        if self.dials is not None:
            raise self.dials
        self.dialled.append(port)
        return Pipe()

    def check(self) -> None:
        if self.broken:
            self.broken = False
            raise LinkLost("cut")

    def read(self, run_id: str, name: str, limit: int) -> bytes | None:
        assert limit > 4096
        return self.files.get((run_id, name))

    def write(self, run_id: str, name: str, data: bytes) -> bool:
        self.files[run_id, name] = data
        return True

    def remove(self, run_id: str, name: str) -> None:
        self.files.pop((run_id, name), None)

    def close(self) -> None: ...

    def told(self, run_id: str) -> int | None:
        """The port that the run there was told."""
        data = self.files.get((run_id, "join.json"))
        return int(json.loads(data)["scheduler"]) if data is not None else None


class Two:
    """Two machines, the way to the search's and the way to the other's."""

    def __init__(self) -> None:
        self.machines = {"a": Machine(), "b": Machine()}
        self.there: set[str] = set()
        self.leader_tunnel = LeaderTunnel(self, A, self.there.__contains__)
        self.worker_tunnel = WorkerTunnel(self, B, self.there.__contains__, self.leader_tunnel)
        self.leader_tunnel.set_run(SEARCH)
        self.worker_tunnel.set_run(MEMBER)

    def open(self, target: Target) -> TunnelConnection:
        machine = self.machines[target.name]
        if machine.off:
            raise LinkLost("no route")
        machine.opened += 1
        return machine

    def start(self) -> None:
        self.leader_tunnel.start()
        self.worker_tunnel.start()

    def announce(self, port: int = 8786) -> None:
        said = {"schema": 1, "port": port, "tls": {"pem": "KEY"}}
        self.machines["a"].files[SEARCH, "fleet.json"] = json.dumps(said).encode()


@pytest.fixture
def two(monkeypatch: pytest.MonkeyPatch) -> Iterator[Two]:
    monkeypatch.setattr(fleet_ways, "STANDING_S", 0.02)
    monkeypatch.setattr(fleet_ways, "SOON_S", 0.01)
    monkeypatch.setattr(fleet_ways, "BACKOFF_S", (0.01,))
    ways = Two()
    yield ways
    for way in (ways.worker_tunnel, ways.leader_tunnel):
        way.close()
        way.join()
    wait_for(lambda: not [t for t in threading.enumerate() if t.name.startswith("fcctl-tunnel")])


def test_a_member_is_told_once_the_search_is_there_and_leads_to_it_alone(two: Two) -> None:
    a, b = two.machines["a"], two.machines["b"]
    two.start()
    two.there.add(SEARCH)
    two.there.add(MEMBER)
    wait_for(lambda: b.ports)
    with pytest.raises(LinkLost):
        b.ports[40001]()  # the search has said nothing yet
    two.announce()
    wait_for(lambda: b.told(MEMBER) == 40001)
    b.ports[40001]()
    assert set(a.dialled) == {8786}
    two.worker_tunnel.close()
    two.worker_tunnel.join()
    assert b.told(MEMBER) is None, "what it was told is a secret, and holds no more"
    two.leader_tunnel.close()
    two.leader_tunnel.join()
    assert (SEARCH, "fleet.json") in a.files, "that is the search's, which may go on"


def test_the_leaders_tunnel_leaves_a_run_that_another_one_resumes(two: Two) -> None:
    """As when its machine was woken: the tunnel may be up before the other run is there."""
    two.there |= {SEARCH}
    two.start()
    wait_for(lambda: two.leader_tunnel.is_up)
    two.there.remove(SEARCH)
    two.leader_tunnel.set_run(LATER)
    wait_for(lambda: not two.leader_tunnel.is_up)
    two.there.add(LATER)
    said = {"schema": 1, "port": 8787, "tls": {"pem": "KEY 2"}}
    two.machines["a"].files[LATER, "fleet.json"] = json.dumps(said).encode()
    wait_for(lambda: two.leader_tunnel.scheduler is not None)
    assert two.machines["a"].dialled == [8787]


def test_what_an_earlier_fcctl_told_is_taken_back_too(two: Two) -> None:
    b = two.machines["b"]
    b.files[LATER, "join.json"] = b.files[SEARCH, "join.json"] = b"a key"
    two.worker_tunnel.before = [LATER, MEMBER]
    two.there |= {SEARCH, MEMBER}
    two.announce()
    two.start()
    wait_for(lambda: b.told(MEMBER) is not None)
    wait_for(lambda: (LATER, "join.json") not in b.files)
    assert b.told(MEMBER) is not None
    assert (SEARCH, "join.json") in b.files, "that is none of its runs"


@pytest.mark.parametrize("who", ["a", "b"])
def test_a_machine_that_does_not_forward_is_given_up_and_that_is_told(two: Two, who: str) -> None:
    told: list[FcctlError] = []
    way = two.leader_tunnel if who == "a" else two.worker_tunnel
    way.on_failure = told.append
    two.machines["a"].dials = HostUnusable("no forwarding") if who == "a" else None
    two.machines["b"].listens = HostUnusable("no forwarding") if who == "b" else None
    two.there |= {SEARCH, MEMBER}
    two.announce()
    two.start()
    wait_for(lambda: told)
    assert two.machines[who].opened == 1
    assert two.machines["b"].told(MEMBER) is None


def test_what_the_searchs_machine_makes_up_is_not_passed_on(two: Two) -> None:
    told: list[FcctlError] = []
    two.leader_tunnel.on_failure = told.append
    two.there |= {SEARCH, MEMBER}
    two.machines["a"].files[SEARCH, "fleet.json"] = b'{"schema": 1, "port": "22; rm"}'
    two.start()
    wait_for(lambda: told)
    assert isinstance(told[0], HostFault)
    assert not two.machines["a"].dialled
