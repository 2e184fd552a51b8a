"""What a run leaves behind: ``run.json``, the row that lists it, and the journal that led to it."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

from fcctl_remote import wire
from orchestrator.base.clock import epoch, iso
from orchestrator.base.models import KEPT

SCHEMA_VERSION = 1

RunStatus = Literal["passed", "failed", "incomplete", "cancelled", "lost", "over_budget", "idle", "preempted", "error"]
#: What is in the store: also figures of another program, which no run measured.
StoredStatus = Literal[RunStatus, "imported"]
StepStatus = Literal["passed", "warned", "failed", "skipped", "timed_out", "cancelled", "unavailable"]
Verdict = Literal["pass", "fail", "not_applicable", "unavailable"]

#: Exit code of ``fcctl run`` for each ending.
EXIT_CODES: dict[str, int] = {
    "passed": 0, "failed": 100, "incomplete": 104, "cancelled": 103, "lost": 100, "over_budget": 5, "idle": 5,
    "preempted": 100, "error": 100,
}  # fmt: skip

#: The status of figures that another program measured, and how such figures are called wherever they are shown.
IMPORTED: Literal["imported"] = "imported"
UNVERIFIED = "imported, unverified"

#: How a run ends that did not end by itself.
CUT_OFF = ("preempted", "over_budget", "idle", "lost", "cancelled")

ShortText = Annotated[str, Field(max_length=20_000)]


class _Record(BaseModel):
    model_config = KEPT


class SourceRecord(_Record):
    tree_sha256: str
    git_commit: str | None = None
    dirty: bool = False


class GateRecord(_Record):
    expr: ShortText
    value: Any = None
    verdict: Verdict
    when: ShortText | None = None
    hint: ShortText | None = None
    optional: bool = False  # its run may pass although it could not be decided


class DocumentRecord(_Record):
    kind: str
    path: str


class StepRecord(_Record):
    id: str
    status: StepStatus
    exit_code: int | None = None
    started: str | None = None  # ISO 8601, UTC
    finished: str | None = None
    duration_s: float = 0.0
    attempts: int = 0
    activity: str = "test"
    message: ShortText | None = None
    hint: ShortText | None = None
    log: str | None = None
    gates: list[GateRecord] = []
    documents: list[DocumentRecord] = []

    @property
    def left_open(self) -> bool:
        """Whether a gate of it had to be decided, and could not be: its run is ``incomplete`` if nothing failed."""
        return any(gate.verdict == "unavailable" and not gate.optional for gate in self.gates)

    @property
    def was_cut_off(self) -> bool:
        """Whether it may come further another time: it took longer than it may, or somebody ended it."""
        return self.status == "timed_out" or (self.status == "failed" and self.exit_code in wire.ENDED_BY_OTHERS)


class CostLine(_Record):
    activity: str
    seconds: float
    usd: float


class CostRecord(_Record):
    usd: float = 0.0
    usd_per_hour: float = 0.0
    billed_s: float = 0.0
    breakdown: list[CostLine] = []
    #: When the machine went off is not known: it cannot have cost more than this, and may have cost less.
    upper_bound: bool = False
    #: What it would have cost: the machine was the sandbox's, and nobody pays for it.
    emulated: bool = False
    #: For fetching the results out of the cloud, beside ``usd``: by what lies here, which went through the link packed.
    egress_usd: float = 0.0


class SittingRecord(_Record):
    """One time that the machine was on for a run."""

    began: str
    #: Billed for the run, with what the minute's minimum adds.
    seconds: float
    #: When the cloud had started the machine, which others may have used before.
    started: str | None = None
    #: The machine, where a later one took over from it; None: the record's own.
    name: str | None = None
    instance_id: str | None = None


class MachineRecord(_Record):
    """The cloud's machine that a run was on, and when it was on for this run. Times ISO 8601, UTC, the cloud's."""

    project: str
    zone: str
    name: str
    instance_id: str
    #: From when on the run used it: its start, or, of one that was on already, the run's own.
    began: str | None = None
    #: When it went off again; None if it was left on.
    ended: str | None = None
    released: str | None = None  # stopped, deleted, kept, used, gone
    #: Each time that it was on for the run: a second one fetched what a machine that was stopped under it had left.
    sittings: list[SittingRecord] = []


class OmittedRecord(_Record):
    path: str
    reason: str


class RenamedRecord(_Record):
    """A file or folder that a program of this computer would act on by its name: it is ``stored`` under another."""

    path: str
    stored: str


class RunRecord(_Record):
    """``run.json``: last written, atomic, immutable. Its presence means the run is complete."""

    schema_version: int = SCHEMA_VERSION
    run_id: str
    job: str
    title: str = ""
    target: str
    status: StoredStatus
    exit_code: int
    message: ShortText | None = None
    hint: ShortText | None = None
    created: str
    started: str | None = None
    finished: str
    source: SourceRecord
    host: dict[str, Any] = {}
    steps: list[StepRecord] = []
    cost: CostRecord = Field(default_factory=CostRecord)
    omitted: list[OmittedRecord] = []
    renamed: list[RenamedRecord] = []
    settings: dict[str, str] = {}  # what --set gave
    machine: MachineRecord | None = None
    #: The run that this one continues (``run --resume``).
    parents: list[str] = []

    @property
    def seconds(self) -> float | None:
        """From the start, or the creation, to the end."""
        began, ended = epoch(self.started or self.created), epoch(self.finished)
        return None if began is None or ended is None else max(0.0, ended - began)

    @property
    def judged(self) -> list[GateRecord]:
        """The gates of all steps that apply."""
        return [gate for step in self.steps for gate in step.gates if gate.verdict != "not_applicable"]

    @property
    def was_cut_off(self) -> bool:
        """Whether ``fcctl run --resume`` can continue it: it did not end by itself, nor did the step that failed."""
        ended = [step for step in self.steps if step.status in ("failed", "timed_out")]
        return self.status in CUT_OFF or (self.status == "failed" and bool(ended) and ended[-1].was_cut_off)


class RunRow(_Record):
    """One line of ``fcctl results ls``: what the index holds of a run."""

    run_id: str
    job: str
    target: str
    status: str
    exit_code: int
    created: str
    finished: str
    duration_s: float
    gpu: str | None = None
    git_commit: str | None = None
    usd: float = 0.0
    tree_sha256: str = ""
    dirty: bool = False


def step_record(result: wire.StepResult) -> StepRecord:
    """The host's account of a step, validated. Raises pydantic.ValidationError: the host sent something that is no
    step."""
    times = {"started": iso(result.started), "finished": iso(result.finished)}
    return StepRecord.model_validate({**wire.encode(result), **times})
