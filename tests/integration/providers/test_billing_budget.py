"""The command of docs/gcp.md that makes a budget with notices, as the real gcloud understands it."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

GCLOUD = shutil.which("gcloud")
pytestmark = [pytest.mark.full, pytest.mark.skipif(GCLOUD is None, reason="gcloud is not installed")]
PAGE = Path(__file__).resolve().parents[3] / "docs/gcp.md"


def command() -> list[str]:
    """As the page has it, with an account and a project."""
    found = re.search(r"^    gcloud (billing budgets create .*?[^\\])\n", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    assert found is not None
    text = found[1].replace("\\\n", " ").replace("ACCOUNT", "01AAAA-BBBBBB-CCCCCC").replace("PROJECT", "my-project")
    return shlex.split(text)


def test_gcloud_takes_it_and_asks_for_the_three_notices(tmp_path: Path) -> None:
    """It says what it sends, and sends it to a proxy that is not there."""
    environment = {
        **os.environ,
        "CLOUDSDK_AUTH_DISABLE_CREDENTIALS": "true",
        "CLOUDSDK_CORE_DISABLE_PROMPTS": "1",
        "CLOUDSDK_CORE_CHECK_GCE_METADATA": "false",
        "CLOUDSDK_CORE_DISABLE_USAGE_REPORTING": "true",
        "CLOUDSDK_PROXY_TYPE": "http",
        "CLOUDSDK_PROXY_ADDRESS": "127.0.0.1",
        "CLOUDSDK_PROXY_PORT": "1",
        "CLOUDSDK_CONFIG": str(tmp_path / "gcloud"),
    }
    done = subprocess.run(
        [str(GCLOUD), *command(), "--log-http"], env=environment, capture_output=True, text=True, check=False,
        stdin=subprocess.DEVNULL,
    )  # fmt: skip
    said = done.stdout + done.stderr
    address, body = re.search(r"^uri: (\S+)", said, re.MULTILINE), re.search(r"body start ==\n(\{.*\})\n", said)
    assert address is not None, said
    assert body is not None, said
    assert address[1].startswith(
        "https://billingbudgets.googleapis.com/v1/billingAccounts/01AAAA-BBBBBB-CCCCCC/budgets"
    )
    budget = json.loads(body[1])
    assert [rule["thresholdPercent"] for rule in budget["thresholdRules"]] == [0.5, 0.8, 1.0]
    assert (budget["amount"]["specifiedAmount"]["units"], budget["displayName"]) == ("100", "fcctl")
    assert budget["budgetFilter"] == {
        "calendarPeriod": "MONTH", "creditTypesTreatment": "EXCLUDE_ALL_CREDITS", "projects": ["projects/my-project"],
    }  # fmt: skip
