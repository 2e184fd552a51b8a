"""``member``: this machine builds and times for a search that another one leads.

It waits for that search, works for it until it says goodbye, and waits again whenever it does not answer: for a tunnel
that is made anew, or a search that goes on elsewhere.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import secrets
import signal
import sys
import time
from typing import Any, Dict, List, Optional

from fcctl_remote.base import files
from fcctl_remote.base.text import one_line
from fcctl_tune.errors import MissingDependency, TuneError, of_system
from fcctl_tune.search.spec import Spec
from fcctl_tune.trial import tasks
from fcctl_tune.trial.tasks import TrialSpec
from fcctl_tune.workers import build_folder, build_place, dask_settings, devices, membership, scratch
from fcctl_tune.workers.join import Join, is_address
from fcctl_tune.workers.pool import WorkerPool, print_line, this_machine
from fcctl_tune.workers.worker import DISMISSED, GOODBYE, HOST, JOINED, LOST

#: Exit codes: something is missing here, or no search came; one that was there did not come back; told to stop.
UNAVAILABLE, GAVE_UP, STOPPED = 69, 75, 143
#: How long a search may not answer, once it did, before its members end, seconds.
PATIENCE_S = 1800.0
#: Between two tries to reach it, between two looks whether it is known where it is, and how often workers are looked
#: at, seconds.
AGAIN_S, SOON_S, LOOK_S = 1.0, 0.25, 0.2
#: In the folder of a pool: the search's key with its certificate.
KEY = "tls.pem"
#: How long somebody may take to write where it is, seconds.
WRITING_S = 3.0
#: The longest pause after tries at which it was there and did not let us in, seconds.
LONGEST_PAUSE_S = 15.0


def main(argv: Optional[List[str]] = None) -> int:
    """The command; returns its exit code."""
    parser = argparse.ArgumentParser(prog="python -m fcctl_tune member", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--host", required=True, metavar="NAME", help="this machine's name in the fleet")
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--join", metavar="FILE", help="says where the search is; may come later")
    where.add_argument("--scheduler", metavar="ADDRESS", help="of a Dask scheduler: tcp://HOST:PORT")
    parser.add_argument("--tls", metavar="FILE", help="key and certificate that --scheduler wants")
    parser.add_argument(
        "--spec", metavar="FILE", help="the search's: what all begins with is begun while it is waited for"
    )
    parser.add_argument("--work", metavar="DIR", default=build_folder.NAME, help="folder for builds (%(default)s)")
    parser.add_argument("--wait", type=float, default=PATIENCE_S, metavar="S", help="for the search (%(default)g)")
    parser.add_argument(
        "--patience", type=float, default=PATIENCE_S, metavar="S", help="with one that answers no more (%(default)g)"
    )
    options = parser.parse_args(argv)
    if not membership.is_name(options.host):
        parser.error("--host: a name of letters, digits and ._-, 63 at most")
    if options.scheduler and not is_address(options.scheduler):
        parser.error("--scheduler: an address such as tcp://HOST:8786 or tls://HOST:8786")
    try:
        return Member(options).carry_out()
    except (TuneError, OSError) as error:
        failure = of_system(error, options.work) if isinstance(error, OSError) else error
        print("error: %s" % failure, file=sys.stderr, flush=True)
        return UNAVAILABLE if isinstance(error, MissingDependency) else 1


class Member:
    """One call of the command."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.work = os.path.abspath(options.work)
        self.joined = 0  # times that workers were sent to a search
        self.deaths = 0
        self._process, self._tries = secrets.token_hex(4), 0
        self._began = time.monotonic()
        self._left: Optional[float] = None  # when a search that was there did not answer any more
        self._unsound_since: Optional[float] = None
        self._stop = False

    def carry_out(self) -> int:
        """Raises: TuneError."""
        signal.signal(signal.SIGTERM, self._told_to_stop)
        signal.signal(signal.SIGINT, self._told_to_stop)
        signal.signal(signal.SIGHUP, lambda *_: None)
        self._lock = build_folder.claim(self.work)
        scratch.sweep()
        self.host = self._facts()
        self.folders = self._folders()
        self._spec = self._foretold()
        try:
            return self._work()
        finally:
            self._account()

    def _facts(self) -> Any:
        host = this_machine(self.options.host)
        return dataclasses.replace(host, sms=devices.multiprocessors(host.devices[0]))

    def _folders(self) -> build_place.BuildDirectory:
        cwd = os.getcwd()
        skip = (self.work, os.environ.get("FCCTL_OUT", ""), os.environ.get("FCCTL_ARTIFACTS", ""))
        source = tasks.source_identity(cwd, skip, os.path.join(self.work, "source.json"))
        here = build_place.BuildDirectory(cwd, self.work, source)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(here.ledger)
        return here

    def _foretold(self) -> Optional[Spec]:
        """What the search will be, as far as that can be told. What is wrong with it, who leads it says."""
        if self.options.spec is None:
            return None
        with contextlib.suppress(OSError, ValueError, TuneError), open(self.options.spec, encoding="utf-8") as stream:
            return Spec.from_dict(json.load(stream))
        return None

    def _trial_spec(self, spec: Spec) -> TrialSpec:
        return TrialSpec.of(spec, self.folders.cwd, self.folders.folder, self.folders.source)

    def _told_to_stop(self, *_: object) -> None:
        self._stop = True

    # -------------------------------------------------------------------------------------------- the search
    def _work(self) -> int:
        print_line("%s: %s; waiting for the search" % (self.host.name, self.host.outline()))
        pause = 0.0
        while True:
            with scratch.folder() as folder:  # of this pool: its workers remove it, too
                pool = self._pool(folder)
                try:
                    pool.launch()  # its workers import while the search is waited for
                    self._begin()
                    self._nap(pause)
                    join = self._search()
                    joined = self.joined
                    reason = self._work_for(pool, join, folder) if join is not None else None
                finally:
                    pool.end()
            if reason is not None:
                print_line("the end: %s" % reason)
                return 0
            if self._stop:
                return STOPPED
            if join is None or self._is_over(join):
                return GAVE_UP
            pause = AGAIN_S if self.joined > joined else min(2 * max(pause, AGAIN_S), LONGEST_PAUSE_S)

    def _search(self) -> Optional[Join]:
        """Where it is, once it answers; None if it does not in time, or we are told to stop.

        Raises: MissingDependency.
        """
        while not self._stop:
            join = self._join()
            if join is not None and _answers(join):
                return join
            if self._is_over(join):
                return None
            self._nap(SOON_S if join is None else AGAIN_S)
        return None

    def _join(self) -> Optional[Join]:
        """None if nothing is known of a search yet. Raises: MissingDependency, if what is said of it stays unsound."""
        options = self.options
        try:
            if options.join is not None:
                join = Join.read(options.join)
            else:
                join = Join(options.scheduler, _text(options.tls) if options.tls is not None else None)
        except (OSError, ValueError) as error:
            self._unsound_since = self._unsound_since or time.monotonic()
            if time.monotonic() - self._unsound_since < WRITING_S:
                return None
            raise MissingDependency(
                "%s: %s" % (options.join or options.tls, error), "see docs/tune.md, A fleet"
            ) from None
        self._unsound_since = None
        return join

    def _is_over(self, join: Optional[Join]) -> bool:
        """Whether it has been waited for long enough. Raises: MissingDependency, if it never came."""
        now = time.monotonic()
        if self._left is not None:
            patience = self.options.patience if join is None or join.patience_s is None else join.patience_s
            if now - self._left > patience:
                print_line("the end: the search has not answered for %d s" % patience)
                return True
        elif now - self._began > self.options.wait:
            where = self.options.scheduler or (join.address if join else self.options.join)
            raise MissingDependency(
                "no search came within %d s (%s)" % (self.options.wait, where),
                "does it run, and does a tunnel lead there?",
            )
        return False

    def _pool(self, folder: str) -> WorkerPool:
        """Workers whose key will be in ``folder``, if there is one."""
        self._tries += 1  # the scheduler may still know the last one
        host = dataclasses.replace(self.host, member="%s.%d" % (self._process, self._tries))
        env = {
            HOST: json.dumps(membership.facts(host, dask_settings.version())),
            build_place.VARIABLE: self.folders.to_json(),
        }
        trial_spec = self._trial_spec(self._spec) if self._spec is not None else None
        return WorkerPool(host, folder, os.path.join(folder, KEY), env, trial_spec)

    def _begin(self) -> None:
        """The default is what the search will have built here first. If that goes wrong, it hears of it then."""
        if self._spec is None:
            return
        with contextlib.suppress(TuneError):
            if self._spec.space is None:
                self._spec = self._spec.with_space(
                    tasks.listing(self._trial_spec(self._spec), self._spec.space_command)
                )
            tasks.build_default_soon(self._trial_spec(self._spec), self._spec.known_space)

    def _work_for(self, pool: WorkerPool, join: Join, folder: str) -> Optional[str]:
        """Until the search says goodbye, with the reason; None if it is gone without one."""
        _key(join, folder)
        pool.tell(join.address)
        is_in = False
        while not self._stop:
            is_in = is_in or self._has_joined(join, folder)
            for worker in pool.ended():
                assert worker.process is not None  # noqa: S101
                if worker.process.returncode == DISMISSED:
                    return _said(folder)
                if worker.process.returncode == LOST:
                    self._lost(is_in or self._has_joined(join, folder))
                    return None
                self.deaths += 1
                pool.replace(worker)
            if self._moved(join):
                self._lost(is_in)
                return None
            self._nap(LOOK_S)
        return None

    def _has_joined(self, join: Join, folder: str) -> bool:
        """Once one of its workers was let in."""
        if not os.path.exists(os.path.join(folder, JOINED)):
            return False
        self.joined += 1
        print_line("joined the search at %s" % join.address)
        return True

    def _lost(self, was_in: bool) -> None:
        if was_in and not self._stop:
            self._left = time.monotonic()
            print_line("the search does not answer; waiting for it, or for another")

    def _moved(self, join: Join) -> bool:
        """Whether we were told since that it is elsewhere: the tunnel that we use may lead nowhere without a word."""
        told = self._join()
        return told is not None and told.where != join.where and _answers(told)

    def _nap(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while not self._stop and time.monotonic() < deadline:
            time.sleep(min(LOOK_S, seconds))

    # -------------------------------------------------------------------------------------------- what it did
    def _account(self) -> None:
        """A ``metrics`` document of what was done here, if this is a step of a run."""
        out = os.environ.get("FCCTL_OUT")
        if out:
            metrics = {
                **build_place.accounted(self.folders.ledger), "gpus": len(self.host.devices),
                "builders": self.host.cpus, "joined": self.joined, "worker_deaths": self.deaths,
                "wall_s": round(time.monotonic() - self._began, 3),
            }  # fmt: skip
            entry: Dict[str, Any] = {"kind": "metrics", "schema_version": 1, "metrics": metrics}
            files.write_atomic(os.path.join(out, "member.json"), files.to_json(entry), durable=False)


def _key(join: Join, folder: str) -> Optional[str]:
    """A file with the search's key, for workers."""
    if join.pem is None:
        return None
    path = os.path.join(folder, KEY)
    files.write_atomic(path, join.pem.encode(), durable=False, mode=0o600)
    return path


def _text(path: str) -> str:
    with open(path, encoding="ascii") as stream:
        return stream.read()


def _answers(join: Join) -> bool:
    with scratch.folder() as folder:
        return join.answers(_key(join, folder))


def _said(folder: str) -> str:
    try:
        with open(os.path.join(folder, GOODBYE), encoding="utf-8") as stream:
            return one_line(stream.read())
    except OSError:
        return "it was told to go"
