"""Decides how a finished step ended: its documents, its gates, its status.

In a forked child (:func:`aside`): documents and readers may need far more memory and time than the supervisor allows
itself, and may crash.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from fcctl_remote import gates, wire
from fcctl_remote.base import files
from fcctl_remote.base.layout import RunLayout
from fcctl_remote.base.processes import KILL_PATIENCE_S, kill_family, send
from fcctl_remote.base.strict_json import parse_json, to_strict_json
from fcctl_remote.base.text import one_line
from fcctl_remote.record import Record, field
from fcctl_remote.run import documents, hints
from fcctl_remote.run.process import Signals, exit_code

#: What the outcome keeps of an environment document.
HOST_FACTS = ("gpu", "cuda", "ncu", "torch", "compiler", "os", "cpu", "summary")
#: Of each: ours has some hundred, bytes.
MAX_FACT_BYTES = 64 * 1024


class Case(Record):
    """What the verdict on a step depends on."""

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
    collected = documents.Collector(run, case.spec, case.env)
    collected.take_written()
    succeeded = case.result.status in ("passed", "warned")
    if succeeded:
        collected.read_files()
    elif case.result.status == "failed":
        # Which test failed stands in what the test program left. What cannot be read changes nothing any more.
        reports = documents.Collector(run, case.spec, case.env)
        reports.read_files()
        collected.documents += reports.documents
    verdict = StepVerdict(case.result.status, case.result.message, case.result.hint)
    decides = (
        succeeded or case.result.status == "unavailable" or (case.result.status == "failed" and collected.documents)
    )
    if case.spec.gates and decides:
        verdict.gates = _gates(case, collected)
    verdict.documents = [ref for ref, _ in collected.documents]
    verdict.host = _host_facts(collected)
    if succeeded:
        _decide(case.spec, collected, verdict)
    return verdict


def _decide(spec: wire.StepSpec, collected: documents.Collector, verdict: StepVerdict) -> None:
    failed = [gate for gate in verdict.gates if gate.verdict == "fail"]
    required = [gate for gate, given in zip(verdict.gates, spec.gates) if not given.optional]  # noqa: B905
    undecided = [gate for gate in required if gate.verdict == "unavailable"]
    if collected.faults:
        verdict.status, verdict.message = "failed", one_line("; ".join(collected.faults), 2000)
        verdict.hint = collected.hint
    elif failed:
        verdict.status = "failed"
        verdict.message = "gate failed: " + "; ".join(_gate_text(gate) for gate in failed)
        verdict.hint = failed[0].hint
    elif collected.unavailable:
        verdict.status, verdict.message = "unavailable", one_line("; ".join(collected.unavailable), 2000)
        verdict.hint = collected.hint
    elif undecided:
        verdict.status = "unavailable"
        verdict.message = "gate without a value: " + "; ".join(_gate_text(gate) for gate in undecided)
        verdict.hint = undecided[0].hint
    elif collected.nothing and not collected.documents and not verdict.message:
        verdict.message = "no measured values: " + collected.nothing


def _gate_text(gate: wire.GateResult) -> str:
    value = "%g" % gate.value if isinstance(gate.value, float) else gate.value
    return one_line(gate.expr if value is None else "%s (%s)" % (gate.expr, value), 300)


def _gates(case: Case, collected: documents.Collector) -> list[wire.GateResult]:
    """The verdicts. Of a step that the machine could not run, the gates that apply are undecided."""
    from fcctl_remote.gates.evaluate import evaluate

    result, context = case.result, _context(case, collected)
    decisions = [evaluate(spec, context) for spec in case.spec.gates]
    for spec, decided in zip(case.spec.gates, decisions):  # noqa: B905
        if result.status == "unavailable" and decided.verdict != "not_applicable":
            why = one_line((result.message or "the step did not run").split("\n", 1)[0], 300)
            decided.verdict, decided.value, decided.optional = "unavailable", None, spec.optional
            decided.hint = "; ".join([why, result.hint or gates.FIX])
        elif decided.verdict == "fail" and decided.hint is None:
            decided.hint = hints.for_gate(spec.expr)
        elif decided.verdict == "unavailable":
            decided.optional = spec.optional or case.spec.optional
            if spec.hint is None and not decided.optional and result.status != "failed":
                decided.hint = "%s; %s" % (decided.hint, collected.hint or gates.FIX)
    return decisions


def _context(case: Case, collected: documents.Collector) -> dict[str, Any]:
    """What a gate may name: documents by kind, ``steps.ID``, ``host``, ``step``, ``env``."""
    by_kind: dict[str, Any] = {}
    steps: dict[str, Any] = {}
    for finished in case.adopted:
        kinds = _documents_of(collected.run, finished.result)
        steps[finished.result.id] = {**_facts(finished.result), **kinds}
        kinds.pop("environment", None)  # of the machine where that step ran
        by_kind.update(kinds)
    for earlier in case.earlier:
        kinds = _documents_of(collected.run, earlier)
        by_kind.update(kinds)
        steps[earlier.id] = {**_facts(earlier), **kinds}
    own = documents.by_kind(document for _, document in collected.documents)
    by_kind.update(own)
    steps[case.result.id] = {**_facts(case.result), **own}
    if "environment" not in by_kind and _names_host(case.spec.gates):
        by_kind["environment"] = _probe(collected)
    context: dict[str, Any] = dict(by_kind)
    context["host"] = by_kind.get("environment", {})
    context["step"] = _facts(case.result)
    context["steps"] = steps
    context["env"] = case.env
    return context


def _facts(result: wire.StepResult) -> dict[str, Any]:
    return {name: getattr(result, name) for name in ("id", "status", "exit_code", "duration_s", "attempts")}


def _documents_of(run: RunLayout, result: wire.StepResult) -> dict[str, Any]:
    """An earlier step's documents by kind. One that was changed since into something else is left out."""
    loaded = []
    for ref in result.documents:
        try:
            document = documents.load("%s/%s" % (run.folder, ref.path), ref.path)
        except documents.Malformed:
            continue
        if document is not None:
            loaded.append(document)
    return documents.by_kind(loaded)


