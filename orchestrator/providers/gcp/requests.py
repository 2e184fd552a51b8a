"""Requests to the service as the rest of this room makes them: typed, repeated, paged, translated."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

from orchestrator.base.clock import Clock
from orchestrator.base.errors import CloudError, ConfigError, FcctlError
from orchestrator.machines.provision import refusals
from orchestrator.providers.gcp.clients import Clients
from orchestrator.providers.gcp.failures import MalformedReply
from orchestrator.providers.gcp.retries import Calls, Refused

#: Of one HTTP request, seconds.
REQUEST_TIMEOUT_S = 30.0
_NO_META = SimpleNamespace(fields=())
#: More pages than any project has; a service that gives the same page for ever is not followed for ever.
MAX_PAGES = 1000


class Api:
    """One project. Threads may share it.

    Args:
        page_size: rows asked for at a time; the service gives at most 500.
    """

    def __init__(self, project: str, api_endpoint: str | None, clock: Clock, page_size: int) -> None:
        self.project = project
        self.clients = Clients(project, api_endpoint)
        self.calls = Calls(clock, project, emulated=api_endpoint is not None)
        self.page_size = page_size

    def message(self, name: str, **fields: Any) -> Any:
        """A request message of this project."""
        return getattr(self.clients.types(), name)(project=self.project, **fields)

    def send(self, service: str, method: str, request: Any, timeout_s: float = REQUEST_TIMEOUT_S) -> Any:
        """Once, and with what Google's library raises, or Nonsense: it takes any JSON for an answer."""
        answer = getattr(self.clients.get(service), method)(request=request, timeout=timeout_s, retry=None)
        if "name" in getattr(type(answer), "meta", _NO_META).fields and not answer.name:
            raise MalformedReply
        return answer

    def ask(self, service: str, method: str, request: Any, what: str) -> Any:
        """The answer to a request that may be repeated.

        Raises:
            Refused, AuthError, CloudError: see :class:`~orchestrator.providers.gcp.retries.Calls`.
        """
        return self.calls(what, lambda: self.send(service, method, request))

    def pages(self, service: str, method: str, request_name: str, what: str, **fields: Any) -> Iterator[Any]:
        """The pages of a list, each a request of its own. Whatever is not refused is told once it is there.

        Raises:
            AuthError, CloudError: as :meth:`ask`; a refusal is a CloudError.
        """
        token = ""
        for _ in range(MAX_PAGES):
            request = self.message(request_name, max_results=self.page_size, page_token=token, **fields)
            known = type(request).meta.fields
            if "return_partial_success" in known:  # the other zones' machines, where one cannot be asked
                request.return_partial_success = True
            try:
                pager = self.ask(service, method, request, what)
            except Refused as refused:
                raise unwelcome(refused, f"cannot list {what}", self.project) from None
            # A pager asks for the next page by itself, without our patience; its first page is all that is taken.
            page = next(iter(pager.pages))
            yield page
            token = page.next_page_token
            if not token:
                return
        raise CloudError(f"the list of {what} has no end", cause=f"{MAX_PAGES} pages of it")


def unwelcome(refused: Refused, message: str, project: str) -> FcctlError:
    """The error for a refusal of something that is never refused when all is well."""
    answer = refused.answer
    if answer.status in (400, 404) and ("'zone'" in answer.message or "/zones/" in answer.message):
        return ConfigError(message, cause=answer.message, hint="check `zones` of the target: gcloud compute zones list")
    hint = refusals.hint(answer.refusal(), project=project)
    return CloudError(message, cause=answer.message or f"HTTP {answer.status}", hint=hint)
