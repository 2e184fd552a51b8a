"""``where: controller`` steps: they run on this computer before a machine is started. They are a run of the host
program in a folder that no target uses; without this process they end."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter, ValidationError

from fcctl_remote import gates, wire
from orchestrator.base.errors import HostFault, plural
from orchestrator.base.observer import Observer
from orchestrator.machines.connect.framing import in_range
from orchestrator.machines.connect.reconnect import ReconnectingHost
from orchestrator.machines.interfaces import HostSession
from orchestrator.machines.targets import LocalTarget
from orchestrator.results.records import RunRecord, RunStatus
from orchestrator.runs.job.plan import cuda_arch, dotted
from orchestrator.runs.job.saved_plan import SavedPlan
from orchestrator.runs.record import outcome_type
from orchestrator.runs.services import Services
from orchestrator.runs.source import Source
from orchestrator.runs.transfer import collect, follow, send_source

if TYPE_CHECKING:
    from orchestrator.results.store.active import FileActiveRun

HERE = LocalTarget.model_construct(name="controller", root="~/.fcctl/controller", reconnect_s=5.0)
#: Between SIGTERM and SIGKILL for a step that nobody follows, seconds.
GRACE_S = 2.0
#: Documents that go to the host with the plan; its frames have room for four times as much.
MAX_ADOPTED_BYTES = 4 * 1024 * 1024
MAX_OUTCOME_BYTES = 16 * 1024 * 1024


@dataclass(frozen=True)
class LocalStepsResult:
    """The results of the steps here. ``status`` is the run's if it ends with them."""

    status: RunStatus
    steps: Sequence[wire.StepResult] = ()
    message: str | None = None

    def may_go_on(self, specs: Sequence[wire.StepSpec]) -> bool:
        """Whether the host's steps follow: none of ``specs``, the steps here, ended the run."""
        ended_well = self.status in ("passed", "incomplete")
        return ended_well and all(gates.goes_on(*both) for both in zip(specs, self.steps, strict=True))

    def line(self, *, goes_on: bool) -> dict[str, Any]:
        """The data of the journal's ``stepped`` line."""
        steps = [wire.encode(step) for step in self.steps]
        return {"goes_on": goes_on, "status": self.status, "reason": self.message, "steps": steps}


def carry_out(services: Services, active: FileActiveRun, saved: SavedPlan, source: Source) -> LocalStepsResult:
    """Runs the steps, on the builder if the plan has one, and stores their results. Raises HostError if they cannot run
    here or the source changed."""
    if saved.builder is not None:
        record = services.run_on_builder(services, saved.builder, source)
        if record is not None and (built := _from_builder(services, active, saved.before_wake, record)):
            return built
    plan = plan_here(saved, services.cuda_image)
    steps = plural(len(plan.steps), "step")
    services.observer.phase("prewake", f"{steps} on this computer first, before {saved.target.name} is contacted")
    with ReconnectingHost(services.hosts, HERE, services.clock, services.observer) as link:
        send_source(link, plan, source, services.observer)
        secrets = services.secrets(plan.secrets)
        link.call(lambda s: s.submit(plan, secrets))
        follow(link, plan.run_id, services)
        return _bring_in(link, active, plan.run_id, services)


def _from_builder(
    services: Services, active: FileActiveRun, specs: Sequence[wire.StepSpec], record: RunRecord
) -> LocalStepsResult | None:
    """Stores what a run on the builder left; None if its account of the steps is not one of ``specs``."""
    from orchestrator.base.json_text import Budget
    from orchestrator.results import documents

    folder, intake = services.store.folder(record.run_id), active.intake()
    steps = host_results(functools.partial(documents.read, folder, budget=Budget()), record.run_id)
    if list(steps) != [spec.id for spec in specs]:
        why = record.message or f"its run ended as {record.status}"
        services.observer.note(f"{record.target} could not be used to compile: {why} (run {record.run_id})")
        return None
    for file in sorted(f for top in ("steps", "artifacts") for f in (folder / top).rglob("*") if f.is_file()):
        path = file.relative_to(folder).as_posix()
        intake.discard(path)
        with file.open("rb") as stream:
            for offset in range(0, max(1, file.stat().st_size), wire.MAX_BLOB_BYTES):
                intake.write(path, offset, stream.read(wire.MAX_BLOB_BYTES))
    intake.flush()
    status: RunStatus = TypeAdapter(RunStatus).validate_python(record.status)
    return LocalStepsResult(status, list(steps.values()), record.message)


