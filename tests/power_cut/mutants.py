"""Planted faults: what a missing sync, or one in the wrong place, loses in a power cut must be noticed."""

from __future__ import annotations

import inspect
import sys
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from fcctl_remote import start
from fcctl_remote.agent import calls, submit
from fcctl_remote.base import bundles
from fcctl_remote.base import files as host_files
from fcctl_remote.run import state as runs
from fcctl_tune.search.storage import Journal
from orchestrator.base import files, journal
from orchestrator.leases.session_files import SessionFiles
from orchestrator.machines.connect import bootstrap
from orchestrator.money import book
from orchestrator.money.book import SpendingBook
from orchestrator.providers.gcp import clouds
from orchestrator.results.store.active import FileActiveRun
from orchestrator.results.store.index import Index as RunIndex
from orchestrator.results.store.store import FileStore
from orchestrator.runs import transfer
from orchestrator.schedules.fire import FiringRecords
from orchestrator.workspace import init
from tests.power_cut import base_subjects as base
from tests.power_cut import host_subjects as host
from tests.power_cut import record_subjects as records
from tests.power_cut import store_subjects as store
from tests.power_cut.play import Subject


@dataclass(frozen=True)
class Mutant:
    name: str
    function: Any
    #: A line or more of its source, and what takes their place.
    line: str
    instead: str
    #: One of these must notice; none: see :data:`IN_WHOLE_RUNS`.
    subjects: tuple[type[Subject], ...]

    def plant(self, patch: pytest.MonkeyPatch) -> None:
        """In the function itself: whoever imported it has it."""
        function = inspect.unwrap(self.function)
        source = textwrap.dedent(inspect.getsource(function))
        assert source.count(self.line) == 1, f"{function.__qualname__} has not one {self.line!r}"
        made: dict[str, Callable[..., object]] = {}
        exec(source.replace(self.line, self.instead), vars(sys.modules[function.__module__]), made)
        patch.setattr(function, "__code__", inspect.unwrap(made[function.__name__]).__code__)


def removed(name: str, function: Any, line: str, *subjects: type[Subject]) -> Mutant:
    return Mutant(name, function, line, "pass", subjects)


