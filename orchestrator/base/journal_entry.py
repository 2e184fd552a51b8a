"""One line of a journal."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from orchestrator.base.models import KEPT


class _Record(BaseModel):
    model_config = KEPT


class JournalEntry(_Record):
    seq: int
    time: float
    kind: str
    data: dict[str, Any] = {}
