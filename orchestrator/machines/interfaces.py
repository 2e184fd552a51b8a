"""The interfaces of a machine: a session with the host program on it; tunnels between machines that cannot reach each
other, all of whose traffic passes through this computer; a cloud that creates, starts and stops machines; and this
computer's machine cache."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from fcctl_remote import wire
from orchestrator.machines.targets import Target

if TYPE_CHECKING:
    from orchestrator.base.clock import Clock
    from orchestrator.base.observer import Observer
    from orchestrator.machines.cloud import BillableResource, Endpoint, Hardware, Machine, MachineSpec, Operation, Quota
    from orchestrator.machines.targets import CloudTarget, SandboxTarget


@dataclass(frozen=True)
class Transfer:
    files: int
    bytes: int
    seconds: float
    how: str  # inline, rsync, calls, none
    rsync_error: str = ""


@dataclass(frozen=True)
class Bundle:
    """Libraries for steps, as one zip file named by its hash."""

    path: Path
    sha256: str
    size: int  # bytes


class Bundles(Protocol):
    """The bundles that this computer can send."""

    def tune(self) -> Bundle:
        """The bundle of a search, built if absent. Raises ConfigError: its libraries are not installed here;
        FcctlError: no room for it."""

    def find(self, sha256: str) -> Bundle:
        """The bundle that an earlier plan names. Raises NotFoundError."""


#: Hears how many bytes more were sent.
Sent = Callable[[int], None]


def unheard(_: int) -> None:
    """For those who show no progress."""


class HostSession(Protocol):
    """One session with the host program on one machine.

    Every method raises ``LinkLost`` when the connection breaks or falls silent (open a new session and continue), and
    :class:`~orchestrator.base.errors.HostFault` when the host program refuses.
    """

    @property
    def hello(self) -> wire.Hello: ...

    def tree_diff(self, workspace: str, entries: Sequence[wire.TreeEntry]) -> wire.TreeDiff: ...

    def send(
        self, workspace: str, tree_root: str, source_root: Path, paths: Sequence[str], sent: Sent = unheard
    ) -> Transfer:
        """Bring ``paths`` of ``source_root`` into the tree on the host: a few small files in one call; else by rsync
        where both ends have it, else in several calls."""

    def snapshot(
        self, workspace: str, run_id: str, entries: Sequence[wire.TreeEntry], tree_sha256: str
    ) -> wire.Snapshot: ...

    def bundle(self, sha256: str, size: int, offset: int, data: bytes) -> wire.BundleState:
        """Sends a piece of a bundle; without ``data``, asks how much of it is there."""

    def submit(self, plan: wire.RunPlan, secrets: Mapping[str, str]) -> wire.Submitted: ...

    def watch(self, request: wire.WatchRequest) -> tuple[wire.WatchReply, bytes]: ...

    def status(self, run_ids: Sequence[str] | None = None) -> list[wire.RunSummary]: ...

    def cancel(self, run_id: str, reason: str, status: str = "cancelled", grace_s: float = 10.0) -> wire.RunSummary: ...

    def files(self, run_id: str) -> wire.FileList: ...

    def fetch(self, run_id: str, parts: Sequence[wire.FilePart]) -> Iterator[tuple[wire.FilePart, bytes]]:
        """The parts in order, each cut into pieces of at most ``MAX_BLOB_BYTES``; calls are pipelined."""

    def forget(self, run_id: str) -> None:
        """Deletes the run's folder on the host; safe once its results are verified in the store."""

    def lease(self, request: wire.LeaseRequest) -> wire.Lease: ...

    def probe(self, env: Mapping[str, str]) -> dict[str, Any]:
        """``{"document": environment document, "text": printed report, "exit_code": 0 | 1 | 2}``, as steps with ``env``
        have it."""

    def close(self) -> None: ...


class HostConnector(Protocol):
    def connect(self, target: Target) -> HostSession:
        """Log in and start the host program, uploading it if its hash is absent. Raises HostUnreachable: with the
        reason (name, port, key, login, proxy, timeout); HostUnusable: no Python >= 3.8 there, or no room for the host
        program."""


