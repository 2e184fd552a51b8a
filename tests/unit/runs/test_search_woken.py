"""A search whose machine was stopped goes on there, and is waited for no longer than one whose machine was not."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest

from orchestrator.base.errors import LinkLost
from orchestrator.base.journal import JournalEntry
from orchestrator.runs import resume_run as go_on
from orchestrator.runs.lifecycle import Action
from orchestrator.tune.fleet import resume as fleet_resume

RUN = "20261121t081530z-tune-l4-3fa9c1"


class FarEnough(Exception):
    """What the test asks about has happened."""


class Ends:
    """A driver, a run, a link: as much of each as is touched before the machine is the new run's."""

    start = SimpleNamespace(worst_case_usd=1.0)
    saved = SimpleNamespace(
        session=None, fence_s=60, target=SimpleNamespace(kind="gcp"), model_copy=lambda **_: Ends.start
    )
    waits = True

    def __init__(self) -> None:
        self.doubts: list[Any] = []
        self.active: Any = SimpleNamespace(intake=lambda: SimpleNamespace(read_json=None))

    def begin(self, *_: object) -> Ends:
        return self

    def acquire(self) -> NoReturn:
        raise FarEnough

    def __getattr__(self, name: str) -> Any:
        return lambda *_: Ends()


@pytest.mark.parametrize("home", [True, False], ids=["home", "on its disk"])
def test_its_links_are_doubted_as_the_first_one_was(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, home: bool
) -> None:
    doubted: list[Any] = []
    link = Ends()

    def doubt() -> None:
        raise LinkLost("another could go on")

    @contextmanager
    def resumed(_services: object, _run_id: str, **options: Any) -> Iterator[Ends]:
        doubted.append(options["doubt"])
        yield Ends()

    monkeypatch.setattr(fleet_resume, "decide", lambda *_: Action.WAIT)
    monkeypatch.setattr(fleet_resume, "fold", lambda _: None)
    monkeypatch.setattr(go_on, "resumed", resumed)
    monkeypatch.setattr(go_on, "new_link", lambda *_: link)
    monkeypatch.setattr(go_on, "Driver", lambda *_: link)
    rest = SimpleNamespace(target=None, fence_s=60, plan=SimpleNamespace(run_id=RUN), to_json=dict)
    monkeypatch.setattr(go_on._Resume, "_rest", lambda *_: rest)
    reserved: list[Any] = []
    monkeypatch.setattr(go_on, "set_aside_wake", lambda *_: reserved.append("the wake") or "the wake")
    monkeypatch.setattr(go_on, "set_aside", lambda *_, replaces=(): reserved.append(list(replaces)))
    monkeypatch.setattr(go_on, "_read_below", lambda *_: {})
    monkeypatch.setattr(go_on.SavedPlan, "model_validate", lambda _: Ends.saved)
    submitted = JournalEntry(seq=1, time=1.0, kind="submit")
    store = SimpleNamespace(
        active=list,
        rows=lambda **_: [],
        journal_of=lambda _: [submitted], is_complete=lambda _: home, get=lambda _: SimpleNamespace(was_cut_off=True),
        folder=lambda _: tmp_path, begin=lambda *_: Ends(), plan_of=lambda _: {"plan": {"run_id": RUN}},
    )  # fmt: skip
    services: Any = SimpleNamespace(store=store)
    with pytest.raises(FarEnough):
        fleet_resume.continue_search(services, RUN, lambda _: None, doubt, lambda saved: saved)
    assert reserved == ([[]] if home else ["the wake", ["the wake"]])
    assert (doubted, link.doubts) == ([] if home else [doubt], [doubt])
