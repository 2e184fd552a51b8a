"""Failures of Google's client as fcctl's errors, and calls that are tried again."""

from __future__ import annotations

import logging
import random
import re
from collections.abc import Callable
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import TypeVar

from orchestrator.base.clock import Clock, clock_command
from orchestrator.base.errors import AuthError, CloudError, FcctlError
from orchestrator.base.sanitize import clean
from orchestrator.machines.cloud import Refusal, region_of
from orchestrator.providers.gcp import refusals

_LOGIN = "gcloud auth application-default login"
_NO_SUCH_PROJECT = re.compile(r"resource 'projects/([^/']+)' was not found", re.IGNORECASE)
_API_OFF = ("accessNotConfigured", "SERVICE_DISABLED")
#: Certificates and tokens that a computer with a wrong clock makes, or does not accept.
_BY_TIME = re.compile(r"certificate (is not yet valid|has expired)|reasonable timeframe|\b(iat|exp)\b", re.IGNORECASE)
#: Of urllib3, which is not a direct dependency.
_NO_CONNECTION = ("NewConnectionError", "NameResolutionError", "ConnectTimeoutError")
#: The limit of a foreign message on the terminal.
_MAX_TEXT = 600


class MalformedReply(Exception):
    """An answer with status 200 that is not one of this service's."""


class PermissionDenied(AuthError):
    """The service knows who asks, and does not let them."""


@dataclass(frozen=True)
class Answer:
    """An HTTP error of the service."""

    status: int
    reason: str  # quotaExceeded, notFound, ...; empty if it names none
    message: str
    #: How long the service asks to wait before the next request, seconds (``Retry-After``).
    retry_after_s: float = 0.0

    @property
    def passing(self) -> bool:
        return refusals.is_passing(self.reason, self.status)

    def refusal(self, project: str, zone: str | None = None, *, creating: bool = False) -> Refusal:
        region = region_of(zone) if zone else None
        return refusals.classify(
            self.reason, self.message, project=project, region=region, http_status=self.status, creating=creating
        )


@dataclass(frozen=True)
class NoAnswer:
    """The request may or may not have been carried out."""

    why: str
    #: The connection was never made, so nothing was carried out.
    unreached: bool = False


def understood(error: Exception, project: str) -> Answer | NoAnswer:
    """What ``error`` means. Raises AuthError: credentials are missing, have expired or lack a permission; the project
    or its API is not there; CloudError: the request could not even be made."""
    import requests.exceptions as http
    from google.api_core import exceptions as api
    from google.auth import exceptions as auth
    from google.protobuf.json_format import ParseError  # type: ignore[import-untyped]  # it ships without types

    if isinstance(error, api.GoogleAPICallError):
        answer = _answer(error)
        if not answer.passing:
            check_rights(answer, project)
        return answer
    if isinstance(error, http.SSLError | auth.GoogleAuthError) and _BY_TIME.search(_text(error)):
        raise CloudError(
            "the cloud and this computer do not agree on the time", cause=_text(error),
            hint=f"check this computer's clock (date), and set it: {clock_command()}; if it is right, your "
            f"network's proxy has a wrong certificate: REQUESTS_CA_BUNDLE=FILE",
        ) from None  # fmt: skip
    if isinstance(error, auth.TransportError) or (isinstance(error, auth.GoogleAuthError) and error.retryable):
        return NoAnswer(_text(error), unreached=True)  # no token at the moment, so no request was sent
    if isinstance(error, auth.GoogleAuthError):
        raise of_credentials(error, project) from None
    if isinstance(error, http.SSLError):
        raise CloudError(
            "cannot make a secure connection to the cloud", cause=_text(error),
            hint="if your organisation uses an HTTPS proxy, set its certificates: export REQUESTS_CA_BUNDLE=FILE",
        ) from None  # fmt: skip
    if isinstance(error, http.ConnectionError | http.Timeout | http.ChunkedEncodingError | http.ContentDecodingError):
        root = _root(error)
        unreached = isinstance(error, http.ConnectTimeout | http.ProxyError) or type(root).__name__ in _NO_CONNECTION
        why = re.sub(r"^HTTPS?Connection\w*\([^)]*\): ", "", str(root))
        return NoAnswer(clean(why, _MAX_TEXT), unreached=unreached)
    if isinstance(error, MalformedReply | ParseError | http.JSONDecodeError | UnicodeDecodeError):
        return NoAnswer("the reply is not from Compute Engine; the network may show a login page first")
    raise CloudError(
        "fcctl could not send a request to the cloud", cause=_text(error), hint="check this computer: fcctl doctor"
    ) from error


