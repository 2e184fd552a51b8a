"""The calls of the agent, one method each; and the long poll, which answers as soon as a run has news, or another call
waits."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

from fcctl_remote import wire
from fcctl_remote.agent import shell
from fcctl_remote.base import files, hostfacts, tree
from fcctl_remote.base.layout import FORGOTTEN, BadName, Layout, RunLayout
from fcctl_remote.base.processes import send
from fcctl_remote.record import Any
from fcctl_remote.run import lost
from fcctl_remote.run import state as runs
from fcctl_remote.wire import Refusal

#: A large tree may be compared for so long by another call, seconds.
TREE_PATIENCE_S = 600.0
#: All but ``watch``, which waits.
METHODS = (
    "hello", "tree_diff", "tree_put", "snapshot", "submit", "status", "cancel", "files", "fetch", "forget", "lease",
    "probe", "bundle",
)  # fmt: skip
POLL_S = 0.02
EAGER_POLL_S = 0.004  # in the first moments, when a short run would otherwise wait for us
EAGER_S = 0.3
SETTLE_S = 1.0
MAX_WAIT_S = 60.0
TAIL_BYTES = 32 * 1024
TAIL_EVERY_S = 0.2  # how often a growing log is sent for a progress line
MAX_LOG_BYTES = 1024 * 1024  # of one answer: little memory, and fast enough for any link
CURRENT = "@current"


class Calls:
    """Holds nothing that must outlive the connection."""

    def __init__(self, layout: Layout, runner: list[str], runner_sha256: str, mended: Sequence[str] = ()) -> None:
        self.layout = layout
        self.runner = runner
        self.runner_sha256 = runner_sha256
        self.mended = mended

    def call(self, name: str, params: Mapping[str, Any], blob: bytes) -> tuple[Any, bytes]:
        """Raises: Refusal: bad_request, if there is no such call; whatever the call raises."""
        if name not in METHODS:
            raise Refusal("bad_request", "unknown method %r" % name[:80])
        self.layout.ensure()
        result: tuple[Any, bytes] = getattr(self, name)(params, blob)
        return result

    def hello(self, _params: Mapping[str, Any], _blob: bytes) -> tuple[Any, bytes]:
        shell.install(self.layout, self.runner)
        hello = wire.Hello(
            wire_version=wire.WIRE_VERSION,
            runner_sha256=self.runner_sha256,
            python="%d.%d.%d" % sys.version_info[:3],
            platform="linux" if hostfacts.IS_LINUX else sys.platform,
            hostname=os.uname().nodename,
            user=hostfacts.user_name(),
            home=os.path.expanduser("~"),
            root=self.layout.root,
            boot_id=hostfacts.boot_id(),
            time=time.time(),
            cpus=os.cpu_count() or 1,
            free_bytes=hostfacts.free_bytes(self.layout.root),
            tools={name: hostfacts.which(name) for name in hostfacts.TOOLS},
            mended=list(self.mended)[: wire.MAX_MENDED],
            prepared=os.path.exists(os.environ.get("FCCTL_SYSTEM_ROOT", "") + hostfacts.PREPARED_FILE),
        )
        return hello, b""

    def tree_diff(self, params: Mapping[str, Any], blob: bytes) -> tuple[Any, bytes]:
        entries = tree.parse_manifest(blob)
        with self._tree(params) as source:
            return source.diff(entries), b""

    def tree_put(self, params: Mapping[str, Any], blob: bytes) -> tuple[Any, bytes]:
        from fcctl_remote.agent import transfer

        listed = [wire.decode(wire.PutFile, file) for file in params.get("files", [])]
        with self._tree(params) as source:
            return {"files": transfer.put(source.root, listed, blob)}, b""

    def snapshot(self, params: Mapping[str, Any], blob: bytes) -> tuple[Any, bytes]:
        digest, run = _text(params, "tree_sha256"), self.layout.run(_text(params, "run_id"))
        entries = tree.parse_manifest(blob)
        with self._tree(params) as source:
            present = files.read_object(run.source_facts)
            if present is not None and os.path.isdir(run.source) and _is_whole(run, present):
                return _same_snapshot(present, digest), b""
            files.make_folders(run.folder)
            tree.remove_tree(run.source)
            made = source.snapshot(entries, digest, run.source)
            facts = {**wire.encode(made), "boot_id": hostfacts.boot_id()}
            files.write_atomic(run.source_facts, files.to_json(facts), durable=False)
        return made, b""

    def bundle(self, params: Mapping[str, Any], blob: bytes) -> tuple[Any, bytes]:
        from fcctl_remote.base.bundles import Bundles

        sha256, size, offset = _text(params, "sha256"), _count(params, "size"), _count(params, "offset")
        return Bundles(self.layout).take(sha256, size, offset, blob), b""

    def submit(self, params: Mapping[str, Any], _blob: bytes) -> tuple[Any, bytes]:
        from fcctl_remote.agent.submit import submit

        plan = wire.decode(wire.RunPlan, params.get("plan"))
        given = dict(params.get("secrets") or {})
        return submit(self.layout, plan, self.runner, {name: str(given.get(name, "")) for name in plan.secrets}), b""

    def watch(self, params: Mapping[str, Any], pause: Callable[[float], bool]) -> tuple[Any, bytes]:
        request = wire.decode(wire.WatchRequest, params)
        if request.log_step not in (None, CURRENT):
            self.layout.run(request.run_id).step(str(request.log_step))
        return Watch(self._known(params), request).answer(pause)

    def status(self, params: Mapping[str, Any], _blob: bytes) -> tuple[Any, bytes]:
        requested = params.get("run_ids")
        summaries = []
        for run_id in self.layout.run_ids() if requested is None else requested:
            try:
                summaries.append(_settled(self.layout.run(str(run_id))))
            except (wire.WireError, OSError, files.DiskFull) as error:
                if requested is not None:
                    raise
                print("fcctl agent: run %s: %s" % (run_id, error), file=sys.stderr)  # it must not hide the others
        return {"runs": [summary for summary in summaries if summary is not None]}, b""

    def cancel(self, params: Mapping[str, Any], _blob: bytes) -> tuple[Any, bytes]:
        """Ask the run to end. Answers at once: ``watch`` tells when it has ended."""
        import signal

        run = self._known(params)
        status = str(params.get("status", "cancelled"))
        if status not in ("cancelled", "over_budget"):
            raise Refusal("bad_request", "the status must be cancelled or over_budget, not %r" % status[:40])
        if not lost.write_lost_outcome(run):
            grace = params.get("grace_s", 10.0)
            request = {"reason": str(params.get("reason", "")), "status": status, "grace_s": grace, "time": time.time()}
            earlier = files.read_object(run.cancel) or {}  # what it said stays, but for the grace
            number = signal.SIGTERM
            try:
                files.write_atomic(run.cancel, files.to_json({**request, **earlier, "grace_s": grace}))
            except OSError as error:
                if not files.is_disk_full(error):
                    raise
                number = signal.SIGUSR1  # a cancel without a word
            pid = runs.supervisor_pid(run)
            if pid is None:
                lost.settle_unstarted(run, cancelled=status)
            elif runs.is_supervisor(run, pid):
                send(pid, number)
        return runs.summary(run), b""

    def files(self, params: Mapping[str, Any], _blob: bytes) -> tuple[Any, bytes]:
        from fcctl_remote.agent.transfer import Listing

        return Listing(self._known(params)).make(), b""

    def fetch(self, params: Mapping[str, Any], _blob: bytes) -> tuple[Any, bytes]:
        from fcctl_remote.agent.transfer import fetch

        run = self._known(params)
        parts = [wire.decode(wire.FilePart, part) for part in params.get("parts", [])]
        served, data = fetch(run, parts)
        return {"parts": served}, data

    def forget(self, params: Mapping[str, Any], _blob: bytes) -> tuple[Any, bytes]:
        run = self.layout.run(_text(params, "run_id"))
        if not os.path.isdir(run.folder):
            return {}, b""
        known = _settled(run)
        if known is not None and known.status not in wire.RUN_ENDINGS:
            hint = "cancel the run first: fcctl cancel %s" % run.run_id
            raise Refusal("conflict", "run %s has not ended" % run.run_id, hint)
        later = self._later_in(run)
        if later is not None:
            raise Refusal("conflict", "run %s works in the folder of run %s" % (later, run.run_id))
        doomed = os.path.join(self.layout.runs, FORGOTTEN + run.run_id)
        tree.remove_tree(doomed)
        os.rename(run.folder, doomed)
        files.sync_folder(self.layout.runs)  # else a power cut may leave half a run under its name
        tree.remove_tree(doomed)
        return {}, b""

    def _later_in(self, run: RunLayout) -> str | None:
        """A run that was resumed from this one: its working folder is a link to this one's."""
        others = [other for other in self.layout.run_ids() if other != run.run_id and not os.path.islink(run.source)]
        place = os.path.realpath(run.source)
        return next((one for one in others if os.path.realpath(self.layout.run(one).source) == place), None)

    def lease(self, params: Mapping[str, Any], _blob: bytes) -> tuple[Any, bytes]:
        from fcctl_remote.run.shutdown_timer import LeaseKeeper

        return LeaseKeeper(self.layout).handle(wire.decode(wire.LeaseRequest, params)), b""

    def probe(self, params: Mapping[str, Any], _blob: bytes) -> tuple[Any, bytes]:
        from fcctl_remote.probe import document

        given = {str(name): str(value) for name, value in dict(params.get("env") or {}).items()}
        found = document.collect({**os.environ, **given})
        return {"document": found, "text": document.render(found), "exit_code": document.exit_code(found)}, b""

    @contextlib.contextmanager
    def _tree(self, params: Mapping[str, Any]) -> Iterator[tree.Tree]:
        """The workspace's tree, for this call alone."""
        workspace = _text(params, "workspace")
        with files.locked(self.layout.tree_lock(workspace), TREE_PATIENCE_S):
            os.utime(self.layout.tree_lock(workspace))  # in use: see fcctl_remote.base.bundles
            yield tree.Tree(self.layout.tree(workspace), self.layout.index(workspace))

    def _known(self, params: Mapping[str, Any]) -> RunLayout:
        run = self.layout.run(_text(params, "run_id"))
        if not runs.is_known(run):
            raise Refusal("not_found", "this host has no run %s" % run.run_id, "see the runs: fcctl ps")
        return run


