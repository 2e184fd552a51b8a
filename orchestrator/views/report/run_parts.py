"""What a report says of each run alone: machine, steps, targets, cost, telemetry."""

from __future__ import annotations

from collections.abc import Iterator

from orchestrator.base.clock import epoch
from orchestrator.base.sanitize import clean
from orchestrator.base.untrusted import number, part
from orchestrator.results.look import Shown
from orchestrator.results.records import CostLine, RunRecord
from orchestrator.results.telemetry import load as load_telemetry
from orchestrator.views.report.model import NO_GPU, RunPart, StepBand, Target

_VERDICTS = {"pass": "met", "fail": "not met", "not_applicable": "does not apply"}


def targets(record: RunRecord) -> Iterator[Target]:
    for step in record.steps:
        for gate in step.gates:
            yield Target(
                record.run_id,
                clean(step.id, 40),
                clean(gate.expr, 300) + (" (optional)" if gate.optional else ""),
                _value(gate.value),
                _VERDICTS.get(gate.verdict, "could not be judged"),
                clean(gate.hint or "", 300) if gate.verdict in ("fail", "unavailable") else "",
            )


def _value(value: object) -> str:
    if value is None or isinstance(value, bool):
        return ""
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, list):
        distinct = list(dict.fromkeys(str(v) for v in value[:1000]))
        return clean(", ".join(distinct[:6]) + (", ..." if len(distinct) > 6 else ""), 80)
    return clean(value, 80)


def run_part(shown: Shown) -> RunPart:
    record = shown.record
    began, ended = epoch(record.started or record.created), epoch(record.finished)
    return RunPart(
        run_id=record.run_id,
        job=clean(record.job, 60),
        title=clean(record.title, 200),
        target=clean(record.target, 40),
        status=record.status,
        message=clean(record.message or "", 600),
        started=clean(record.started or record.created, 40),
        seconds=None if began is None or ended is None else max(0.0, ended - began),
        commit=clean((record.source.git_commit or "")[:12], 12) + (" + changes" if record.source.dirty else ""),
        tree=clean(record.source.tree_sha256[:12], 12),
        machine=tuple(_machine(shown)),
        gpu=gpu_of(shown) or NO_GPU,
        steps=tuple(
            StepBand(clean(s.id, 40), s.status, clean(s.activity, 24), epoch(s.started), max(0.0, s.duration_s))
            for s in record.steps
        ),
        cost=tuple(record.cost.breakdown) or tuple(_by_activity(record)),
        emulated=record.cost.emulated,
        usd=record.cost.usd,
        usd_per_hour=record.cost.usd_per_hour,
        telemetry=load_telemetry(shown.folder),
        ceilings=_ceilings(shown),
        problems=tuple(clean(p, 300) for p in shown.documents.problems),
    )


def _by_activity(record: RunRecord) -> Iterator[CostLine]:
    """Seconds of the steps by activity, for a run that nobody was billed for."""
    seconds: dict[str, float] = {}
    for step in record.steps:
        seconds[clean(step.activity, 24)] = seconds.get(clean(step.activity, 24), 0.0) + max(0.0, step.duration_s)
    for activity, spent in seconds.items():
        if spent > 0:
            yield CostLine(activity=activity, seconds=spent, usd=0.0)


def _machine(shown: Shown) -> Iterator[tuple[str, str]]:
    host = shown.record.host
    for document in shown.documents.of("environment"):
        host = {**host, **{k: v for k, v in document.content.items() if k in ("gpu", "cuda", "ncu", "torch", "cpu")}}
    clocks, memory = number(part(host, "gpu", "clocks", "max_sm_mhz")), number(part(host, "gpu", "memory_mb"))
    facts = {
        "GPU": part(host, "gpu", "name"),
        "compute capability": part(host, "gpu", "compute_capability"),
        "GPU memory": f"{memory / 1024:.0f} GiB" if memory else None,
        "largest SM clock": f"{clocks:.0f} MHz" if clocks else None,
        "driver": part(host, "gpu", "driver"),
        "CUDA": part(host, "cuda", "version"),
        "Nsight Compute": part(host, "ncu", "version"),
        "PyTorch": part(host, "torch", "version"),
        "CPU": part(host, "cpu", "model"),
    }
    yield from ((name, clean(value, 80)) for name, value in facts.items() if isinstance(value, str) and value)


def gpu_of(shown: Shown) -> str:
    for document in shown.documents.of("environment"):
        if name := part(document.content, "gpu", "name"):
            return clean(name, 60)
    if name := part(shown.record.host, "gpu", "name"):
        return clean(name, 60)
    for document in shown.documents.of("benchmark"):
        if document.content.get("device"):
            return clean(document.content["device"], 60)
    return ""


def _ceilings(shown: Shown) -> dict[str, float]:
    """The measured peaks, from a ``peaks`` document or from what a benchmark took for them."""
    places = [part(d.content, "metrics") for d in shown.documents.of("metrics")]
    places += [part(d.content, "environment", "peaks") for d in shown.documents.of("benchmark")]
    for place in places:
        if isinstance(place, dict) and number(place.get("mma_f32_tflops")):
            return {str(k): v for k, given in place.items() if (v := number(given)) is not None}
    return {}
