"""The contract between the controller and the host program.

Everything that crosses the link is one of the dataclasses below, as JSON. The host program builds and reads them with
the standard library only (:func:`encode`, :func:`decode`); the controller validates the same classes with pydantic,
because the machine at the other end is not trusted. Long, so that one reading shows all that can cross.

Calls travel as *frames* over the standard input and output of ``<runner>.pyz agent``:

* A frame is one line of UTF-8 JSON ended by ``\\n``. If its object has ``"blob": N`` then exactly N raw bytes follow.
* The agent first prints :data:`READY` on a line of its own; whatever a login shell printed before it is noise.
* A request is ``{"id", "method", "params"}``, its reply ``{"id", "result"}`` or ``{"id", "error": CallError}``.
  Calls are answered in order, one at a time; a client may send several before reading.
* ``{"tick": epoch}`` arrives at least every :data:`TICK_S` seconds while the agent lives, also during a long call, so
  a silent link is a dead link.

Methods (params -> result; "blob" marks bytes that follow the frame):

========== ============================================================= =============================================
hello      {}                                                             Hello
tree_diff  {workspace}, blob: JSON list of TreeEntry                      TreeDiff
tree_put   {workspace, files: [PutFile]}, blob: contents end to end          {files: count}
snapshot   {workspace, run_id, tree_sha256}, blob: JSON list of TreeEntry Snapshot; error ``tree_mismatch``
submit     {plan: RunPlan, secrets: {name: value}}                        Submitted
watch      WatchRequest                                                   WatchReply, blob: log bytes
status     {run_ids: [..] | null}                                         {runs: [RunSummary]}
cancel     {run_id, reason, status: cancelled | over_budget, grace_s}     RunSummary
files      {run_id}                                                       FileList
fetch      {run_id, parts: [FilePart]}                                    {parts: [FilePart]}, blob: parts end to end
forget     {run_id}                                                       {}
lease      LeaseRequest                                                   Lease
probe      {env}                                                          {document, text, exit_code}
bundle     {sha256, size, offset}, blob: a piece of it, or nothing        BundleState; error ``bundle_mismatch``
========== ============================================================= =============================================
"""

from __future__ import annotations

from fcctl_remote.record import Any, Record, WireError, decode, encode, field

__all__ = ["Record", "WireError", "decode", "encode"]

WIRE_VERSION = 1
SCHEMA_VERSION = 1
READY = "FCCTL-AGENT-READY 1"
TICK_S = 2.0
MAX_FRAME_BYTES = 16 * 1024 * 1024
MAX_BLOB_BYTES = 4 * 1024 * 1024
MAX_MENDED = 20

#: How a run can end. ``queued`` and ``running`` are the states before that.
RUN_ENDINGS = ("passed", "failed", "incomplete", "cancelled", "lost", "over_budget", "idle", "preempted", "error")
#: A machine whose run ended as ``idle`` is left on for so long at least, so that its results can be fetched, seconds.
LEAST_IDLE_STOP_S = 60.0
#: Exit codes of a step that a person ended, or a system without memory: SIGHUP, SIGINT, SIGKILL, SIGTERM.
ENDED_BY_OTHERS = (129, 130, 137, 143)
STEP_ENDINGS = ("passed", "warned", "failed", "skipped", "timed_out", "cancelled", "unavailable")
DOCUMENT_KINDS = ("environment", "build", "correctness", "benchmark", "profile", "tuning", "metrics")
#: Each with the kind of document that it makes.
READERS = {
    "ptxas": "build", "ncu": "profile", "junit": "correctness", "google-benchmark": "benchmark", "nvbench": "benchmark",
    "pytest-benchmark": "benchmark", "flashcore": "benchmark", "metrics": "metrics", "times": "benchmark",
    "rates": "metrics",
}  # fmt: skip


class Needs(Record):
    """What a job or a step requires of the machine; an unmet step is ``unavailable``, never ``passed``."""

    gpu: bool = False
    compute_capability: str | None = None  # at least this, "8.9"
    tools: list[str] = field(default_factory=list)  # nvcc, ncu, torch, cxx, compute-sanitizer, or any program's name


class GateSpec(Record):
    """One success condition, in the language of :mod:`fcctl_remote.gates.evaluate`."""

    expr: str
    when: str | None = None
    hint: str | None = None
    optional: bool = False  # a run may pass although it could not be decided


class CollectSpec(Record):
    """A file and the reader that turns it into a document. ``file`` is relative to the step's working folder, may be a
    glob, may begin with ``$FCCTL_OUT`` or ``$FCCTL_ARTIFACTS``, or is ``@log``: what the step printed. ``optional``: no
    file, or an empty one, is no fault."""

    reader: str
    file: str
    optional: bool = False