# ------------------------------------------------------------------------------------------------------------- tunnels
class Stream(Protocol):
    """One connection; its methods raise OSError. Closing it from another thread unblocks them."""

    def recv(self, limit: int) -> bytes:
        """At most ``limit`` bytes; empty at the end."""

    def sendall(self, data: bytes) -> None: ...

    def end(self) -> None:
        """Sends no more; the other direction stays open."""

    def close(self) -> None: ...


class TunnelConnection(Protocol):
    """A connection to a machine, for all tunnels and files of a fleet; runs have their own.

    The machine is not trusted: a connection from it ends where :meth:`listen` says. Every method raises LinkLost when
    the connection broke or fell silent (open another), and HostUnusable if the machine does not permit the request.
    """

    def listen(self, reach: Callable[[], Stream]) -> int:
        """A port on the machine's loopback, closed with this connection; each connection to it is forwarded to
        ``reach()``.

        ``reach`` is called in threads; if it raises OSError or FcctlError, that connection is closed.
        """

    def dial(self, port: int) -> Stream:
        """A connection to a port of the machine's loopback."""

    def check(self) -> None:
        """Checks that the machine still answers."""

    def read(self, run_id: str, name: str, limit: int) -> bytes | None:
        """A file of a run's private folder, or by its path one that is collected; None if it does not exist or is
        longer than ``limit`` bytes."""

    def write(self, run_id: str, name: str, data: bytes) -> bool:
        """Writes a file atomically, readable by its owner only; False if there is no such run."""

    def remove(self, run_id: str, name: str) -> None: ...

    def close(self) -> None:
        """Closes it and every connection through it; idempotent."""


class Tunnels(Protocol):
    def open(self, target: Target) -> TunnelConnection:
        """Log in to a machine that is up. Raises as HostConnector.connect does."""


class Cloud(Protocol):
    """One project of a cloud that creates, starts and stops machines.

    Every mutation takes a request id, a UUID: a repeated id (after a lost reply or a crash) is one change. A mutation
    returns as soon as the cloud has accepted it; :meth:`wait` waits for its end. Transient errors (429, 5xx, a broken
    connection) are retried with the same id for a bounded time. A refusal, in the answer or later in the operation, is
    the operation's ``refusal``: a refused mutation does not raise.

    Every method raises ``AuthError`` for missing, expired or insufficient credentials, and
    :class:`~orchestrator.base.errors.CloudError` if there is no valid answer.
    """

    def ahead_s(self) -> float | None:
        """The cloud's time in its last answer minus this computer's then, seconds; None: no answer had a time."""

    def machine(self, zone: str, name: str) -> Machine | None: ...

    def machines(self, labels: Mapping[str, str | None]) -> tuple[list[Machine], list[str]]:
        """All machines of the project with these labels (None: any value), and the zones that could not be queried."""

    def create(self, zone: str, spec: MachineSpec, request_id: str) -> Operation: ...

    def start(self, machine: Machine, request_id: str) -> Operation: ...

    def stop(self, machine: Machine, request_id: str) -> Operation: ...

    def delete(self, machine: Machine, request_id: str) -> Operation: ...

    def set_max_run(self, machine: Machine, seconds: int, request_id: str) -> Operation:
        """The max run duration: stop (never delete) ``seconds`` after the next entry into RUNNING, of a stopped one.
        Waited for, and read back."""

    def set_labels(self, machine: Machine, labels: Mapping[str, str], request_id: str) -> Operation:
        """Adds or replaces these labels; ``machine`` is as it was read last, and its other labels stay."""

    def set_metadata(self, machine: Machine, items: Mapping[str, str], request_id: str) -> Operation:
        """Adds or replaces these items; ``machine`` is as it was read last, and its other items stay."""

    def wait(self, operation: Operation, timeout_s: float) -> Operation:
        """The operation as it stands after at most ``timeout_s``; it may not be done."""

    def operations(self, zone: str, name: str) -> list[Operation]:
        """The operations on a machine, newest first, whoever requested them: start, stop, preempted, ..."""

    def guest_attributes(self, machine: Machine, path: str) -> dict[str, str]:
        """``{key: value}`` below ``path``, for instance ``hostkeys/``; empty while the guest published none."""

    def serial_output(self, machine: Machine) -> str: ...

    def snapshot(self, machine: Machine, name: str, request_id: str) -> Operation:
        """A snapshot of the boot disk; the disk stays."""

    def delete_snapshot(self, name: str, request_id: str) -> Operation:
        """Delete a snapshot; one that is not there is no error."""

    def has_snapshot(self, name: str) -> bool:
        """Whether a snapshot of that name is ready to be used."""

    def disks(self, machine: Machine) -> list[BillableResource]:
        """The machine's disks, each as its own entry has it; one that cannot be read is left out."""

    def billable_resources(self) -> tuple[list[BillableResource], list[str]]:
        """All disks, snapshots and static addresses of the project, and the kinds that could not be queried."""

    def quotas(self, region: str) -> list[Quota]:
        """The region's limits and the project's."""

    def firewall_allows_iap(self, network: str) -> bool | None:
        """Whether 35.235.240.0/20 may reach tcp:22 there; None if the rules may not be read."""

    def missing_permissions(self, machine: Machine, permissions: Sequence[str]) -> list[str]:
        """Those of ``permissions`` (``compute.instances.start``) that the caller does not have on the machine."""


