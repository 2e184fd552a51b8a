"""A trial's commands and its build: the engine submits :func:`build`, a worker runs it.

Kernels run only in processes of ``trial.process``: a worker outlives its trials, and any fault of a trial is a result.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import threading
import time
from dataclasses import dataclass, field
from typing import Any, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple, Union

from fcctl_remote.base import files
from fcctl_remote.base.text import last_lines, tail
from fcctl_remote.base.tree import remove_tree
from fcctl_remote.gates import evaluate as gates
from fcctl_tune.errors import Failed, SpecError, is_of_machine
from fcctl_tune.search.records import Trial
from fcctl_tune.search.space import Space
from fcctl_tune.search.spec import Spec, Stage
from fcctl_tune.trial import folder, process
from fcctl_tune.trial.folder import SourceDirectory, TrialDirectory, beside
from fcctl_tune.trial.process import Outcome

#: Names the files of the source that checks overwrite.
OUTPUTS = "outputs.json"
#: An error line of a compiler, an assembler or a linker.
ERROR = re.compile(rb"(?i)(?:^|[\s:)])(?:error|fatal)(?:\[\w+\]|\s+#?[\w-]+)?\s*:|undefined (?:reference|symbol)")
SHARED_CHANGED = (
    "the command changed %s, which all trials share (like all programs and large files): write a new file instead"
)
OUTPUT_LEFT = (
    "the check left %s as it is in the source, although the default's check writes it: an older output could pass; "
    "write it in every check, or delete it from the source"
)
#: Of the folders for builds; others are built again.
LAYOUT = 2
SPACE_TIMEOUT_S = 300.0
#: The state if a command succeeds and its files cannot be read.
UNREADABLE = {"build": "build_failed", "check": "wrong", "bench": "bench_failed"}
#: Files of a source that are compared, at most.
MAX_SOURCES = 20_000


@dataclass(frozen=True)
class TrialSpec(Spec):
    """How this search builds, checks and times, without its space; sent with each call.

    ``folder`` is for builds and logs, ``source`` identifies the content, ``hidden`` folders are the search's own.
    """

    cwd: str = ""
    folder: str = ""
    source: str = ""
    hidden: Tuple[str, ...] = field(default=(), compare=False)
    seed: int = 1  # of the inputs that trials see

    @classmethod
    def of(
        cls, spec: Spec, cwd: str, folder: str, source: str = "", hidden: Tuple[str, ...] = (), seed: int = 0
    ) -> TrialSpec:
        """``seed`` is the search's."""
        given = {**vars(spec), "space": None, "entry": {}}
        return cls(**given, cwd=cwd, folder=folder, source=source, hidden=hidden, seed=1 + seed)

    @property
    def checks_by_command(self) -> bool:
        """Whether each check is a process."""
        return self.check is not None and not self.serve

    def out(self, params: Mapping[str, str]) -> str:
        """The folder of a configuration, by all that its build depends on."""
        identity = [
            LAYOUT,
            self.build.run if self.build else "",
            sorted(self.env.items()),
            sorted(params.items()),
            self.source,
        ]
        digest = hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:20]
        return os.path.join(self.folder, "builds", digest)

    def environment(self, trial: Trial, **more: object) -> Dict[str, str]:
        env = process.clean_environment(os.environ)
        env.update(self.env)
        env.update(trial.environment)
        out = self.out(trial.environment)
        env.update({"TUNE_OUT": out, "FCCTL_OUT": out, "TUNE_TRIAL": str(trial.number)})
        env.update({name: str(value) for name, value in more.items()})
        return env

    @contextlib.contextmanager
    def directory(
        self, trial: Trial, phase: str, patterns: Sequence[str]
    ) -> Iterator[Union[TrialDirectory, SourceDirectory]]:
        """The directory of a command that writes the files ``patterns``: one at a time if others write them, too.
        Raises Failed: it cannot be made, or the command changed a shared file; OSError: a fault of the machine."""
        if self.serve:
            yield SourceDirectory(self.cwd)
            return
        with contextlib.ExitStack() as ending:
            if not all(map(folder.is_own, patterns)):
                ending.enter_context(files.locked(os.path.join(self.folder, phase + ".lock")))
            try:
                directory = ending.enter_context(
                    TrialDirectory(self.out(trial.environment), self.cwd, {self.folder, *self.hidden})
                )
            except OSError as error:
                if is_of_machine(error):
                    raise
                raise Failed(UNREADABLE[phase], "its folder cannot be created: %s" % error) from None
            try:
                yield directory
            except Failed as failed:
                for name in directory.changed_shared_files():
                    raise Failed(failed.state, "%s; %s" % (SHARED_CHANGED % name, failed.reason)) from None
                raise
            for name in directory.changed_shared_files():
                raise Failed(UNREADABLE[phase], SHARED_CHANGED % name)

    def judge_outputs(self, trial: Trial, case: str, rewritten: Sequence[str]) -> None:
        """The default's check of a case shows which source files a check overwrites. Each other trial's check must
        overwrite the same files: otherwise what is read as its output is the file from before. Raises: Failed."""
        path = os.path.join(self.folder, OUTPUTS)
        known = files.read_object(path) or {}
        if trial.number == 0:
            known[case] = [name for name in rewritten if os.path.lexists(os.path.join(self.cwd, name))]
            files.write_atomic(path, files.to_json(known), durable=False)
        left = [name for name in known.get(case, ()) if name not in rewritten]
        if left:
            raise Failed("wrong", OUTPUT_LEFT % left[0])

    def log(self, trial: Trial, phase: str) -> str:
        return os.path.join(self.folder, "logs", "%d-%s.log" % (trial.number, phase))


