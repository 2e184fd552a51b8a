"""What is left to gcloud: the real one takes our arguments, and its answers are understood."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orchestrator.app import SystemClock
from orchestrator.base.errors import AuthError, ConfigError
from orchestrator.machines.targets import GcpTarget
from orchestrator.providers.gcp import clouds
from orchestrator.providers.gcp.clouds import GcpClouds
from tests.integration.providers.conftest import World
from tests.integration.providers.test_doctor_cloud import findings
from tests.support.workspace import REPOSITORY

GCLOUD = shutil.which("gcloud")
needs_gcloud = pytest.mark.skipif(GCLOUD is None, reason="gcloud is not installed")
KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5"
ACCOUNTS = [
    {"username": "other_example_com", "primary": False},
    {"username": "ann_example_com", "primary": True, "homeDirectory": "/home/ann_example_com"},
]


@pytest.fixture
def alone(private_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """gcloud with a configuration of its own, and no credentials."""
    settings = {
        "CLOUDSDK_CONFIG": str(private_home / "gcloud"), "CLOUDSDK_AUTH_DISABLE_CREDENTIALS": "true",
        "CLOUDSDK_CORE_DISABLE_PROMPTS": "1", "CLOUDSDK_CORE_CHECK_GCE_METADATA": "false",
        "CLOUDSDK_CORE_DISABLE_USAGE_REPORTING": "true", "CLOUDSDK_CORE_ACCOUNT": "ann@example.com",
    }  # fmt: skip
    for name, value in settings.items():
        monkeypatch.setenv(name, value)


@needs_gcloud
@pytest.mark.full
def test_os_login_names_the_user(alone: None, says: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> None:
    url = says(200, {"loginProfile": {"name": "1", "posixAccounts": ACCOUNTS, "sshPublicKeys": {}}})
    monkeypatch.setenv("CLOUDSDK_API_ENDPOINT_OVERRIDES_OSLOGIN", f"{url}/")
    assert clouds.register(KEY, "proj-one") == "ann_example_com"
    target = GcpTarget(name="l4", project="proj-one", instance="vm", zones=["us-west1-c"], login="os_login")
    assert GcpClouds(SystemClock()).login(target).user == "ann_example_com"


@needs_gcloud
@pytest.mark.full
def test_os_login_that_refuses(alone: None, says: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> None:
    url = says(403, {"error": {"code": 403, "message": "not yours", "status": "PERMISSION_DENIED"}})
    monkeypatch.setenv("CLOUDSDK_API_ENDPOINT_OVERRIDES_OSLOGIN", f"{url}/")
    with pytest.raises(AuthError, match="refused the key") as error:
        clouds.register(KEY, "proj-one")
    assert "not yours" in str(error.value.cause)
    assert 'login = "metadata"' in str(error.value.hint)


def test_os_login_without_gcloud(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as path:
        path.setenv("PATH", str(tmp_path))
        with pytest.raises(ConfigError, match="needs gcloud"):
            clouds.register(KEY, "proj-one")


@pytest.mark.parametrize(
    "said",
    ["", "[]", "null", "{}", '{"loginProfile": null}', '{"loginProfile": {"posixAccounts": [{"username": "-x"}, 5]}}'],
)
def test_os_login_that_names_nobody(said: str) -> None:
    with pytest.raises(AuthError, match="shows no user name"):
        clouds.user_of(said)


def test_a_profile_by_itself() -> None:
    assert clouds.user_of(json.dumps({"posixAccounts": ACCOUNTS})) == "ann_example_com"


def refusal(argv: list[str]) -> str:
    """What gcloud says; 2 is its exit code for arguments it does not know."""
    done = subprocess.run(argv, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    assert done.returncode != 2, done.stderr
    return done.stdout + done.stderr


@needs_gcloud
@pytest.mark.full
def test_the_tunnel_s_arguments_are_gcloud_s(alone: None) -> None:
    """It goes as far as asking for a token, which there is none of here."""
    target = GcpTarget(name="l4", project="proj-one", instance="vm", zones=["us-west1-c"], iap=True)
    assert "Authorization" in refusal(list(target.proxy_command("vm", "us-west1-c")))


@needs_gcloud
@pytest.mark.full
def test_the_fixes_of_doctor_are_commands_that_gcloud_knows(
    world: Callable[..., World], alone: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = world(iap_firewall=False)
    monkeypatch.setenv("CLOUDSDK_API_ENDPOINT_OVERRIDES_COMPUTE", f"{here.emulator.url}/compute/v1/")
    found: dict[str, Any] = findings(here, iap=True)
    assert "was not found on this server" in refusal(shlex.split(str(found["firewall"].fix)))
    assert found["gcloud"].fix == "gcloud auth login"


@needs_gcloud
@pytest.mark.full
def test_a_budget_with_notices_is_made_by_the_command_of_the_page(alone: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """gcloud says what it sends, and sends it to a proxy that is not there."""
    page = (REPOSITORY / "docs/gcp.md").read_text()
    found = re.search(r"^    (gcloud billing budgets create .*?[^\\])\n", page, re.DOTALL | re.MULTILINE)
    assert found is not None
    text = found[1].replace("\\\n", " ").replace("ACCOUNT", "01AAAA-BBBBBB-CCCCCC").replace("PROJECT", "my-project")
    for name, value in (("TYPE", "http"), ("ADDRESS", "127.0.0.1"), ("PORT", "1")):
        monkeypatch.setenv(f"CLOUDSDK_PROXY_{name}", value)
    said = refusal([*shlex.split(text), "--log-http"])
    address, body = re.search(r"^uri: (\S+)", said, re.MULTILINE), re.search(r"body start ==\n(\{.*\})\n", said)
    assert address is not None, said
    assert body is not None, said
    account = "https://billingbudgets.googleapis.com/v1/billingAccounts/01AAAA-BBBBBB-CCCCCC/budgets"
    assert address[1].startswith(account)
    budget = json.loads(body[1])
    assert [rule["thresholdPercent"] for rule in budget["thresholdRules"]] == [0.5, 0.8, 1.0]
    assert (budget["amount"]["specifiedAmount"]["units"], budget["displayName"]) == ("100", "fcctl")
    assert budget["budgetFilter"] == {
        "calendarPeriod": "MONTH", "creditTypesTreatment": "EXCLUDE_ALL_CREDITS", "projects": ["projects/my-project"],
    }  # fmt: skip
