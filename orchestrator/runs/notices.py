"""Notices to people who are not watching: which events, their texts, and their way to a program or a webhook. One that
cannot be sent fails nothing else."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, Field, field_validator

from orchestrator.base.models import WRITTEN

if TYPE_CHECKING:
    from orchestrator.results.records import RunRecord
    from orchestrator.runs.machine.left_on import LeftOn


EventName = Literal["finished", "failed", "over_budget", "left_running", "refused", "budget"]

#: A secret URL is better kept in a variable: ``env:NAME``.
_URL = r"^(env:[A-Za-z_][A-Za-z0-9_]*|https://[^\s]+|http://(127\.0\.0\.1|localhost|\[::1\])(:[0-9]+)?(/[^\s]*)?)$"
Url = Annotated[str, Field(pattern=_URL, max_length=2000)]


class Notify(BaseModel):
    """``[notify]``: who is notified when a run ends or a machine was left running."""

    model_config = WRITTEN

    #: A program and its arguments; it gets the event as JSON on its standard input.
    command: Annotated[list[str], Field(max_length=64)] = []
    #: Gets the event as a JSON POST.
    webhook: Url | None = None
    #: An incoming webhook of Slack (or of anything that takes ``{"text": ...}``).
    slack: Url | None = None
    #: Which events; ``finished`` is a run that passed.
    on: list[EventName] = ["failed", "over_budget", "left_running", "refused", "budget"]

    @field_validator("command")
    @classmethod
    def _names_a_program(cls, value: list[str]) -> list[str]:
        if value and not value[0].strip():
            raise ValueError("the first word must name a program")
        return value

    @property
    def wanted(self) -> bool:
        return bool(self.command or self.webhook or self.slack)


@dataclass(frozen=True)
class Notice:
    """One event. ``facts`` is what goes into the JSON beside the text."""

    event: EventName
    text: str
    facts: Mapping[str, Any] = field(default_factory=dict)

    def as_json(self, workspace: str) -> dict[str, Any]:
        head = {"schema_version": 1, "source": "fcctl", "workspace": workspace, "event": self.event}
        return {**head, "text": self.text, **self.facts}


def of_run(record: RunRecord) -> Notice:
    """The notice of a run that has ended."""
    events: dict[str, EventName] = {"passed": "finished", "over_budget": "over_budget"}
    incomplete = record.status == "incomplete"
    ended_badly = (s for s in record.steps if s.status in ("failed", "timed_out", "cancelled"))
    step = next((s for s in record.steps if s.left_open) if incomplete else ended_badly, None)
    where = f" at {step.id}" if step and record.status != "passed" else ""
    why = f": {record.message}" if record.message and record.status != "passed" else ""
    cost = f", ${record.cost.usd:.2f}" if record.cost.usd else ""
    text = f"{record.job} on {record.target} {record.status.replace('_', ' ')}{where}{cost}{why} ({record.run_id})"
    names = ("run_id", "job", "target", "status", "exit_code", "message", "hint", "started", "finished")
    facts = {**{name: getattr(record, name) for name in names}, "usd": record.cost.usd}
    return Notice(events.get(record.status, "failed"), text, {"run": facts})


def of_stopped(run_id: str, job: str, target: str, status: str, reason: str) -> Notice:
    """The notice of a run whose machine was stopped, and that waits until it is started again."""
    event: EventName = "over_budget" if status == "over_budget" else "failed"
    hint = f"fcctl pull-results --wake {run_id}"
    facts = {"run_id": run_id, "job": job, "target": target, "status": status, "message": reason, "hint": hint}
    return Notice(
        event,
        f"{job} on {target} {status.replace('_', ' ')}: {reason}; its results are on the machine's disk: {hint}",
        {"run": facts},
    )


def of_unwritten(record: RunRecord, reason: str, hint: str | None) -> Notice:
    """The notice of a run that has ended, and whose results do not fit on this computer's disk."""
    told = of_run(record)
    facts = {"run": {**told.facts["run"], "message": reason, "hint": hint}}
    text = f"{record.job} on {record.target} {record.status.replace('_', ' ')}, but {reason}: {hint} ({record.run_id})"
    return Notice("failed", text, facts)


def of_left_running(machines: Sequence[Mapping[str, Any]], usd_per_hour: float) -> Notice:
    """The notice of orphaned machines: name, zone and what is known of each."""
    names = ", ".join(str(m.get("name", "?")) for m in machines)
    text = f"left running: {names}, ${usd_per_hour:.2f} an hour; fcctl hosts audit --stop"
    return Notice("left_running", text, {"machines": list(machines), "usd_per_hour": usd_per_hour})


def of_left_on(machines: Sequence[LeftOn]) -> Notice:
    """The notice of machines that a command leaves on."""
    rate = sum(one.usd_per_hour or 0.0 for one in machines)
    text = "left running: " + "; ".join(one.text for one in machines)
    return Notice("left_running", text, {"machines": [one.as_json() for one in machines], "usd_per_hour": rate})