@dataclass(frozen=True)
class Built:
    state: str  # "", build_failed, gate_failed, crashed or hung
    reason: str = ""
    seconds: float = 0.0
    cached: bool = False


def listing(trial_spec: TrialSpec, command: str) -> Any:
    """The JSON that a spec's space command prints. Raises: SpecError."""
    env = {**process.clean_environment(os.environ), **trial_spec.env}
    log, listed = os.path.join(trial_spec.folder, "logs", "space.log"), os.path.join(trial_spec.folder, "space.json")
    env["TUNE_LISTING"] = listed
    outcome = process.run('exec >"$TUNE_LISTING"\n' + command, env, trial_spec.cwd, log, SPACE_TIMEOUT_S)
    if outcome.reason is not None:
        raise SpecError("space", "%s: %s" % (command, explained(outcome, log)))
    try:
        with open(listed, encoding="utf-8") as stream:
            return json.load(stream)
    except (OSError, ValueError, RecursionError) as error:
        raise SpecError("space", "%s did not print JSON: %s" % (command, error)) from None


def build(trial_spec: TrialSpec, trial: Trial) -> Built:
    """Compile into the trial's folder and evaluate the gates, or reuse another process's build."""
    started = time.monotonic()
    out = trial_spec.out(trial.environment)
    os.makedirs(os.path.dirname(out), exist_ok=True)
    with files.locked(out + ".lock", trial_spec.timeouts.build + 60.0):
        return _build(trial_spec, trial, out, started)


def build_default_soon(trial_spec: TrialSpec, space: Space) -> None:
    """Start the default's build, for which all timings wait, in a thread."""

    def begin() -> None:
        with contextlib.suppress(OSError):
            build(trial_spec, Trial(0, space.default))

    threading.Thread(target=begin, daemon=True).start()


def _build(trial_spec: TrialSpec, trial: Trial, out: str, started: float) -> Built:
    known = files.read_object(os.path.join(out, folder.BUILT))
    if known is not None and known.get("state") in ("", "gate_failed"):
        return Built(known["state"], str(known.get("reason", "")), time.monotonic() - started, cached=True)
    remove_tree(out)
    remove_tree(beside(out).made)
    os.makedirs(out)
    try:
        if trial_spec.build is not None:
            carry_out(trial_spec, trial, "build", trial_spec.build, trial_spec.timeouts.build)
        state, reason = "", ""
    except Failed as failed:
        state, reason = failed.state, failed.reason
    if state in ("", "gate_failed"):
        entry = files.to_json({"state": state, "reason": reason, "params": dict(trial.environment)})
        files.write_atomic(os.path.join(out, folder.BUILT), entry, durable=False)
    return Built(state, reason, time.monotonic() - started)


