"""Judging a finished step: its documents, its gates, its status.

Runs in a forked child (``run.forked``), since documents and readers may need far more memory and time than
the supervisor allows itself, and may crash.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from fcctl_remote import wire
from fcctl_remote.base.layout import RunLayout
from fcctl_remote.base.text import one_line
from fcctl_remote.gates import effect
from fcctl_remote.record import Record, field
from fcctl_remote.run import documents, hints

#: What the outcome keeps of an environment document.
HOST_FACTS = ("gpu", "cuda", "ncu", "torch", "compiler", "os", "cpu", "summary")


class Case(Record):
    """All that bears on the verdict."""

    spec: wire.StepSpec
    result: wire.StepResult  # as the exit code has it
    earlier: list[wire.StepResult]
    env: dict[str, str]
    adopted: list[wire.FinishedStep] = field(default_factory=list)


class StepVerdict(Record):
    status: str
    message: str | None = None
    hint: str | None = None
    gates: list[wire.GateResult] = field(default_factory=list)
    documents: list[wire.DocumentRef] = field(default_factory=list)
    host: dict[str, Any] = field(default_factory=dict)


def judge(run: RunLayout, case: Case) -> StepVerdict:
    """The step's final status with its reasons."""
    gathered = documents.CollectedDocuments()
    documents.from_out(run, case.env["FCCTL_OUT"], gathered)
    succeeded = case.result.status in ("passed", "warned")
    if succeeded:
        documents.from_readers(run, case.spec, case.env, gathered)
    elif case.result.status == "failed":
        # Which test failed stands in what the test program left. What cannot be read changes nothing any more.
        left = documents.CollectedDocuments()
        documents.from_readers(run, case.spec, case.env, left)
        gathered.found += left.found
    judgement = StepVerdict(case.result.status, case.result.message, case.result.hint)
    if case.spec.gates and (succeeded or (case.result.status == "failed" and gathered.found)):
        judgement.gates = _gates(run, case, gathered)
    elif case.result.status == "unavailable":
        judgement.gates = _undecided(run, case)
    judgement.documents = [ref for ref, _ in gathered.found]
    judgement.host = _host_facts(gathered)
    if succeeded:
        _decide(case.spec, gathered, judgement)
    return judgement


def _decide(spec: wire.StepSpec, gathered: documents.CollectedDocuments, judgement: StepVerdict) -> None:
    failed = [gate for gate in judgement.gates if gate.verdict == "fail"]
    required = [gate for gate, asked in zip(judgement.gates, spec.gates) if not asked.optional]  # noqa: B905
    undecided = [gate for gate in required if gate.verdict == "unavailable"]
    if gathered.faults:
        judgement.status, judgement.message = "failed", one_line("; ".join(gathered.faults), 2000)
        judgement.hint = gathered.hint
    elif failed:
        judgement.status = "failed"
        judgement.message = "gate failed: " + "; ".join(_gate_text(gate) for gate in failed)
        judgement.hint = failed[0].hint
    elif gathered.unavailable:
        judgement.status, judgement.message = "unavailable", one_line("; ".join(gathered.unavailable), 2000)
        judgement.hint = gathered.hint
    elif undecided:
        judgement.status = "unavailable"
        judgement.message = "gate without a value: " + "; ".join(_gate_text(gate) for gate in undecided)
        judgement.hint = undecided[0].hint


def _gate_text(gate: wire.GateResult) -> str:
    value = "%g" % gate.value if isinstance(gate.value, float) else gate.value
    return one_line(gate.expr if value is None else "%s (%s)" % (gate.expr, value), 300)


def _gates(run: RunLayout, case: Case, gathered: documents.CollectedDocuments) -> list[wire.GateResult]:
    from fcctl_remote.gates import evaluate as gates

    context = _context(run, case, gathered)
    results = []
    for spec in case.spec.gates:
        verdict = gates.evaluate(spec, context)
        if verdict.verdict == "fail" and verdict.hint is None:
            verdict.hint = hints.for_gate(spec.expr)
        elif verdict.verdict == "unavailable":
            verdict.optional = spec.optional or case.spec.optional
            if spec.hint is None and not verdict.optional and case.result.status != "failed":
                verdict.hint = "%s; %s" % (verdict.hint, gathered.hint or effect.FIX)
        results.append(verdict)
    return results


