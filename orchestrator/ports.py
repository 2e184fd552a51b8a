"""What the workflows need from the world. Adapters provide it; the simulation and the tests provide it too.

All calls block. Everything that waits goes through :class:`Clock`, so that virtual time can stand in for the real.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from fcctl_remote import wire
from orchestrator.domain.cloud import Endpoint, Leftover, Machine, MachineSpec, Operation, Quota
from orchestrator.domain.ledger import Sighting
from orchestrator.domain.notify import Notice
from orchestrator.domain.records import JournalEntry, RunRecord, RunRow
from orchestrator.domain.schedule import Firing
from orchestrator.domain.target import GcpTarget, SandboxTarget, Target

if TYPE_CHECKING:
    from orchestrator.domain.measurement import Measurement
    from orchestrator.domain.session import SessionRecord
    from orchestrator.domain.tags import Tag


class Clock(Protocol):
    def now(self) -> float:
        """Epoch seconds."""

    def monotonic(self) -> float: ...

    def sleep(self, seconds: float) -> None: ...


@dataclass(frozen=True)
class Source:
    """The workspace's files as they are now: what git tracks, and what is untracked but not ignored."""

    root: Path
    entries: tuple[wire.TreeEntry, ...]
    tree_sha256: str
    git_commit: str | None
    dirty: bool
    skipped: tuple[str, ...] = ()  # paths left out (sockets, links that leave the workspace), each worth a warning


class SourceReader(Protocol):
    def read(self, root: Path) -> Source: ...


@dataclass(frozen=True)
class SourceChanges:
    """What lies between two commits: (sha, subject) of each, newest first; (what happened, path) of each file."""

    commits: tuple[tuple[str, str], ...]
    files: tuple[tuple[str, str], ...]


class SourceHistory(Protocol):
    def changes(self, root: Path, old: str, new: str) -> SourceChanges | None:
        """None if a commit is not known here, or the workspace is in no repository."""


@dataclass(frozen=True)
class Transfer:
    files: int
    bytes: int
    seconds: float
    how: str  # inline, rsync, tar, none


class HostSession(Protocol):
    """One live conversation with the host program on one machine.

    Raises, from every method: :class:`~orchestrator.errors.LinkLost` when the link breaks or falls silent (open a new
    session and go on), :class:`~orchestrator.errors.HostFault` when the host program refuses.
    """

    @property
    def hello(self) -> wire.Hello: ...

    def tree_diff(self, workspace: str, entries: Sequence[wire.TreeEntry]) -> wire.TreeDiff: ...

    def send(self, workspace: str, tree_root: str, source_root: Path, paths: Sequence[str]) -> Transfer:
        """Bring ``paths`` of ``source_root`` into the tree on the host.

        A few small files go inline, in one call; else rsync where both ends have it, else tar.
        """

    def snapshot(
        self, workspace: str, run_id: str, entries: Sequence[wire.TreeEntry], tree_sha256: str
    ) -> wire.Snapshot: ...

    def submit(self, plan: wire.RunPlan) -> wire.Submitted: ...

    def watch(self, request: wire.WatchRequest) -> tuple[wire.WatchReply, bytes]: ...

    def status(self, run_ids: Sequence[str] | None = None) -> list[wire.RunSummary]: ...

    def cancel(self, run_id: str, reason: str, status: str = "cancelled", grace_s: float = 10.0) -> wire.RunSummary: ...

    def files(self, run_id: str) -> wire.FileList: ...

    def fetch(self, run_id: str, parts: Sequence[wire.FilePart]) -> Iterator[tuple[wire.FilePart, bytes]]:
        """The parts in order, each cut into pieces of at most ``MAX_BLOB_BYTES``; calls are pipelined."""

    def forget(self, run_id: str) -> None:
        """Delete the run's folder on the host, which is safe once its results are verified at home."""

    def lease(self, request: wire.LeaseRequest) -> wire.Lease: ...

    def probe(self) -> dict[str, Any]:
        """``{"document": environment document, "text": printed report, "exit_code": 0 | 1 | 2}``."""

    def close(self) -> None: ...


