"""The framing of :mod:`fcctl_remote.wire` over a process, with bounds, and the validation of answers: their types with
pydantic, and that they answer the question. The other end is not trusted. And source files in calls to the agent: one
for a few small files, several where rsync is not available."""

from __future__ import annotations

import functools
import json
import os
import re
import stat
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar, cast

from pydantic import TypeAdapter, ValidationError

from fcctl_remote import wire
from orchestrator.base import models
from orchestrator.base import run_id as run_ids
from orchestrator.base.clock import bounded
from orchestrator.base.errors import HostFault, LinkLost
from orchestrator.base.json_text import resident_bytes
from orchestrator.machines.connect.transport import Process, printable

T = TypeVar("T")

#: The limit of a login shell's output before the agent's first line.
MAX_NOISE_BYTES = 64 * 1024
CHUNK = 256 * 1024
#: A read that ends so much later than it should: this process was stopped, or its computer asleep, seconds.
STOPPED_S = 5.0
#: The memory limit of a frame; a list of 50,000 files takes half of it.
MAX_FRAME_MEMORY = 128 * 1024 * 1024
#: Fields of the wire's messages that are times, epoch seconds. Other floats are durations, seconds.
TIMES = frozenset(
    {"created", "started", "finished", "step_started", "heartbeat", "time", "deadline", "not_after"}
)  # fmt: skip
MOST_SECONDS = 1e10
#: The largest whole number that SQLite holds.
MOST = 2**63 - 1


class EndOfOutput(Exception):
    """The agent's output ended. Never leaves this package."""


class FrameStream:
    """Frames to and from an agent.

    Every method raises LinkLost after ``timeout_s`` of silence; HostFault for an invalid frame; EndOfOutput if nothing
    more can arrive; TimeoutError at :attr:`answer_by`, however much arrived until then.
    """

    def __init__(self, process: Process, timeout_s: float) -> None:
        self._process = process
        self._timeout_s = timeout_s
        self._buffer = bytearray()
        self._header: tuple[dict[str, Any], int] | None = None
        self._heard = time.monotonic()
        #: The deadline of the current answer, monotonic seconds.
        self.answer_by = float("inf")

    def write(self, message: dict[str, Any], blob: bytes | None = None) -> int:
        """Send one frame; returns its size in bytes."""
        if blob is not None:
            message = {**message, "blob": len(blob)}
        frame = json.dumps(message, separators=(",", ":")).encode() + b"\n" + (blob or b"")
        try:
            self._process.write(frame, self._timeout_s)
        except TimeoutError:
            raise silent(self._timeout_s) from None
        except OSError:
            raise EndOfOutput from None
        return len(frame)

    def skip_to_ready(self) -> None:
        """Skips what a login shell printed, up to the agent's first line."""
        mark = wire.READY.encode() + b"\n"
        while (position := self._buffer.find(mark)) < 0:
            if len(self._buffer) > MAX_NOISE_BYTES:
                raise HostFault(
                    f"the machine printed {len(self._buffer)} bytes instead of starting the host program",
                    fault="noise", hint="a startup file of the login shell (.bashrc, .zshenv, ...) prints too much; "
                    "make it print nothing",
                )  # fmt: skip
            self._fill()
        del self._buffer[: position + len(mark)]

    def read(self) -> tuple[dict[str, Any], bytes]:
        """The next frame, ticks included, and the bytes that belong to it."""
        if self._header is None:
            self._header = _parse(self._line())
        message, size = self._header
        while len(self._buffer) < size:
            self._fill()
        blob = bytes(memoryview(self._buffer)[:size]) if size else b""
        del self._buffer[:size]
        self._header = None
        return message, blob

    def idle(self, seconds: float) -> None:
        """Buffers what arrives for ``seconds``; notices a dead connection during an upload."""
        if len(self._buffer) < wire.MAX_FRAME_BYTES:
            try:
                self._fill(seconds)
            except TimeoutError:
                if time.monotonic() - self._heard > self._timeout_s:
                    raise silent(self._timeout_s) from None
        else:
            time.sleep(seconds)

    def _line(self) -> bytes:
        looked = 0
        while (end := self._buffer.find(b"\n", looked)) < 0:
            looked = len(self._buffer)
            if looked > wire.MAX_FRAME_BYTES:
                raise nonsense(f"a message is larger than {wire.MAX_FRAME_BYTES} bytes")
            self._fill()
        line = bytes(memoryview(self._buffer)[:end])
        del self._buffer[: end + 1]
        return line

    def _fill(self, wait_s: float | None = None) -> None:
        began = time.monotonic()
        left = self.answer_by - began
        if wait_s is None and left <= 0:
            raise TimeoutError
        patience_s = min(self._timeout_s, left) if wait_s is None else wait_s
        try:
            data = self._process.read(CHUNK, patience_s)
        except TimeoutError:
            if self._was_stopped(began, patience_s):
                return
            if wait_s is not None or left <= self._timeout_s:
                raise
            raise silent(self._timeout_s) from None
        except OSError:
            raise EndOfOutput from None
        self._was_stopped(began, patience_s)
        if not data:
            raise EndOfOutput
        self._heard = time.monotonic()
        self._buffer += data

    def _was_stopped(self, began: float, patience_s: float) -> bool:
        """Whether this process was stopped in a read: the answer, which may be here, has as much time as before it."""
        took_s = time.monotonic() - began
        is_late = took_s > patience_s + STOPPED_S
        self.answer_by += took_s if is_late else 0.0
        return is_late


