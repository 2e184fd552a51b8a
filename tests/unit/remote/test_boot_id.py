"""What tells one boot of a machine from the next."""

from __future__ import annotations

import pytest

from fcctl_remote.base import hostfacts


def test_an_emulated_machine_has_boots_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FCCTL_EMULATOR_BOOT_ID", raising=False)
    kernel = hostfacts.boot_id()
    assert kernel == hostfacts.boot_id()
    monkeypatch.setenv("FCCTL_EMULATOR_BOOT_ID", "first")
    assert hostfacts.boot_id() == hostfacts.brief()["boot_id"] == "first"
    monkeypatch.setenv("FCCTL_EMULATOR_BOOT_ID", "second")
    assert hostfacts.boot_id() == "second"
    monkeypatch.setenv("FCCTL_EMULATOR_BOOT_ID", "")
    assert hostfacts.boot_id() == kernel
