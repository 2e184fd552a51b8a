"""OS Login: Google manages the key and names its user. It has its own API, which ``gcloud`` calls."""

from __future__ import annotations

import json
import re
import subprocess
from typing import Any

from orchestrator.base.errors import AuthError, ConfigError

_TIMEOUT_S = 60
#: The key is registered again at every start, so that an unused one expires.
_KEY_LIFE = "30d"
_USER = re.compile(r"[a-z_][a-z0-9_.-]{0,31}")
_OTHER_WAY = 'or set login = "metadata" for the target'


def register(public_key: str, project: str) -> str:
    """Registers ``public_key`` for machines with OS Login; returns the user name. Raises ConfigError: there is no
    ``gcloud``; AuthError: it is refused, or names no user."""
    argv = [
        "gcloud", "compute", "os-login", "ssh-keys", "add", f"--key={public_key}", f"--ttl={_KEY_LIFE}",
        f"--project={project}", "--format=json", "--quiet",
    ]  # fmt: skip
    try:
        done = subprocess.run(
            argv, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False, stdin=subprocess.DEVNULL
        )
    except FileNotFoundError:
        raise ConfigError(
            "OS Login needs gcloud, which is not installed",
            hint=f"install it (https://cloud.google.com/sdk/docs/install), {_OTHER_WAY}",
        ) from None
    except subprocess.TimeoutExpired:
        raise AuthError(
            "OS Login did not take the key in time", cause=f"gcloud took over {_TIMEOUT_S} s", hint="try again"
        ) from None
    if done.returncode != 0:
        lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        raise AuthError(
            "OS Login does not take the key",
            cause=" ".join(lines)[:600] or f"gcloud ended with {done.returncode}",
            hint=f"gcloud auth login, {_OTHER_WAY}",
        )
    return user_of(done.stdout)


def user_of(profile: str) -> str:
    """The login name in what ``gcloud`` printed: the primary POSIX account's. Raises AuthError: there is none."""
    accounts = _accounts(profile)
    accounts.sort(key=lambda account: not account.get("primary"))
    for account in accounts:
        user = str(account.get("username", ""))
        if _USER.fullmatch(user):
            return user
    raise AuthError(
        "OS Login took the key but names no user for it",
        hint=f"see what it says: gcloud compute os-login describe-profile; {_OTHER_WAY}",
    )


def _accounts(profile: str) -> list[dict[str, Any]]:
    try:
        parsed = json.loads(profile)
    except ValueError:
        return []
    parsed = parsed.get("loginProfile", parsed) if isinstance(parsed, dict) else {}
    accounts = parsed.get("posixAccounts") if isinstance(parsed, dict) else None
    return [account for account in accounts or [] if isinstance(account, dict)]
