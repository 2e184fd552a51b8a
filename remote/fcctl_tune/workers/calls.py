"""Calls to workers by Dask, and their results.

A result is an event on the worker's own connection to the scheduler: no connection to a worker is needed,
which may be behind a tunnel, and no result is lost with one.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import json
import os
import pickle
import queue
import time
from typing import Any, Callable, Dict, List, Tuple

from fcctl_tune.errors import TuneError
from fcctl_tune.trial import process
from fcctl_tune.trial.tasks import TrialSpec
from fcctl_tune.workers.hosts import CallFailed

#: In the result of a command that was ended from outside, and the seconds that its worker then waits for its own end.
ENDED = ("SIGTERM", "SIGKILL", "SIGINT", "SIGHUP")
LAST_S = 1.0
#: More than there are calls: of one priority the oldest comes first.
STEP = 10**9
#: The topic of results.
TOPIC = "fcctl-tune-results"
#: Results returned at once, so that builders begin again in between.
AT_ONCE = 8
#: The variable of a member's workers: its host, as the scheduler is told, and its folders, as JSON.
MEMBER = "FCCTL_TUNE_MEMBER"


def carry_out(call: str, function: Callable[..., Any], trial_spec: TrialSpec, *arguments: Any) -> None:
    """In a worker: call ``function(trial_spec, *arguments)`` in its machine's folders. The result goes to TOPIC."""
    from distributed import get_worker

    member = os.environ.get(MEMBER)  # none on the machine that searches
    if member is not None:
        trial_spec = dataclasses.replace(trial_spec, **json.loads(member)["folders"])
    try:
        outcome = function(trial_spec, *arguments)
    except TuneError as error:
        outcome = TuneError(error.message, error.hint)
    except Exception as error:  # noqa: BLE001 - sent to the engine
        outcome = CallFailed("%s: %s" % (type(error).__name__, error))
    process.never_if_ending()
    if member is not None and any(name in repr(outcome) for name in ENDED):
        time.sleep(LAST_S)  # if the machine is stopping, this worker ends too, and the trial has no fault
    get_worker().log_event(TOPIC, {"call": call, "outcome": pickle.dumps(outcome)})


class Calls:
    """Calls by a Dask ``client``."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self._numbers = itertools.count()
        self._futures: Dict[str, Any] = {}
        self._ended: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._is_cut = False
        client.subscribe_topic(TOPIC, self._on_event)

    def submit(self, function: Callable[..., Any], *arguments: Any, resource: str, priority: int) -> str:
        number = next(self._numbers)
        call = "%s-%d" % (function.__name__, number)
        future = self._client.submit(
            carry_out, call, function, *arguments, key=call, resources={resource: 1}, priority=priority * STEP - number,
            pure=False,
        )  # fmt: skip
        self._futures[call] = future
        future.add_done_callback(functools.partial(self._on_end, call))
        return call

    def _on_event(self, event: Tuple[float, Any]) -> None:
        """In Dask's own thread."""
        self._ended.put((event[1]["call"], pickle.loads(event[1]["outcome"])))  # noqa: S301 - Dask's peers run code

    def _on_end(self, call: str, future: Any) -> None:
        """In Dask's own thread. A call that we did not cancel was cancelled with the connection to the scheduler."""
        self._is_cut = self._is_cut or (future.status == "cancelled" and call in self._futures)
        killed = future.status == "error"  # a call raises nothing: its workers died
        reason = "its workers died" if killed else "its result did not arrive"
        self._ended.put((call, CallFailed(reason, killed)))

    def cancel(self, call: str) -> None:
        future = self._futures.pop(call, None)
        if future is not None:
            future.cancel(force=True)

    def results(self, seconds: float) -> List[Tuple[str, Any]]:
        """Raises: TuneError, if the connection to the scheduler broke."""
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
            raise TuneError(
                "the connection to the scheduler broke",
                "when the scheduler runs again, run the same command: the search continues",
            )
        return results

    def wake(self) -> None:
        self._ended.put(None)
