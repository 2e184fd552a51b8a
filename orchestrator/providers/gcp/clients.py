"""Google's clients, made when they are first needed: importing their library takes seconds."""

from __future__ import annotations

import threading
import warnings
from typing import Any

from orchestrator.providers.gcp.failures import no_credentials

_SCOPES = ["https://www.googleapis.com/auth/cloud-platform"]


class Clients:
    """``clients.get("Instances")`` is an ``InstancesClient``; threads share it.

    Args:
        api_endpoint: an emulator's, on loopback, which gets no credentials; None for Google's, which gets the
            Application Default Credentials.
    """

    def __init__(self, project: str, api_endpoint: str | None) -> None:
        self._project = project
        self._endpoint = api_endpoint
        self._lock = threading.Lock()
        self._made: dict[str, Any] = {}
        self._credentials: Any = None

    def types(self) -> Any:
        """The module with the messages."""
        from google.cloud import compute_v1

        return compute_v1

    def get(self, service: str) -> Any:
        """Raises AuthError: there are no credentials."""
        with self._lock:
            if service not in self._made:
                self._made[service] = self._make(service)
            return self._made[service]

    def _make(self, service: str) -> Any:
        options = {"api_endpoint": self._endpoint} if self._endpoint else None
        kind = getattr(self.types(), f"{service}Client")
        made = kind(credentials=self._found_credentials(), client_options=options)
        if self._endpoint:  # a proxy for the way to the world (HTTP_PROXY) is not for this computer's own emulator
            made.transport._session.trust_env = False  # noqa: SLF001 - the library has no other way to say so
        return made

    def _found_credentials(self) -> Any:
        if self._credentials is None:
            self._credentials = self._anonymous() if self._endpoint else self._default()
        return self._credentials

    @staticmethod
    def _anonymous() -> Any:
        from google.auth.credentials import AnonymousCredentials

        return AnonymousCredentials()  # type: ignore[no-untyped-call]  # half typed

    def _default(self) -> Any:
        import google.auth

        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # that a person's credentials were found, where a robot's are advised
                credentials, _ = google.auth.default(scopes=_SCOPES)
        except Exception as error:  # noqa: BLE001 - GoogleAuthError, OSError and ValueError, by the kind of file
            raise no_credentials(error, self._project) from None
        return credentials
