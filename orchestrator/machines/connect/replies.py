"""Validates the host program's answers: their types with pydantic, and that they answer the question."""

from __future__ import annotations

import functools
import re
from collections.abc import Collection, Iterable, Sequence
from typing import Any, TypeVar, cast

from pydantic import TypeAdapter, ValidationError

from fcctl_remote import wire
from orchestrator.base import models
from orchestrator.base import run_id as run_ids
from orchestrator.base.errors import HostFault
from orchestrator.machines.connect.framing import in_range, nonsense
from orchestrator.machines.connect.transport import printable

T = TypeVar("T")
HEX64 = re.compile(r"[0-9a-f]{64}")
CODE = re.compile(r"[a-z][a-z_]{0,39}")


@functools.cache
def _adapter(shape: Any) -> TypeAdapter[Any]:
    return TypeAdapter(shape)


def prepare() -> None:
    """Builds the validators that nearly every session needs; the first one takes tens of milliseconds."""
    for shape in (wire.Hello, wire.TreeDiff, wire.Snapshot, wire.Submitted, wire.WatchReply, wire.FileList, dict):
        _adapter(shape)


def shaped(shape: type[T], value: Any) -> T:
    """``value`` as ``shape``, nothing coerced, its numbers and times in range. Raises HostFault."""
    from pydantic_core import to_json

    try:
        # Strict validation builds dataclasses from JSON only; from Python values it would want instances.
        return in_range(cast("T", _adapter(cast("Any", shape)).validate_json(to_json(value), strict=True)))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join([getattr(shape, "__name__", str(shape)), *map(str, first["loc"])])
        raise nonsense(printable(f"{where}: {models.reason(first)}", 300)) from None


def call_error(value: Any, method: str) -> HostFault:
    error = shaped(wire.CallError, value)
    return HostFault(
        printable(error.message) or f"the host program refused {method}",
        fault=error.code if CODE.fullmatch(error.code) else "internal",
        data=error.data,
        hint=printable(error.hint) if error.hint else None,
    )


def check_hello(hello: wire.Hello, runner_sha256: str) -> None:
    if hello.wire_version != wire.WIRE_VERSION or hello.runner_sha256 != runner_sha256:
        raise nonsense("the host program is not the one that fcctl sent")
    words = [hello.python, hello.platform, hello.hostname, hello.user, hello.home, hello.root, hello.boot_id]
    if len(hello.mended) > wire.MAX_MENDED:
        raise nonsense("its list of damaged files is too long")
    if not all(word.isprintable() for word in (*words, *hello.mended, *filter(None, hello.tools.values()))):
        raise nonsense("its description contains control characters")
    if not hello.root.startswith("/"):
        raise nonsense("its root is not an absolute path")


def check_diff(diff: wire.TreeDiff, paths: Collection[str]) -> None:
    known = paths if isinstance(paths, (set, frozenset)) else set(paths)
    if not set(diff.changed) <= known or len(set(diff.changed)) != len(diff.changed):
        raise nonsense("it requests files that fcctl did not offer")
    if not diff.root.startswith("/") or not diff.root.isprintable():
        raise nonsense("the path of the tree is not absolute")


def check_snapshot(snapshot: wire.Snapshot, tree_sha256: str) -> None:
    if snapshot.tree_sha256 != tree_sha256:
        raise nonsense("the reply is about another snapshot")


def check_bundle(state: wire.BundleState) -> None:
    if state.received < 0:
        raise nonsense("the size of the received libraries is negative")


def check_run(summary: wire.RunSummary, run_id: str | None) -> None:
    if not run_ids.is_valid(summary.run_id) or (run_id is not None and summary.run_id != run_id):
        raise nonsense("the reply is about another run")


def check_runs(summaries: Sequence[wire.RunSummary], requested: Iterable[str] | None) -> None:
    wanted = None if requested is None else set(requested)
    for summary in summaries:
        check_run(summary, None)
        if wanted is not None and summary.run_id not in wanted:
            raise nonsense("the reply contains a run that was not requested")


def check_watch(reply: wire.WatchReply, blob: bytes, request: wire.WatchRequest) -> None:
    check_run(reply.summary, request.run_id)
    if reply.events_offset < request.events_offset:
        raise nonsense("the offset of the events went backwards")
    if reply.log_offset < 0 or reply.log_size < 0:
        raise nonsense("the size of the log is negative")
    if blob and reply.log_step is None:
        raise nonsense("the reply has log bytes without a step")
    fixed = request.log_step not in (None, "@current") and not request.tail
    if blob and fixed and (reply.log_step, reply.log_offset) != (request.log_step, request.log_offset):
        raise nonsense("the reply has another part of the log than requested")


def check_files(files: wire.FileList) -> None:
    paths = [entry.path for entry in files.files]
    if len(set(paths)) != len(paths):
        raise nonsense("a file is listed twice")
    if any(entry.size < 0 or not HEX64.fullmatch(entry.sha256) for entry in files.files):
        raise nonsense("a file has an impossible size or hash")


def check_parts(parts: Sequence[wire.FilePart], blob: bytes, requested: Sequence[wire.FilePart]) -> None:
    same = [(p.path, p.offset) for p in parts] == [(p.path, p.offset) for p in requested]
    if not same or any(not 0 <= p.size <= a.size for p, a in zip(parts, requested, strict=True)):
        raise nonsense("the reply has other parts of files than requested")
    if sum(part.size for part in parts) != len(blob):
        raise nonsense("the sizes of the parts do not add up to the received bytes")
