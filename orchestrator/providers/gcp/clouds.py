"""The way to Google's cloud: one client per project and endpoint, and the login of its machines."""

from __future__ import annotations

import os
import pwd
import re
import threading
from typing import TYPE_CHECKING

from orchestrator.base.clock import Clock
from orchestrator.base.errors import ConfigError
from orchestrator.machines.cloud_api import Cloud, Login
from orchestrator.machines.provision.endpoint import on_loopback
from orchestrator.machines.targets import CloudTarget
from orchestrator.providers.gcp import keys

if TYPE_CHECKING:
    from orchestrator.providers.gcp.cloud import GcpCloud


class GcpClouds:
    """One client per project and endpoint. Google's library is imported by the first request."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._open: dict[tuple[str, str | None], GcpCloud] = {}
        self._os_login_users: dict[tuple[str, str], str] = {}
        self._lock = threading.Lock()

    def open(self, target: CloudTarget) -> Cloud:
        """Nothing is sent before the first request. Raises ConfigError: the target's ``api_endpoint`` is not on
        loopback."""
        from orchestrator.providers.gcp.cloud import GcpCloud

        check_endpoint(target)
        with self._lock:
            key = (target.project, target.api_endpoint)
            if key not in self._open:
                self._open[key] = GcpCloud(target.project, target.api_endpoint, self._clock)
            return self._open[key]

    def login(self, target: CloudTarget) -> Login:
        """See the port. With OS Login, ``gcloud`` registers the key and says which user it belongs to."""
        path = keys.chosen_key(target.identity_file) if target.identity_file else keys.own_key()
        public = keys.public_key(path)
        if target.os_login and not on_loopback(target.api_endpoint):
            return Login(target.user or self._os_login_user(public, target.project), path, public)
        return Login(_user(target), path, public)

    def _os_login_user(self, public_key: str, project: str) -> str:
        """Asked for once: each time takes gcloud a second or two."""
        from orchestrator.providers.gcp.os_login import register

        if (public_key, project) not in self._os_login_users:
            self._os_login_users[public_key, project] = register(public_key, project)
        return self._os_login_users[public_key, project]


def check_endpoint(target: CloudTarget) -> None:
    """Raises ConfigError for an endpoint elsewhere: requests to it would go without credentials, or with the user's."""
    if target.api_endpoint is not None and not on_loopback(target.api_endpoint):
        raise ConfigError(
            f"`api_endpoint` of target '{target.name}' is not on this computer",
            cause=f"{target.api_endpoint}: only an emulator on loopback can stand in for the cloud",
            hint="leave `api_endpoint` out, or start one: fcctl emulator",
        )


def _user(target: CloudTarget) -> str:
    """The login name: the target's, else this user's as Linux takes names. An emulator knows only who runs it."""
    here = pwd.getpwuid(os.getuid()).pw_name
    if on_loopback(target.api_endpoint):
        return here
    return target.user or linux_user(here)


def linux_user(name: str) -> str:
    """A name that useradd takes. Images let nobody log in as root, so that becomes ``fcctl``."""
    text = re.sub(r"[^a-z0-9_-]", "_", name.lower())[:32]
    text = text if re.match(r"[a-z_]", text) else f"_{text}"[:32]
    return "fcctl" if text == "root" else text
