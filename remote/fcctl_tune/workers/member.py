"""``member``: this machine builds and times for a search that another machine leads.

It waits for the search, works for it until it is dismissed, and waits again while the search does not answer: a tunnel
may be restored, or the search continue elsewhere.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import secrets
import signal
import time
from typing import List, Optional

from fcctl_remote.base.text import one_line
from fcctl_tune.errors import MissingDependency, TuneError, exit_code_of
from fcctl_tune.search.spec import Spec
from fcctl_tune.trial import tasks
from fcctl_tune.trial.tasks import TrialSpec
from fcctl_tune.workers import hosts, membership
from fcctl_tune.workers.cluster import MEMBER
from fcctl_tune.workers.hosts import WorkerPool, print_line, this_machine
from fcctl_tune.workers.membership import PATIENCE_S, Join
from fcctl_tune.workers.worker import DISMISSED, GOODBYE, JOINED, LOST

#: Exit codes: something is missing, or no search came; the search did not come back; stopped by a signal.
UNAVAILABLE, GAVE_UP, STOPPED = MissingDependency.exit_code, 75, 143
#: Seconds to wait for the first answer of the search.
WAIT_S = 1800.0
#: Seconds from a search that was lost to the first try, between two looks at its file, and two looks at the workers.
AGAIN_S, SOON_S, LOOK_S = 1.0, 0.25, 0.2
#: The longest pause between tries to reach a search, seconds.
LONGEST_PAUSE_S = 15.0


def main(argv: Optional[List[str]] = None) -> int:
    """The command; returns its exit code."""
    parser = argparse.ArgumentParser(prog="python -m fcctl_tune member", description=(__doc__ or "").split("\n")[0])
    parser.add_argument(
        "--host", required=True, metavar="NAME", help="the name of this machine among the search's machines"
    )
    add = parser.add_argument
    add("--join", required=True, metavar="FILE", help="file with the search's address; may be written later")
    add("--spec", metavar="FILE", help="the search's specification: its default configuration is built while waiting")
    add("--work", metavar="DIR", default=membership.WORK, help="folder for builds (default: %(default)s)")
    options = parser.parse_args(argv)
    if not membership.is_name(options.host):
        parser.error("--host must be a name of at most 63 letters, digits and ._-")
    return exit_code_of(lambda: Member(options).carry_out(), options.work)


class Member:
    """One call of the command."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.work = os.path.abspath(options.work)
        self.joined = 0  # times that a search admitted workers
        self._process, self._tries = secrets.token_hex(4), 0
        self._began = time.monotonic()
        self._silent_since: Optional[float] = None  # of a search that had admitted workers
        self._stop = False

    def carry_out(self) -> int:
        """Raises: TuneError."""
        signal.signal(signal.SIGTERM, self._on_signal)
        signal.signal(signal.SIGINT, self._on_signal)
        signal.signal(signal.SIGHUP, lambda *_: None)
        self._lock = membership.claim(self.work)
        host = this_machine(self.options.host)
        self.host = dataclasses.replace(host, sms=hosts.multiprocessors(host.devices[0]))
        skip = (self.work, os.environ.get("FCCTL_OUT", ""), os.environ.get("FCCTL_ARTIFACTS", ""))
        source = tasks.source_identity(os.getcwd(), skip, os.path.join(self.work, "source.json"))
        #: Of this machine, instead of those of the search's TrialSpec.
        self.folders = {"cwd": os.getcwd(), "folder": self.work, "source": source}
        self._spec = self._given_spec()
        return self._work()

    def _given_spec(self) -> Optional[Spec]:
        """The spec of ``--spec``, if it can be read; the leader reports what is wrong with it."""
        with contextlib.suppress(OSError, ValueError, TuneError):
            return Spec.from_dict(json.loads(_text(self.options.spec))) if self.options.spec is not None else None
        return None

    def _trial_spec(self, spec: Spec) -> TrialSpec:
        return TrialSpec.of(spec, **self.folders)

    def _on_signal(self, *_: object) -> None:
        self._stop = True

    def _work(self) -> int:
        print_line("%s: %s; waiting for the search" % (self.host.name, self.host.outline()))
        pause = 0.0
        while True:
            with membership.for_workers(self.work) as folder:
                pool = self._pool(folder)
                try:
                    pool.launch()  # its workers import meanwhile
                    self._build_default()
                    self._nap(pause)
                    join = self._search()
                    joined = self.joined
                    reason = self._work_for(pool, join, folder) if join is not None else None
                finally:
                    pool.end()
            if reason is not None:
                print_line("ended: %s" % reason)
                return 0
            if self._stop:
                return STOPPED
            if join is None or self._is_over():
                return GAVE_UP
            pause = AGAIN_S if self.joined > joined else min(2 * max(pause, AGAIN_S), LONGEST_PAUSE_S)

    def _search(self) -> Optional[Join]:
        """Waits for the file that says how to join the search. Returns None if this process is told to stop, or the
        search has not answered for too long, before the file is there. Raises: MissingDependency."""
        while not self._stop:
            join = Join.read(self.options.join)
            if join is not None or self._is_over():
                return join
            self._nap(SOON_S)
        return None

    def _is_over(self) -> bool:
        """Whether the search was silent for too long. Raises: MissingDependency, if it never came."""
        now = time.monotonic()
        if self._silent_since is not None:
            if now - self._silent_since > PATIENCE_S:
                print_line("ended: the search has not answered for %d s" % PATIENCE_S)
                return True
        elif now - self._began > WAIT_S:
            problem = "no search answered within %d s (%s)" % (WAIT_S, self.options.join)
            raise MissingDependency(problem, "check that the search runs, and that a tunnel to it is open")
        return False

    def _pool(self, folder: str) -> WorkerPool:
        self._tries += 1  # the scheduler may still know the last ones
        host = dataclasses.replace(self.host, member="%s.%d" % (self._process, self._tries))
        facts = membership.facts(host)
        env = {MEMBER: json.dumps({"facts": facts, "folders": self.folders})}
        return WorkerPool(host, folder, env, self._trial_spec(self._spec) if self._spec is not None else None)

    def _build_default(self) -> None:
        """Begin what the search will need first. It will meet a failure itself."""
        spec = self._spec
        with contextlib.suppress(TuneError):
            if spec is not None and spec.space is None:
                spec = self._spec = spec.with_space(tasks.listing(self._trial_spec(spec), spec.space_command))
            if spec is not None:
                tasks.build_default_soon(self._trial_spec(spec), spec.known_space)

    def _work_for(self, pool: WorkerPool, join: Join, folder: str) -> Optional[str]:
        """Work until the search dismisses us, for the reason returned; None if it is lost."""
        pool.tell(join.address, join.pem)
        is_in = False
        while not self._stop:
            is_in = is_in or self._has_joined(join, folder)
            for worker in pool.ended():
                if worker.process.returncode == DISMISSED:
                    return _goodbye(folder)
                if worker.process.returncode == LOST:
                    self._search_lost(is_in or self._has_joined(join, folder))
                    return None
                pool.replace(worker)
            if Join.read(self.options.join) not in (None, join):  # the present tunnel may be silent
                self._search_lost(is_in)
                return None
            self._nap(LOOK_S)
        return None

    def _has_joined(self, join: Join, folder: str) -> bool:
        """Whether the search has admitted a worker, which is counted."""
        if not os.path.exists(os.path.join(folder, JOINED)):
            return False
        self.joined += 1
        print_line("joined the search at %s" % join.address)
        return True

    def _search_lost(self, had_joined: bool) -> None:
        if had_joined and not self._stop:
            self._silent_since = time.monotonic()
            print_line("the search does not answer; waiting for it or for another search")

    def _nap(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while not self._stop and time.monotonic() < deadline:
            time.sleep(min(LOOK_S, seconds))


def _text(path: str) -> str:
    with open(path, encoding="utf-8") as stream:
        return stream.read()


def _goodbye(folder: str) -> str:
    try:
        return one_line(_text(os.path.join(folder, GOODBYE)))
    except OSError:
        return "the search released this host"