def _undecided(run: RunLayout, case: Case) -> list[wire.GateResult]:
    """The gates of a step that the machine could not run and the run goes on without: those that apply are open."""
    from fcctl_remote.gates import evaluate as gates

    context = _context(run, case, documents.CollectedDocuments())
    results = []
    for spec in case.spec.gates:
        verdict = gates.evaluate(spec, context)
        if verdict.verdict != "not_applicable":
            why = one_line((case.result.message or "the step did not run").split("\n", 1)[0], 300)
            verdict.verdict, verdict.value, verdict.optional = "unavailable", None, spec.optional
            verdict.hint = "; ".join([why, case.result.hint or effect.FIX])
        results.append(verdict)
    return results


def _context(run: RunLayout, case: Case, gathered: documents.CollectedDocuments) -> dict[str, Any]:
    """What a gate may name: documents by kind, ``steps.ID``, ``host``, ``step``, ``env``."""
    by_kind: dict[str, Any] = {}
    steps: dict[str, Any] = {}
    for finished in case.adopted:
        held = _held(run, finished.result)
        steps[finished.result.id] = {**_facts(finished.result), **held}
        held.pop("environment", None)  # of the machine where that step ran
        by_kind.update(held)
    for earlier in case.earlier:
        held = _held(run, earlier)
        by_kind.update(held)
        steps[earlier.id] = {**_facts(earlier), **held}
    own = _merged(document for _, document in gathered.found)
    by_kind.update(own)
    steps[case.result.id] = {**_facts(case.result), **own}
    if "environment" not in by_kind and _names_host(case.spec.gates):
        by_kind["environment"] = _probe(run, case, gathered)
    context: dict[str, Any] = dict(by_kind)
    context["host"] = by_kind.get("environment", {})
    context["step"] = _facts(case.result)
    context["steps"] = steps
    context["env"] = case.env
    return context


def _facts(result: wire.StepResult) -> dict[str, Any]:
    return {
        "id": result.id,
        "status": result.status,
        "exit_code": result.exit_code,
        "duration_s": result.duration_s,
        "attempts": result.attempts,
    }


def _held(run: RunLayout, result: wire.StepResult) -> dict[str, Any]:
    """An earlier step's documents by kind. One that was changed since into something else is left out."""
    found = []
    for ref in result.documents:
        try:
            document = documents.load("%s/%s" % (run.folder, ref.path), ref.path)
        except documents.Malformed:
            continue
        if document is not None:
            found.append(document)
    return _merged(found)


def _merged(found: Any) -> dict[str, Any]:
    by_kind: dict[str, Any] = {}
    for document in found:
        kind = document["kind"]
        by_kind[kind] = documents.merge(by_kind[kind], document) if kind in by_kind else document
    return by_kind


def _names_host(specs: list[wire.GateSpec]) -> bool:
    return any(re.search(r"\b(host|environment)\b", "%s %s" % (spec.expr, spec.when or "")) for spec in specs)


def _probe(run: RunLayout, case: Case, gathered: documents.CollectedDocuments) -> Mapping[str, Any]:
    """No step probed the machine yet and a gate asks about it: do so now, and keep it as this step's document."""
    from fcctl_remote.probe.document import collect

    document: dict[str, Any] = collect()
    path = documents.store(document, case.env["FCCTL_OUT"], "environment")
    gathered.found.append((wire.DocumentRef("environment", run.relative(path)), document))
    return document


def _host_facts(gathered: documents.CollectedDocuments) -> dict[str, Any]:
    facts: dict[str, Any] = {}
    for ref, document in gathered.found:
        if ref.kind == "environment":
            facts.update({key: document[key] for key in HOST_FACTS if key in document})
    return facts
