"""The machine as Dask sees it: a scheduler in this process, a worker that builds, and one for each GPU.

Workers are processes below a :mod:`fcctl_tune.keeper`, which this process holds by a pipe: they end with it, however it
ends. One that died is replaced (:meth:`Cluster.mend`); what it had to do Dask gives to the next.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence

from fcctl_tune import dask_settings
from fcctl_tune.devices import Device
from fcctl_tune.errors import TuneError

#: A name's worker may die so often before the machine is given up.
RESTARTS = 20
#: How long keepers have at the end, seconds.
CLOSE_S = 5.0
#: States of a Dask future that give no result any more; a ``lost`` one is to be had again.
OVER = ("error", "cancelled")
#: How long workers have to come up, seconds: the first import from a cold disk takes a while.
START_S = 90.0


@dataclass
class Worker:
    name: str
    slots: Sequence[str]  # --cpu N or --gpu 1
    env: Mapping[str, str]
    keeper: Optional["subprocess.Popen[bytes]"] = None
    deaths: int = 0


@dataclass
class Cluster:
    """``cpus`` trials are built at once; ``devices`` check and time one each."""

    cpus: int
    devices: Sequence[Device]
    notice: Callable[[str], None] = print
    deaths: List[str] = field(default_factory=list)  # names of workers, one for each death

    def __post_init__(self) -> None:
        self._ending = contextlib.ExitStack()
        self.folder = tempfile.mkdtemp(prefix="fcctl-tune-")
        self._ending.callback(shutil.rmtree, self.folder, ignore_errors=True)
        cpu = Worker("cpu", ("--cpu", str(self.cpus)), {})
        gpus = [Worker(d.worker, ("--gpu", "1"), d.env) for d in self.devices]
        self.workers: Dict[str, Worker] = {w.name: w for w in (cpu, *gpus)}

    def __enter__(self) -> Cluster:
        """Start the workers' processes; they import while we do."""
        try:
            self._tls = dask_settings.certificate(self.folder)
            if self._tls is None:
                self.notice("no openssl here: the search's workers talk over loopback unencrypted")
            self._ending.callback(self._end_workers)
            for worker in self.workers.values():
                self._launch(worker)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def ready(self) -> None:
        """Start the scheduler, and wait until every worker is there.

        Raises:
            TuneError: Dask is missing, or they do not come up.
        """
        try:
            self._ending.enter_context(dask_settings.applied())
            from distributed import Client, LocalCluster
        except ImportError as error:
            raise TuneError("the search needs Dask distributed: %s" % error, "pip install 'fcctl[tune]'") from None
        security = dask_settings.security(self._tls)
        scheduler = LocalCluster(  # type: ignore[no-untyped-call]
            n_workers=0,
            host="127.0.0.1",
            protocol="tls://" if security else "tcp://",
            security=security,
            dashboard_address=None,
            silence_logs=False,
        )
        self._ending.callback(scheduler.close, timeout=CLOSE_S)
        self.address = scheduler.scheduler_address
        for worker in self.workers.values():
            self._tell(worker)
        self.client = Client(scheduler, set_as_default=False, security=security)  # type: ignore[no-untyped-call]
        self._ending.callback(self.client.close, timeout=CLOSE_S)
        self._wait()

    def _launch(self, worker: Worker) -> None:
        folder = os.path.join(self.folder, worker.name)
        argv = [
            sys.executable, "-S", "-m", "fcctl_tune.keeper", self.folder,
            sys.executable, "-m", "fcctl_tune.worker", "--name", worker.name, *worker.slots,
            "--folder", folder, *(["--tls", self._tls] if self._tls else []),
        ]  # fmt: skip
        env = {**os.environ, **worker.env, "FCCTL_TUNE_WORKER": worker.name}
        worker.keeper = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, env=env, bufsize=0)

    def _tell(self, worker: Worker) -> None:
        """The scheduler's address; a worker that died before it heard is seen by :meth:`mend`."""
        assert worker.keeper is not None and worker.keeper.stdin is not None  # noqa: S101, PT018
        with contextlib.suppress(BrokenPipeError):
            worker.keeper.stdin.write(self.address.encode() + b"\n")

    def _wait(self) -> None:
        deadline = time.monotonic() + START_S
        while len(self.client.scheduler_info(n_workers=-1)["workers"]) < len(self.workers):
            self.mend()
            if time.monotonic() > deadline:
                raise TuneError(
                    "the search's workers did not come up within %d s" % START_S,
                    "%s -m fcctl_tune.worker --help   shows whether they can run at all" % sys.executable,
                )
            time.sleep(0.02)

    def mend(self) -> List[str]:
        """Replace workers that died; their names.

        Raises:
            TuneError: one dies again and again.
        """
        dead = [w for w in self.workers.values() if w.keeper is not None and w.keeper.poll() is not None]
        for worker in dead:
            worker.deaths += 1
            self.deaths.append(worker.name)
            _let_go(worker)
            if worker.deaths > RESTARTS:
                raise TuneError(
                    "the worker %s died %d times" % (worker.name, worker.deaths),
                    "see the machine's log for what kills it (dmesg, out of memory?)",
                )
            self._launch(worker)
            self._tell(worker)
        return [w.name for w in dead]

    def submit(self, function: Callable[..., Any], *arguments: Any, slot: str, priority: int = 0) -> Any:
        """A Dask future of ``function(*arguments)`` in a slot of kind ``cpu`` or ``gpu``; the more ``priority`` the
        sooner."""
        return self.client.submit(function, *arguments, resources={slot: 1}, priority=priority, pure=False)

    def _end_workers(self) -> None:
        """Take the pipes away; whoever does not go is killed."""
        for worker in self.workers.values():
            if worker.keeper is not None and worker.keeper.stdin is not None:
                worker.keeper.stdin.close()
        deadline = time.monotonic() + CLOSE_S
        for worker in self.workers.values():
            if worker.keeper is not None:
                try:
                    worker.keeper.wait(max(0.0, deadline - time.monotonic()))
                except subprocess.TimeoutExpired:
                    worker.keeper.kill()
                    worker.keeper.wait()
                worker.keeper = None

    def close(self) -> None:
        """End everything that was started; doing it twice is harmless."""
        self._ending.close()


def _let_go(worker: Worker) -> None:
    assert worker.keeper is not None  # noqa: S101
    if worker.keeper.stdin is not None:
        worker.keeper.stdin.close()
    worker.keeper.wait()
    worker.keeper = None
