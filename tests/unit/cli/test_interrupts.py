"""A signal that comes in the midst of an import, or where Python only prints exceptions, still ends the command."""

from __future__ import annotations

import importlib
import os
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import paramiko
import pytest
from pydantic import AfterValidator, BaseModel

from orchestrator.cli import interrupts
from tests.support.waiting import GUARD_S

#: As an import of dataclasses and models is: what ``__set_name__`` raises becomes a RuntimeError up to Python 3.11.
INTERRUPTED = """
import os, signal
class Field:
    def __set_name__(self, owner, name):
        os.kill(os.getpid(), signal.SIGUSR1)
        for _ in range(1000): pass
class Model:
    data = Field()
IMPORTED = True
"""


@pytest.fixture
def told() -> Iterator[list[int]]:
    """The signals that a handler of SIGUSR1 told of."""
    seen: list[int] = []
    hook = sys.unraisablehook
    before = signal.signal(signal.SIGUSR1, interrupts.Interrupt(seen.append))
    yield seen
    signal.signal(signal.SIGUSR1, before)
    sys.unraisablehook = hook


def wait_for_it() -> None:
    time.sleep(GUARD_S)
    pytest.fail("nothing came")


def drop(error: type[BaseException]) -> None:
    """Raise ``error`` where nobody can catch it."""

    def raises(_: object) -> None:
        raise error

    class Thing:
        pass

    thing = Thing()
    reference = weakref.ref(thing, raises)
    del thing
    assert reference() is None


def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, text: str) -> None:
    (tmp_path / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(sys.modules, name, sys)  # so that it is gone afterwards
    del sys.modules[name]


def test_elsewhere_at_once(told: list[int]) -> None:
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGUSR1)
    assert told == [signal.SIGUSR1]


def test_an_import_comes_to_its_end_first(told: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module(tmp_path, monkeypatch, "interrupted_import", INTERRUPTED)

    def imported() -> None:
        importlib.import_module("interrupted_import")
        assert told == []
        wait_for_it()

    with pytest.raises(KeyboardInterrupt):
        imported()
    assert sys.modules["interrupted_import"].IMPORTED
    assert told == [signal.SIGUSR1]


def test_a_model_is_read_to_its_end_first(told: list[int]) -> None:
    def interrupted(value: int) -> int:
        signal.raise_signal(signal.SIGUSR1)
        return value + sum(range(1000)) * 0

    class Model(BaseModel):
        number: Annotated[int, AfterValidator(interrupted)]

    def read() -> None:
        assert Model(number=3).number == 3
        assert told == []
        wait_for_it()

    with pytest.raises(KeyboardInterrupt):
        read()
    assert told == [signal.SIGUSR1]


#: As each call of a channel does.
LOCKED = """
lock.acquire()
signal.raise_signal(signal.SIGUSR1)
try:
    pass
finally:
    lock.release()
"""


def test_a_lock_of_the_connection_is_given_back_first(told: list[int]) -> None:
    lock = threading.Lock()

    def call() -> None:
        exec(compile(LOCKED, paramiko.channel.__file__, "exec"), {"lock": lock, "signal": signal})
        wait_for_it()

    with pytest.raises(KeyboardInterrupt):
        call()
    assert not lock.locked()
    assert told == [signal.SIGUSR1]


def test_not_for_ever(told: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interrupts, "PATIENCE", 3)
    signal.signal(signal.SIGUSR1, interrupts.Interrupt(told.append))
    module(
        tmp_path,
        monkeypatch,
        "endless_import",
        "import signal, time\nsignal.raise_signal(signal.SIGUSR1)\ntime.sleep(600)\n",
    )
    started = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        importlib.import_module("endless_import")
    assert time.monotonic() - started < 300, "not at the end of the import"
    assert told == [signal.SIGUSR1]


def test_what_python_only_prints_comes_again(told: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signal, "getsignal", lambda _number: signal.SIG_IGN)  # leave pytest its SIGINT
    monkeypatch.setattr(interrupts.signal, "SIGINT", signal.SIGUSR1)
    interrupts.install()

    def dropped() -> None:
        drop(KeyboardInterrupt)
        wait_for_it()

    with pytest.raises(KeyboardInterrupt):
        dropped()
    assert told == [signal.SIGUSR1]


def test_other_exceptions_are_printed_as_before(told: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda unraisable: seen.append(unraisable.exc_type))
    monkeypatch.setattr(signal, "getsignal", lambda _number: signal.SIG_IGN)
    interrupts.install()
    drop(ZeroDivisionError)
    assert seen == [ZeroDivisionError]
    assert told == []


#: As fcctl starts, with a command line whose import is interrupted and whose commands take long.
EARLY = """
import sys
from importlib.util import spec_from_file_location
class Finder:
    def find_spec(self, name, path=None, target=None):
        return spec_from_file_location(name, sys.argv[1]) if name == "orchestrator.cli.main" else None
sys.meta_path.insert(0, Finder())
from orchestrator.cli.entry import entry
entry()
"""
COMMANDS = """
import os, signal, time
os.kill(os.getpid(), signal.SIGINT)
for _ in range(1000): pass
print("imported", flush=True)
def main():
    time.sleep(60)
"""


def test_ctrl_c_while_fcctl_starts(tmp_path: Path) -> None:
    (tmp_path / "commands.py").write_text(COMMANDS)
    command = [sys.executable, "-c", EARLY, str(tmp_path / "commands.py")]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "imported\n", "")
