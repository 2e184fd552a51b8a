"""The conversation with the host program's agent: one client for every transport."""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from fcctl_remote import wire
from orchestrator.base.errors import FcctlError, LinkLost
from orchestrator.machines.connect import framing
from orchestrator.machines.connect.framing import Batch, EndOfOutput, FrameStream, batches, inline, nonsense
from orchestrator.machines.connect.transport import Process, Transport
from orchestrator.machines.interfaces import Sent, Transfer, unheard

T = TypeVar("T")

#: The limit of a call while the agent sends ticks, seconds; ``watch`` adds its waiting time.
CALL_LIMIT_S = 900.0
#: The same for quick queries.
HELLO_LIMIT_S = 60.0
QUESTION_LIMIT_S = {"status": 20.0, "cancel": 20.0, "forget": 120.0, "lease": 120.0}
WATCH_MARGIN_S = 20.0
#: Concurrent calls of one ``fetch``, and the most parts in one of them.
FETCH_DEPTH = 4
FETCH_PARTS = 400
#: From the end of a program's output until its exit status is known, on a busy machine, seconds.
_EXIT_S = 2.0


@dataclass
class _Pending:
    method: str
    size: int
    wanted: bool = True  # False if the answer is to be dropped


class AgentSession:
    """A :class:`~orchestrator.machines.interfaces.HostSession`. For one thread at a time."""

    def __init__(self, transport: Transport, process: Process, runner_sha256: str, timeout_s: float) -> None:
        self._transport = transport
        self._process = process
        #: Sizes of the files of the last comparison, when they were hashed.
        self._sizes: dict[str, int] = {}
        self._frames = FrameStream(process, timeout_s)
        self._runner_sha256 = runner_sha256
        self._rsync_error = ""
        self._pending: dict[int, _Pending] = {}
        self._early: dict[int, tuple[dict[str, Any], bytes]] = {}
        self._next_id = 1
        self._broken: FcctlError | None = None
        self.hello: wire.Hello

    # ---------------------------------------------------------------------------------------- opening
    def greet(self) -> None:
        """Wait for the agent and learn about its machine. Raises EndOfOutput if the program ended instead."""
        ident = self._write("hello", {}, None)
        framing.prepare()  # while the other end starts its Python
        self._frames.answer_by = time.monotonic() + HELLO_LIMIT_S
        try:
            self._frames.skip_to_ready()
        except TimeoutError:
            raise nonsense(f"the host program did not start within {HELLO_LIMIT_S:g} s") from None
        message, _ = self._reply(ident, HELLO_LIMIT_S)
        hello = framing.shaped(wire.Hello, _result(message, "hello"))
        framing.check_hello(hello, self._runner_sha256)
        self.hello = hello

    # ---------------------------------------------------------------------------------------- the source's tree
    def tree_diff(self, workspace: str, entries: Sequence[wire.TreeEntry]) -> wire.TreeDiff:
        sizes = {entry.path: entry.size for entry in entries}
        check = lambda diff: framing.check_diff(diff, sizes.keys())  # noqa: E731
        diff, _ = self._call("tree_diff", {"workspace": workspace}, wire.TreeDiff, check, blob=_entries(entries))
        self._sizes = sizes
        return diff

    def send(
        self, workspace: str, tree_root: str, source_root: Path, paths: Sequence[str], sent: Sent = unheard
    ) -> Transfer:
        self._usable()
        began = time.monotonic()
        batch = inline(source_root, paths, self._sizes)
        if batch is not None:
            how = "inline" if batch.files else "none"
            files, size = self._put(workspace, [batch], sent)
        elif self._rsync(tree_root, source_root, paths, sent):
            how, files = "rsync", len(paths)
            size = sum(self._sizes.get(path, 0) for path in paths)
        else:
            how = "calls"
            files, size = self._put(workspace, batches(source_root, paths, self._sizes), sent)
        return Transfer(files, size, time.monotonic() - began, how, self._rsync_error)

    def _put(self, workspace: str, parts: Iterable[Batch], sent: Sent) -> tuple[int, int]:
        """How many files and bytes were sent, each batch in a call of its own."""
        files = size = 0
        for batch in parts:
            if batch.files:
                params = {"workspace": workspace, "files": wire.encode(batch.files)}
                self._call("tree_put", params, dict, blob=bytes(batch.content))
                files += sum(file.last for file in batch.files)
                size += len(batch.content)
                sent(len(batch.content))
        return files, size

    def _rsync(self, tree_root: str, source_root: Path, paths: Sequence[str], sent: Sent) -> bool:
        """Whether rsync brought the files there. Where it has failed it is not tried again. Raises LinkLost: the link
        broke or fell silent meanwhile."""
        from orchestrator.machines.connect import rsync

        program = self.hello.tools.get("rsync")
        if self._rsync_error or not (program and rsync.local_program()):
            return False
        files = rsync.FileSet(source_root, paths, tree_root)
        try:
            with self._fatal():
                rsync.send(self._transport, program, files, self._frames.idle, sent)
        except rsync.RsyncFailed as error:
            if not self._transport.alive():
                raise self._break(
                    LinkLost("the connection broke during the upload", hint="run the command again")
                ) from None
            self._rsync_error = str(error)  # an incompatible rsync, for instance
            return False
        return True

    def snapshot(
        self, workspace: str, run_id: str, entries: Sequence[wire.TreeEntry], tree_sha256: str
    ) -> wire.Snapshot:
        params = {"workspace": workspace, "run_id": run_id, "tree_sha256": tree_sha256}
        check = lambda snapshot: framing.check_snapshot(snapshot, tree_sha256)  # noqa: E731
        return self._call("snapshot", params, wire.Snapshot, check, blob=_entries(entries))[0]

    def bundle(self, sha256: str, size: int, offset: int, data: bytes) -> wire.BundleState:
        params = {"sha256": sha256, "size": size, "offset": offset}
        return self._call("bundle", params, wire.BundleState, framing.check_bundle, blob=data or None)[0]

    # ---------------------------------------------------------------------------------------- runs
    def submit(self, plan: wire.RunPlan, secrets: Mapping[str, str]) -> wire.Submitted:
        params = {"plan": wire.encode(plan), **({"secrets": dict(secrets)} if secrets else {})}
        check = lambda submitted: framing.check_run(submitted.summary, plan.run_id)  # noqa: E731
        return self._call("submit", params, wire.Submitted, check)[0]

    def watch(self, request: wire.WatchRequest) -> tuple[wire.WatchReply, bytes]:
        limit = request.wait_s + WATCH_MARGIN_S
        reply, blob = self._call("watch", wire.encode(request), wire.WatchReply, limit_s=limit)
        with self._fatal():
            framing.check_watch(reply, blob, request)
        return reply, blob

    def status(self, run_ids: Sequence[str] | None = None) -> list[wire.RunSummary]:
        wanted_ids = None if run_ids is None else list(run_ids)
        answer, _ = self._call("status", {"run_ids": wanted_ids}, dict)
        with self._fatal():
            runs = framing.shaped(list[wire.RunSummary], answer.get("runs"))
            framing.check_runs(runs, wanted_ids)
        return runs

    def cancel(self, run_id: str, reason: str, status: str = "cancelled", grace_s: float = 10.0) -> wire.RunSummary:
        params = {"run_id": run_id, "reason": reason, "status": status, "grace_s": grace_s}
        return self._call("cancel", params, wire.RunSummary, lambda summary: framing.check_run(summary, run_id))[0]

    def forget(self, run_id: str) -> None:
        self._call("forget", {"run_id": run_id}, dict)

    # ---------------------------------------------------------------------------------------- results
    def files(self, run_id: str) -> wire.FileList:
        return self._call("files", {"run_id": run_id}, wire.FileList, framing.check_files)[0]

    def fetch(self, run_id: str, parts: Sequence[wire.FilePart]) -> Iterator[tuple[wire.FilePart, bytes]]:
        calls = _batches(parts)
        under_way: deque[tuple[int, list[wire.FilePart]]] = deque()
        upcoming = next(calls, None)
        try:
            while upcoming or under_way:
                while upcoming and self._has_room(len(under_way)):
                    params = {"run_id": run_id, "parts": wire.encode(upcoming)}
                    under_way.append((self._start("fetch", params, None), upcoming))
                    upcoming = next(calls, None)
                ident, batch = under_way.popleft()
                yield from self._fetched(ident, batch)
        finally:
            for ident, _ in under_way:
                self._abandon(ident)

    # ---------------------------------------------------------------------------------------- the machine
    def lease(self, request: wire.LeaseRequest) -> wire.Lease:
        return self._call("lease", wire.encode(request), wire.Lease)[0]

    def probe(self, env: Mapping[str, str]) -> dict[str, Any]:
        answer, _ = self._call("probe", {"env": dict(env)}, dict)
        if not isinstance(answer.get("document"), dict) or answer.get("exit_code") not in (0, 1, 2):
            raise self._break(nonsense("the reply to `probe` has no document"))
        return answer

    def close(self) -> None:
        self._broken = self._broken or LinkLost("the connection was closed", hint="run the command again")
        self._process.close()
        self._transport.close()

    # ---------------------------------------------------------------------------------------- calls
    def _call(
        self,
        method: str,
        params: dict[str, Any],
        shape: type[T],
        check: Callable[[T], object] = lambda _answer: None,
        *,
        blob: bytes | None = None,
        limit_s: float | None = None,
    ) -> tuple[T, bytes]:
        """The answer, which ``check`` accepts, and the bytes that belong to it."""
        ident = self._start(method, params, blob)
        message, data = self._finish(ident, limit_s or QUESTION_LIMIT_S.get(method, CALL_LIMIT_S))
        result = _result(message, method)
        with self._fatal():
            answer = framing.shaped(shape, result)
            check(answer)
        return answer, data

    def _start(self, method: str, params: dict[str, Any], blob: bytes | None) -> int:
        self._usable()
        # Interrupted in the middle of a frame, the stream is no longer usable.
        interrupted = LinkLost("the connection was interrupted", hint="run the command again")
        with self._fatal(lambda: self._break(interrupted)):
            return self._write(method, params, blob)

    def _write(self, method: str, params: dict[str, Any], blob: bytes | None) -> int:
        ident, self._next_id = self._next_id, self._next_id + 1
        pending = self._pending[ident] = _Pending(method, 0)
        pending.size = self._frames.write({"id": ident, "method": method, "params": params}, blob)
        return ident

    def _finish(self, ident: int, limit_s: float = CALL_LIMIT_S) -> tuple[dict[str, Any], bytes]:
        # After Ctrl-C while waiting, the session stays usable and the answer is dropped.
        with self._fatal(lambda: self._abandon(ident)):
            return self._reply(ident, limit_s)

    def _reply(self, ident: int, limit_s: float = CALL_LIMIT_S) -> tuple[dict[str, Any], bytes]:
        """The answer to call ``ident``; answers to other calls are kept for those who wait for them."""
        self._frames.answer_by = time.monotonic() + limit_s
        while ident not in self._early:
            try:
                message, blob = self._frames.read()
            except TimeoutError:
                raise nonsense(f"no answer to {self._pending[ident].method} within {limit_s:g} s") from None
            if "tick" in message:
                continue
            answered = message.get("id")
            if type(answered) is not int or answered not in self._pending:
                raise nonsense("the reply has the number of no open call")
            pending = self._pending.pop(answered)
            if pending.wanted:
                self._early[answered] = (message, blob)
        return self._early.pop(ident)

    def _abandon(self, ident: int) -> None:
        self._early.pop(ident, None)
        if ident in self._pending:
            self._pending[ident].wanted = False

    def _has_room(self, under_way: int) -> bool:
        """Whether another call can be sent without risking that both ends wait for the other to read."""
        unread = sum(pending.size for pending in self._pending.values())
        return under_way == 0 or (under_way < FETCH_DEPTH and unread < self._process.write_ahead)

    def _fetched(self, ident: int, requested: list[wire.FilePart]) -> Iterator[tuple[wire.FilePart, bytes]]:
        message, blob = self._finish(ident)
        with self._fatal():
            answer = framing.shaped(dict, _result(message, "fetch"))
            parts = framing.shaped(list[wire.FilePart], answer.get("parts"))
            framing.check_parts(parts, blob, requested)
        view, at = memoryview(blob), 0
        for part in parts:
            yield part, bytes(view[at : at + part.size])
            at += part.size

    # ---------------------------------------------------------------------------------------- trouble
    @contextmanager
    def _fatal(self, interrupted: Callable[[], object] = lambda: None) -> Iterator[None]:
        """The session is over after an error here; ``interrupted`` decides what follows from Ctrl-C."""
        try:
            yield
        except FcctlError as error:
            raise self._break(error) from None
        except EndOfOutput:
            raise self._break(self._lost()) from None
        except BaseException:
            interrupted()
            raise

    def _usable(self) -> None:
        if self._broken:
            raise self._broken

    def _break(self, error: FcctlError) -> FcctlError:
        self._broken = self._broken or error
        return error

    def _lost(self) -> LinkLost:
        status = self._process.wait(_EXIT_S)  # its output has ended, so it has, or is just about to
        stderr = self._process.stderr()
        why = "the host program ended" + (f" with exit code {status}" if status is not None else "")
        return LinkLost(
            "the connection broke",
            cause=f"{why}: {stderr}" if stderr else why if status is not None else None,
            hint="a run on the machine continues without this connection; see it: fcctl ps; follow it: fcctl logs -f",
        )


def _result(message: dict[str, Any], method: str) -> Any:
    if message.get("error") is not None:
        raise framing.call_error(message["error"], method)
    if "result" not in message:
        raise nonsense(f"the reply to {method} has neither a result nor an error")
    return message["result"]


def _entries(entries: Sequence[wire.TreeEntry]) -> bytes:
    return json.dumps([entry.__dict__ for entry in entries], separators=(",", ":")).encode()


def _batches(parts: Sequence[wire.FilePart]) -> Iterator[list[wire.FilePart]]:
    """Calls of at most ``MAX_BLOB_BYTES`` and :data:`FETCH_PARTS` parts; a larger part is cut."""
    batch: list[wire.FilePart] = []
    room = wire.MAX_BLOB_BYTES
    for part in parts:
        offset, left = part.offset, part.size
        while True:
            size = min(left, room)
            batch.append(wire.FilePart(part.path, offset, size))
            offset, left, room = offset + size, left - size, room - size
            if room == 0 or len(batch) == FETCH_PARTS:
                yield batch
                batch, room = [], wire.MAX_BLOB_BYTES
            if left == 0:
                break
    if batch:
        yield batch