def of_cap(cap: str, percent: int, usd: float, spent_usd: float, reserved_usd: float) -> Notice:
    """The notice of a cap (day, month or project) that is partly spent; ``reserved_usd`` may still be."""
    text = (
        f"{percent} % of the {cap}'s cap of ${usd:.2f} are spent: ${spent_usd:.2f}; ${reserved_usd:.2f} more are"
        f" reserved (fcctl cost budget)"
    )
    facts = {"cap": cap, "percent": percent, "cap_usd": usd, "spent_usd": spent_usd, "reserved_usd": reserved_usd}
    return Notice("budget", text, {"budget": facts})


def of_refusal(schedule: str, reason: str) -> Notice:
    """The notice of a firing that was refused."""
    facts = {"schedule": schedule, "reason": reason}
    return Notice("refused", f"schedule {schedule} did not start: {reason}", facts)


def slack_text(notice: Notice) -> str:
    """The text with Slack's special characters escaped, so that a host's message makes no link or mention."""
    return notice.text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")[:3000]


def without_secret(url: str) -> str:
    """How a webhook may be shown: its host only."""
    if url.startswith("env:"):
        return url
    scheme, _, rest = url.partition("://")
    host = rest.split("/", 1)[0].rpartition("@")[2]
    return f"{scheme}://{host}/..."


_COMMAND_TIMEOUT_S, _POST_TIMEOUT_S = 30.0, 10.0


class Notifier:
    """Sends notices as ``[notify]`` says."""

    def __init__(self, settings: Notify, workspace: str, environ: Mapping[str, str] | None = None) -> None:
        self._settings = settings
        self._workspace = workspace
        self._environ = os.environ if environ is None else environ

    def wants(self, event: EventName) -> bool:
        """Whether anybody is notified of it."""
        return self._settings.wanted and event in self._settings.on

    def send(self, notice: Notice) -> list[str]:
        """Notifies all that this event is for; returns one line per failure. Never raises."""
        settings = self._settings
        if notice.event not in settings.on:
            return []
        body = notice.as_json(self._workspace)
        problems = []
        if settings.command:
            problems.append(self._run(settings.command, notice, body))
        if settings.webhook:
            problems.append(self._post(settings.webhook, body))
        if settings.slack:
            problems.append(self._post(settings.slack, {"text": slack_text(notice)}))
        return [problem for problem in problems if problem]

    def _run(self, command: list[str], notice: Notice, body: Mapping[str, Any]) -> str | None:
        env = {**self._environ, "FCCTL_EVENT": notice.event}
        if isinstance(run := body.get("run"), Mapping):
            env.update(FCCTL_RUN_ID=str(run.get("run_id")), FCCTL_STATUS=str(run.get("status")))
        try:
            done = subprocess.run(
                command,
                input=json.dumps(body, default=str).encode(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                timeout=_COMMAND_TIMEOUT_S,
                check=False,
                env=env,
            )
        except (OSError, subprocess.TimeoutExpired, ValueError) as e:
            return f"[notify] command: {e}"
        if done.returncode == 0:
            return None
        said = done.stderr.decode(errors="replace").strip()[-200:]
        return f"[notify] command failed with exit code {done.returncode}{f': {said}' if said else ''}"

    def _post(self, url: str, body: Mapping[str, Any]) -> str | None:
        shown = f"[notify] {without_secret(url)}"
        address = self._environ.get(url[4:], "") if url.startswith("env:") else url
        if not address.startswith(("https://", "http://127.0.0.1", "http://localhost", "http://[::1]")):
            return f"{shown}: the variable does not contain an https:// address"
        problem = _post(address, body)
        return f"{shown}: {problem}" if problem else None


def _post(address: str, body: Mapping[str, Any]) -> str | None:
    """Posts ``body`` to ``address``, which the caller has checked; returns the error, without the address: it may be
    secret."""
    import http.client
    import urllib.error
    import urllib.request

    class NoRedirect(urllib.request.HTTPRedirectHandler):
        """A notice goes to no other address."""

        def redirect_request(self, *_: Any, **__: Any) -> None:
            return None

    try:
        request = urllib.request.Request(  # noqa: S310 - see address
            address,
            data=json.dumps(body, default=str).encode(),
            headers={"Content-Type": "application/json", "User-Agent": "fcctl"},
            method="POST",
        )
        with urllib.request.build_opener(NoRedirect).open(request, timeout=_POST_TIMEOUT_S) as answer:
            answer.read(1024)
    except urllib.error.HTTPError as e:
        e.close()
        return f"HTTP status {e.code}"
    except (OSError, http.client.HTTPException, ValueError) as e:
        return type(getattr(e, "reason", e)).__name__
    return None


#: For runs that only help another one, which sends notices.
SILENT_NOTIFIER = Notifier(Notify(on=[]), "")