class Tuning(Record):
    """What makes a step a search: ``spec`` (JSON), which it finds as a file, and by its sha256 the bundle of libraries
    that it runs on."""

    spec: str
    bundle: str


class StepSpec(Record):
    """One gated shell script of a job. ``run`` is executed by ``bash -eo pipefail`` in the snapshot's folder."""

    id: str
    run: str
    timeout_s: float = 600.0
    retries: int = 0
    optional: bool = False  # the run continues however this step ends
    keep_going: bool = False  # the run continues although this step failed, and fails at its end
    unavailable_ok: bool = False  # the run continues if the machine cannot run it, not if it fails
    needs: Needs = field(default_factory=Needs)
    env: dict[str, str] = field(default_factory=dict)
    collect: list[CollectSpec] = field(default_factory=list)
    gates: list[GateSpec] = field(default_factory=list)
    #: Exit code (as a string, JSON's keys being strings) -> step status, for tools that say more than 0 or not 0.
    exit_codes: dict[str, str] = field(default_factory=dict)
    activity: str = "test"  # its seconds in the ledger: preflight, build, test, bench, profile, tune
    tune: Tuning | None = None


class GpuIdle(Record):
    """When a run ends as ``idle``: in one of ``steps`` no GPU reached ``below_pct`` % in ``seconds``."""

    below_pct: float
    seconds: float
    steps: list[str]


class RunPlan(Record):
    """All the host program needs to carry out one run. Stored as ``plan.json`` before anything starts."""

    run_id: str
    job: str
    target: str
    workspace: str
    tree_sha256: str
    steps: list[StepSpec]
    title: str = ""
    created: float = 0.0  # epoch seconds, the controller's clock
    needs: Needs = field(default_factory=Needs)
    env: dict[str, str] = field(default_factory=dict)
    lock: str = "exclusive"  # it has the machine to itself; ``shared``: side by side with other shared ones
    max_minutes: float | None = None  # the run's own wall clock limit on the host
    git_commit: str | None = None
    #: Steps that need not be carried out, because they were already, somewhere: gates may look at them all the same.
    adopted: list[FinishedStep] = field(default_factory=list)
    resume_from: str | None = None  # a run of the same source on this host, in whose working folder this one goes on
    #: After the last run, the shutdown timer of a machine that has one is moved to so many seconds from then.
    idle_stop_s: float | None = None
    #: When its budget is spent, epoch seconds of the host's clock: the host then ends it as ``over_budget``, with the
    #: usual SIGTERM and grace, also if no controller follows it.
    stop_by: float | None = None
    idle: GpuIdle | None = None
    sudo_ncu: bool = False  # where GPU counters are for administrators, on machines that fcctl owns
    container: str | None = None  # the image that its steps run in
    python: str | None = None  # its environment is active in the steps, if it is in one
    secrets: list[str] = field(default_factory=list)  # names; the values come with the call and are in no file
    attached: bool = False  # no tmux: the run ends with the connection that submitted it
    wire_version: int = WIRE_VERSION


class TreeEntry(Record):
    """One file of the source: path relative to the workspace with ``/``, mode 0o644 or 0o755, or a link's target."""

    path: str
    sha256: str  # of the content; of the target's text for a link
    size: int
    executable: bool = False
    link: str | None = None


class TreeDiff(Record):
    """Which entries must be sent, and how many files the host dropped because the manifest lacks them."""

    changed: list[str]
    removed: int
    root: str  # absolute path of the tree on the host


class PutFile(Record):
    """A file of a ``tree_put``, or the part of it at ``offset``: ``size`` bytes of the blob, none for a link."""

    path: str
    size: int
    mtime: float  # epoch seconds
    executable: bool = False
    link: str | None = None
    offset: int = 0
    last: bool = True


class Snapshot(Record):
    tree_sha256: str
    files: int
    bytes: int
    path: str


class BundleState(Record):
    ready: bool  # it is there, whole and as announced
    received: int  # bytes of it; the next piece begins here


class Hello(Record):
    wire_version: int
    runner_sha256: str
    python: str
    platform: str  # linux, darwin
    hostname: str
    user: str
    home: str
    root: str  # ~/.fcctl
    boot_id: str
    time: float  # the host's clock, epoch seconds
    cpus: int
    free_bytes: int  # on the file system of root
    tools: dict[str, str | None] = field(default_factory=dict)  # tmux, rsync, bash, nvidia-smi -> path or null
    #: Files of the host program that this start found damaged, and put right; the first :data:`MAX_MENDED`.
    mended: list[str] = field(default_factory=list)
    prepared: bool = False  # whether hostfacts.PREPARED_FILE is there


class Submitted(Record):
    state: str  # started | exists
    summary: RunSummary


