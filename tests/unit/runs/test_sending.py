"""What is sent to a host: the source until the snapshot fits, libraries in pieces; and what is said of it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fcctl_remote import wire
from orchestrator.base.errors import HostFault
from orchestrator.machines.interfaces import Bundle, Transfer
from orchestrator.runs.transfer import send_bundles, send_source

PLAN: Any = SimpleNamespace(workspace="w", run_id="r")
ENTRIES = [wire.TreeEntry("a", "0", 3), wire.TreeEntry("b", "0", 5)]
SOURCE: Any = SimpleNamespace(
    entries=ENTRIES, skipped=["c (a socket)"], large={"b": "b is large"}, root="/", tree_sha256="0"
)


class Observer:
    def __init__(self) -> None:
        self.phases: list[str] = []
        self.notes: list[str] = []
        self.uploads: list[tuple[int, int, float]] = []

    def phase(self, _name: str, text: str) -> None:
        self.phases.append(text)

    def note(self, text: str) -> None:
        self.notes.append(text)

    def upload(self, done: int, total: int, seconds: float) -> None:
        self.uploads.append((done, total, seconds))


class Host:
    """Lacks ``b`` and something else; the snapshot fails with each of ``faults`` first."""

    def __init__(self, *faults: str, sent: Transfer | None = None, pauses: tuple[float, ...] = ()) -> None:
        self.faults, self.sent, self.pauses = list(faults), sent or Transfer(1, 5, 0.1, "rsync"), pauses
        self.now, self.tries = 100.0, 0

    def call(self, ask: Any) -> Any:
        return ask(self)

    def tree_diff(self, *_: object) -> wire.TreeDiff:
        return wire.TreeDiff(["b", "unknown"] if self.pauses or not self.tries else [], 0, "/there")

    def send(self, *args: Any) -> Transfer:
        for pause in self.pauses:
            self.now += pause
            args[-1](2)
        return self.sent

    def snapshot(self, *_: object) -> None:
        self.tries += 1
        if self.faults:
            raise HostFault("no", fault=self.faults.pop(0))


@pytest.mark.parametrize(
    ("faults", "tries", "hinted"),
    [
        ([], 1, None), (["tree_mismatch"] * 2, 3, None), (["tree_mismatch"] * 3, 3, True), (["denied"], 1, False),
        (["tree_mismatch", "denied"], 2, False),
    ],
)  # fmt: skip
def test_source_is_sent_three_times_while_it_changes(faults: list[str], tries: int, hinted: bool | None) -> None:
    host, observer = Host(*faults), Observer()
    link: Any = host
    if hinted is None:
        send_source(link, PLAN, SOURCE, observer)  # type: ignore[arg-type]
    else:
        with pytest.raises(HostFault) as refused:
            send_source(link, PLAN, SOURCE, observer)  # type: ignore[arg-type]
        assert (".gitignore" in (refused.value.hint or "")) is hinted
    assert host.tries == tries
    assert observer.phases == ["2 files", "1 of 2 files sent by rsync"]
    again = ["files changed during the transfer or on the host; sending them again"] * (tries - 1)
    assert observer.notes == ["not sent: c (a socket)", "b is large", *again]


@pytest.mark.parametrize(
    ("sent", "said"),
    [
        (Transfer(1, 5, 0.1, "calls", "no rsync\nat all"), " without rsync, because rsync failed: no rsync"),
        (Transfer(1, 5, 0.1, "calls"), ""),
        (Transfer(1, 5, 0.1, "rsync", "once"), " by rsync"),
        (Transfer(1, 5, 0.1, "inline", "once"), ""),
    ],
)
def test_how_it_was_sent(sent: Transfer, said: str) -> None:
    link: Any = Host(sent=sent)
    observer = Observer()
    send_source(link, PLAN, SOURCE, observer)  # type: ignore[arg-type]
    assert observer.phases[-1] == f"1 of 2 files sent{said}"


def test_of_a_long_transfer_each_second_says_how_far_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    host, observer = Host(pauses=(0.5, 0.5, 0.75, 0.25, 3.0)), Observer()
    link: Any = host
    monkeypatch.setattr("time.monotonic", lambda: host.now)
    send_source(link, PLAN, SOURCE, observer)  # type: ignore[arg-type]
    assert observer.uploads == [(4, 5, 1.0), (8, 5, 2.0), (10, 5, 5.0)]


class BundleHost:
    """Has ``received`` bytes of a bundle of 5 MiB; finds them ``damaged`` so often; takes nothing if ``stuck``."""

    def __init__(self, received: int, damaged: int = 0, fault: str = "bundle_mismatch", stuck: bool = False) -> None:
        self.received, self.damaged, self.fault, self.stuck = received, damaged, fault, stuck
        self.pieces: list[tuple[int, int]] = []

    def call(self, ask: Any) -> Any:
        return ask(self)

    def bundle(self, _sha256: str, size: int, offset: int, data: bytes) -> wire.BundleState:
        assert (size, offset) == (0, 0) or size == 5 << 20
        if data:
            self.pieces.append((offset, len(data)))
            self.received += 0 if self.stuck else len(data)
        if size and self.received == size and self.damaged:
            self.damaged, self.received = self.damaged - 1, 0
            raise HostFault("damaged", fault=self.fault)
        return wire.BundleState(self.received == 5 << 20, self.received)


def sent(host: BundleHost, folder: Path) -> list[str]:
    place, observer = folder / "bundle.zip", Observer()
    place.write_bytes(bytes(5 << 20))
    steps = [SimpleNamespace(tune=SimpleNamespace(bundle="b")), SimpleNamespace(tune=None)]
    bundles: Any = SimpleNamespace(find=lambda sha256: Bundle(place, sha256, 5 << 20))
    plan: Any = SimpleNamespace(steps=steps)
    link: Any = host
    send_bundles(link, plan, lambda: bundles, observer)  # type: ignore[arg-type]
    return observer.phases


def test_libraries_come_in_pieces_from_where_the_host_has_them(tmp_path: Path) -> None:
    mib = 1 << 20
    for received, pieces in ((0, [(0, 2), (2, 2), (4, 1)]), (3, [(3, 2)]), (5, [])):
        host = BundleHost(received * mib)
        said = sent(host, tmp_path)
        assert host.pieces == [(begin * mib, size * mib) for begin, size in pieces]
        assert said == ["libraries of the search, 5.2 MB"] * bool(pieces)


def test_libraries_that_arrive_damaged_are_sent_three_times(tmp_path: Path) -> None:
    host = BundleHost(0, damaged=2)
    sent(host, tmp_path)
    assert len(host.pieces) == 9
    for refusing, pieces in ((BundleHost(0, damaged=3), 9), (BundleHost(0, damaged=1, fault="disk_full"), 3)):
        with pytest.raises(HostFault, match="damaged"):
            sent(refusing, tmp_path)
        assert len(refusing.pieces) == pieces
    stuck = BundleHost(0, stuck=True)
    with pytest.raises(HostFault, match="cannot send the libraries"):
        sent(stuck, tmp_path)
    assert len(stuck.pieces) == 1
