"""Telling a program or a webhook. It may fail without anything else failing: a notice is never worth a run."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from typing import Any

from orchestrator.runs.notices import EventName, Notice, Notify, slack_text, without_secret

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