def carry_out(
    trial_spec: TrialSpec, trial: Trial, phase: str, stage: Stage, timeout_s: float, **more: object
) -> List[str]:
    """Run a trial's command, read its documents and evaluate its gates; returns the files of its directory that a check
    overwrote. Raises: Failed; OSError, for the machine's fault."""
    env = trial_spec.environment(trial, **more)
    log = trial_spec.log(trial, phase)
    yields = phase == "build" and trial.number > 0  # to timings, and to the default's build
    with trial_spec.directory(trial, phase, [spec.file for spec in stage.collect]) as directory:
        if phase == "check":
            folder.forget([spec.file for spec in stage.collect], env, directory.path)
        outcome = process.run(stage.run, env, directory.path, log, timeout_s, yields)
        if outcome.reason is not None:
            raise Failed(state_of(phase, outcome), explained(outcome, log, env["TUNE_OUT"], phase == "build"))
        try:
            _evaluate_gates(stage, phase, trial, env, directory.path, log)
        finally:
            if phase == "build":
                _keep(directory)
        rewritten = sorted(directory.rewritten()) if phase == "check" else []
    if phase != "build":
        process.drop_log(log)
    return rewritten


def _keep(directory: Union[TrialDirectory, SourceDirectory]) -> None:
    try:
        directory.keep()
    except OSError as error:
        if is_of_machine(error):
            raise
        raise Failed("build_failed", "its files cannot be kept: %s" % error) from None


def _evaluate_gates(stage: Stage, phase: str, trial: Trial, env: Mapping[str, str], directory: str, log: str) -> None:
    """Raises: Failed, if a gate on the command's documents does not pass."""
    if not (stage.gates or stage.collect):
        return
    try:
        context = folder.gathered(stage, env, directory, log)
    except Failed as failed:
        raise Failed(UNREADABLE[phase], failed.reason) from None
    for spec in stage.gates:
        verdict = gates.evaluate(spec, {**context, "params": dict(trial.params), "env": env})
        if verdict.verdict in ("fail", "unavailable"):
            is_decided = verdict.verdict == "fail"  # else its documents are missing
            state = "gate_failed" if is_decided and phase == "build" else UNREADABLE[phase]
            raise Failed(state, "%s: %s" % (spec.expr, verdict.value if is_decided else verdict.hint))


#: ``bash: line 1:  7911 Aborted``.
PROCESS = re.compile(r"(: line \d+:)\s+\d+ ")


def state_of(phase: str, outcome: Outcome) -> str:
    if outcome.how == "timed_out":
        return "hung" if phase != "build" else "build_failed"
    if phase == "build":
        return "build_failed"
    if outcome.how != "exited" or process.crashed(outcome.exit_code):
        return "crashed"
    return "wrong" if phase == "check" else "bench_failed"


def explained(outcome: Outcome, log: str, out: str = "", compiles: bool = False) -> str:
    """Why a command failed, with its last lines, or the first errors if it ``compiles``.

    Without numbers of processes and the folder ``out``: the same failure has the same text in all trials.
    """
    end = tail(log, (256 if compiles else 16) * 1024)
    errors = [line for line in end.splitlines() if ERROR.search(line)] if compiles else []
    output = last_lines(b"\n".join(errors[:3]) or end, lines=3)
    if out:
        for place in beside(out):
            output = output.replace(place + os.sep, "")
        output = output.replace(out, "$TUNE_OUT")
    output = PROCESS.sub(r"\1 ", output)
    return "%s: %s" % (outcome.reason, output) if output else str(outcome.reason)


def source_identity(cwd: str, skip: Sequence[str], record: str) -> str:
    """A hash of the source in ``cwd``, kept in the file ``record`` until a file is changed or removed. New files, which
    builds leave, hidden folders and those in ``skip`` do not count."""
    known = files.read_object(record)
    if known is not None and all(_facts(os.path.join(cwd, name)) == facts for name, facts in known["files"].items()):
        return str(known["identity"])
    listing = dict(_listing(cwd, skip))
    identity = hashlib.sha256(files.to_json(listing)).hexdigest()
    files.write_atomic(record, files.to_json({"identity": identity, "files": listing}), durable=False)
    return identity


def _listing(cwd: str, skip: Sequence[str]) -> Iterator[Tuple[str, List[int]]]:
    remaining = MAX_SOURCES
    for place, folders, names in os.walk(cwd):
        folders[:] = sorted(
            f for f in folders if not f.startswith(".") and f != "__pycache__" and os.path.join(place, f) not in skip
        )
        for name in sorted(names):
            path = os.path.join(place, name)
            facts = _facts(path)
            if facts is not None and remaining:
                remaining -= 1
                yield os.path.relpath(path, cwd).encode("utf-8", "replace").decode(), facts


def _facts(path: str) -> Optional[List[int]]:
    try:
        status = os.lstat(path)
    except OSError:
        return None
    return [status.st_size, status.st_mtime_ns]
