"""What the cloud said of machines' starts and stops: ``results/machines.jsonl``, one flushed line each."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import ValidationError

from orchestrator.adapters.store.durable import disk_errors, write_all

if TYPE_CHECKING:  # every run has this file at hand, few read it
    from orchestrator.domain.ledger import Sighting

NAME = "machines.jsonl"


class SightingFile:
    """See :class:`orchestrator.ports.Sightings`. Lines that a crash tore are left out, and cost only themselves."""

    def __init__(self, results_dir: Path) -> None:
        self._path = results_dir / NAME

    def note(self, sighting: Sighting) -> None:
        line = f"\n{json.dumps(sighting.model_dump(mode='json'))}\n"  # the first line end closes a torn line
        with disk_errors("write the ledger", self._path.parent):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
            fd = os.open(self._path, flags, 0o644)
            try:
                write_all(fd, line.encode())
                os.fsync(fd)
            finally:
                os.close(fd)

    def all(self) -> list[Sighting]:
        try:
            lines = self._path.read_bytes().splitlines()
        except FileNotFoundError:
            return []
        return [found for line in lines if line.strip() and (found := _sighting(line)) is not None]


def _sighting(line: bytes) -> Sighting | None:
    from orchestrator.domain.ledger import Sighting

    try:
        return Sighting.model_validate_json(line)
    except ValidationError:
        return None
