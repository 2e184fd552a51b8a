"""``docs/faults.md``, made of the fault table: ``python -m tests.integration.faults.page > docs/faults.md``."""

from __future__ import annotations

from pathlib import Path

from tests.integration.faults.fault_table import TABLE, Row

PAGE = Path(__file__).resolve().parents[3] / "docs" / "faults.md"

HEAD = """\
# What happens on faults of a cloud

Each line below is a test: the real command and Google's own client library against the [emulator](emulator.md).
**Nothing here was run against the real cloud.** The command is `fcctl run JOB --on l4`, or
`fcctl hosts up l4 --minutes 2`. In every case the machine is off or gone in the end, and its cost by the emulator's own
account is within the plan.

*Seen* is the exit code, the run's status and a part of what fcctl prints. This page is generated:
`python -m tests.integration.faults.page > docs/faults.md`.
"""

TAIL = """
## fcctl is killed

`test_killed_then_audited.py` kills `fcctl run` with SIGKILL before every line of its journal, and then types only
`fcctl hosts audit --stop`. No machine stays on, except where the run is still active on it: the audit says so, and the
machine is stopped when that run is collected. If `fcctl hosts up` is killed, the machine already has its time limit,
and the audit finds it. Two commands that want one machine at the same time get one machine; the last to finish stops
it.
"""


def page() -> str:
    """The page's text: faults that cost the user nothing but time as a list, the others as a table."""
    parts = [HEAD]
    for heading, rows in TABLE.items():
        survived = [row for row in rows if row.code == 0 and not row.then]
        parts.append(f"\n## {heading}\n")
        if survived:
            parts.append("\nfcctl tries again or continues, and exits with 0:\n\n")
            parts += [f"- {row.what}{_place(row)}\n" for row in survived]
        if len(survived) < len(rows):
            parts.append("\n| what happens | seen | machine afterwards |\n|---|---|---|\n")
            parts += [f"| {row.what} | {_seen(row)} | {_left(row)} |\n" for row in rows if row not in survived]
    return "".join([*parts, TAIL])


def _place(row: Row) -> str:
    """Where the machine is in the end, if that is not where the target's first zone is."""
    places = row.kept or ([row.zone] if row.zone else [])
    return "" if places in (["us-west1-c"], []) else f" (the machine is then in {' and '.join(places)})"


def _seen(row: Row) -> str:
    ended = f"exit {row.code}" + (f", run {row.status}" if row.status else "")
    words = "; ".join(f"`{words}`" for words in row.says)
    then = "".join(f"; then `fcctl {command}`" for command, _ in row.then)
    return f"{ended}{': ' if words else ''}{words}{then}"


def _left(row: Row) -> str:
    if row.zone is None:
        return "none"
    if row.code and row.machine == "suspended":
        return "suspended, as before"
    return "off, cost nothing" if row.cost == "nothing" else "off"


if __name__ == "__main__":
    print(page(), end="")