def check_rights(answer: Answer, project: str) -> None:
    """Raises AuthError if the answer is about who asks, or in which project."""
    what = _rights(answer, project)
    if what is not None:
        message, hint = what
        kind = PermissionDenied if answer.status == 403 else AuthError
        raise kind(message, cause=answer.message[:_MAX_TEXT], hint=hint)


def _rights(answer: Answer, project: str) -> tuple[str, str] | None:
    """Message and hint."""
    text = answer.message
    if answer.status == 401:
        return "the cloud refused these credentials", _LOGIN
    if answer.reason in _API_OFF or "has not been used in project" in text:
        return (
            f"the Compute Engine API is not enabled in project {project}",
            f"gcloud services enable compute.googleapis.com --project={project}",
        )
    missing = _NO_SUCH_PROJECT.search(text)
    if answer.status == 404 and missing and (missing[1] == project or missing[1].isdecimal()):
        return (
            f"the project '{project}' does not exist, or these credentials may not see it",
            "check `project` in the target; your projects: gcloud projects list",
        )
    if answer.status != 403 or answer.reason in ("quotaExceeded", "rateLimitExceeded"):
        return None
    if "illing" in text:
        return (
            f"project {project} has no billing account",
            f"link one: https://console.cloud.google.com/billing/linkedaccount?project={project}",
        )
    if "USER_PROJECT_DENIED" in text or "serviceusage.services.use" in text:
        return (
            "the quota project of the credentials is a project that they may not use",
            f"gcloud auth application-default set-quota-project {project}",
        )
    permission = refusals.missing_permission(text)
    if permission is not None:
        return f"the permission {permission} is missing in project {project}", refusals.permission_hint(
            permission, project
        )
    if answer.reason in ("forbidden", "PERMISSION_DENIED", "IAM_PERMISSION_DENIED", ""):
        return (
            f"the cloud refused the request in project {project}",
            f"ask an owner of {project} for roles/compute.instanceAdmin.v1",
        )
    return None


def of_credentials(error: Exception, project: str) -> AuthError:
    """For what finding or using the credentials raises."""
    from google.auth import exceptions as auth

    if not isinstance(error, auth.GoogleAuthError):
        return AuthError("the credentials of this computer cannot be read", cause=_text(error), hint=_LOGIN)
    if isinstance(error, auth.InvalidOperation):  # an emulator, or another server in its place, requires credentials
        return AuthError(
            "the API endpoint requires credentials, and fcctl sends none to an emulator", cause=_text(error),
            hint="set `api_endpoint` to the URL that `fcctl emulator` printed",
        )  # fmt: skip
    if isinstance(error, auth.DefaultCredentialsError):
        return AuthError("this computer has no Google Cloud credentials", cause=_text(error), hint=_LOGIN)
    if isinstance(error, auth.RefreshError | auth.OAuthError):
        message = f"the Google Cloud credentials have expired or were revoked (project {project})"
        return AuthError(message, cause=_text(error), hint=_LOGIN)
    return AuthError("the Google Cloud credentials cannot be used", cause=_text(error), hint=_LOGIN)


def _answer(error: Exception) -> Answer:
    """Of a ``GoogleAPICallError``, whose own text has the whole URL in front."""
    entries = [entry for entry in getattr(error, "errors", None) or [] if isinstance(entry, dict)]
    first = entries[0] if entries else {}
    message = str(first.get("message") or getattr(error, "message", "") or error)
    info = str(getattr(error, "reason", None) or "")  # of google.rpc.ErrorInfo, the newer form
    # A limit of concurrency is "quotaExceeded" in the older form, like a used-up quota.
    reason = info if refusals.is_passing(info, None) else str(first.get("reason") or info)
    message = clean(re.sub(r"^[A-Z]+ https?://\S+: ", "", message), _MAX_TEXT)
    status = int(getattr(error, "code", 0) or 0)
    text = f"HTTP {status} with an HTML page" if message.startswith("<") else message
    return Answer(status, reason, text, _retry_after_s(getattr(error, "response", None)))