def recover(services: Services, active: FileActiveRun, saved: SavedPlan, reason: str) -> LocalStepsResult:
    """Ends steps that nobody follows, and stores the results of those on this computer."""
    if saved.builder is not None:
        services.run_on_builder(services, saved.builder, None)
    with ReconnectingHost(services.hosts, HERE, services.clock, services.observer) as link:
        try:
            link.call(lambda s: s.cancel(active.run_id, reason, grace_s=GRACE_S))
        except HostFault as e:
            if e.fault != "not_found":
                raise
            return LocalStepsResult("error", message=reason)
        follow(link, active.run_id, services)
        return replace(_bring_in(link, active, active.run_id, services), message=reason)


def adopted(
    steps: Sequence[wire.StepResult], read: Callable[[str], Any], observer: Observer
) -> list[wire.FinishedStep]:
    """Returns the steps for the host's gates, with the documents that are small enough to send. ``read`` returns a JSON
    file of the run; None if absent; raises OSError, ValueError if it is not JSON."""
    room, finished = MAX_ADOPTED_BYTES, []
    for step in steps:
        refs, contents = [], []
        for ref in step.documents:
            content = _document(read, ref.path)
            size = len(json.dumps(content))
            if content is None or size > room:
                observer.note(f"{ref.path} stays on this computer: gates on the host cannot read it")
                continue
            room -= size
            refs.append(ref)
            contents.append(content)
        finished.append(wire.FinishedStep(replace(step, documents=refs), contents))
    return finished


def _document(read: Callable[[str], Any], path: str) -> dict[str, Any] | None:
    try:
        content = read(path)
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) else None


def host_results(read: Callable[[str], Any], run_id: str) -> dict[str, wire.StepResult]:
    """The steps as the host's own account has them; empty if it left none that can be read."""
    try:
        outcome = in_range(outcome_type().validate_python(read("outcome.json")))
    except (OSError, ValueError, ValidationError):
        return {}
    return {step.id: step for step in outcome.steps} if outcome.run_id == run_id else {}


def plan_here(saved: SavedPlan, cuda_image: str) -> wire.RunPlan:
    """The part of the plan that runs here, without the job's needs of the target."""
    arch = cuda_arch(saved.target)
    given = {"FCCTL_CUDA_ARCH": arch, "TORCH_CUDA_ARCH_LIST": dotted(arch), "CUDAARCHS": arch}
    if cuda_image:
        given["FCCTL_CUDA_IMAGE"] = cuda_image
    return replace(
        saved.plan,
        target=HERE.name,
        steps=saved.before_wake,
        needs=wire.Needs(),
        env=given,  # the job's own is in each step
        container=None,
        lock="shared",
        max_minutes=None,
        attached=True,
    )


def _bring_in(link: ReconnectingHost, active: FileActiveRun, run_id: str, services: Services) -> LocalStepsResult:
    """Stores the steps' files in the run's folder; returns their results from ``outcome.json``."""
    outcome = link.call(lambda s: _outcome(s, run_id))
    collect(link, run_id, active.intake(), services, lambda path: path.startswith(("steps/", "artifacts/")))
    link.call(lambda s: s.forget(run_id))
    status: RunStatus = TypeAdapter(RunStatus).validate_python(outcome.status)
    return LocalStepsResult(status, outcome.steps, outcome.message)


def _outcome(session: HostSession, run_id: str) -> wire.Outcome:
    """Raises: HostFault, if it cannot be read."""
    entry = next((e for e in session.files(run_id).files if e.path == "outcome.json"), None)
    if entry is None or entry.size > MAX_OUTCOME_BYTES:
        raise HostFault("the steps on this computer wrote no outcome file", hint="run the command again")
    data = b"".join(piece for _, piece in session.fetch(run_id, [wire.FilePart(entry.path, 0, entry.size)]))
    try:
        return outcome_type().validate_json(data)
    except ValidationError as e:
        message = "the outcome file of the steps on this computer is invalid"
        raise HostFault(message, cause=str(e)[:300], hint="run the command again") from e