class RunSummary(Record):
    run_id: str
    job: str
    status: str  # queued, running, or one of RUN_ENDINGS
    created: float
    step: str | None = None
    step_index: int = 0
    step_count: int = 0
    step_started: float | None = None
    step_timeout_s: float | None = None
    heartbeat: float | None = None
    behind: str | None = None  # the run that holds the machine, while queued
    finished: float | None = None
    exit_code: int | None = None
    message: str | None = None


class Event(Record):
    """One line of ``events.jsonl``. ``data`` holds what belongs to the type.

    Types: run_started, queued, step_started {step, attempt, timeout_s, index}, step_finished {step, attempt, status,
    exit_code, duration_s, message}, document {step, kind, path}, gate {step, expr, value, verdict, hint}, warning
    {message}, cancel_requested {reason}, lease {..}, run_finished {status, exit_code, message}.
    """

    seq: int
    time: float
    type: str
    data: dict[str, Any] = field(default_factory=dict)


class WatchRequest(Record):
    """Long poll: answered as soon as there is news after the offsets, or after ``wait_s``."""

    run_id: str
    events_offset: int = 0
    log_step: str | None = None  # a step's id; "@current" follows the step that runs
    log_offset: int = 0
    log_offset_step: str | None = None  # with "@current": the step whose log ``log_offset`` counts; others begin at 0
    tail: bool = False  # start ``@current`` logs near the end: for a progress line, not a copy
    wait_s: float = 10.0


class WatchReply(Record):
    events: list[Event]
    events_offset: int
    summary: RunSummary
    log_step: str | None = None
    log_offset: int = 0  # where the blob begins
    log_size: int = 0  # the log's size now
    telemetry: dict[str, Any] | None = None  # the latest sample


class FileEntry(Record):
    path: str
    size: int
    sha256: str


class Omitted(Record):
    path: str
    reason: str  # symlink, fifo, socket, device, unreadable, too_large, bad_name


class FileList(Record):
    files: list[FileEntry]
    omitted: list[Omitted] = field(default_factory=list)


class FilePart(Record):
    path: str
    offset: int
    size: int


class GateResult(Record):
    expr: str
    verdict: str
    value: Any = None
    when: str | None = None
    hint: str | None = None
    optional: bool = False  # the run may pass without it: by the gate's own mark, or by its step's


class DocumentRef(Record):
    kind: str
    path: str  # relative to the run's folder


class StepResult(Record):
    id: str
    status: str
    exit_code: int | None = None
    started: float | None = None
    finished: float | None = None
    duration_s: float = 0.0
    attempts: int = 0
    activity: str = "test"
    message: str | None = None
    hint: str | None = None
    log: str | None = None  # relative to the run's folder
    gates: list[GateResult] = field(default_factory=list)
    documents: list[DocumentRef] = field(default_factory=list)


class FinishedStep(Record):
    """A step that ran on the controller before the machine was woken, or in the run that this one goes on with. The
    host writes its documents where ``result.documents`` says, and reports nothing of it."""

    result: StepResult
    documents: list[dict[str, Any]] = field(default_factory=list)  # the content of result.documents, in that order


class Outcome(Record):
    """``outcome.json``: how a run ended; written once, atomically, after everything else."""

    run_id: str
    job: str
    status: str
    exit_code: int
    started: float
    finished: float
    steps: list[StepResult]
    host: dict[str, Any] = field(default_factory=dict)
    message: str | None = None
    tree_sha256: str = ""
    wire_version: int = WIRE_VERSION


class LeaseRequest(Record):
    """``show``; ``arm`` sets, or moves earlier; ``renew`` moves later and needs the token; so does ``disarm``."""

    op: str
    deadline: float | None = None  # epoch seconds on the host's clock
    not_after: float | None = None  # the cloud's own limit: no renewal goes past it
    token: str | None = None
    dry: bool = True
    reason: str = ""
    fresh: bool = False  # the caller has just started the machine: a lease of an earlier boot is void


class Lease(Record):
    armed: bool
    dry: bool = True
    deadline: float | None = None
    not_after: float | None = None
    token: str | None = None
    boot_id: str | None = None
    mechanism: str | None = None  # shutdown, systemd, at, none


class CallError(Record):
    """``code`` is stable and for programs; ``message`` and ``hint`` are for people."""

    #: bad_request, not_found, tree_mismatch, bundle_mismatch, conflict, no_tmux, no_bash, disk_full, denied, internal
    code: str
    message: str
    hint: str | None = None
    data: dict[str, Any] = field(default_factory=dict)


class Refusal(Exception):
    """``code`` is one of those of :class:`fcctl_remote.wire.CallError`."""

    def __init__(self, code: str, message: str, hint: str | None = None, data: dict[str, Any] | None = None) -> None:
        super().__init__(message)
        self.error = CallError(code, message, hint, data or {})
