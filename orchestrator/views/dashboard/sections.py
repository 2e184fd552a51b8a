"""The dashboard's navigation. A section is one line here: it plugs in its routes, and shows where it has data."""

from __future__ import annotations

from orchestrator.views.dashboard.pages import compare, history, hosts, runs, schedules, spending
from orchestrator.views.dashboard.site import Section

SECTIONS = (
    Section("/", "Runs", runs.routes),
    Section("/history", "History", history.routes),
    Section("/compare", "Compare", compare.routes),
    Section("/hosts", "Hosts", hosts.routes),
    Section("/schedules", "Schedules", schedules.routes, schedules.is_there),
    Section("/spending", "Spending", spending.routes, spending.is_there),
)
