"""How results travel, and what becomes of calls that give none."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from fcctl_tune.errors import SpecError, TuneError
from fcctl_tune.search.spec import Spec
from fcctl_tune.trial.tasks import Built, TrialSpec
from fcctl_tune.workers import cluster
from fcctl_tune.workers.cluster import Calls
from fcctl_tune.workers.hosts import CallFailed

TRIAL_SPEC = TrialSpec.of(
    Spec.from_dict({"tune": "t", "parameters": {"P": [1]}, "serve": "x", "cases": ["a"]}), "/a", "/a/w"
)


class Future:
    def __init__(self, key: str) -> None:
        self.key, self.status = key, "pending"
        self.over: Callable[[Any], None] = lambda _: None

    def add_done_callback(self, over: Callable[[Any], None]) -> None:
        self.over = over

    def ends(self, status: str) -> None:
        self.status = status
        self.over(self)

    def cancel(self, force: bool) -> None:
        self.status = "cancelled"


class Client:
    """A Dask client as far as calls go."""

    def __init__(self) -> None:
        self.handler: Callable[[Any], None] = lambda _: None
        self.futures: list[Future] = []
        self.asked: list[Any] = []

    def subscribe_topic(self, _topic: str, handler: Callable[[Any], None]) -> None:
        self.handler = handler

    def submit(self, *what: Any, key: str, **how: Any) -> Future:
        self.asked.append((what, how))
        self.futures.append(Future(key))
        return self.futures[-1]

    def says(self, call: str, result: Any) -> None:
        self.handler((1.0, {"call": call, "outcome": pickle.dumps(result)}))


@pytest.fixture
def client() -> Client:
    return Client()


def task(trial_spec: Any, what: Any) -> None:
    """Is never called here."""


def submitted(made: Calls) -> str:
    return made.submit(task, "trial_spec", "what", slot="gpu", host="b", priority=3)


@pytest.mark.parametrize(
    ("state", "elsewhere", "waits"), [("SIGTERM", True, 1), ("SIGTERM", False, 1), ("SIGSEGV", True, 0)]
)
def test_what_the_end_of_a_machine_may_have_ended_is_not_told_at_once(
    state: str, elsewhere: bool, waits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And a member's worker builds in its own machine's folders."""
    told: list[Any] = []
    used: list[TrialSpec] = []

    def build(trial_spec: TrialSpec) -> Built:
        used.append(trial_spec)
        return Built("build_failed", state)

    naps: list[float] = []
    monkeypatch.setattr("distributed.get_worker", lambda: SimpleNamespace(log_event=lambda *what: told.append(what)))
    monkeypatch.setattr(cluster, "time", SimpleNamespace(sleep=naps.append))
    own = {"cwd": "/here", "folder": "/here/own", "source": "our source"}
    if elsewhere:
        monkeypatch.setenv(cluster.MEMBER, json.dumps({"folders": own}))
    cluster.carry_out("build-1", build, TRIAL_SPEC)
    assert used == [replace(TRIAL_SPEC, **own) if elsewhere else TRIAL_SPEC]
    assert len(naps) == waits
    ((topic, event),) = told
    outcome = pickle.loads(event["outcome"])
    assert (topic, event["call"], outcome) == (cluster.TOPIC, "build-1", Built("build_failed", state))


@pytest.mark.parametrize("error", [SpecError("space", "no JSON"), TuneError("no", "do"), ValueError("x")])
def test_an_error_of_a_call_arrives_with_its_hint(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Any] = []

    def fails(_: TrialSpec) -> None:
        raise error

    monkeypatch.setattr("distributed.get_worker", lambda: SimpleNamespace(log_event=lambda *what: told.append(what)))
    cluster.carry_out("task-1", fails, TRIAL_SPEC)
    outcome = pickle.loads(told[0][1]["outcome"])
    assert isinstance(outcome, TuneError if isinstance(error, TuneError) else CallFailed)
    assert str(outcome) == (str(error) if isinstance(error, TuneError) else "ValueError: x")


def test_each_result_is_heard_once(client: Client) -> None:
    made = Calls()
    made.connect(client)
    call = submitted(made)
    assert client.asked[0][1]["resources"] == {"gpu:b": 1}
    assert made.results(0) == []
    client.says(call, Built(""))
    client.futures[0].ends("finished")  # Dask tells that, too
    client.says(call, Built(""))  # carried out twice: its first worker was lost after it had told
    assert made.results(0) == [(call, Built(""))]
    assert made.results(0) == []


def test_a_call_that_was_given_up_is_not_heard(client: Client) -> None:
    made = Calls()
    made.connect(client)
    made.cancel(submitted(made))
    client.futures[0].ends("cancelled")
    assert made.results(0) == []


def test_of_calls_that_are_alike_the_oldest_comes_first(client: Client) -> None:
    made = Calls()
    made.connect(client)
    for priority in (0, 0, 20, 0, 10, 20):
        made.submit(task, "trial_spec", "what", slot="gpu", host="", priority=priority)
    asked = [how["priority"] for _, how in client.asked]
    assert sorted(range(6), key=asked.__getitem__, reverse=True) == [2, 5, 4, 0, 1, 3]
    assert all(abs(priority) < 2**53 for priority in asked)


@pytest.mark.parametrize(
    ("status", "killed", "reason"),
    [
        ("error", True, "its workers died"),
        ("finished", False, "its result did not arrive"),
        ("cancelled", False, "its result did not arrive"),
    ],
)
def test_a_call_that_gives_nothing_says_why(client: Client, status: str, killed: bool, reason: str) -> None:
    made = Calls()
    made.connect(client)
    call = submitted(made)
    client.futures[0].ends(status)
    ((heard, outcome),) = made.results(0)
    assert (heard, str(outcome), outcome.killed) == (call, reason, killed)
