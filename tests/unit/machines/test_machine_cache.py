"""What is remembered of machines: whole or not at all, whoever writes at the same time."""

from __future__ import annotations

import itertools
import json
import multiprocessing
import os
import time
from dataclasses import replace
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

import pytest

from orchestrator.base.errors import FcctlError
from orchestrator.machines.cache import FileMachineCache, state_folder
from orchestrator.machines.cloud import IN_FLIGHT_S, Endpoint, Hardware
from tests.support.waiting import wait_for
from tests.unit.machines.test_endpoint import KEYS

KNOWN = Endpoint(
    "proj-one", "vm", "us-west1-c", "123", "34.1.2.3", 22, "bob", "/home/bob/key", KEYS,
    ("gcloud", "compute", "start-iap-tunnel", "vm", "22"), deadline=100.0, started=50.0, seen=60.0,
)  # fmt: skip


@pytest.fixture
def book(tmp_path: Path) -> FileMachineCache:
    return FileMachineCache(tmp_path / "machines")


def test_what_is_remembered_is_known(book: FileMachineCache) -> None:
    assert book.known("proj-one", "vm") is None
    book.remember(KNOWN)
    assert book.known("proj-one", "vm") == KNOWN
    later = replace(KNOWN, address="34.9.9.9", deadline=None, started=None, proxy_command=())
    book.remember(later)
    assert FileMachineCache(book.folder).known("proj-one", "vm") == later
    assert book.known("proj-two", "vm") is None
    book.forget("proj-one", "vm")
    book.forget("proj-one", "vm")
    assert book.known("proj-one", "vm") is None


def test_what_a_machine_is_made_of_is_remembered_and_a_file_without_it_is_read(book: FileMachineCache) -> None:
    made_of = Hardware("us-west1-c", "g2-standard-96", True, (("nvidia-l4", 8),), (("pd-ssd", 200), ("", 10)), True)
    book.remember(replace(KNOWN, hardware=made_of))
    assert book.known("proj-one", "vm") == replace(KNOWN, hardware=made_of)
    (path,) = book.folder.rglob("*.json")
    data = json.loads(path.read_text())
    for wrong in ("no", {"zone": "us-west1-c"}, {**data["hardware"], "disks": [["pd-ssd", -1]]}):
        path.write_text(json.dumps({**data, "hardware": wrong}))
        assert book.known("proj-one", "vm") is None, wrong
    del data["hardware"]
    path.write_text(json.dumps(data))
    assert book.known("proj-one", "vm") == KNOWN


def test_what_somebody_else_has_remembered_meanwhile_stays(book: FileMachineCache) -> None:
    book.remember(KNOWN)
    anew = replace(KNOWN, instance_id="456", address="34.9.9.9")
    book.remember(anew)
    book.remember(replace(KNOWN, deadline=None), instead_of=KNOWN)
    assert book.known("proj-one", "vm") == anew
    book.remember(replace(anew, deadline=None), instead_of=anew)
    assert book.known("proj-one", "vm") == replace(anew, deadline=None)
    book.forget("proj-one", "vm")
    book.remember(anew, instead_of=anew)
    assert book.known("proj-one", "vm") is None


def test_projects_of_domains_have_their_own_folder(book: FileMachineCache) -> None:
    book.remember(replace(KNOWN, project="example.com:proj-one"))
    assert book.known("example.com:proj-one", "vm") is not None
    assert book.known("proj-one", "vm") is None


def test_it_is_in_the_user_s_state_folder(private_home: Path) -> None:
    assert state_folder().is_relative_to(private_home)
    FileMachineCache().remember(KNOWN)
    assert [path.name for path in state_folder().rglob("*.json")] == ["vm.json"]
    assert (state_folder() / "proj-one").stat().st_mode & 0o077 == 0
    assert next(state_folder().rglob("vm.json")).stat().st_mode & 0o077 == 0


@pytest.mark.parametrize(
    ("project", "name"),
    [("../../etc", "vm"), ("proj-one", "../vm"), ("proj-one", ".."), ("proj-one", "vm/x"), ("", ""), ("proj-one", "")],
)
def test_names_that_are_none_lead_nowhere(book: FileMachineCache, project: str, name: str) -> None:
    assert book.known(project, name) is None
    book.forget(project, name)
    with pytest.raises(ValueError):
        book.remember(replace(KNOWN, project=project, name=name))
    assert not book.folder.exists()


@pytest.mark.parametrize(
    "wrong",
    [
        *(slice(kept) for kept in (0, 1, 30, 200, -1)), "[]", "null", "5", '"x"', "{}", "[" * 100_000, "\xff",
        {"version": 2}, {"version": None}, {"name": "other"}, {"project": "proj-two"}, {"port": 0}, {"port": "22"},
        {"port": 70000}, {"address": "-oProxyCommand=x"}, {"address": ""}, {"address": "a b"}, {"user": "-x"},
        {"user": "a\nb"}, {"instance_id": "../1"}, {"identity_file": ""}, {"identity_file": "a\nb"},
        {"identity_file": 5}, {"host_keys": "ssh-ed25519 AAAA"}, {"host_keys": ["ssh-ed25519 AAAA"]},
        {"host_keys": [f"{KEYS[0]}\n* ssh-rsa AAAA"]}, {"host_keys": [None]}, {"proxy_command": "sh"},
        {"proxy_command": ["a", "b\0"]}, {"deadline": "soon"}, {"deadline": True}, {"seen": -1}, {"started": 1e300},
    ],
    ids=lambda wrong: str(wrong)[:40],
)  # fmt: skip
def test_a_file_that_is_torn_or_says_something_else_is_unknown_and_written_anew(
    book: FileMachineCache, wrong: slice | str | dict[str, Any]
) -> None:
    book.remember(KNOWN)
    (path,) = book.folder.rglob("vm.json")
    whole = path.read_text()
    text = whole[wrong] if isinstance(wrong, slice) else wrong
    path.write_text(json.dumps({**json.loads(whole), **text}) if isinstance(text, dict) else text, encoding="latin-1")
    assert book.known("proj-one", "vm") is None
    book.remember(KNOWN)
    assert book.known("proj-one", "vm") == KNOWN


