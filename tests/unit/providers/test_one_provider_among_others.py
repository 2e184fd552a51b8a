"""What is only so at Google is known to its package and to the configuration, and to nobody else."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3] / "orchestrator"
#: The kind's configuration, the registry, the emulator's own machine, and old lines
#: of the ledger, which name no kind; the price list that `fcctl cost prices` fetches.
KNOWS = {
    "machines/targets.py", "machines/sandbox.py", "providers/registry.py",
    "money/ledger.py", "workspace/init.py", "app.py",
}  # fmt: skip


def test_nobody_else_asks_whether_a_target_is_google_s() -> None:
    pattern = re.compile(r"\bGcpTarget\b|[\"']gcp[\"']|orchestrator\.providers\.gcp\.(?!list_prices)")
    named = {
        path.relative_to(ROOT).as_posix()
        for path in ROOT.rglob("*.py")
        if not path.is_relative_to(ROOT / "providers/gcp") and pattern.search(path.read_text())
    }
    assert named - KNOWS == set()
