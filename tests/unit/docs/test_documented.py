"""Every key that can be written is in the documentation, and every example there is valid."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from pydantic import BaseModel

from fcctl_remote import wire
from orchestrator.money.caps import Budget
from orchestrator.providers.gcp import refusals
from orchestrator.runs.job import job
from orchestrator.workspace import config

DOCS = Path(__file__).resolve().parents[3] / "docs"


def section(page: str, heading: str) -> str:
    """From one heading to the next."""
    text = (DOCS / page).read_text()
    assert heading in text
    return text.split(f"{heading}\n", 1)[1].split("\n## ", 1)[0]


def documented(text: str) -> set[str]:
    return set(re.findall(r"^\| `([a-z_]+)` \|", text, re.MULTILINE))


@pytest.mark.parametrize(
    ("heading", "models"),
    [
        ("## `[project]`", [config.Project]),
        ("## `[targets.NAME]`", list(config.KINDS.values())),
        ("## `[budget]`", [Budget]),
        ("## `[schedules.NAME]`", [config.Schedule]),
        ("## `[phases.NAME]`", [config.Phase]),
        ("## `[notify]`", [config.Notify]),
        ("## `[secrets]`", [config.SecretSource]),
    ],
)
def test_every_configuration_key_is_documented_and_no_other(heading: str, models: list[type[BaseModel]]) -> None:
    keys = {key for model in models for key in model.model_fields}
    assert documented(section("configuration.md", heading)) == keys - ({"name"} if len(models) > 1 else set())


@pytest.mark.parametrize(("heading", "model"), [("## The job", job.Job), ("## A step", job.Step)])
def test_every_job_key_is_documented_and_no_other(heading: str, model: type[BaseModel]) -> None:
    assert documented(section("jobs.md", heading)) - set(wire.READERS) == set(model.model_fields)


@pytest.mark.parametrize("model", [job.Needs, job.Gate, job.Collect, job.JobBudget])
def test_every_nested_key_of_jobs_is_mentioned(model: type[BaseModel]) -> None:
    text = (DOCS / "jobs.md").read_text()
    assert not [key for key in model.model_fields if f"`{key}" not in text]


def test_every_reader_status_and_activity_is_mentioned() -> None:
    text = (DOCS / "jobs.md").read_text()
    assert not [reader for reader in wire.READERS if f"| `{reader}` |" not in text]
    assert not [activity for activity in job.ACTIVITIES if activity not in text]


def examples(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", ["docs/configuration.md", "docs/gcp.md", "README.md"])
def test_the_examples_of_configuration_are_valid(page: str) -> None:
    found = examples(DOCS.parent / page, "toml")
    assert found
    for text in found:
        config.combine([config.read_layer(text, page)], "x")


@pytest.mark.parametrize("page", ["docs/jobs.md", "README.md"])
def test_the_examples_of_jobs_are_valid(page: str) -> None:
    found = [text for text in examples(DOCS.parent / page, "yaml") if text.startswith("job:")]
    assert found
    for text in found:
        assert job.parse(text, page).job.steps


def test_this_repository_s_own_configuration_is_valid() -> None:
    path = DOCS.parent / "fcctl.toml"
    loaded = config.combine([config.read_layer(path.read_text(), "fcctl.toml")], "x")
    assert loaded.config.project.name == "flashcore"
    assert loaded.config.target("l4").kind == "gcp"
    unmarked = re.sub(r"^# (?=\[targets\.box|kind|host)", "", path.read_text(), flags=re.MULTILINE)
    assert "box" in tomllib.loads(unmarked)["targets"]
    assert config.combine([config.read_layer(unmarked, "fcctl.toml")], "x").config.target("box").kind == "ssh"


def test_the_refusals_of_the_cloud_s_page_are_those_that_are_known() -> None:
    rows = re.findall(r"^\| (.+?) \|", section("gcp.md", "## When the cloud says no"), re.MULTILINE)
    codes = [code for row in rows for code in re.findall(r"`([A-Za-z]+(?:_[A-Z]+)*)`", row) if "GPUS" not in code]
    assert len(codes) > 8
    known = {*refusals._TABLE, refusals._UNSUPPORTED}
    assert [code for code in codes if refusals._letters(code) not in known] == []
