"""Calls to workers, by Dask, and how their results come back.

A result comes as an event on the connection that its worker keeps to the scheduler, before the scheduler learns that
the call is done. Nobody connects to a worker: it may be behind any tunnel, and no result is lost with it. Results are
JSON.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import json
import queue
import secrets
import time
from typing import Any, Callable, Dict, List, Mapping, Tuple

from fcctl_tune.errors import TuneError
from fcctl_tune.trial import process
from fcctl_tune.trial.slot import Timed
from fcctl_tune.trial.tasks import Built, TrialSpec
from fcctl_tune.workers import build_place
from fcctl_tune.workers.interfaces import CallFailed

#: What a result says if somebody ended its command, and how long its worker waits for its own end then, seconds.
ENDED = ("SIGTERM", "SIGKILL", "SIGINT", "SIGHUP")
LAST_S = 1.0
#: Of calls of one priority the oldest comes first, whichever search's it is: ticks a second, and more of them than
#: there were since 1970. Twenty times as many are still whole numbers to everybody.
TICKS, STEP = 10**4, 10**14
#: Results heard at once: whoever looks after them lets builders begin anew in between.
AT_ONCE = 8
#: Results that are more than lists and mappings, by the name they travel under.
KINDS: Mapping[str, Callable[..., Any]] = {"Built": Built, "Timed": Timed}


# ------------------------------------------------------------------------------------------------ in a worker
def carry_out(topic: str, call: str, function: Callable[..., Any], trial_spec: TrialSpec, *arguments: Any) -> None:
    """``function(trial_spec, *arguments)``, in this machine's folders; what came of it goes to ``topic``."""
    from distributed import get_worker

    place, started = build_place.here(), time.monotonic()
    try:
        reply = encode(function(build_place.at_home(trial_spec, place), *arguments))
    except TuneError as error:
        reply = json.dumps({"tune_error": [error.message, error.hint]})
    except Exception as error:  # noqa: BLE001 - whatever it is, the engine hears of it
        reply = json.dumps({"error": "%s: %s" % (type(error).__name__, error)})
    process.never_if_ending()
    build_place.account(place, function.__name__, time.monotonic() - started)
    if place is not None and any(name in reply for name in ENDED):
        time.sleep(LAST_S)  # if that is the end of this machine, it is this worker's, too, and not the trial's fault
    get_worker().log_event(topic, {"call": call, "reply": reply})


def encode(result: Any) -> str:
    """JSON of what a function of ``trial`` or ``engine.final`` returns: an object of :data:`KINDS`, a list of such, or
    what JSON has itself."""
    first = result[0] if isinstance(result, list) and result else result
    kind = type(first).__name__ if type(first).__name__ in KINDS else ""
    return json.dumps({"kind": kind, "result": result}, default=dataclasses.asdict)


# ------------------------------------------------------------------------------------------------ in the engine
def decode(reply: str) -> Any:
    """The result, or the exception that there was instead."""
    try:
        entry = json.loads(reply)
        if "tune_error" in entry:
            message, hint = entry["tune_error"]
            return TuneError(str(message), str(hint))
        if "error" in entry:
            return CallFailed(str(entry["error"]))
        kind, result = entry["kind"], entry["result"]
        if not kind:
            return result
        return [KINDS[kind](**one) for one in result] if isinstance(result, list) else KINDS[kind](**result)
    except (ValueError, KeyError, TypeError) as error:
        return CallFailed("a worker answered what is no result: %s" % error)


class Calls:
    """Calls by a Dask ``client``."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self._token = secrets.token_hex(8)  # others may use this scheduler, too
        self._topic = "fcctl-tune-" + self._token
        self._numbers = itertools.count()
        self._futures: Dict[str, Any] = {}
        self._ended: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._is_cut = False
        self._asked_at = 0  # ticks
        client.subscribe_topic(self._topic, self._told)

    def submit(self, function: Callable[..., Any], *arguments: Any, resource: str, priority: int) -> str:
        call = "%s-%d" % (function.__name__, next(self._numbers))
        self._asked_at = max(self._asked_at + 1, int(time.time() * TICKS))
        future = self._client.submit(
            carry_out,
            self._topic,
            call,
            function,
            *arguments,
            key="%s-%s" % (call, self._token),
            resources={resource: 1},
            priority=priority * STEP - self._asked_at,  # Dask alone takes the newest of those that are alike
            pure=False,
        )
        self._futures[call] = future
        future.add_done_callback(functools.partial(self._over, call))
        return call

    def _told(self, event: Tuple[float, Any]) -> None:
        """In Dask's own thread."""
        with contextlib.suppress(TypeError, KeyError):
            self._ended.put((event[1]["call"], decode(event[1]["reply"])))

    def _over(self, call: str, future: Any) -> None:
        """In Dask's own thread: there is no result, unless it came already. What we did not cancel ourselves was given
        up with the connection to the scheduler, which forgets that we listen, too."""
        self._is_cut = self._is_cut or (future.status == "cancelled" and call in self._futures)
        killed = future.status == "error"  # a call raises nothing: its workers died
        reason = "its workers died" if killed else "its result did not come"
        self._ended.put((call, CallFailed(reason, killed)))

    def cancel(self, call: str) -> None:
        future = self._futures.pop(call, None)
        if future is not None:
            future.cancel(force=True)

    def results(self, seconds: float) -> List[Tuple[str, Any]]:
        """Raises: TuneError: the connection to the scheduler broke, which is no call's fault."""
        results = []
        with contextlib.suppress(queue.Empty):
            one = self._ended.get(timeout=seconds)
            while True:
                if one is not None and self._futures.pop(one[0], None) is not None:
                    results.append(one)
                if len(results) == AT_ONCE:
                    break
                one = self._ended.get_nowait()
        if self._is_cut:
            raise TuneError("the connection to the scheduler broke", "the same command goes on once it is back")
        return results

    def wake(self) -> None:
        self._ended.put(None)