class HostConnector(Protocol):
    def connect(self, target: Target) -> HostSession:
        """Log in and start the host program, uploading it if its hash is absent.

        Raises:
            HostUnreachable: with the reason (name, port, key, login, proxy, timeout).
            HostUnusable: no Python >= 3.8 there, or no room for the host program.
        """


class Cloud(Protocol):
    """One project of a cloud that makes, starts and stops machines.

    Every mutation takes a request id, a UUID: the same id repeated (a lost reply, a killed controller) is one change.
    A mutation returns as soon as the cloud has taken it; :meth:`wait` sees it through. Passing trouble (429, 5xx, a cut
    connection) is retried inside, with the same id, for a bounded time. What the cloud refuses, in its answer or later
    in the operation, is the operation's ``refusal``: a mutation that is refused does not raise.

    Raises, from every method: :class:`~orchestrator.errors.AuthError` for missing, expired or insufficient credentials,
    :class:`~orchestrator.errors.CloudError` if there is no answer, or none that makes sense.
    """

    def machine(self, zone: str, name: str) -> Machine | None: ...

    def machines(self, labels: Mapping[str, str | None]) -> tuple[list[Machine], list[str]]:
        """All machines of the project with these labels (None: any value), and the zones that could not be asked."""

    def create(self, zone: str, spec: MachineSpec, request_id: str) -> Operation: ...

    def start(self, machine: Machine, request_id: str) -> Operation: ...

    def resume(self, machine: Machine, request_id: str) -> Operation: ...

    def stop(self, machine: Machine, request_id: str) -> Operation: ...

    def delete(self, machine: Machine, request_id: str) -> Operation: ...

    def set_max_run(self, machine: Machine, seconds: int, request_id: str) -> Operation:
        """Fence 1: stop (never delete) ``seconds`` after the next entry into RUNNING. The machine must be stopped.

        This one is waited for, and read back: if it returns without a refusal, the cloud holds it.
        """

    def set_labels(self, machine: Machine, labels: Mapping[str, str], request_id: str) -> Operation:
        """Add or replace these; ``machine`` is as it was read last, and its other labels stay."""

    def set_metadata(self, machine: Machine, items: Mapping[str, str], request_id: str) -> Operation:
        """Add or replace these; ``machine`` is as it was read last, and its other items stay."""

    def wait(self, operation: Operation, timeout_s: float) -> Operation:
        """The operation as it stands after at most ``timeout_s``; it may not be done."""

    def operations(self, zone: str, name: str) -> list[Operation]:
        """What happened to a machine, newest first, whoever did it: start, stop, preempted, guestTerminate, ..."""

    def guest_attributes(self, machine: Machine, path: str) -> dict[str, str]:
        """``{key: value}`` below ``path``, for instance ``hostkeys/``; empty while the guest published none."""

    def serial_output(self, machine: Machine) -> str: ...

    def snapshot(self, machine: Machine, name: str, request_id: str) -> Operation:
        """A snapshot of the boot disk; the disk stays."""

    def has_snapshot(self, name: str) -> bool:
        """Whether a snapshot of that name is ready to be used."""

    def leftovers(self) -> tuple[list[Leftover], list[str]]:
        """All disks, snapshots and static addresses of the project, and what could not be asked."""

    def quotas(self, region: str) -> list[Quota]:
        """The region's limits and the project's."""

    def firewall_allows_iap(self, network: str) -> bool | None:
        """Whether 35.235.240.0/20 may reach tcp:22 there; None if the rules may not be read."""

    def missing_permissions(self, machine: Machine, permissions: Sequence[str]) -> list[str]:
        """Those of ``permissions`` (``compute.instances.start``) that the caller does not have on the machine."""


class Clouds(Protocol):
    """The way to the cloud that a target is in."""

    def resolve(self, target: GcpTarget | SandboxTarget) -> GcpTarget:
        """The same target as a machine of a cloud; the sandbox's cloud is started for it if it is not there."""

    def if_there(self, target: GcpTarget | SandboxTarget) -> GcpTarget | None:
        """The same, starting nothing: None for a sandbox that sleeps."""

    def open(self, target: GcpTarget) -> Cloud: ...

    def login(self, target: GcpTarget) -> Login:
        """The key pair and user name to log in with, made if absent.

        Raises:
            ConfigError: the identity file of the target is missing or unreadable.
        """


