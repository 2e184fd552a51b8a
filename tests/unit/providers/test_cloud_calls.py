"""How long a request to the cloud is repeated, and how often."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from orchestrator.base.errors import AuthError, CloudError
from orchestrator.providers.gcp import failures
from orchestrator.providers.gcp.api import Api
from orchestrator.providers.gcp.failures import Calls, Refused

pytest.importorskip("google.cloud.compute_v1")
import requests
from google.api_core import exceptions as api
from google.auth import exceptions as auth
from requests import exceptions as http
from urllib3.exceptions import NewConnectionError


class Time:
    """A clock that only sleeping moves."""

    def __init__(self) -> None:
        self.at = 0.0
        self.slept: list[float] = []

    def now(self) -> float:
        return 1e9 + self.at

    def monotonic(self) -> float:
        return self.at

    def elapsed(self) -> float:
        return self.at

    def sleep(self, seconds: float) -> None:
        self.at += seconds
        self.slept.append(seconds)


def failing(error: Exception, times: int = 10**9) -> Callable[[], str]:
    left = iter(range(times))

    def request() -> str:
        if next(left, None) is None:
            return "answer"
        raise error

    return request


def asked(clock: Time, error: Exception, times: int = 10**9) -> str:
    """What comes of a request that fails so many times."""
    return Calls(clock, "p", emulated=False)("start of vm", failing(error, times))


UNREACHED = http.ConnectionError(NewConnectionError(None, "Failed to establish a new connection"))  # type: ignore[arg-type]
CUT = http.ConnectionError("Connection reset")


def test_waits_grow_and_differ() -> None:
    for waits in range(30):
        longest = min(failures.LONGEST_WAIT_S, failures.FIRST_WAIT_S * 2**waits)
        drawn = {failures.pause(waits) for _ in range(20)}
        assert all(longest / 2 <= one <= longest for one in drawn)
        assert len(drawn) > 10


@pytest.mark.parametrize("error", [api.ServiceUnavailable("x"), api.TooManyRequests("x"), CUT, UNREACHED], ids=repr)
def test_passing_trouble_passes(error: Exception) -> None:
    clock = Time()
    assert asked(clock, error, 3) == "answer"
    assert len(clock.slept) == 3


@pytest.mark.parametrize(
    ("error", "patience"),
    [
        (api.ServiceUnavailable("x"), failures.PATIENCE_S),
        (CUT, failures.PATIENCE_S),
        (UNREACHED, failures.OFFLINE_PATIENCE_S),
    ],
    ids=["503", "cut", "offline"],
)
def test_patience_ends(error: Exception, patience: float) -> None:
    clock = Time()
    with pytest.raises(CloudError, match=r"did not answer for \d+ s \(start of vm\)"):
        asked(clock, error)
    assert patience - failures.LONGEST_WAIT_S <= clock.at <= patience


def test_a_cloud_that_was_reached_before_is_waited_for_longer() -> None:
    clock = Time()
    ask = Calls(clock, "p", emulated=False)
    ask("first", lambda: "answer")
    with pytest.raises(CloudError):
        ask("second", failing(UNREACHED))
    assert clock.at > failures.OFFLINE_PATIENCE_S


def asking(**headers: str) -> Exception:
    """An answer with these headers."""
    response = requests.Response()
    response.status_code = 429
    response.headers.update({name.replace("_", "-"): value for name, value in headers.items()})
    return api.TooManyRequests("x", response=response)


NOON, LATER = "Sat, 28 Nov 2026 12:00:00 GMT", "Sat, 28 Nov 2026 12:00:40 GMT"


@pytest.mark.parametrize(
    ("error", "slept"),
    [
        (asking(Retry_After="40"), [40.0, 40.0]),
        (asking(Retry_After=LATER, Date=NOON), [40.0, 40.0]),
        (asking(Retry_After="86400"), [failures.PATIENCE_S]),
    ],
    ids=["seconds", "date", "too long"],
)
def test_the_service_says_how_long_to_wait(error: Exception, slept: list[float]) -> None:
    clock = Time()
    assert asked(clock, error, len(slept)) == "answer"
    assert clock.slept == slept


@pytest.mark.parametrize("text", ["", "-5", "nan", "1e9", "soon", NOON, "9" * 12])
def test_what_it_says_may_be_nonsense(text: str) -> None:
    clock = Time()
    assert asked(clock, asking(Retry_After=text), 1) == "answer"
    assert clock.at <= failures.FIRST_WAIT_S


def test_what_is_refused_is_not_repeated() -> None:
    clock = Time()
    with pytest.raises(Refused):
        asked(clock, api.BadRequest("no"))
    with pytest.raises(AuthError):
        asked(clock, api.Unauthorized("no"))
    with pytest.raises(CloudError, match="could not send a request"):
        asked(clock, http.InvalidURL("no host"))
    with pytest.raises(CloudError, match="secure connection") as error:
        asked(clock, http.SSLError("CERTIFICATE_VERIFY_FAILED"))
    assert "REQUESTS_CA_BUNDLE" in str(error.value.hint)
    assert clock.slept == []


def test_each_answer_says_how_wrong_the_clock_is() -> None:
    """Time's clock shows 2001-09-09 01:46:40."""
    from google.auth.credentials import AnonymousCredentials

    service = Api("p", None, Time(), 500)
    service._credentials = AnonymousCredentials()  # type: ignore[no-untyped-call]
    session = service._make_client("Instances").transport._session
    assert service.ahead_s is None
    for date, ahead_s in (("Sun, 09 Sep 2001 02:46:40 GMT", 3600.0), ("never", 3600.0), (None, 3600.0)):
        response = requests.Response()
        response.status_code = 200
        response.headers.update({"Date": date} if date else {})
        requests.hooks.dispatch_hook("response", session.hooks, response)
        assert service.ahead_s == ahead_s


JWT = "invalid_grant: Invalid JWT: Token must be in a reasonable timeframe. Check your iat and exp values."
NOT_YET = "[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: certificate is not yet valid"


@pytest.mark.parametrize(
    "error", [http.SSLError(NOT_YET), auth.TransportError(http.SSLError(NOT_YET)), auth.RefreshError(JWT, {})]
)
def test_a_computer_in_1970_is_told_to_look_at_its_clock(error: Exception) -> None:
    clock = Time()
    with pytest.raises(CloudError, match="do not agree on the time") as raised:
        asked(clock, error)
    assert clock.slept == []
    assert raised.value.cause is not None
    assert "check this computer's clock (date), and set it: sudo " in (raised.value.hint or "")