def _retry_after_s(response: object) -> float:
    """The ``Retry-After`` of an answer, seconds: a number, or a date that counts from the answer's own."""
    headers = getattr(response, "headers", None) or {}
    text = str(headers.get("Retry-After", "")).strip()
    if re.fullmatch("[0-9]{1,9}", text):
        return float(text)
    try:
        until, now = parsedate_to_datetime(text), parsedate_to_datetime(str(headers.get("Date", "")))
        return max(0.0, (until - now).total_seconds())
    except (TypeError, ValueError):  # none, or no date
        return 0.0


def _root(error: BaseException) -> BaseException:
    """What is at the bottom of an error of the HTTP library, which wraps it two or three times."""
    for _ in range(5):
        inner = getattr(error, "reason", None)
        if not isinstance(inner, BaseException):
            inner = next((arg for arg in reversed(error.args) if isinstance(arg, BaseException)), None)
        if inner is None:
            break
        error = inner
    return error


def _text(error: Exception) -> str:
    first = error.args[0] if error.args and isinstance(error.args[0], str) else error
    return clean(first, _MAX_TEXT) or type(error).__name__


R = TypeVar("R")
_LOG = logging.getLogger(__name__)

#: How long one request is repeated, seconds: longer than a minute's rate limit, or a restart of the service.
PATIENCE_S = 90.0
#: The same if the service was never reached: the laptop is probably offline.
OFFLINE_PATIENCE_S = 12.0
FIRST_WAIT_S = 0.5
LONGEST_WAIT_S = 15.0
_OFFLINE = "check that this computer is online; state of the service: https://status.cloud.google.com"
_EMULATOR = "check that the emulator at `api_endpoint` runs; start it: fcctl emulator"


class Refused(Exception):
    """The service refused, and would refuse again."""

    def __init__(self, answer: Answer) -> None:
        super().__init__(answer.message)
        self.answer = answer


class Calls:
    """Repeats a request after transient errors: 429, rate limits, 5xx, no answer.

    Waits double up to :data:`LONGEST_WAIT_S`, each shortened at random by up to half, so that several controllers do
    not retry together. They are as long as the service asks, within the time for one request.
    """

    def __init__(self, clock: Clock, project: str, *, emulated: bool) -> None:
        self._clock = clock
        self._project = project
        self._hint = _EMULATOR if emulated else _OFFLINE
        self._reached = False

    def __call__(self, what: str, request: Callable[[], R]) -> R:
        """The request's answer. Raises Refused: with the service's error; AuthError: see
        :func:`~orchestrator.providers.gcp.failures.understood`; CloudError: the errors did not end."""
        began, waits = self._clock.monotonic(), 0
        while True:
            asked = 0.0
            try:
                answer = self.once(request)
            except Refused as refused:
                if not refused.answer.passing:
                    raise
                why, patience = f"{refused.answer.status} {refused.answer.message}", PATIENCE_S
                asked = refused.answer.retry_after_s
            except Unanswered as lost:
                why = lost.trouble.why
                patience = PATIENCE_S if self._reached or not lost.trouble.unreached else OFFLINE_PATIENCE_S
            else:
                return answer
            wait = pause(waits)
            spent = self._clock.monotonic() - began
            if asked > wait:
                wait = max(wait, min(asked, patience - spent))
            if spent + wait > patience:
                raise CloudError(
                    f"the cloud did not answer for {spent:.0f} s ({what})", cause=why,
                    hint=self._hint,
                ) from None  # fmt: skip
            _LOG.info("%s: %s; again in %.1f s", what, why, wait)
            self._clock.sleep(wait)
            waits += 1

    def once(self, request: Callable[[], R]) -> R:
        """The same without repeating. Raises Refused, AuthError, CloudError: as above; Unanswered: no valid answer."""
        try:
            answer = request()
        except FcctlError:  # without credentials there is no client
            raise
        except Exception as error:  # noqa: BLE001 - the libraries have a dozen trees of them; none gets past here
            meaning = understood(error, self._project)
        else:
            self._reached = True
            return answer
        if isinstance(meaning, Answer):
            self._reached = True
            raise Refused(meaning)
        raise Unanswered(meaning)


class Unanswered(Exception):
    """It is unknown whether the request was carried out."""

    def __init__(self, trouble: NoAnswer) -> None:
        super().__init__(trouble.why)
        self.trouble = trouble


def pause(waits: int) -> float:
    """Seconds to wait after so many waits already."""
    longest = min(LONGEST_WAIT_S, FIRST_WAIT_S * 2.0 ** min(waits, 10))
    return longest * random.uniform(0.5, 1.0)  # noqa: S311 - not for secrets