@pytest.mark.skipif(os.getuid() == 0, reason="root may write everywhere")
def test_a_folder_that_cannot_be_written_is_told(book: FileMachineCache) -> None:
    book.folder.mkdir(mode=0o500)
    with pytest.raises(FcctlError, match="remember a machine"):
        book.remember(KNOWN)


def test_a_file_where_the_folder_should_be_is_told(book: FileMachineCache) -> None:
    book.folder.write_text("x")
    with pytest.raises(FcctlError, match="remember a machine") as error:
        book.remember(KNOWN)
    assert error.value.hint
    assert book.known("proj-one", "vm") is None


def _write_often(folder: Path, number: int, enough: Event) -> None:
    book = FileMachineCache(folder)
    for turn in itertools.count():
        if turn >= 40 and enough.is_set():
            return
        book.remember(replace(KNOWN, address=f"10.0.{number}.{turn}", identity_file="/k" * (1 + 200 * number)))


def test_writers_and_readers_side_by_side(book: FileMachineCache) -> None:
    book.remember(KNOWN)
    context = multiprocessing.get_context("fork")
    enough, seen = context.Event(), set[str]()
    writers = [context.Process(target=_write_often, args=(book.folder, number, enough)) for number in range(3)]
    for writer in writers:
        writer.start()

    def is_seen_of_all() -> bool:
        known = book.known("proj-one", "vm")
        assert known is not None
        seen.add(known.address.rpartition(".")[0])
        return {f"10.0.{number}" for number in range(3)} <= seen

    try:
        wait_for(is_seen_of_all)
    finally:
        enough.set()
        for writer in writers:
            writer.join()
    assert [writer.exitcode for writer in writers] == [0, 0, 0]
    assert [path.name for path in book.folder.rglob("*") if path.is_file()] == ["vm.json"]


def test_the_pinned_keys_as_openssh_reads_them(book: FileMachineCache) -> None:
    path = book.known_hosts(KNOWN)
    assert path.read_text() == f"compute.123 {KEYS[0]}\n"
    assert book.known_hosts(replace(KNOWN, host_keys=())).read_text() == ""


def _hold_for_ever(folder: Path, ready: Connection) -> None:
    with FileMachineCache(folder).turning_on("proj-one", "vm") as alone:
        ready.send(alone)
        time.sleep(600)


def test_one_process_at_a_time_turns_a_machine_on_and_a_killed_one_none(book: FileMachineCache) -> None:
    ours, theirs = multiprocessing.get_context("spawn").Pipe()
    other = multiprocessing.get_context("spawn").Process(target=_hold_for_ever, args=(book.folder, theirs))
    other.start()
    try:
        assert ours.recv()
        with book.turning_on("proj-one", "vm") as alone, book.turning_on("proj-one", "vm-2") as elsewhere:
            assert (alone, elsewhere) == (False, True)
        other.kill()
        other.join()
        with book.turning_on("proj-one", "vm") as alone:
            assert alone
    finally:
        other.kill()
        other.join()
        other.close()
        ours.close()
        theirs.close()


def test_while_the_request_of_a_killed_process_may_be_on_its_way_nobody_turns_the_machine_on(
    book: FileMachineCache,
) -> None:
    with book.turning_on("proj-one", "vm"), book.asking("proj-one", "vm"):
        pass
    with book.turning_on("proj-one", "vm") as alone:
        assert alone, "it was answered"
        killed = book.asking("proj-one", "vm")
        killed.__enter__()
    with book.turning_on("proj-one", "vm") as alone, book.turning_on("proj-one", "vm-2") as elsewhere:
        assert (alone, elsewhere) == (False, True)
    (asked,) = book.folder.rglob("*.asked")
    for age_s in (IN_FLIGHT_S, -2 * IN_FLIGHT_S):  # or the clock was set back
        written = time.time() - age_s
        os.utime(asked, (written, written))
        with book.turning_on("proj-one", "vm") as alone:
            assert alone
    killed.__exit__(None, None, None)
    assert not asked.exists()


def test_the_lock_is_let_go_whatever_happens_and_is_no_machine(book: FileMachineCache) -> None:
    with pytest.raises(KeyboardInterrupt), book.turning_on("proj-one", "vm"):
        raise KeyboardInterrupt
    with book.turning_on("proj-one", "vm") as alone:
        assert alone
        assert book.known("proj-one", "vm") is None
        book.remember(KNOWN)
    assert book.known("proj-one", "vm") == KNOWN
    book.forget("proj-one", "vm")
    with book.turning_on("proj-one", "vm") as alone:
        assert alone


def test_a_lock_that_cannot_be_had_is_told_before_anything_is_spent(book: FileMachineCache) -> None:
    book.folder.write_text("x")
    with pytest.raises(FcctlError, match="lock a machine"), book.turning_on("proj-one", "vm"):
        raise AssertionError("nothing is turned on")
    with pytest.raises(ValueError, match=r"\.\./vm"), book.turning_on("proj-one", "../vm"):
        raise AssertionError("nothing is turned on")