def silent(seconds: float) -> LinkLost:
    return LinkLost(
        "the machine sent nothing more", cause=f"nothing arrived for {seconds:g} s",
        hint="a run on the machine continues without this connection; see it: fcctl ps; follow it: fcctl logs -f",
    )  # fmt: skip


def nonsense(what: str) -> HostFault:
    """The error for an answer that the host program would not give."""
    return HostFault(
        "the host program sent an invalid reply", fault="protocol", cause=what,
        hint="another program may have answered; check the connection: fcctl doctor",
    )  # fmt: skip


def _parse(line: bytes) -> tuple[dict[str, Any], int]:
    from pydantic_core import from_json  # bounds nesting, and is fast

    if resident_bytes(line) > MAX_FRAME_MEMORY:
        raise nonsense("a message needs too much memory")
    try:
        message = from_json(line, allow_inf_nan=False)
    except ValueError as error:
        raise nonsense(f"a message is not JSON ({error})") from None
    if not isinstance(message, dict):
        raise nonsense("a message is not a JSON object")
    size = message.get("blob", 0)
    if not isinstance(size, int) or isinstance(size, bool) or not 0 <= size <= wire.MAX_BLOB_BYTES:
        raise nonsense("a message has an impossible `blob` size")
    return message, size


def in_range(value: T) -> T:
    """``value``, a message or a list of them, changed in place: every number is in range and not NaN."""
    if isinstance(value, list):
        for one in value:
            in_range(one)
    elif isinstance(value, wire.Record):
        for name, item in vars(value).items():
            if isinstance(item, (list, wire.Record)):
                in_range(item)
            else:
                setattr(value, name, _number(type(value), name, item))
    return value


def _number(shape: type[wire.Record], name: str, value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return value
    if name in TIMES:
        return bounded(float(value))
    if isinstance(value, int):
        return max(-MOST, min(value, MOST))
    if shape is wire.GateResult:
        return value  # of a step's document
    return max(0.0, min(value, MOST_SECONDS)) if value == value else 0.0  # noqa: PLR0124 - NaN alone differs from itself


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


#: What goes into one call before rsync, which sends only the changed part of a file, is worth its start.
INLINE_BYTES = 256 * 1024
INLINE_FILES = 64
#: The most files in one of several calls.
MOST_FILES = 1000


@dataclass
class Batch:
    """The files of one ``tree_put``, and their contents concatenated."""

    files: list[wire.PutFile] = field(default_factory=list)
    content: bytearray = field(default_factory=bytearray)


def inline(source_root: Path, paths: Sequence[str], sizes: Mapping[str, int]) -> Batch | None:
    """All files in one batch; None if they are too many or too large."""
    if paths and len(paths) > INLINE_FILES:
        return None
    parts = batches(source_root, paths, sizes, INLINE_BYTES + 1)
    batch, more = next(parts, Batch()), next(parts, None)
    return batch if more is None and len(batch.content) <= INLINE_BYTES else None


def batches(
    source_root: Path, paths: Sequence[str], sizes: Mapping[str, int], most_bytes: int = wire.MAX_BLOB_BYTES
) -> Iterator[Batch]:
    """The current files, a large one in several parts.

    A file that grew since its hash was taken is sent with its earlier size from ``sizes``: that matches the hash of a
    log, such as ``fcctl run ... | tee run.log`` writes. A file that is gone or unreadable is left out. The snapshot's
    check reports any other change.
    """
    batch = Batch()
    for path in paths:
        for part, data in _parts(source_root, path, sizes.get(path), most_bytes):
            if len(batch.content) + len(data) > most_bytes or len(batch.files) == MOST_FILES:
                yield batch
                batch = Batch()
            batch.files.append(part)
            batch.content += data
    if batch.files:
        yield batch


def _parts(source_root: Path, path: str, size: int | None, most_bytes: int) -> Iterator[tuple[wire.PutFile, bytes]]:
    full = source_root / path
    try:
        facts = os.lstat(full)
        if stat.S_ISLNK(facts.st_mode):
            yield wire.PutFile(path, 0, facts.st_mtime, link=os.readlink(full)), b""  # noqa: PTH115 - the text as it is
            return
        # Follows no link, and does not wait for the other end of a pipe.
        stream = os.fdopen(os.open(full, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb")
    except OSError:
        return
    executable, offset = bool(facts.st_mode & 0o100), 0
    with stream:
        while True:
            left = most_bytes + 1 if size is None else size - offset
            data = stream.read(min(left, most_bytes))
            last = len(data) < most_bytes or len(data) == left
            yield wire.PutFile(path, len(data), facts.st_mtime, executable, offset=offset, last=last), data
            if last:
                return
            offset += len(data)