CONTROLLER = (
    removed("write_atomic: no sync", files.replacing, "flush(fd)", base.WriteAtomic),
    removed("write_atomic: no folder sync", files.replacing, "sync_folder(folder)", base.WriteAtomic),
    removed("make_folders: no sync", host_files.make_folders, "sync_folder(parent)", store.StoreBegin),
    removed("firings: no sync", FiringRecords.append, "flush(fd)", records.Firings),
    removed("firings: no folder sync", FiringRecords.append, "sync_folder(self._folder)", records.Firings),
    Mutant(
        "firings: counted in place",
        FiringRecords._counted,
        "write_atomic(path.parent, path.name, b",
        "path.write_bytes(b",
        (records.Firings,),
    ),
    removed("usage: no sync", SpendingBook._append, "flush(fd)", records.Usage),
    removed("usage: no folder sync", SpendingBook._append, "sync_folder(self._folder)", records.Usage),
    Mutant(
        "usage: synced before it is written",
        SpendingBook._append,
        "write_all(fd, _encoded(lines))\n                flush(fd)",
        "flush(fd)\n                write_all(fd, _encoded(lines))",
        (records.Usage,),
    ),
    Mutant(
        "usage: a torn line swallows the next",
        SpendingBook._append,
        "os.ftruncate(fd, state.length)  # what a crash cut short was never reported as done\n"
        "            os.lseek(fd, state.length, os.SEEK_SET)",
        "os.lseek(fd, 0, os.SEEK_END)",
        (records.Usage,),
    ),
    Mutant(
        "usage: a line for each entry of a change",
        book._encoded,
        'text = b"\\t".join(line.text for line in lines)',
        'lines = list(lines)\n    if len(lines) > 1:\n        return b"".join(_encoded([line]) for line in lines)\n'
        '    text = b"".join(line.text for line in lines)',
        (records.Usage,),
    ),
    Mutant(
        "usage: compacted in place",
        SpendingBook._compact,
        "write_atomic(self._folder, NAME, content, mode=0o600)",
        "(self._folder / NAME).write_bytes(content)",
        (records.Usage,),
    ),
    removed(
        "usage: damage is not put aside",
        SpendingBook.set_damage_aside,
        "write_atomic(self._folder, aside.name, (self._folder / NAME).read_bytes(), mode=0o600)",
        records.DamagedBook,
    ),
    Mutant(
        "journal: synced before it is written",
        journal.FileJournal._write,
        "write_all(fd, lines)\n            flush(fd)",
        "flush(fd)\n            write_all(fd, lines)",
        (base.Journal,),
    ),
    removed("journal: no folder sync", journal.FileJournal._open, "sync_folder(self._path.parent)", base.Journal),
    Mutant("lock: always the same file", journal._is_still, "try:", "return True\n    try:", (base.Lock,)),
    Mutant("host program: not durable", bootstrap._write, "mode=0o600", "durable=False", (base.HostProgram,)),
    Mutant(
        "init: written in place",
        init._write,
        "write_atomic(path.parent, path.name, content",
        "path.write_bytes(content",
        (base.Init,),
    ),
    removed("key: no folder sync", clouds._make, "sync_folder(path.parent)", base.Key),
    removed("complete: no sync of the tree", FileActiveRun._gather, "sync_tree(partial)", store.StoreComplete),
    removed(
        "complete: no sync of the rename",
        FileActiveRun.finish,
        "sync_folder(self._places.final.parent)",
        store.StoreComplete,
    ),
    removed("collected before it is on disk", transfer.collect, "intake.flush()", store.StoreCollect),
    removed(
        "pending release removed: no folder sync",
        FileStore.remove_pending_release,
        "sync_folder(note.parent)",
        store.PendingRelease,
    ),
    removed("deleted before it is renamed on disk", FileStore.delete, "sync_folder(runs)", store.StoreDelete),
    Mutant("index: always settled", RunIndex._remember, "changed if settled else -1", "changed", (store.Index,)),
)
HOST = (
    removed("host write_atomic: no sync", host_files.write_atomic, "flush(fd)", host.HostAtomic),
    removed(
        "host write_atomic: no folder sync",
        host_files.write_atomic,
        "sync_folder(os.path.dirname(path))",
        host.HostAtomic,
    ),
    removed("host make_folders: no sync", host_files.make_folders, "sync_folder(parent)", host.Submission),
    removed("events: no sync", runs.EventLog._sync, "files.flush(fd)", host.Events),
    removed(
        "events: no folder sync", runs.EventLog._sync, "files.sync_folder(os.path.dirname(self.path))", host.Events
    ),
    removed("outcome before its results", runs.write_outcome, "files.sync_tree(folder)", host.Outcome),
    Mutant("plan: no sync", submit._claim, '+ b"\\n")', '+ b"\\n", durable=False)', (host.Submission,)),
    removed("submitted again after a restart", submit.submit, "lost.settle_unstarted(run)", host.Submission),
    Mutant(
        "snapshot of an earlier boot",
        calls._is_whole,
        'snapshot.get("boot_id") == hostfacts.boot_id()',
        "True",
        (host.Submission,),
    ),
    removed(
        "forgotten before it is renamed on disk", calls.Calls.forget, "files.sync_folder(self.layout.runs)", host.Forget
    ),
    removed("bundle: no sync", bundles._append, "files.flush(fd)", host.Bundles),
    removed("bundle: no folder sync", bundles.Bundles.take, "files.sync_folder(self._folder)", host.Bundles),
    Mutant("bundle: not looked at again", bundles._intact, "try:", "return True\n    try:", (host.Bundles,)),
    Mutant("unpacked: not compared", start.damaged, " != digest)", " == '')", (host.Unpacked,)),
    removed("study: no sync", Journal.sync, "files.flush(self._fd)", host.Study),
    Mutant("study: a torn line stays", Journal._repair, "os.ftruncate(self._fd, end)", "pass", (host.Study,)),
    removed(
        "study: no folder sync",
        Journal._open,
        "files.sync_folder(folder)",
        host.Study,
    ),
)
MUTANTS = (*CONTROLLER, *HOST)

#: Beside each the first of the seeds that find it.
IN_WHOLE_RUNS = (
    (removed("journal: no sync", journal.FileJournal._write, "flush(fd)"), 33),
    (removed("begin: no folder sync", FileStore.begin, "sync_folder(places.active.parent)"), 15),
    (removed("usage: no sync", SpendingBook._append, "flush(fd)"), 107),
    (removed("collected before it is on disk", transfer.collect, "intake.flush()"), 63),
    (removed("session: no folder sync", SessionFiles.begin, "sync_folder(self._folder)"), 162),
    (
        Mutant(
            "a folder made by the way",
            RunIndex._exclusive,
            "make_folders(self._path.parent)",
            "self._path.parent.mkdir(parents=True, exist_ok=True)",
            (),
        ),
        107,
    ),
)