@dataclass(frozen=True)
class Login:
    user: str
    identity_file: Path
    public_key: str  # one line, without a comment


class MachineBook(Protocol):
    """What this computer remembers of machines: where they were, and the host keys that were pinned."""

    def known(self, project: str, name: str) -> Endpoint | None: ...

    def remember(self, endpoint: Endpoint) -> None: ...

    def forget(self, project: str, name: str) -> None: ...

    def pinned_elsewhere(self, instance_id: str) -> tuple[str, ...]:
        """Host keys that the user's own SSH has for the machine, by its alias: ``gcloud compute ssh`` files them so."""


class Journal(Protocol):
    """A run's append-only record of intent; each line is on disk before the call returns."""

    def append(self, kind: str, **data: Any) -> None: ...

    def entries(self) -> list[JournalEntry]: ...


class Intake(Protocol):
    """Where bytes from an untrusted host become files: only below the run's own ``.partial`` folder."""

    def accepts(self, path: str) -> str | None:
        """None if the name is safe to write, else the reason why not (``bad_name``)."""

    def size(self, path: str) -> int:
        """Bytes already here; 0 when the file is absent."""

    def write(self, path: str, offset: int, data: bytes) -> None: ...

    def verified(self, entry: wire.FileEntry) -> bool:
        """Whether the file here has the size and sha256 the host announced."""

    def discard(self, path: str) -> None: ...

    def read_json(self, path: str) -> Any:
        """A collected JSON file, None if absent; raises ValueError if it is not JSON."""


class ActiveRun(Protocol):
    """A run this controller owns until it is complete; no other controller can claim it meanwhile."""

    run_id: str

    @property
    def journal(self) -> Journal: ...

    @property
    def plan(self) -> dict[str, Any]:
        """What was saved by :meth:`Store.begin`."""

    def intake(self) -> Intake: ...

    def complete(self, record: RunRecord) -> Path:
        """Write run.json, rename ``.partial`` to its final name, index it, end the active run. Idempotent."""

    def release(self) -> None:
        """Let another controller claim the run (a detached run stays active)."""

    def discard(self) -> None:
        """Remove an active run that has no plan: it was killed while being made, and never was."""


class IncomingRun(Protocol):
    """A run that is written from an archive; it is none of the store's until :meth:`finish`."""

    run_id: str

    def write(self, path: str, offset: int, data: bytes) -> None: ...

    def check(self) -> None:
        """Raises: FcctlError, if what was written is no complete run."""

    def finish(self) -> Path: ...

    def discard(self) -> None: ...


class Store(Protocol):
    def begin(self, run_id: str, plan: dict[str, Any]) -> ActiveRun: ...

    def active(self) -> list[str]:
        """Ids of the runs that are not complete, oldest first."""

    def claim(self, run_id: str) -> ActiveRun | None:
        """Take over an active run; None while another live process owns it.

        Raises:
            RunNotFound: it is not active (any more).
        """

    def plan_of(self, run_id: str) -> dict[str, Any] | None:
        """An active run's saved plan, without claiming it."""

    def journal_of(self, run_id: str) -> list[JournalEntry]:
        """A run's journal, active or complete, without claiming it; empty if there is no such run."""

    def owe(self, run_id: str, debt: dict[str, Any]) -> None:
        """Write down that a machine which ``run_id`` turned on is not known to be off."""

    def owed(self) -> dict[str, dict[str, Any]]:
        """What was written down so and not yet :meth:`paid`, by run id."""

    def paid(self, run_id: str) -> None:
        """The machine is off."""

    def is_complete(self, run_id: str) -> bool:
        """Whether the run's results are here, whole."""

    def get(self, run_id: str) -> RunRecord: ...

    def resolve(self, name: str) -> str:
        """A full run id from an id, a unique prefix or suffix, or ``last``.

        Raises:
            RunNotFound: with the nearest id as a hint.
        """

    def rows(self, *, limit: int | None = None, **filters: str | None) -> list[RunRow]: ...

    def measurements(self, *, limit: int = 1000, **filters: str | None) -> list[Measurement]:
        """What complete runs measured, newest first, out of the index; no run's folder is opened."""

    def benchmarks(self) -> list[tuple[str, str]]:
        """(benchmark, variant) of all that complete runs measured, in order."""

    def query(self, sql: str, limit_s: float, max_rows: int) -> tuple[list[str], list[tuple[Any, ...]], bool]:
        """Columns, rows and whether there are more, of a SELECT on the index of the runs."""

    def incoming(self, run_id: str) -> IncomingRun: ...

    def best(self, count: int) -> set[str]:
        """The runs that hold one of the ``count`` best times of any benchmark of ours."""

    def size(self, run_id: str) -> int:
        """Bytes of a complete run on the disk."""

    def delete(self, run_ids_gone: Sequence[str]) -> None:
        """Delete complete runs for good."""

    def tags(self) -> dict[str, Tag]:
        """Names that people gave to runs, by name."""

    def tag(self, tag: Tag, *, move: bool) -> None:
        """Add a name; only with ``move`` may it leave the runs it stands for (else ConflictError)."""

    def untag(self, name: str) -> None: ...

    def folder(self, run_id: str) -> Path: ...

    def reindex(self) -> tuple[int, Sequence[tuple[str, str]]]:
        """Build the list behind :meth:`rows` anew: how many runs it holds, and (run id, reason) of each skipped."""


