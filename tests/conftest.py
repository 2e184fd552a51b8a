"""Fixtures every test may use: a real sshd on loopback, a bad network in front of it, a home of the test's own."""

from __future__ import annotations

import gc
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from multiprocessing import forkserver
from pathlib import Path
from typing import TYPE_CHECKING

import hypothesis
import pytest

from orchestrator.app import SystemClock
from orchestrator.results.store.store import FileStore
from tests import again, durations
from tests.support import forked, host_program, scratch
from tests.support.hook import Hook, listening
from tests.support.link import LinkProxy
from tests.support.sshd import LoopbackSshd, end_processes_of
from tests.support.workers import pytest_addoption, pytest_cmdline_main, pytest_runtestloop  # noqa: F401 - hooks
from tests.support.workspace import end_started

if TYPE_CHECKING:
    from orchestrator.emulator.emulator import Emulator

# A busy computer is no finding.
hypothesis.settings.register_profile("fcctl", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.load_profile("fcctl")
# OpenMP's threads spin while they wait, and beside another worker they wait for the processor that it has: three times
# the processor time. FlashCore's own threads have tests that say how many they want. It is said here, since OpenMP
# reads it when it is loaded, and the conftest of a folder may load it before any hook runs; a fork of a process with
# such threads waits for them for ever.
os.environ.setdefault("OMP_NUM_THREADS", "1")


@pytest.hookimpl(tryfirst=True)  # before pytest chooses by marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A test on a GPU compiles kernels for minutes: it is ``full``."""
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker("full")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "group(name): one worker runs the tests of a name")
    if config.option.markexpr == "not full":  # what this tier proves, it proves the same beside a GPU
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    if not hasattr(config, "workerinput"):  # who collects what the workers of pytest-xdist report
        config.pluginmanager.register(durations.Recorder(), "durations")
        config.pluginmanager.register(again.Recorder(config.rootpath), "again")
    # A shell starts what is put in the background with Ctrl-C switched off, and so all that the tests start in turn.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    # So does nohup with a terminal that closes. It is not to end the tests; what they start does not inherit a handler.
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        signal.signal(signal.SIGHUP, lambda *_: None)
    # The size of the terminal that the tests are started from (readline exports it) is not that of theirs.
    for name in ("LINES", "COLUMNS"):
        os.environ.pop(name, None)
    scratch.use()
    host_program.on_emulated_disks()
    os.umask(0o022)  # nor who may read their files
    # Hundreds of processes import fcctl: each would compile it anew where the compiled modules may not be kept.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.dont_write_bytecode = False
    # Asking CUDA itself whether there is a GPU begins to use it, and what has been forked after that cannot.
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
    # The first Python on PATH has torch: the host program looks for one that has, in each new home, and starts others.
    os.environ["PATH"] = f"{Path(sys.executable).parent}:{path_without_shims(os.environ['PATH'])}"
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # NumPy's spin, too; none of its products here is large


def path_without_shims(path: str) -> str:
    """This Python's own folder instead of pyenv's shims, if it is one of pyenv's: a shim is a script in bash that runs
    dozens of programs, and the host program asks each ``python3.N`` on PATH for torch: a second for each new home."""
    folders = path.split(os.pathsep)
    for place, folder in enumerate(folders):
        root, _, last = folder.rpartition("/")
        if last == "shims" and sys.base_prefix.startswith(f"{root}/versions/"):
            folders[place] = f"{sys.base_prefix}/bin"
    return os.pathsep.join(folders)


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Generator[None, object, object]:
    """Nearly all that is made here stays: to look through it for garbage, again and again, takes longer than to read
    the tests. Meanwhile another processor imports what fcctl's commands need."""
    if session.config.option.workers > 1:
        forked.share()
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()


def pytest_unconfigure() -> None:
    forked.close()
    host_program.remove()


@pytest.fixture
def private_home(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """``HOME`` (and tmux's socket folder) in a temporary folder, for the ``local`` target and for caches.

    No file of the real home is read or written, no ssh-agent is asked, and whatever the test leaves running with
    this HOME (tmux servers, supervisors) is killed afterwards.
    """
    with home_of_its_own(monkeypatch) as home:
        yield home


@contextmanager
def home_of_its_own(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """What :func:`private_home` is, for a fixture of another scope."""
    folder = Path(tempfile.mkdtemp(prefix="fch", dir=scratch.folder()))
    home = folder / "home"
    home.mkdir()
    (folder / "t").mkdir()
    for root in (".fcctl", ".fcctl/controller"):
        host_program.unpacked_in(home / root)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("TMUX_TMPDIR", str(folder / "t"))
    for name in ("TMUX", "SSH_AUTH_SOCK", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME"):
        monkeypatch.delenv(name, raising=False)
    try:
        yield home
    finally:
        end_started(home)
        end_processes_of(home)
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def cloud() -> Iterator[Emulator]:
    """An emulated cloud in virtual time, in this process."""
    from tests.support.virtual_cloud import emulated

    with emulated() as emulator:
        yield emulator


@pytest.fixture
def sshd() -> Iterator[LoopbackSshd]:
    """A running sshd on 127.0.0.1 with its own host key, accepted key and far-side HOME.

    ``sshd.target()`` is an SshTarget that reaches it; ``sshd.home`` is the far side's home; ``sshd.stop()``,
    ``sshd.restart()``; ``sshd.proxy()`` puts a :class:`LinkProxy` in front: ``sshd.target(port=proxy.port)``;
    ``sshd.ssh_config`` has the alias ``box``; ``sshd.ssh_argv("cmd")`` runs OpenSSH's own client.
    """
    server = LoopbackSshd()
    try:
        yield server.start()
    finally:
        server.close()


@pytest.fixture(scope="session")
def kernel_processes() -> None:
    """Forks FlashCore's kernel processes from one that has imported PyTorch. multiprocessing looks for what it imports
    there by PYTHONPATH alone; without, each kernel process imports PyTorch anew, which takes two seconds."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(Path(__file__).resolve().parents[1] / "kernels"))
        forkserver.set_forkserver_preload(["flashcore.runner"])
        forkserver.ensure_running()


@pytest.fixture
def link(sshd: LoopbackSshd) -> LinkProxy:
    """A bad network in front of ``sshd``, which knows its port: ``sshd.target(port=link.port)``."""
    return sshd.proxy()


@pytest.fixture
def hook() -> Iterator[Hook]:
    """A server that ``[notify]`` may tell."""
    with listening() as found:
        yield found


@pytest.fixture
def notes() -> list[str]:
    """What :func:`store` had to say."""
    return []


@pytest.fixture
def store(tmp_path: Path, notes: list[str]) -> FileStore:
    """An empty store in the test's folder."""
    return FileStore(tmp_path / "results", SystemClock(), note=notes.append)
