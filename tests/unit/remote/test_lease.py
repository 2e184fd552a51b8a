"""The lease, with a shutdown of our own on PATH: the machine's real one is never called."""

from __future__ import annotations

import json
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from fcctl_remote.base.files import DiskReserve, to_json
from fcctl_remote.base.layout import Layout
from fcctl_remote.run import shutdown_timer as lease_module
from fcctl_remote.run import state as runs
from fcctl_remote.run import telemetry as telemetry_module
from fcctl_remote.run.shutdown_timer import LeaseKeeper
from fcctl_remote.run.state import EventLog
from fcctl_remote.wire import LeaseRequest, Refusal, RunPlan, encode
from tests.support.scripts import script


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the fake shutdown writes how it was called; without sudo in between, whoever runs the test."""
    log = tmp_path / "calls"
    log.touch()
    folder = tmp_path / "bin"
    for name in ("shutdown", "systemd-run", "systemctl", "sudo"):
        body = f'echo "{name} $*" >> {log}\n'
        if name == "sudo":
            body += '[ "$1" = -n ] && shift; exec "$@"\n'
        script(folder / name, f"{body}[ ! -e {tmp_path}/refuse ] || {{ echo refused; exit 1; }}")
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    monkeypatch.setattr(lease_module.os.path, "isdir", _no_systemd)
    return log


def _no_systemd(path: object) -> bool:
    return path != "/run/systemd/system" and Path(str(path)).is_dir()


def _shutdowns(calls: Path) -> list[str]:
    return [line for line in calls.read_text().splitlines() if line.startswith("shutdown")]


def _ask(layout: Layout, op: str, in_s: float | None = None, **fields: object) -> lease_module.wire.Lease:
    deadline = None if in_s is None else time.time() + in_s
    return LeaseKeeper(layout).handle(LeaseRequest(op, deadline, **fields))  # type: ignore[arg-type]


def _refused(layout: Layout, code: str, op: str, in_s: float | None = None, **fields: object) -> str:
    with pytest.raises(Refusal) as caught:
        _ask(layout, op, in_s, **fields)
    assert caught.value.error.code == code
    return caught.value.error.message


def test_a_real_lease_sets_the_systems_timer_never_later_than_the_deadline(layout: Layout, calls: Path) -> None:
    made = _ask(layout, "arm", 1799, dry=False)
    assert (made.armed, made.dry, made.mechanism) == (True, False, "shutdown")
    assert made.token is not None
    (call,) = _shutdowns(calls)
    assert call.startswith("shutdown -P +29 ")


def test_systemd_keeps_it_to_the_second_where_it_runs(
    layout: Layout, calls: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease_module.os.path, "isdir", lambda path: True)
    monkeypatch.setattr(time, "time", lambda: 1.8e9)  # however long it takes from the request to the timer
    made = _ask(layout, "arm", 100.9, dry=False)
    assert made.mechanism == "systemd"
    (armed,) = [line for line in calls.read_text().splitlines() if line.startswith("systemd-run")]
    assert "--on-active 100s" in armed
    assert armed.endswith("poweroff")
    monkeypatch.setattr(time, "time", lambda: 1.8e9 + 0.002)
    _ask(layout, "renew", 200, token=made.token)
    lines = [line for line in calls.read_text().splitlines() if not line.startswith("sudo")]
    assert [line.split()[0] for line in lines] == ["systemd-run", "systemd-run", "systemctl"]  # no moment without
    assert lines[2].startswith("systemctl stop fcctl-lease-")
    assert lines[2].split()[2].removesuffix(".timer") in lines[0]


def test_a_dry_lease_is_only_written_down(layout: Layout, calls: Path) -> None:
    made = _ask(layout, "arm", 600)
    assert (made.armed, made.dry, made.mechanism) == (True, True, "none")
    assert calls.read_text() == ""
    assert _ask(layout, "show").armed


def test_anyone_may_move_it_earlier_nobody_later_without_the_token(layout: Layout, calls: Path) -> None:
    made = _ask(layout, "arm", 3600, dry=False)
    earlier = _ask(layout, "arm", 1800, dry=False)
    assert earlier.deadline < made.deadline
    assert earlier.token is None
    _refused(layout, "conflict", "arm", 7200, dry=False)
    for token in (None, "", "guess"):
        _refused(layout, "denied", "renew", 7200, token=token)
    assert _ask(layout, "show").deadline == earlier.deadline
    assert len(_shutdowns(calls)) == 2


def test_a_renewal_never_passes_the_clouds_deadline(layout: Layout, calls: Path) -> None:
    limit = time.time() + 5000
    made = _ask(layout, "arm", 600, not_after=limit, dry=False)
    renewed = _ask(layout, "renew", 90_000, token=made.token)
    assert (renewed.deadline, renewed.not_after) == (limit, limit)
    later_limit = _ask(layout, "renew", 90_000, token=made.token, not_after=limit + 9999)
    assert later_limit.deadline == limit
    assert _ask(layout, "arm", 600, not_after=limit - 1, dry=False).not_after == limit - 1


def test_arming_again_dry_does_not_disarm_a_real_one(layout: Layout, calls: Path) -> None:
    _ask(layout, "arm", 3600, dry=False)
    assert _ask(layout, "arm", 1800, dry=True).dry is False
    assert len(_shutdowns(calls)) == 2


def test_disarming_needs_the_token_and_cancels_the_timer(layout: Layout, calls: Path) -> None:
    made = _ask(layout, "arm", 600, dry=False)
    _refused(layout, "denied", "disarm", token="guess")
    assert _ask(layout, "disarm", token=made.token).armed is False
    assert _shutdowns(calls)[-1] == "shutdown -c"
    assert _ask(layout, "show").armed is False


def test_show_keeps_the_token_to_itself_and_the_file_to_its_owner(layout: Layout, calls: Path) -> None:
    _ask(layout, "arm", 600)
    assert _ask(layout, "show").token is None
    assert Path(layout.lease).stat().st_mode & 0o077 == 0


def test_a_timer_that_cannot_be_set_is_no_lease(layout: Layout, calls: Path, tmp_path: Path) -> None:
    (tmp_path / "refuse").touch()
    assert "refused" in _refused(layout, "denied", "arm", 600, dry=False)
    assert _ask(layout, "show").armed is False


def test_after_a_restart_the_timer_is_set_again_or_the_lease_is_history(layout: Layout, calls: Path) -> None:
    _ask(layout, "arm", 600, dry=False)
    stored = json.loads(Path(layout.lease).read_text())
    stored["lease"]["boot_id"] = "before"
    Path(layout.lease).write_text(json.dumps(stored))
    again = _ask(layout, "show")
    assert again.armed
    assert again.boot_id != "before"
    assert len(_shutdowns(calls)) == 2
    stored["lease"]["deadline"] = time.time() - 1
    Path(layout.lease).write_text(json.dumps(stored))
    assert _ask(layout, "show").armed is False
    assert len(_shutdowns(calls)) == 2


def test_the_end_of_the_last_run_moves_the_timer_only_earlier_and_makes_none(
    layout: Layout, calls: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease_module, "IDLE_PATIENCE_S", 0.0)
    assert not lease_module.stop_soon(layout, "x", 900), "nobody armed one: the machine is not ours"
    now = _ask(layout, "arm", 9e8, dry=False).deadline
    assert lease_module.stop_soon(layout, "x", 900)
    moved = _ask(layout, "show").deadline
    assert moved < now
    assert not lease_module.stop_soon(layout, "x", 9e9)
    assert _ask(layout, "show").deadline == moved


def test_what_a_controller_has_set_at_the_end_of_the_run_stays(
    layout: Layout, calls: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For an hour more, or until the end of hosts up: the machine went off a quarter of an hour after each run."""
    _ask(layout, "arm", 5 * 3600, dry=False, token="ours")
    moment = SimpleNamespace(time=time.time, sleep=lambda _: _ask(layout, "renew", 3600, token="ours"))
    monkeypatch.setattr(lease_module, "time", moment)
    assert not lease_module.stop_soon(layout, "x", 900)
    assert 3000 < _ask(layout, "show").deadline - time.time() < 3601


