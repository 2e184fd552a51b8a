"""Secrets of a run: where this computer finds their values, and which values of an environment look like one."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence

from orchestrator.base.errors import ConfigError
from orchestrator.machines.targets import SecretSource

#: Shorter values cannot be masked: they are part of other words.
LEAST_CHARS = 4
COMMAND_LIMIT_S = 60.0

_NAME = re.compile(r"TOKEN|SECRET|PASSWORD|PASSWD|API_?KEY|PRIVATE_KEY|CREDENTIAL", re.IGNORECASE)
_VALUE = re.compile(r"^(hf_|ghp_|github_pat_|glpat-|sk-|AKIA|xox[abp]-|-----BEGIN [A-Z ]*PRIVATE KEY)")


class Secrets:
    """Reads values, each once per command. They are kept in this process only."""

    def __init__(self, sources: Mapping[str, SecretSource]) -> None:
        self._sources = sources
        self._values: dict[str, str] = {}

    def __call__(self, names: Sequence[str]) -> dict[str, str]:
        """Raises ConfigError: one is not there."""
        for name in names:
            if name not in self._values:
                self._values[name] = self._read(name)
        return {name: self._values[name] for name in names}

    def _read(self, name: str) -> str:
        source = self._sources.get(name)
        if source is None:
            value = os.environ.get(name, "")
            fix = f"export {name}=... in this shell, or add [secrets.{name}] with command or keyring to fcctl.toml"
        elif source.command is not None:
            value, fix = _printed(name, source.command), f"to see its output: {source.command}"
        else:
            value = _from_keyring(name, source.keyring or "")
            service, _, user = (source.keyring or "").partition("/")
            fix = f"keyring set {service} {user or name}"
        if len(value) < LEAST_CHARS:
            what = "is not set" if not value else f"has fewer than {LEAST_CHARS} characters"
            raise ConfigError(f"the secret {name} {what}", hint=fix)
        return value


def _printed(name: str, command: str) -> str:
    try:
        done = subprocess.run(
            ["/bin/sh", "-c", command], capture_output=True, text=True, timeout=COMMAND_LIMIT_S, check=False
        )
    except (subprocess.TimeoutExpired, UnicodeDecodeError) as error:
        raise ConfigError(f"the command of the secret {name} prints no value", cause=type(error).__name__) from None
    if done.returncode:
        raise ConfigError(
            f"the command of the secret {name} failed with exit code {done.returncode}", hint=f"to try it: {command}"
        )
    return done.stdout.rstrip("\n")


def _from_keyring(name: str, place: str) -> str:
    try:
        import keyring
    except ImportError:
        raise ConfigError(
            f"the secret {name} is in the system's keyring, but the Python package keyring is not installed",
            hint="pip install 'fcctl[keyring]'",
        ) from None
    service, _, user = place.partition("/")
    try:
        return keyring.get_password(service, user or name) or ""
    except keyring.errors.KeyringError as error:
        raise ConfigError(f"cannot read the secret {name} from the system's keyring", cause=str(error)) from None


def looking_secret(environments: Sequence[Mapping[str, str]]) -> Iterator[str]:
    """The names of values that look like secrets, each once."""
    names = {
        name
        for env in environments
        for name, value in env.items()
        if _VALUE.match(value) or (_NAME.search(name) and len(value) >= 8 and not value.startswith(("$", "/", "~")))
    }
    yield from sorted(names)