class HourlyPrice(Protocol):
    """What an hour of a machine costs while it is on, dollars."""

    @property
    def usd(self) -> float:
        """The machine with its GPUs."""

    @property
    def rest_usd(self) -> float:
        """Its disks and its external address."""


class Clouds(Protocol):
    """Opens the cloud of a target."""

    def resolve(self, target: CloudTarget | SandboxTarget) -> CloudTarget:
        """The same target as a machine of a cloud; the sandbox's cloud is started for it if it is not there."""

    def if_there(self, target: CloudTarget | SandboxTarget) -> CloudTarget | None:
        """The same without starting anything: None for a sandbox that is not running."""

    def open(self, target: CloudTarget) -> Cloud: ...

    def login(self, target: CloudTarget) -> Login:
        """The key pair and user name to log in with, made if absent. Raises ConfigError: the identity file of the
        target is missing or unreadable."""


@dataclass(frozen=True)
class Login:
    user: str
    identity_file: Path
    public_key: str  # one line, without a comment


class MachineCache(Protocol):
    """What this computer remembers of machines: endpoints and pinned host keys."""

    def known(self, project: str, name: str) -> Endpoint | None: ...

    def remember(self, endpoint: Endpoint, *, instead_of: Endpoint | None = None) -> None:
        """Keep what is known of a machine. With ``instead_of``, only if nobody has kept something else meanwhile."""

    def forget(self, project: str, name: str) -> None: ...

    def pinned_elsewhere(self, instance_id: str) -> tuple[str, ...]:
        """Host keys that the user's own SSH has for the machine, by its alias: ``gcloud compute ssh`` files them so."""

    def turning_on(self, project: str, name: str) -> AbstractContextManager[bool]:
        """Whether this process alone, of all on this computer, turns a machine of that name on. Never waits; ends with
        the process, however that dies. False, too, while the request of a killed one may be on its way to the cloud."""

    def asking(self, project: str, name: str) -> AbstractContextManager[None]:
        """Around the request that turns it on, until the cloud lists it."""


@dataclass(frozen=True, kw_only=True)
class MachineParts:
    """The interfaces that a machine is reached and changed through."""

    clock: Clock
    hosts: HostConnector
    observer: Observer
    clouds: Clouds
    #: What this computer remembers of machines.
    book: MachineCache
    #: The price of a machine of a target; raises ConfigError if none is known.
    price: Callable[[CloudTarget, Hardware], HourlyPrice]
    #: Makes a machine fit that was started for the first time, within so many seconds; it may restart meanwhile.
    prepare: Callable[[CloudTarget, float], None] | None = None
