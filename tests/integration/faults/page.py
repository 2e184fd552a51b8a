"""``docs/faults.md``, made of the fault table: ``python -m tests.integration.faults.page > docs/faults.md``."""

from __future__ import annotations

from pathlib import Path

from tests.integration.faults.fault_table import TABLE, Row

PAGE = Path(__file__).resolve().parents[3] / "docs" / "faults.md"

HEAD = """\
# What goes wrong in a cloud, and what is left of it

Every row is a test (`tests/integration/faults`): the real command and Google's own client library, before the
[emulator](emulator.md). *Seen* is the exit code and a piece of what fcctl prints. *Left* is the machine in the end:
never one that is on. *Cost* is checked against the emulator's own account of when a machine was on, and against the
dollars that were named before anything was started. Nothing here was run against the real cloud. The page is made from
the table: `python -m tests.integration.faults.page > docs/faults.md`.

The commands: `fcctl run JOB --on l4`, and where only waking matters `fcctl hosts up l4 --minutes 2`, whose own limit
ends it.
"""

TAIL = """
## A controller that is killed

`test_killed_then_audited.py` kills `fcctl run` with SIGKILL before every line of its journal, which is after the effect
of the line before, and then types only `fcctl hosts audit --stop`: nothing stays on, except where the run still works
on the machine, which the audit says; that run ends the machine when it is collected. `fcctl hosts up` killed while it
wakes leaves a machine that has its limit already, and that the audit finds. Two controllers that want one machine at
once get one, and whoever is last stops it.
"""


def page() -> str:
    """The page's text."""
    parts = [HEAD]
    for heading, rows in TABLE.items():
        parts.append(f"\n## {heading}\n\n| what happens | seen | left | cost |\n|---|---|---|---|\n")
        parts += [_line(row) for row in rows]
    return "".join([*parts, TAIL])


def _line(row: Row) -> str:
    what = row.what if row.machine == "absent" or row.machine in row.what else f"{row.machine} machine: {row.what}"
    return f"| {what} | {_seen(row)} | {_left(row)} | {row.cost} |\n"


def _seen(row: Row) -> str:
    ended = f"exit {row.code}" + (f", run {row.status}" if row.status else "")
    words = "; ".join(f"`{words}`" for words in row.says)
    then = "".join(f"; then `fcctl {command}`" for command, _ in row.then)
    return f"{ended}{': ' if words else ''}{words}{then}"


def _left(row: Row) -> str:
    if row.zone is None:
        return "nothing"
    if row.kept:
        return f"off, in {' and '.join(row.kept)}"
    return "suspended, as it was" if row.code and row.machine == "suspended" else f"off, in {row.zone}"


if __name__ == "__main__":
    print(page(), end="")