def _names_host(specs: list[wire.GateSpec]) -> bool:
    return any(re.search(r"\b(host|environment)\b", "%s %s" % (spec.expr, spec.when or "")) for spec in specs)


def _probe(collected: documents.Collector) -> Mapping[str, Any]:
    """No step probed the machine yet and a gate asks about it: do so now, and keep it as this step's document."""
    from fcctl_remote.probe.document import collect

    document: dict[str, Any] = collect()
    collected.add(document, "environment")
    return document


def _host_facts(collected: documents.Collector) -> dict[str, Any]:
    facts: dict[str, Any] = {}
    for ref, document in collected.documents:
        if ref.kind == "environment":
            facts.update({key: document[key] for key in HOST_FACTS if key in document and _is_fact(document[key])})
    return facts


def _is_fact(value: Any) -> bool:
    """Whether the outcome can carry ``value``, which a step may have made up, and still be read."""
    try:
        data = to_strict_json(value)
        parse_json(data)
    except ValueError:
        return False
    return len(data) <= MAX_FACT_BYTES


MAX_ANSWER_BYTES = 8 * 1024 * 1024


class Answer(Record):
    value: Any = None
    fault: str | None = None  # why there is no value
    stopped: str | None = None  # the reason ``stop`` gave


def aside(
    work: Callable[[], Any],
    signals: Signals,
    timeout_s: float,
    stop: Callable[[], str | None],
    idle: Callable[[], None],
    close: Iterable[int] = (),
) -> Answer:
    """Run ``work`` in a child and return its JSON value. ``close`` names descriptors the child must not hold."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        _child(work, write, [read, *close])
    os.close(write)
    answer = Answer()
    pieces = bytearray()
    deadline = time.monotonic() + timeout_s
    try:
        while True:
            answer.stopped = stop()
            if answer.stopped is not None:
                break
            if time.monotonic() > deadline:
                answer.fault = "reading the step's documents and gates took longer than %.0f s" % timeout_s
                break
            if signals.wait(0.2, also=read):
                block = os.read(read, 65536)
                if not block:
                    break
                pieces += block
            idle()
    finally:
        os.close(read)
        if answer.stopped or answer.fault:
            send(pid, signal.SIGSTOP)  # it starts no more programs; each has a session of its own
            kill_family(ancestor=pid)
            send(pid, signal.SIGKILL, group=True)
            send(pid, signal.SIGKILL)
            deadline = time.monotonic() + KILL_PATIENCE_S
            while os.waitpid(pid, os.WNOHANG)[0] == 0 and time.monotonic() < deadline:
                time.sleep(0.01)
    status = 0 if answer.stopped or answer.fault else os.waitpid(pid, 0)[1]
    return _read(answer, bytes(pieces), status)


def _read(answer: Answer, data: bytes, status: int) -> Answer:
    if answer.stopped or answer.fault:
        return answer
    try:
        reply = json.loads(data)
    except ValueError:
        answer.fault = "reading the step's documents and gates ended with exit code %d" % exit_code(status)
        return answer
    answer.value, answer.fault = reply.get("value"), reply.get("fault")
    return answer


def _child(work: Callable[[], Any], write: int, close: Iterable[int]) -> None:
    """Never returns: whatever happens, the child ends here."""
    code = 1
    try:
        os.setsid()
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        for fd in close:
            os.close(fd)
        try:
            data = to_strict_json({"value": work()})
            if len(data) > MAX_ANSWER_BYTES:
                data = files.to_json({"fault": "the step has too many gates and documents to report"})
        except Exception as error:  # noqa: BLE001 - the fault must reach the supervisor, whatever it is
            import traceback

            traceback.print_exc()
            data = files.to_json({"fault": "%s: %s" % (type(error).__name__, one_line(str(error)))})
        with contextlib.suppress(BrokenPipeError):
            files.write_all(write, data)
        code = 0
    finally:
        os._exit(code)
