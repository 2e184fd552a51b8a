"""``fcctl schedule serve`` while its fcctl.toml is edited."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from orchestrator.cli.main import main

TOML = '[project]\nname = "ws"\n\n[schedules.often]\njob = "hello"\ncron = "* * * * *"\ntimezone = "UTC"\n'
START = 1795250000.0


class Minutes:
    """A clock of which each sleep is a minute, in which one thing is done to the workspace."""

    def __init__(self, *edits: Callable[[], object]) -> None:
        self.time = START
        self.edits = list(edits)

    def now(self) -> float:
        return self.time

    def monotonic(self) -> float:
        return self.time

    def elapsed(self) -> float:
        return self.time

    def sleep(self, _: float) -> None:
        self.time += 60.0
        if not self.edits:
            raise KeyboardInterrupt
        self.edits.pop(0)()


def test_a_typo_stops_firings_and_not_the_server(
    tmp_path: Path, private_home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "jobs").mkdir()
    (tmp_path / "jobs" / "hello.yaml").write_text("job: hello\nsteps:\n  - {id: greet, run: echo hello}\n")
    toml = tmp_path / "fcctl.toml"
    toml.write_text(TOML)
    started: list[float] = []

    def write(text: str) -> Callable[[], object]:
        return lambda: toml.write_text(text)

    def nothing() -> None:
        pass

    clock = Minutes(write(TOML.replace("cron =", "corn =")), nothing, toml.unlink, write(TOML), nothing)
    monkeypatch.setattr("orchestrator.app.SystemClock", lambda: clock)
    monkeypatch.setattr("orchestrator.schedules.fire.launch", lambda *_: started.append(clock.time))
    assert main(["-C", str(tmp_path), "schedule", "serve"]) == 130

    said = capsys.readouterr().err
    assert said.count("unknown key 'corn' in schedules.often") == 1
    assert "fcctl.toml:6" in said
    assert said.count("no fcctl.toml") == 1
    assert said.count("fcctl checks again every minute") == 2
    assert said.count("schedules start again") == 1
    # Minute 0 begins to watch; 1 to 3 cannot be read; 4 makes up for the newest of them.
    assert started == [START + 4 * 60]


def test_one_that_is_wrong_from_the_beginning_ends_at_once(
    tmp_path: Path, private_home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "fcctl.toml").write_text(TOML.replace("cron =", "corn ="))
    assert main(["-C", str(tmp_path), "schedule", "serve"]) == 3
    assert "did you mean 'cron'" in capsys.readouterr().err
