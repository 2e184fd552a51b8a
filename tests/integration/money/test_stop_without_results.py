"""A stop works while this computer's records of runs and sessions cannot be read, and the ledger counts its cost."""

from __future__ import annotations

import errno
import io
import os
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from orchestrator.emulator.emulator import Emulator
from tests.support.virtual_cloud import CloudWorkspace, billed, machines, money, napping

if TYPE_CHECKING:
    from collections.abc import Iterator

CAPS = "\n[budget]\nper_run_usd = 9\nper_month_usd = 300.0\nproject_usd = 300.0\n"
#: Ten minutes of the machine, dollars, rounded down.
TEN_MINUTES_USD = 0.115
SESSION = ("session", "start", "--on", "l4", "--budget", "1")


@pytest.fixture
def workspace(tmp_path: Path, private_home: Path, cloud: Emulator) -> CloudWorkspace:
    return napping(tmp_path / "w", private_home, cloud, CAPS)


@contextmanager
def file_at(place: Path) -> Iterator[None]:
    """A file in a folder's place."""
    aside = place.with_name(f"{place.name}.aside")
    place.mkdir(parents=True, exist_ok=True)
    place.rename(aside)
    place.write_text("no folder\n")
    yield
    place.unlink()
    aside.rename(place)


@contextmanager
def refusing(place: Path, number: int) -> Iterator[None]:
    """The file system refuses all below a folder with this error."""

    def refused(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(path: Any = ".", *args: Any, **more: Any) -> Any:
            if isinstance(path, str | Path) and f"{path}/".startswith(f"{place}/"):
                raise OSError(number, os.strerror(number), str(path))
            return real(path, *args, **more)

        return call

    with pytest.MonkeyPatch.context() as patch:
        for name in ("stat", "lstat", "listdir", "scandir", "open", "mkdir"):
            patch.setattr(os, name, refused(getattr(os, name)))
        patch.setattr(io, "open", refused(io.open))
        yield


Damage = Callable[[Path], Any]
DAMAGES: dict[str, Damage] = {
    "results is a file": lambda root: file_at(root / "results"),
    "active is a file": lambda root: file_at(root / "results/active"),
    "EIO": lambda root: refusing(root / "results", errno.EIO),
    "EACCES": lambda root: refusing(root / "results", errno.EACCES),
    "EIO of active": lambda root: refusing(root / "results/active", errno.EIO),
}
each_damage = pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)


@each_damage
def test_hosts_down(damage: Damage, workspace: CloudWorkspace, cloud: Emulator) -> None:
    workspace.type("hosts", "up", "l4", check=0)
    cloud.advance(600.0)
    with damage(workspace.root):
        done = workspace.type("hosts", "down", "l4", check=0)
        assert billed(cloud) == []
    assert "could not" in done.err
    assert f"{workspace.root}/results" in done.err
    spent, reserved = money(workspace)
    assert (reserved, spent > TEN_MINUTES_USD) == (0, True)


@each_damage
def test_hosts_down_of_a_machine_with_a_run(damage: Damage, workspace: CloudWorkspace, cloud: Emulator) -> None:
    """The machine says that it is used; --force stops it, and the run is collected later."""
    workspace.type("run", "nap", "--on", "l4", "-d", check=0)
    with damage(workspace.root):
        workspace.type("hosts", "down", "l4", check=8)
        workspace.type("hosts", "down", "l4", "--force", check=0)
        assert billed(cloud) == []
    assert sum(money(workspace)) > 0.0


@each_damage
def test_hosts_audit_stop(damage: Damage, workspace: CloudWorkspace, cloud: Emulator) -> None:
    workspace.type(*SESSION, check=0)
    (workspace.root / "results/sessions").rename(workspace.root / "results/elsewhere")
    cloud.advance(600.0)
    with damage(workspace.root):
        done = workspace.type("hosts", "audit", "--stop", check=6)
        assert billed(cloud) == []
    assert f"{workspace.root}/results" in done.said
    assert money(workspace)[1] > TEN_MINUTES_USD, "a record that cannot be read is not a deleted one"
    workspace.type("hosts", "audit", check=0)
    spent, reserved = money(workspace)
    assert (reserved, spent > TEN_MINUTES_USD) == (0, True)