def test_a_run_whose_supervisor_was_killed_keeps_the_machine_on_no_longer_than_another(
    layout: Layout, calls: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the kernel, for want of memory, while nobody followed it: the timer was as late as all its steps may be."""
    monkeypatch.setattr(lease_module, "IDLE_PATIENCE_S", 0.0)
    monkeypatch.setattr(telemetry_module.signal, "signal", lambda *_: None)
    run_id = "20261121t081530z-j-vm-3fa9c1"
    plan, run = RunPlan(run_id, "j", "vm", "w", "0" * 64, [], idle_stop_s=900.0), layout.run(run_id)
    Path(run.folder).mkdir(parents=True)
    Path(run.plan).write_bytes(to_json(encode(plan)))
    EventLog(run.events, DiskReserve(run.reserve)).append("run_started", {})
    before = _ask(layout, "arm", 5 * 3600, dry=False).deadline
    telemetry_module.telemetry(layout, run_id)
    assert runs.is_finished(run)
    assert before - _ask(layout, "show").deadline > 4 * 3600


def test_a_start_makes_older_timers_void(layout: Layout, calls: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FCCTL_EMULATOR_BOOT_ID", "first")
    _ask(layout, "arm", 9e8, dry=False, token="theirs")
    assert _ask(layout, "show", fresh=True).armed, "of this very boot"
    monkeypatch.setenv("FCCTL_EMULATOR_BOOT_ID", "second")
    assert not _ask(layout, "show", fresh=True).armed
    assert json.loads(Path(layout.lease).read_text())["lease"]["boot_id"] == "second"
