"""What a command ends with: notices about money, and a line for each machine that it leaves on."""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from orchestrator.base.errors import CloudError, FcctlError
from orchestrator.base.sanitize import clean_text

if TYPE_CHECKING:
    from orchestrator.cli.context import Cli
    from orchestrator.runs.machine.left_on import LeftOn
    from orchestrator.runs.services import Services

_log = logging.getLogger("orchestrator.cli")


def finish(cli: Cli, code: int) -> int:
    """Send notices, and print the machines that stay on; the command's exit code.

    If all else went well, and a machine that was to be stopped is not known to be off, that is the code of a cloud that
    did not do what it was told.
    """
    services = cli.used
    if services is None:
        return code
    left: Sequence[LeftOn] = ()
    try:
        left = cli.left_on.found(services.store, services.sessions)
        for line in _notices(services, left):
            cli.note(f"note: {line}")
    except KeyboardInterrupt:  # a notice is not waited for
        pass
    except Exception:  # noqa: BLE001 - the command itself is over, and its exit code stands
        _log.exception("the end of the command")
    if not cli.json:  # there, it is a field of the document
        with suppress(OSError, ValueError):
            sys.stderr.write("".join(clean_text(one.text) + "\n" for one in left))
            sys.stderr.flush()
    return CloudError.exit_code if code == 0 and any(one.not_stopped for one in left) else code


def _notices(services: Services, left: Sequence[LeftOn]) -> list[str]:
    """What went wrong with them, and what is wrong with the book; one line each."""
    said: list[str] = []
    news = [one for one in left if not one.as_before]
    if news and services.notifier.wants("left_running"):
        from orchestrator.runs.notices import of_left_on

        said += services.notifier.send(of_left_on(news))
    if not services.has_opened_book:
        return said
    try:
        from orchestrator.runs.cost.cap_notices import send_cap_notices

        said += send_cap_notices(services)
        damaged = services.spending.damaged
    except FcctlError as error:
        return [*said, f"{error.message}: {error.cause}"]
    if damaged:
        lines, are = ("1 line", "is") if damaged == 1 else (f"{damaged} lines", "are")
        said.append(f"{lines} of the book of spending cannot be read, and {are} not counted: fcctl cost rebuild")
    return said
