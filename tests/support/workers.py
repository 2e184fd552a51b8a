"""``pytest --workers N``: the tests in N processes, forked from one that has collected them.

Each worker of pytest-xdist imports and collects everything for itself; a fork has it already. A test
begins as soon as a worker is free, the slowest first, by what each took when it last ran here. Tests that share a
fixture of their module, or are marked with one ``group``, are run by one worker, as are those on a GPU.
"""

from __future__ import annotations

import os
import sys
import traceback
import warnings
from collections import deque
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection, Pipe, wait
from typing import Any, NoReturn

import pytest
from _pytest._io import TerminalWriter

from tests import durations
from tests.support import host_program

#: What macOS's own libraries have started does not survive a fork.
FORKS = sys.platform != "darwin"
#: Plugins that show or keep the reports of all tests: of the first process alone.
OF_THE_FIRST = ("terminalreporter", "junitxml", "durations", "again")
#: So long, in seconds, are the batches of tests that might be run apart: a worker need not ask after each.
BATCH_S = 0.5
#: Of a test that has not run here yet, and of one that is marked ``full`` (a batch of its own) or ``first``.
UNKNOWN_S, FULL_S, FIRST_S = 0.1, 1.0, 60.0


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--workers", type=int, default=1, help="run the tests in this many processes")


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> None:
    """Leave it to pytest-xdist where one must not fork: a test module has the same worker for all its tests then."""
    if not FORKS and config.option.workers > 1 and not hasattr(config, "workerinput"):
        config.option.numprocesses, config.option.dist = config.option.workers, "loadfile"
        config.option.workers = 1


def pytest_runtestloop(session: pytest.Session) -> bool | None:
    count = min(session.config.option.workers, len(session.items))
    if not FORKS or count < 2 or session.config.option.collectonly or session.testsfailed:
        return None
    return Pool(session, count).run()


def group_of(item: pytest.Item) -> str | None:
    if item.get_closest_marker("gpu"):  # some time what they run, and nothing else may run on the GPU meanwhile
        return "gpu"
    marked = item.get_closest_marker("group")
    if marked:
        return str(marked.args[0])
    fixtures = getattr(item, "_fixtureinfo", None)
    shared = fixtures and any(f.scope == "module" for fs in fixtures.name2fixturedefs.values() for f in fs)
    return str(item.path) if shared else None


