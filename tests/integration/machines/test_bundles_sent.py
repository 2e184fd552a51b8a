"""The search's libraries on their way to a host: sent once, resumed where a link was cut, never trusted by half."""

from __future__ import annotations

import hashlib
import io
import json
import random
import zipfile
from pathlib import Path

import pytest

from fcctl_remote import wire
from fcctl_remote.base.bundles import CONTENTS
from orchestrator.app import SystemClock
from orchestrator.base.errors import HostFault, NotFoundError
from orchestrator.base.observer import Observer
from orchestrator.machines.connect.reconnect import Connector, ReconnectingHost
from orchestrator.machines.interfaces import Bundle
from orchestrator.runs import transfer
from tests.support.link import LinkProxy
from tests.support.sshd import LoopbackSshd

pytestmark = pytest.mark.usefixtures("private_home")


class Known:
    """One bundle, and how often it was asked for."""

    def __init__(self, folder: Path) -> None:
        noise = random.Random(1).randbytes(3_000_000)  # as much as does not compress
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w") as archive:
            archive.writestr(CONTENTS, json.dumps({"files": {"lib.bin": hashlib.sha256(noise).hexdigest()}}))
            archive.writestr("lib.bin", noise)
        digest = hashlib.sha256(buffer.getvalue()).hexdigest()
        (folder / f"{digest}.zip").write_bytes(buffer.getvalue())
        self.bundle = Bundle(folder / f"{digest}.zip", digest, len(buffer.getvalue()))
        self.asked = 0

    def tune(self) -> Bundle:
        return self.bundle

    def find(self, sha256: str) -> Bundle:
        self.asked += 1
        if sha256 != self.bundle.sha256:
            raise NotFoundError("no such bundle")
        return self.bundle


def plan(sha256: str) -> wire.RunPlan:
    step = wire.StepSpec("search", "true", tune=wire.Tuning("{}", sha256))
    run = "20261121t081530z-tune-box-3fa9c1"
    return wire.RunPlan(run, "tune", "box", "w", "ab" * 32, [step, wire.StepSpec("after", "true")])


@pytest.fixture
def known(tmp_path: Path) -> Known:
    return Known(tmp_path)


def archive_on(sshd: LoopbackSshd, known: Known) -> Path:
    return sshd.home / f".fcctl/bundles/{known.bundle.sha256}.zip"


def test_a_cut_link_resumes_and_a_second_run_sends_nothing(
    sshd: LoopbackSshd, link: LinkProxy, known: Known, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transfer, "_PIECE_BYTES", 500_000)
    offsets: list[int] = []
    with ReconnectingHost(Connector(), sshd.target(port=link.port), SystemClock(), Observer()) as way:
        session = way.session()
        original = type(session).bundle

        def counted(self: object, sha256: str, size: int, offset: int, data: bytes) -> wire.BundleState:
            if data:
                offsets.append(offset)
                if offset == 1_000_000 and offsets.count(offset) == 1:
                    link.reset()  # in the middle of it
            return original(self, sha256, size, offset, data)  # type: ignore[arg-type]

        monkeypatch.setattr(type(session), "bundle", counted)
        transfer.send_bundles(way, plan(known.bundle.sha256), lambda: known, Observer())
        assert archive_on(sshd, known).read_bytes() == known.bundle.path.read_bytes()
        assert offsets.count(0) == 1, "what had arrived was not sent again"
        assert offsets.count(1_000_000) == 2
        sent, known.asked = len(offsets), 0
        transfer.send_bundles(way, plan(known.bundle.sha256), lambda: known, Observer())
        assert (len(offsets), known.asked) == (sent, 0)


def test_what_lies_there_by_half_or_damaged_is_replaced(sshd: LoopbackSshd, known: Known) -> None:
    place = archive_on(sshd, known)
    with ReconnectingHost(Connector(), sshd.target(), SystemClock(), Observer()) as way:
        assert not way.session().bundle(known.bundle.sha256, 0, 0, b"").ready
        partial = place.with_name(place.name + ".partial")
        partial.write_bytes(b"x" * 1000)  # another's, or torn
        transfer.send_bundles(way, plan(known.bundle.sha256), lambda: known, Observer())
        assert place.read_bytes() == known.bundle.path.read_bytes()
        assert not partial.exists()


def test_a_run_whose_libraries_are_nowhere_is_refused_before_it_begins(sshd: LoopbackSshd, known: Known) -> None:
    with ReconnectingHost(Connector(), sshd.target(), SystemClock(), Observer()) as way:
        with pytest.raises(NotFoundError):
            transfer.send_bundles(way, plan("ab" * 32), lambda: known, Observer())
        with pytest.raises(HostFault, match="libraries of step 'search'"):
            way.session().submit(plan("ab" * 32), {})