@each_damage
def test_session_stop(damage: Damage, workspace: CloudWorkspace, cloud: Emulator) -> None:
    workspace.type(*SESSION, check=0)
    cloud.advance(600.0)
    with damage(workspace.root):
        done = workspace.type("session", "stop", check=0)
        assert billed(cloud) == []
    assert f"{workspace.root}/results" in done.err
    assert "no open session" in workspace.type("session", "status", check=0).err
    spent, reserved = money(workspace)
    assert (reserved, spent > TEN_MINUTES_USD) == (0, True)


@contextmanager
def no_ledger(home: Path) -> Iterator[None]:
    """A folder in the ledger's place, as no program can read it."""
    (book,) = home.rglob("book.jsonl")
    aside = book.rename(book.with_name("aside"))
    book.mkdir()
    yield
    book.rmdir()
    aside.rename(book)


@pytest.mark.parametrize("command", ["hosts down l4", "session stop", "hosts audit --stop"])
def test_a_stop_while_the_ledger_cannot_be_read(
    command: str, workspace: CloudWorkspace, cloud: Emulator, private_home: Path
) -> None:
    workspace.type(*(("hosts", "up", "l4") if "down" in command else SESSION), check=0)
    if "audit" in command:
        (workspace.root / "results/sessions").rename(workspace.root / "results/elsewhere")
    cloud.advance(600.0)
    with no_ledger(private_home):
        done = workspace.type(*command.split())
        assert billed(cloud) == []
    assert "book.jsonl" in done.said
    workspace.type("hosts", "audit")
    assert sum(money(workspace)) > TEN_MINUTES_USD


def test_session_stop_of_one_whose_folder_was_deleted(workspace: CloudWorkspace, cloud: Emulator) -> None:
    workspace.type(*SESSION, check=0)
    (workspace.root / "results/sessions").rename(workspace.root / "elsewhere")
    document = workspace.type("--json", "session", "stop", check=0).json
    assert [one["how"] for one in document["stopped"]] == ["stopped"]
    assert billed(cloud) == []
    workspace.type("session", "stop", check=7)


@pytest.mark.parametrize("name", ["runs", "sessions"])
def test_session_stop_while_another_folder_is_a_file(name: str, workspace: CloudWorkspace, cloud: Emulator) -> None:
    workspace.type(*SESSION, check=0)
    with file_at(workspace.root / "results" / name):
        workspace.type("session", "stop", check=0)
        assert billed(cloud) == []
    workspace.type("session", "status", check=0)
    assert money(workspace)[1] == 0


COMMANDS = [("session", "status"), ("session", "report"), ("run", "noop", "--on", "l4"), ("ps",), ("cost", "budget")]


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_a_file_in_the_place_of_the_sessions_is_not_taken_for_none(
    command: tuple[str, ...], workspace: CloudWorkspace, cloud: Emulator
) -> None:
    with file_at(workspace.root / "results/sessions"):
        done = workspace.type(*command, check=1)
    assert "sessions is no folder" in done.err
    assert billed(cloud) == []


def test_the_machine_of_a_session_that_cannot_be_read_is_stopped_with_its_run(
    workspace: CloudWorkspace, cloud: Emulator
) -> None:
    workspace.type(*SESSION, check=0)
    run_id = workspace.type("run", "nap", "--on", "l4", "-d", check=0).out.strip()
    with file_at(workspace.root / "results/sessions"):
        done = workspace.type("cancel", run_id)
        assert billed(cloud) == []
    assert "sessions is no folder" in done.err


def test_a_machine_is_not_deleted_while_nobody_can_say_whose_results_are_on_it(
    tmp_path: Path, private_home: Path, cloud: Emulator
) -> None:
    workspace = napping(tmp_path / "w", private_home, cloud, CAPS, release="delete")
    workspace.type(*SESSION, check=0)
    with file_at(workspace.root / "results/active"):
        document = workspace.type("--json", "session", "stop", check=0).json
    assert "active is no folder" in document["unread"][0]
    assert (billed(cloud), len(machines(cloud))) == ([], 1)
