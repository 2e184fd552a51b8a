"""Run ids: ``20261121t081530z-phase1-l4-3fa9c1``. At most 63 of ``[a-z0-9-]``: also tmux session, label, folder."""

from __future__ import annotations

import re
import secrets
from datetime import UTC, datetime

MAX_LENGTH = 63
PATTERN = re.compile(r"^\d{8}t\d{6}z-[a-z0-9]+(?:-[a-z0-9]+)*-[0-9a-f]{6}$")


def new(job: str, target: str, now: float, token: str | None = None) -> str:
    """A fresh id for ``job`` on ``target``. ``now`` is epoch seconds; ``token`` six hex digits, random if absent."""
    stamp = datetime.fromtimestamp(now, UTC).strftime("%Y%m%dt%H%M%Sz")
    token = token or secrets.token_hex(3)
    room = MAX_LENGTH - len(stamp) - len(token) - 3
    target = slug(target)[: room // 2].strip("-")
    job = slug(job)[: room - len(target)].strip("-")
    return f"{stamp}-{job}-{target}-{token}"


def slug(text: str) -> str:
    """``text`` in the id's alphabet; never empty."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-") or "x"


def began(run_id: str) -> float:
    """When the id, a valid one, was made: epoch seconds, by the clock of its computer; 0 if it names no such day."""
    try:
        return datetime.strptime(run_id[:16], "%Y%m%dt%H%M%Sz").replace(tzinfo=UTC).timestamp()
    except ValueError:
        return 0.0


def is_valid(text: str) -> bool:
    """Whether ``text`` could be a run id; outside input is checked with it before it becomes a path."""
    return len(text) <= MAX_LENGTH and PATTERN.fullmatch(text) is not None