def _settled(run: RunLayout) -> wire.RunSummary | None:
    lost.end_abandoned(run)
    return runs.summary(run)


def _text(params: Mapping[str, Any], name: str) -> str:
    value = params.get(name)
    if not isinstance(value, str):
        raise Refusal("bad_request", "%s must be text" % name)
    return value


def _count(params: Mapping[str, Any], name: str) -> int:
    value = params.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise Refusal("bad_request", "%s must be a whole number, 0 or greater" % name)
    return value


def _is_whole(run: RunLayout, snapshot: dict[str, Any]) -> bool:
    """A snapshot is not flushed: one that the machine's restart found unused may have lost contents."""
    return snapshot.get("boot_id") == hostfacts.boot_id() or runs.is_known(run)


def _same_snapshot(present: Any, digest: str) -> wire.Snapshot:
    made = wire.decode(wire.Snapshot, present)
    if made.tree_sha256 != digest:
        raise Refusal("conflict", "the run already has a snapshot of other source files", "use a new run id")
    return made


class Watch:
    """One call of ``watch``."""

    def __init__(self, run: RunLayout, request: wire.WatchRequest) -> None:
        self.run = run
        self.request = request
        self._offset = max(0, request.log_offset)
        self._events_offset = max(0, request.events_offset)

    def answer(self, pause: Callable[[float], bool]) -> tuple[wire.WatchReply, bytes]:
        """Wait for news. ``pause(seconds)`` sleeps, and says whether the caller wants to be answered at once. Raises
        Refusal: not_found, when the run was deleted meanwhile."""
        started = settled = time.monotonic()
        deadline = started + min(max(0.0, self.request.wait_s), MAX_WAIT_S)
        lost.end_abandoned(self.run)
        while True:
            finished = runs.is_finished(self.run)  # asked first: what is read below is then complete
            step = self._log_step()
            now = time.monotonic()
            if finished or now >= deadline or self._has_news(step, now - started):
                return self._reply(step)
            if now - settled > SETTLE_S:
                settled = now
                lost.end_abandoned(self.run)
            interval = EAGER_POLL_S if now - started < EAGER_S else POLL_S
            if pause(min(interval, max(0.0, deadline - now))):
                return self._reply(step)

    def _has_news(self, step: str | None, waited_s: float) -> bool:
        if files.size_of(self.run.events) > self._events_offset and self._events()[1] > self._events_offset:
            return True
        if self.request.tail and waited_s < TAIL_EVERY_S:
            return False
        return step is not None and self._log_size(step) > self._start_of(step)

    def _events(self) -> tuple[list[wire.Event], int]:
        return runs.read_events(self.run.events, self._events_offset, runs.MAX_LINE_BYTES)

    def _log_size(self, step: str) -> int:
        """Bytes that can be read of it."""
        try:
            with files.closing(self._open_log(step)) as fd:
                return os.fstat(fd).st_size
        except OSError:
            return 0

    def _open_log(self, step: str) -> int:
        return files.open_beneath(self.run.folder, self.run.relative(self.run.step(step).log))

    def _log_step(self) -> str | None:
        step = self.request.log_step
        if step != CURRENT:
            return step
        known = runs.summary(self.run)
        return known.step if known is not None else None

    def _start_of(self, step: str) -> int:
        """The offset that the caller has read of this step's log."""
        return self._offset if self.request.log_step != CURRENT or self.request.log_offset_step == step else 0

    def _reply(self, step: str | None) -> tuple[wire.WatchReply, bytes]:
        # The events first, so that the summary knows of all that they tell; but with an ending go all events.
        new, offset = self._events()
        summary = runs.summary(self.run)
        if summary is None:
            raise Refusal("not_found", "run %s was deleted from this host" % self.run.run_id)
        if summary.status in wire.RUN_ENDINGS:
            new, offset = self._events()
        reply = wire.WatchReply(new, offset, summary, telemetry=runs.last_sample(self.run))
        blob = b""
        if step is not None:
            reply.log_step = step
            reply.log_offset, reply.log_size, blob = self._read_log(step)
        return reply, blob

    def _read_log(self, step: str) -> tuple[int, int, bytes]:
        try:
            fd = self._open_log(step)
        except BadName as error:
            raise Refusal("bad_request", str(error)) from None
        except OSError:
            return self._start_of(step), 0, b""
        with files.closing(fd):
            size = os.fstat(fd).st_size
            start = min(self._start_of(step), size)
            if self.request.tail:
                start = max(start, size - TAIL_BYTES)
            return start, size, os.pread(fd, min(size - start, MAX_LOG_BYTES), start)
