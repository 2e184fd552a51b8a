"""All subjects."""

from __future__ import annotations

from tests.power_cut.base_subjects import BASE
from tests.power_cut.host_subjects import HOST
from tests.power_cut.play import Subject
from tests.power_cut.record_subjects import RECORDS
from tests.power_cut.store_subjects import STORE

#: As in the table of docs/testing.md.
GROUPS: tuple[tuple[type[Subject], ...], ...] = (BASE, STORE, RECORDS, HOST)
SUBJECTS = tuple(subject for group in GROUPS for subject in group)
