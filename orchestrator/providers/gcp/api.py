"""Google's library as the rest of this package uses it: clients made when needed, requests repeated, paged, translated.

Importing the library takes seconds, so that nothing of it is imported before the first request.
"""

from __future__ import annotations

import json
import re
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from email.utils import parsedate_to_datetime
from types import SimpleNamespace
from typing import Any

from orchestrator.base.clock import Clock
from orchestrator.base.errors import CloudError, ConfigError, FcctlError
from orchestrator.providers.gcp.failures import Answer, Calls, MalformedReply, Refused, of_credentials

#: The limit of one HTTP request, seconds.
REQUEST_TIMEOUT_S = 30.0
#: More pages than any project has; a limit against a service that repeats a page.
MAX_PAGES = 1000
_SCOPES = ["https://www.googleapis.com/auth/cloud-platform"]
_NO_META = SimpleNamespace(fields=())


class Api:
    """One project. Threads may share it.

    Args:
        api_endpoint: an emulator's, on loopback, which gets no credentials; None for Google's, which gets the
            Application Default Credentials.
        page_size: rows asked for at a time; the service gives at most 500.
    """

    def __init__(self, project: str, api_endpoint: str | None, clock: Clock, page_size: int) -> None:
        self.project = project
        self.calls = Calls(clock, project, emulated=api_endpoint is not None)
        self.page_size = page_size
        #: How much the service's clock is ahead of this computer's; None: it has not answered, or is an emulator, whose
        #: time is its own.
        self.ahead_s: float | None = None
        self._clock = clock
        self._endpoint = api_endpoint
        self._lock = threading.Lock()
        self._clients: dict[str, Any] = {}
        self._credentials: Any = None

    def message(self, name: str, **fields: Any) -> Any:
        """A request message of this project."""
        from google.cloud import compute_v1

        return getattr(compute_v1, name)(project=self.project, **fields)

    def send(self, service: str, method: str, request: Any, timeout_s: float = REQUEST_TIMEOUT_S) -> Any:
        """Once, and with what Google's library raises, or MalformedReply: it takes any JSON for an answer."""
        answer = getattr(self._client(service), method)(request=request, timeout=timeout_s, retry=None)
        if "name" in getattr(type(answer), "meta", _NO_META).fields and not answer.name:
            raise MalformedReply
        return answer

    def read(
        self,
        service: str,
        method: str,
        request: str,
        what: str,
        *,
        absent: Callable[[Answer], bool] = lambda _: False,
        **fields: Any,
    ) -> Any | None:
        """The answer to a request that may be repeated; None if ``absent`` says so of its refusal.

        Raises:
            AuthError, CloudError, ConfigError: it was refused otherwise, or there is no answer.
        """
        message = self.message(request, **fields)
        try:
            return self.calls(what, lambda: self.send(service, method, message))
        except Refused as refused:
            if absent(refused.answer):
                return None
            raise self._error(refused.answer, f"cannot read {what}") from None

    def pages(self, service: str, method: str, request: str, what: str, **fields: Any) -> Iterator[Any]:
        """The pages of a list, each a request of its own. Raises as :meth:`read` does."""
        token = ""
        for _ in range(MAX_PAGES):
            known = type(self.message(request)).meta.fields
            # Machines of the reachable zones are returned.
            if "return_partial_success" in known:
                fields["return_partial_success"] = True
            pager = self.read(service, method, request, what, max_results=self.page_size, page_token=token, **fields)
            # A pager would read the next page without our retries, so only its first page is used.
            page = next(iter(pager.pages))  # type: ignore[union-attr]  # never absent
            yield page
            token = page.next_page_token
            if not token:
                return
        hint = "delete what you do not use in the cloud's web console"
        raise CloudError(f"the list of {what} is too long", cause=f"it has more than {MAX_PAGES} pages", hint=hint)

    def _error(self, answer: Answer, message: str) -> FcctlError:
        """For a refusal of something that is never refused when all is well."""
        if answer.status in (400, 404) and re.search("'zone'|/zones/", answer.message):
            hint = "check `zones` in the target; valid zones: gcloud compute zones list"
            return ConfigError(message, cause=answer.message, hint=hint)
        hint = answer.refusal(self.project).hint or ""
        return CloudError(message, cause=answer.message or f"HTTP {answer.status}", hint=hint)

    # ------------------------------------------------------------------------------------------------------- clients
    def _client(self, service: str) -> Any:
        """``Instances`` gives an ``InstancesClient``. Raises AuthError: there are no credentials."""
        with self._lock:
            if service not in self._clients:
                self._credentials = self._credentials or self._find_credentials()
                self._clients[service] = self._make_client(service)
            return self._clients[service]

    def _make_client(self, service: str) -> Any:
        from google.cloud import compute_v1

        options = {"api_endpoint": self._endpoint} if self._endpoint else None
        client = getattr(compute_v1, f"{service}Client")(credentials=self._credentials, client_options=options)
        client.transport._session.hooks["response"].append(_make_readable)  # noqa: SLF001 - as below
        if self._endpoint:  # HTTP_PROXY does not apply to an emulator on this computer
            client.transport._session.trust_env = False  # noqa: SLF001 - the library has no other way to say so
        else:
            client.transport._session.hooks["response"].append(self._note_time)  # noqa: SLF001 - as above
        return client

    def _note_time(self, response: Any, *_: Any, **__: Any) -> None:
        with suppress(TypeError, ValueError):  # no date, or none that is one
            self.ahead_s = parsedate_to_datetime(response.headers.get("Date")).timestamp() - self._clock.now()

    def _find_credentials(self) -> Any:
        import google.auth
        from google.auth.credentials import AnonymousCredentials

        if self._endpoint:
            return AnonymousCredentials()  # type: ignore[no-untyped-call]  # half typed
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # it advises against user credentials
                credentials, _ = google.auth.default(scopes=_SCOPES)
        except Exception as error:  # noqa: BLE001 - GoogleAuthError, OSError and ValueError, by the kind of file
            raise of_credentials(error, self.project) from None
        return credentials


def _make_readable(response: Any, *_: Any, **__: Any) -> None:
    """Gives an error the shape in which Google's library reads it; on any other, such as a proxy's, the library breaks,
    and the status is lost."""
    if response.ok:
        return
    try:
        body = response.json()
    except ValueError:  # it is taken as text
        return
    body = body[0] if isinstance(body, list) and body else body
    error = body.get("error") if isinstance(body, dict) else body
    error = error if isinstance(error, dict) else {"message": str(error)}
    lists = {key: [one for one in error.get(key) or () if isinstance(one, dict)] for key in ("errors", "details")}
    if error.get("code") == response.status_code == 404:  # not a page of something else
        lists["errors"] = lists["errors"] or [{"reason": "notFound"}]
    response._content = json.dumps({"error": {**error, **lists}}).encode()  # noqa: SLF001 - as above
