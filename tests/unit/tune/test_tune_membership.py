"""Who is in a fleet, from what workers say of their hosts."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fcctl_tune.engine import pace as efforts
from fcctl_tune.engine.pace import Effort
from fcctl_tune.errors import TuneError
from fcctl_tune.workers.hosts import Device, Host
from fcctl_tune.workers.membership import FACTS, Join, Membership, facts, is_name, offer


def host(name: str, gpus: int = 1, model: str = "NVIDIA L4", member: str = "m1") -> Host:
    devices = tuple(Device(f"gpu-{n}", model, f"GPU-{name}-{n}") for n in range(gpus))
    return Host(name, 3, devices, 58, member)


def workers(one: Host) -> dict[str, dict[str, Any]]:
    """As the scheduler lists them."""
    said = json.loads(json.dumps(facts(one)))  # as JSON in a variable of the workers
    names = ["cpu", *(d.worker for d in one.devices)]
    return {f"tls://{one.key}-{own}": {"name": f"{one.key}/{own}", FACTS: said} for own in names}


class Seen:
    def __init__(self) -> None:
        self.said: list[str] = []
        self.told: list[tuple[str, str]] = []
        self.membership = Membership(self.said.append, lambda *told: self.told.append(told), host("a"))

    def names(self) -> list[str]:
        return [one.name for one in self.membership.hosts]


def test_one_that_does_not_fit_is_told_so_once() -> None:
    seen = Seen()
    for now in (0.0, 1.0):
        seen.membership.look(workers(host("b", model="NVIDIA T4")), now)
    reason = "its GPU is NVIDIA T4, but the search uses NVIDIA L4: their times cannot be compared"
    assert seen.names() == []
    assert seen.told == [("b:m1", reason)]
    assert seen.said == [f"host b: not used: {reason}"]


def test_workers_of_others_are_none_of_ours() -> None:
    seen = Seen()
    old = {"host": "b", "cpus": 3, "member": "m1", "protocol": 1}
    strangers = {"tcp://x:1": {"name": "x"}, "tcp://x:2": {"name": "y", FACTS: "?"}, "tcp://x:3": {FACTS: old}}
    seen.membership.look({**strangers, **workers(host("a"))}, 0.0)
    assert (seen.names(), seen.told, seen.said) == ([], [], [])


@pytest.mark.parametrize(
    ("name", "right"), [("l4-2", True), ("a.b_c", True), ("", False), ("-x", False), ("a/b", False)]
)
def test_names_of_hosts(name: str, right: bool) -> None:
    assert is_name(name) is right


# ------------------------------------------------------------------------------------------------ join
def test_what_a_search_offers_is_for_its_owner_alone_and_tells_where_it_is(tmp_path: Path) -> None:
    path = tmp_path / "fleet" / "fleet.json"
    offer(str(path), 4711, "KEY")
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    offered = json.loads(path.read_text())
    assert offered == {"schema": 1, "port": 4711, "tls": {"pem": "KEY"}}
    path.write_text(json.dumps({**offered, "scheduler": 12}))
    assert Join.read(str(path)) == Join(12, "KEY")
    assert Join(12).address == "tcp://127.0.0.1:12"
    assert Join.read(str(tmp_path / "nothing")) is None


@pytest.mark.parametrize(
    "entry",
    [
        None, [], {}, {"scheduler": "1", "tls": None}, {"scheduler": 1}, {"scheduler": 1, "tls": 5},
    ],
)  # fmt: skip
def test_a_file_that_is_no_such_file_is_refused(entry: Any, tmp_path: Path) -> None:
    (tmp_path / "join.json").write_text(json.dumps(entry))
    with pytest.raises(TuneError, match="is not valid"):
        Join.read(str(tmp_path / "join.json"))


# ------------------------------------------------------------------------------------------------ effort
def test_the_timed_share_is_of_the_gpus_that_were_there(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(efforts, "time", SimpleNamespace(monotonic=lambda: now[0]))
    effort = Effort(began=0.0)
    effort.set_gpus(1)
    now[0] = 10.0
    effort.build_ended()
    now[0] = 20.0
    effort.timing_ended(5.0)  # half of ten seconds
    effort.set_gpus(3)
    now[0] = 30.0
    effort.timing_ended(15.0)  # half of three times ten
    now[0] = 50.0
    effort.set_gpus(1)  # since the last timing nobody waited for a GPU
    effort.ended = 50.0
    assert effort.as_dict()["gpu_timed_share"] == 0.5
    assert effort.as_dict()["wall_s"] == 50.0