def batches(items: Sequence[pytest.Item], seconds: Mapping[str, float], workers: int) -> deque[list[int]]:
    """Numbers of tests that one worker runs in a row: a group, or others of a module; those that take longest first."""
    most = max(1, len(items) // (4 * workers))
    found: list[list[int]] = []
    took: list[float] = []
    latest: dict[str, int] = {}
    for number, item in enumerate(items):
        marked = [seconds for name, seconds in (("first", FIRST_S), ("full", FULL_S)) if item.get_closest_marker(name)]
        unknown = marked[0] if marked else UNKNOWN_S
        group, needs = group_of(item), seconds.get(item.nodeid, unknown)
        key = group or f"of {item.path}"
        at = latest.get(key)
        if at is None or (group is None and (took[at] + needs > BATCH_S or len(found[at]) == most)):
            at = latest[key] = len(found)
            found.append([])
            took.append(0.0)
        found[at].append(number)
        took[at] += needs
    return deque(found[at] for at in sorted(range(len(found)), key=lambda at: -took[at]))


# ------------------------------------------------------------------------------------------------ the first process
class Worker:
    """A worker as the first process sees it; ``todo`` are the tests that it was given and has not ended."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self.todo: list[int] = []

    def wait(self) -> int:
        return os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])


class Pool:
    def __init__(self, session: pytest.Session, count: int) -> None:
        self._session, self._hook = session, session.config.hook
        self._batches = batches(session.items, durations.read(), count)
        self._count = count
        self._workers: dict[Connection, Worker] = {}
        self._started = 0

    def run(self) -> bool:
        """Until all tests have run.

        Raises:
            pytest.Session.Failed: as many have failed as ``--maxfail`` allows.
            pytest.Session.Interrupted: a plugin has asked to stop.
        """
        host_program.built()
        self._session.config._tmp_path_factory.getbasetemp()  # type: ignore[attr-defined]  # each would empty it
        try:
            for _ in range(self._count):
                self._start()
            while self._workers:
                for connection in wait(list(self._workers)):
                    self._hear(connection)  # type: ignore[arg-type]
                    if self._session.shouldfail:
                        raise self._session.Failed(self._session.shouldfail)
                    if self._session.shouldstop:
                        raise self._session.Interrupted(self._session.shouldstop)
        finally:
            for connection in self._workers:
                connection.close()  # which it notices when its test has ended
            for worker in self._workers.values():
                worker.wait()
        return True

    def _start(self) -> None:
        ours, theirs = Pipe()
        self._started += 1
        name = f"worker-{self._started}"
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # NumPy's threads are idle
            pid = os.fork()
        if pid == 0:
            for connection in (ours, *self._workers):
                connection.close()
            work(self._session, theirs, name)
        theirs.close()
        self._workers[ours] = Worker(pid)

    def _hear(self, connection: Connection) -> None:
        worker = self._workers[connection]
        try:
            kind, value = connection.recv()
        except (EOFError, ConnectionError):
            kind, value = "gone", None
        if kind == "gone":  # here, since a worker forked in the handler would have its exception behind its own
            del self._workers[connection]
            self._ended(worker)
        elif kind == "more":
            batch = self._batches.popleft() if self._batches else []
            worker.todo += batch
            connection.send(batch)
        elif kind == "begins":
            item = self._session.items[value]
            self._hook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        elif kind == "report":
            report = self._hook.pytest_report_from_serializable(config=self._session.config, data=value)
            self._hook.pytest_runtest_logreport(report=report)
        elif kind == "ended":
            worker.todo.remove(value)

    def _ended(self, worker: Worker) -> None:
        """It has no more to do; or its test has ended it: that one failed, and another worker runs what is left."""
        status = worker.wait()
        if not worker.todo:
            return
        lost, *rest = worker.todo
        item = self._session.items[lost]
        words = f"the worker of this test ended with {status}"
        report = pytest.TestReport(item.nodeid, item.location, {}, "failed", words, "call")
        self._hook.pytest_runtest_logreport(report=report)
        if rest:
            self._batches.appendleft(rest)
        if self._batches:
            self._start()


# ------------------------------------------------------------------------------------------------------- the workers
class Reports:
    """Sends them to the first process."""

    def __init__(self, config: pytest.Config, connection: Connection) -> None:
        self._config, self._connection = config, connection

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        data = self._config.hook.pytest_report_to_serializable(config=self._config, report=report)
        self._connection.send(("report", data))


def work(session: pytest.Session, connection: Connection, name: str) -> NoReturn:
    status = 1
    plugins: Any = session.config.pluginmanager
    capture = plugins.get_plugin("capturemanager")
    capture.stop_global_capturing()  # it has the files of the first process
    try:
        for plugin in filter(plugins.has_plugin, OF_THE_FIRST):
            plugins.unregister(name=plugin)
        # For the stacks of a test that takes too long: they are in its report.
        session.config.get_terminal_writer = lambda: TerminalWriter(sys.stderr)  # type: ignore[method-assign]
        plugins.register(Reports(session.config, connection))
        with_folder_of_its_own(session.config, name)
        capture.start_global_capturing()
        run_what_one_is_given(session, connection)
        status = 0
    except (KeyboardInterrupt, ConnectionError):  # the first process hears Ctrl-C too; or it has ended
        session._setupstate.teardown_exact(None)
    except BaseException:
        capture.stop_global_capturing()
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)


def with_folder_of_its_own(config: Any, name: str) -> None:
    """For ``tmp_path``, which looks at all names that are there when it makes another."""
    factory = config._tmp_path_factory
    folder = factory.getbasetemp() / name
    folder.mkdir(mode=0o700)
    factory._basetemp = folder


def run_what_one_is_given(session: pytest.Session, connection: Connection) -> None:
    while True:
        connection.send(("more", None))
        batch = connection.recv()
        if not batch:
            return session._setupstate.teardown_exact(None)
        for number, following in zip(batch, [*batch[1:], None], strict=True):
            connection.send(("begins", number))
            # What follows tells which fixtures are needed still: those of the session in any case.
            after: Any = session if following is None else session.items[following]
            session.config.hook.pytest_runtest_protocol(item=session.items[number], nextitem=after)
            connection.send(("ended", number))
