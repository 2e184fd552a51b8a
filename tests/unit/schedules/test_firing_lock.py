"""Who looks whether a firing is at work does not keep one from beginning."""

from __future__ import annotations

import threading
from pathlib import Path

from orchestrator.schedules.firings import FiringRecords


def test_looking_does_not_keep_a_firing_from_beginning(tmp_path: Path) -> None:
    records, done = FiringRecords(tmp_path), threading.Event()

    def look() -> None:
        while not done.is_set():
            records.at_work("often")

    looker = threading.Thread(target=look)
    looker.start()
    try:
        for _ in range(100):
            with records.firing("often") as alone:
                assert alone
    finally:
        done.set()
        looker.join()


def test_a_second_firing_is_told(tmp_path: Path) -> None:
    records = FiringRecords(tmp_path)
    with records.firing("often") as first, records.firing("often") as second:
        assert (first, second) == (True, False)
