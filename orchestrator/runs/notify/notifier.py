"""Telling a program or a webhook. It may fail without anything else failing: a notice is never worth a run."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from typing import Any

from orchestrator.runs.notify.notices import EventName, Notice, Notify, slack_text, without_secret
from orchestrator.runs.services import Services

_COMMAND_TIMEOUT_S = 30.0


def tell(services: Services, notice: Notice) -> None:
    """Sends ``notice`` as ``[notify]`` says; notes failures."""
    for problem in services.notifier.send(notice):
        services.observer.note(problem)


class Notifier:
    """Sends notices as ``[notify]`` says."""

    def __init__(self, settings: Notify, workspace: str, environ: Mapping[str, str] | None = None) -> None:
        self._settings = settings
        self._workspace = workspace
        self._environ = os.environ if environ is None else environ

    def wants(self, event: EventName) -> bool:
        """See the protocol."""
        return self._settings.wanted and event in self._settings.on

    def send(self, notice: Notice) -> list[str]:
        """Notifies all that this event is for; returns one line per failure."""
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
        return f"[notify] command ended with code {done.returncode}{f': {said}' if said else ''}"

    def _post(self, url: str, body: Mapping[str, Any]) -> str | None:
        shown = f"[notify] {without_secret(url)}"
        address = self._environ.get(url[4:], "") if url.startswith("env:") else url
        if not address.startswith(("https://", "http://127.0.0.1", "http://localhost", "http://[::1]")):
            return f"{shown}: the variable holds no https:// address"
        from orchestrator.runs.notify.webhook import post

        problem = post(address, body)
        return f"{shown}: {problem}" if problem else None