class FiringBook(Protocol):
    """What became of each time that a schedule was due, and who is at work on one."""

    def read(self, name: str) -> list[Firing]:
        """Oldest first."""

    def append(self, name: str, firings: tuple[Firing, ...]) -> None:
        """On disk when this returns."""

    def deciding(self) -> AbstractContextManager[bool]:
        """Whether this process alone decides what is due."""

    def firing(self, name: str) -> AbstractContextManager[bool]:
        """Whether this process alone runs a firing of ``name``."""

    def at_work(self, name: str) -> bool:
        """Whether some process runs a firing of ``name``."""


class Observer(Protocol):
    """Hears what a workflow does, to show it. Never decides anything."""

    def phase(self, name: str, detail: str = "") -> None: ...

    def event(self, event: wire.Event) -> None: ...

    def progress(self, reply: wire.WatchReply, log_tail: bytes) -> None: ...

    def note(self, message: str) -> None: ...

    def aside(self) -> AbstractContextManager[None]:
        """Leave the terminal to somebody else for a while: to a question."""

    def close(self) -> None:
        """Leave the terminal as it was."""


class Sightings(Protocol):
    """What the cloud was seen to say of machines' starts and stops; the ledger's other half beside the runs."""

    def note(self, sighting: Sighting) -> None:
        """On disk when this returns."""

    def all(self) -> list[Sighting]:
        """Oldest first."""


class Notifier(Protocol):
    """Tells people who are not looking."""

    def send(self, notice: Notice) -> list[str]:
        """Tell whoever wants to know; what went wrong, one line each. Never raises."""


class HeldSession(Protocol):
    """A session that this process alone changes, until :meth:`release`."""

    session_id: str

    @property
    def journal(self) -> Journal: ...

    def end(self, record: SessionRecord) -> None:
        """Write how it ended; it is over when this returns. May be repeated."""

    def release(self) -> None: ...


class SessionBook(Protocol):
    """The sessions of a workspace."""

    def starting(self) -> AbstractContextManager[bool]:
        """Whether this process alone may begin one now."""

    def begin(self, session_id: str, plan: dict[str, Any]) -> HeldSession: ...

    def open(self) -> list[str]:
        """Those that are not over, oldest first."""

    def claim(self, session_id: str) -> HeldSession | None:
        """None while another live process has it."""

    def plan_of(self, session_id: str) -> dict[str, Any] | None: ...

    def journal_of(self, session_id: str) -> list[JournalEntry]: ...

    def ended(self) -> list[SessionRecord]:
        """Those that are over, oldest first."""


@dataclass(frozen=True)
class Services:
    """All a workflow may touch."""

    clock: Clock
    hosts: HostConnector
    store: Store
    source: SourceReader
    observer: Observer
    clouds: Clouds
    book: MachineBook
    notifier: Notifier
    sightings: Sightings
    sessions: SessionBook
