"""What the cloud said of machines' starts and stops, and of disks, snapshots and addresses: ``results/machines.jsonl``,
one flushed line each. The fields of a line tell which of the two it is."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from pydantic import BaseModel, ValidationError

from orchestrator.base.files import disk_errors, make_folders, sync_folder, write_all

if TYPE_CHECKING:  # every run has these files at hand, few read them
    from orchestrator.money.billable import Holding
    from orchestrator.money.ledger import Sighting

NAME = "machines.jsonl"
Word = TypeVar("Word", bound=BaseModel)


class SightingFile:
    """See ``Sightings``. Lines that a crash tore are left out, and cost only themselves."""

    def __init__(self, results_dir: Path) -> None:
        self._folder = results_dir

    def note(self, sighting: Sighting) -> None:
        self._append(sighting)

    def all(self) -> list[Sighting]:
        from orchestrator.money.ledger import Sighting

        return self._read(Sighting)

    def note_holding(self, holding: Holding) -> None:
        self._append(holding)

    def holdings(self) -> list[Holding]:
        from orchestrator.money.billable import Holding

        return self._read(Holding)

    def _append(self, word: BaseModel) -> None:
        line = f"\n{json.dumps(word.model_dump(mode='json'))}\n"  # the first line end closes a torn line
        with disk_errors("write the ledger", self._folder):
            make_folders(self._folder)
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
            fd = os.open(self._folder / NAME, flags, 0o644)
            try:
                write_all(fd, line.encode())
                os.fsync(fd)
            finally:
                os.close(fd)
            sync_folder(self._folder)

    def _read(self, kind: type[Word]) -> list[Word]:
        try:
            lines = (self._folder / NAME).read_bytes().splitlines()
        except FileNotFoundError:
            return []
        return [found for line in lines if line.strip() and (found := _word(line, kind)) is not None]


def _word(line: bytes, kind: type[Word]) -> Word | None:
    try:
        return kind.model_validate_json(line)
    except ValidationError:
        return None
