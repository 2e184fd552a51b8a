"""The machines of an emulator on this computer: each an sshd with its processes. A disk is a folder with a home, a
snapshot a copy of that folder."""

from __future__ import annotations

import contextlib
import secrets
import shutil
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

from orchestrator.emulator.guest import Guest, host_keys, login_name
from orchestrator.emulator.processes import Guardian
from orchestrator.emulator.scenario import Scenario
from orchestrator.emulator.world import Machine


class ProcessHypervisor:
    """The ``Hypervisor``. ``temporary``: ``folder`` is to be deleted at the end, however this process ends."""

    def __init__(self, folder: Path, scenario: Scenario, *, temporary: bool) -> None:
        self._folder = folder
        self._scenario = scenario
        #: Machine path -> its guest, and the guest's token -> machine path, while the power is on.
        self.running: dict[str, Guest] = {}
        self._tokens: dict[str, str] = {}
        #: How an sshd reaches this emulator; known once it listens.
        self.url = ""
        self._guardian = Guardian(folder if temporary else None)
        #: Makes what is on the disk of a machine that boots; None: this computer's programs are the machine's.
        self.make_disk: Callable[[Path], object] | None = None

    def folder_of(self, disk: dict[str, Any]) -> Path:
        return self._folder / "disks" / str(disk["id"])

    def path_of_guest(self, token: str) -> str:
        """The path of the machine with this token; empty: none that is on has it."""
        return self._tokens.get(token, "")

    def stop(self) -> None:
        """Ends every process."""
        for guest in self.running.values():
            guest.power_off()
        self.running.clear()
        self._guardian.dismiss()

    # ------------------------------------------------------------------------------------------------------- machines
    def boot(self, machine: Machine, disk: dict[str, Any]) -> None:
        machine.volatile = None
        token = secrets.token_urlsafe(16)
        guest = self.running[machine.path] = Guest.boot(
            self.folder_of(disk),
            instance_id=machine.resource["id"],
            port=machine.port,
            url=self.url,
            token=token,
            path=self._scenario.guest_path,
            make_disk=self.make_disk,
            announce=self._guardian.announce,
        )
        self._tokens[token] = machine.path
        machine.port, machine.volatile = guest.port, str(guest.volatile)

    def shut_down(self, machine: Machine) -> None:
        if machine.path in self.running:
            self.running[machine.path].shut_down()

    def power_off(self, machine: Machine) -> None:
        if (guest := self.running.pop(machine.path, None)) is not None:
            guest.power_off()
        self._tokens = {token: path for token, path in self._tokens.items() if path != machine.path}
        machine.volatile = None

    def freeze(self, machine: Machine) -> None:
        if machine.path in self.running:
            self.running[machine.path].freeze()

    def thaw(self, machine: Machine) -> bool:
        if machine.path not in self.running:
            return False
        self.running[machine.path].thaw()
        return True

    def authorize(self, machine: Machine) -> None:
        """Only for the one user; with OS Login none, as on real machines."""
        if (guest := self.running.get(machine.path)) is None:
            return
        metadata = machine.metadata()
        entries = [line.partition(":") for line in metadata.get("ssh-keys", "").splitlines()]
        keys = [key.strip() for user, _, key in entries if user.strip() == login_name()]
        guest.authorize([] if metadata.get("enable-oslogin", "").upper() == "TRUE" else keys)

    def host_keys(self, machine: Machine) -> dict[str, str]:
        return host_keys(self.running[machine.path].disk)

    def login(self, machine: Machine) -> tuple[int, str] | None:
        return None if machine.volatile is None else (machine.port or 0, login_name())

    def serial_output(self, machine: Machine) -> str:
        guest = self.running.get(machine.path)
        return (guest.volatile / "sshd.log").read_text(errors="replace") if guest is not None else ""

    # ---------------------------------------------------------------------------------------------------------- disks
    def fill_disk(self, disk: dict[str, Any]) -> None:
        source = self._folder / "snapshots" / str(disk.get("sourceSnapshotId"))
        _copy(source, self.folder_of(disk))

    def delete_disk(self, disk: dict[str, Any]) -> None:
        shutil.rmtree(self.folder_of(disk), ignore_errors=True)

    def take_snapshot(self, snapshot: dict[str, Any], disk: dict[str, Any]) -> int:
        target = self._folder / "snapshots" / str(snapshot["id"])
        _copy(self.folder_of(disk), target)
        return sum(entry.lstat().st_size for entry in target.rglob("*") if entry.is_file() and not entry.is_symlink())

    def delete_snapshot(self, snapshot: dict[str, Any]) -> None:
        shutil.rmtree(self._folder / "snapshots" / str(snapshot["id"]), ignore_errors=True)


def _copy(source: Path, target: Path) -> None:
    if source.is_dir():
        with contextlib.suppress(shutil.Error):  # files deleted during the copy
            shutil.copytree(source, target, symlinks=True, ignore=_special, dirs_exist_ok=True)
    else:
        target.mkdir(parents=True, exist_ok=True)


def _special(folder: str, names: list[str]) -> list[str]:
    """Sockets and pipes are not copied: reading one would block."""
    special = []
    for name in names:
        with contextlib.suppress(FileNotFoundError):
            mode = (Path(folder) / name).lstat().st_mode
            if stat.S_ISSOCK(mode) or stat.S_ISFIFO(mode):
                special.append(name)
    return special
