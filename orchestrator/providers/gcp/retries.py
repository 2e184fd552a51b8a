"""Repeats a request after transient errors for a bounded time."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from typing import TypeVar

from orchestrator.base.clock import Clock
from orchestrator.base.errors import CloudError, FcctlError
from orchestrator.providers.gcp.failures import Answer, NoAnswer, understood

R = TypeVar("R")
_LOG = logging.getLogger(__name__)

#: How long one request is repeated, seconds: longer than a minute's rate limit, or a restart of the service.
PATIENCE_S = 90.0
#: The same if the service was never reached: the laptop is probably offline.
OFFLINE_PATIENCE_S = 12.0
FIRST_WAIT_S = 0.5
LONGEST_WAIT_S = 15.0
_OFFLINE = "is this computer online? https://status.cloud.google.com says how the service is"
_EMULATOR = "is the emulator at the target's `api_endpoint` still running? fcctl emulator"


class Refused(Exception):
    """The service refused, and would refuse again."""

    def __init__(self, answer: Answer) -> None:
        super().__init__(answer.message)
        self.answer = answer


class Calls:
    """Repeats a request after transient errors: 429, rate limits, 5xx, no answer.

    Waits double up to :data:`LONGEST_WAIT_S`, each shortened at random by up to half, so that several controllers do
    not retry together.
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
            try:
                answer = self.once(request)
            except Refused as refused:
                if not refused.answer.passing:
                    raise
                why, patience = f"{refused.answer.status} {refused.answer.message}", PATIENCE_S
            except Unanswered as lost:
                why = lost.trouble.why
                patience = PATIENCE_S if self._reached or not lost.trouble.unreached else OFFLINE_PATIENCE_S
            else:
                return answer
            wait = pause(waits)
            spent = self._clock.monotonic() - began
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
