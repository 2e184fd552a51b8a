"""Who asks, in which project, with which role: each thing that can be wrong with it is told with one way to mend it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.app import SystemClock
from orchestrator.base.errors import AuthError, CloudError, FcctlError
from orchestrator.emulator.server import ROUTES
from orchestrator.machines.provision.endpoint import HOST_KEYS_PATH
from orchestrator.providers.gcp.cloud import GcpCloud
from tests.integration.providers.conftest import ZONE, World, rid
from tests.support.sshd import port_of_nobody

Worlds = Callable[..., World]
LOGIN = "gcloud auth application-default login"


class Hurry(SystemClock):
    """Time in which sleeping costs nothing."""

    def __init__(self) -> None:
        self.ahead = 0.0

    def now(self) -> float:
        return super().now() + self.ahead

    def monotonic(self) -> float:
        return super().monotonic() + self.ahead

    def elapsed(self) -> float:
        return super().elapsed() + self.ahead

    def sleep(self, seconds: float) -> None:
        self.ahead += seconds


def rpc(code: int, message: str, reason: str, **info: Any) -> dict[str, Any]:
    """As the service writes an error, with the list of errors that the older form has."""
    return {"error": {"code": code, "message": message, "errors": [{"message": message, "reason": reason}], **info}}


# --------------------------------------------------------------------------------------------- this computer's own part
@pytest.fixture
def bare(private_home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A computer without credentials, and without the metadata server that machines of the cloud have."""
    for name in ("GOOGLE_APPLICATION_CREDENTIALS", "GOOGLE_CLOUD_PROJECT", "CLOUDSDK_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NO_GCE_CHECK", "true")
    monkeypatch.setattr("google.auth._cloud_sdk.get_project_id", lambda: None)  # it starts gcloud
    return private_home


def adc(home: Path, content: Any) -> None:
    path = home / ".config" / "gcloud" / "application_default_credentials.json"
    path.parent.mkdir(parents=True)
    path.write_text(content if isinstance(content, str) else json.dumps(content))


def asked() -> FcctlError:
    with pytest.raises(FcctlError) as error:
        GcpCloud("proj-one", None, Hurry()).machine(ZONE, "vm")
    return error.value


def test_no_credentials(bare: Path) -> None:
    error = asked()
    assert isinstance(error, AuthError)
    assert error.message == "this computer has no Google Cloud credentials"
    assert error.hint == LOGIN


@pytest.mark.parametrize(
    "content", ["", "{", "[]", "{}", {"type": "nobody knows"}, {"type": "authorized_user"}], ids=str
)
def test_credentials_that_are_none(bare: Path, content: Any) -> None:
    adc(bare, content)
    error = asked()
    assert isinstance(error, AuthError)
    assert error.hint == LOGIN


def test_a_variable_that_names_no_file(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(bare / "none.json"))
    error = asked()
    assert isinstance(error, AuthError)
    assert "none.json" in str(error.cause)


@pytest.mark.parametrize(
    ("kind", "said"),
    [("authorized_user", "Token has been expired or revoked."), ("external_account_authorized_user", "Bad Request")],
)
def test_credentials_that_have_expired(
    bare: Path, says: Callable[..., str], monkeypatch: pytest.MonkeyPatch, kind: str, said: str
) -> None:
    from google.oauth2 import credentials

    url = says(400, {"error": "invalid_grant", "error_description": said})
    monkeypatch.setattr(credentials, "_GOOGLE_OAUTH2_TOKEN_ENDPOINT", f"{url}/token")
    secrets = {"refresh_token": "r", "client_id": "c", "client_secret": "s"}
    adc(bare, {"type": kind, "token_url": f"{url}/token", "audience": "a", **secrets})
    error = asked()
    assert isinstance(error, AuthError)
    assert "have expired or were revoked (project proj-one)" in error.message
    assert said in str(error.cause)
    assert error.hint == LOGIN


# ----------------------------------------------------------------------------------------------------- what Google says
@pytest.mark.parametrize(
    ("status", "body", "message", "hint"),
    [
        (401, rpc(401, "Request had invalid authentication credentials.", "authError"),
         "the API endpoint requires credentials", "fcctl emulator"),
        (403, rpc(403, "Compute Engine API has not been used in project 12 before or it is disabled.",
                  "accessNotConfigured"),
         "the Compute Engine API is not enabled in project proj-one",
         "gcloud services enable compute.googleapis.com --project=proj-one"),
        (403, {"error": {"code": 403, "message": "It is disabled.", "status": "PERMISSION_DENIED", "details": [
            {"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": "SERVICE_DISABLED",
             "domain": "googleapis.com", "metadata": {"service": "compute.googleapis.com"}}]}},
         "the Compute Engine API is not enabled in project proj-one", "gcloud services enable"),
        (404, rpc(404, "The resource 'projects/proj-one' was not found", "notFound"),
         "the project 'proj-one' does not exist, or these credentials may not see it", "gcloud projects list"),
        (403, rpc(403, "This API method requires billing to be enabled. Please enable billing on project #proj-one",
                  "forbidden"),
         "project proj-one has no billing account", "https://console.cloud.google.com/billing"),
        (403, rpc(403, "Caller does not have required permission to use project other. Grant the caller the "
                  "roles/serviceusage.serviceUsageConsumer role, or a custom role with the serviceusage.services.use "
                  "permission", "forbidden"),
         "the quota project of the credentials is a project that they may not use", "set-quota-project proj-one"),
        (403, rpc(403, "Required 'compute.instances.get' permission for 'projects/proj-one/zones/z/instances/vm'",
                  "forbidden"),
         "the permission compute.instances.get is missing in project", "--role=roles/compute.instanceAdmin.v1"),
        (403, rpc(403, "Forbidden", "forbidden"),
         "the cloud refused the request in project proj-one", "roles/compute.instanceAdmin.v1"),
    ],
)  # fmt: skip
def test_each_has_its_own_words(says: Callable[..., str], status: int, body: Any, message: str, hint: str) -> None:
    cloud = GcpCloud("proj-one", says(status, body), Hurry())
    with pytest.raises(AuthError) as error:
        cloud.machine(ZONE, "vm")
    assert message in error.value.message
    assert hint in str(error.value.hint)
    assert error.value.cause
    with pytest.raises(AuthError):
        cloud.machines({"fcctl": None})


@pytest.mark.parametrize("verb", ["insert", "start", "stop", "setLabels", "delete"])
def test_a_permission_that_is_missing_for_one_thing_only(world: Worlds, verb: str) -> None:
    here = world()
    machine = here.made()
    here.emulator.scenario.denied = (f"instances.{verb}",)
    changes: dict[str, Callable[[], Any]] = {
        "insert": lambda: here.cloud.create(ZONE, here.spec("more"), rid()),
        "start": lambda: here.cloud.start(machine, rid()),
        "stop": lambda: here.cloud.stop(machine, rid()),
        "setLabels": lambda: here.cloud.set_labels(machine, {"a": "b"}, rid()),
        "delete": lambda: here.cloud.delete(machine, rid()),
    }
    with pytest.raises(AuthError, match=f"the permission compute.instances.{verb} is missing") as error:
        changes[verb]()
    assert "gcloud projects add-iam-policy-binding proj-one" in str(error.value.hint)


# -------------------------------------------------------------------------------------------------- no answer, nonsense
@pytest.mark.parametrize(
    ("status", "body", "kind"),
    [
        (200, b"<html>please log in</html>", "text/html"),
        (200, b"[]", "application/json"),
        (200, b"{}", "application/json"),
        (200, b'{"name": 5}', "application/json"),
        (200, b'{"name": ', "application/json"),
        (200, b"\xff\xfe", "application/json"),
        (200, b"", "application/json"),
        (502, b"<html>Bad Gateway</html>", "text/html"),
        (503, b"", "text/plain"),
        (503, b'{"error": "unavailable"}', "application/json"),
        (502, b'"bad gateway"', "application/json"),
        (500, b'{"error": {"message": "no", "errors": null, "details": null}}', "application/json"),
        (504, b'{"error": {"details": ["late"]}}', "application/json"),
    ],
    ids=str,
)
def test_an_answer_that_makes_no_sense(says: Callable[..., str], status: int, body: bytes, kind: str) -> None:
    cloud = GcpCloud("proj-one", says(status, body, kind), Hurry())
    with pytest.raises(CloudError, match="did not answer") as error:
        cloud.machine(ZONE, "vm")
    assert "<html" not in str(error.value.cause)
    assert error.value.cause


@pytest.mark.parametrize("reason", ["CONCURRENT_OPERATIONS_QUOTA_EXCEEDED", "RATE_LIMIT_EXCEEDED"])
def test_too_much_at_once_is_not_too_much_at_all(says: Callable[..., str], reason: str) -> None:
    info = {"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": reason, "domain": "compute.googleapis.com"}
    body = rpc(403, "Wait for other operations to be done", "quotaExceeded", details=[info])
    clock = Hurry()
    with pytest.raises(CloudError, match="did not answer"):
        GcpCloud("proj-one", says(403, body), clock).machine(ZONE, "vm")
    assert clock.ahead > 60


def test_a_request_that_was_one_too_many_is_made_again_whatever_its_reason(says: Callable[..., str]) -> None:
    clock = Hurry()
    with pytest.raises(CloudError, match="did not answer"):
        GcpCloud("proj-one", says(429, rpc(429, "Too many requests", "quotaExceeded")), clock).machine(ZONE, "vm")
    assert clock.ahead > 60


@pytest.mark.parametrize("code", ["UNREACHABLE", "PARTIAL_SUCCESS"])
def test_a_list_that_lacks_something_is_not_taken_for_whole(says: Callable[..., str], code: str) -> None:
    warning = {"code": code, "message": "some results may be missing"}
    for body, missing in (
        ({"items": {}, "warning": warning}, "instances"),
        ({"items": {f"zones/{ZONE}": {"warning": warning}}}, ZONE),
        ({"unreachables": [f"projects/proj-one/zones/{ZONE}"]}, ZONE),
        ({"items": {f"zones/{ZONE}": {"warning": {"code": "NO_RESULTS_ON_PAGE"}}}}, None),
    ):
        listed = GcpCloud("proj-one", says(200, body), Hurry()).machines({})
        assert listed == ([], [missing] if missing else [])
    _, unasked = GcpCloud("proj-one", says(200, {"items": [], "warning": warning}), Hurry()).billable_resources()
    assert "snapshots" in unasked


def test_an_error_may_say_no_more_than_its_code(says: Callable[..., str]) -> None:
    body = {"error": {"code": 404, "message": "instance vm not found", "status": "NOT_FOUND"}}
    assert GcpCloud("proj-one", says(404, body), Hurry()).machine(ZONE, "vm") is None


def test_an_error_may_have_nulls(says: Callable[..., str]) -> None:
    message = f"The resource 'projects/proj-one/zones/{ZONE}/instances/vm' was not found"
    body = {"error": {"code": 404, "message": message, "errors": None, "details": None}}
    assert GcpCloud("proj-one", says(404, body), Hurry()).machine(ZONE, "vm") is None


def test_a_proxy_is_not_for_this_computer_s_own_emulator(world: Worlds, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    assert world().cloud.machine(ZONE, "vm") is None


def test_a_token_that_cannot_be_had_for_a_moment_is_waited_for(
    bare: Path, says: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from google.auth import _exponential_backoff
    from google.oauth2 import credentials

    monkeypatch.setattr(_exponential_backoff, "time", SimpleNamespace(sleep=lambda seconds: None))
    url = says(503, {"error": "internal_failure", "error_description": "try again"})
    monkeypatch.setattr(credentials, "_GOOGLE_OAUTH2_TOKEN_ENDPOINT", f"{url}/token")
    adc(bare, {"type": "authorized_user", "refresh_token": "r", "client_id": "c", "client_secret": "s"})
    error = asked()
    assert isinstance(error, CloudError)
    assert "internal_failure" in str(error.cause)


def test_nobody_there_is_told_soon() -> None:
    clock = Hurry()
    with port_of_nobody() as port, pytest.raises(CloudError, match="did not answer") as error:
        GcpCloud("proj-one", f"http://127.0.0.1:{port}/secret", clock).machine(ZONE, "vm")
    assert "refused" in str(error.value.cause)
    assert "secret" not in str(error.value.cause)
    assert "fcctl emulator" in str(error.value.hint)
    assert clock.ahead < 15


PAGE = Path(__file__).resolve().parents[3] / "docs" / "gcp.md"
#: The API's methods whose permission is called otherwise.
NAMES = {
    "insert": "create", "aggregatedList": "list", "wait": "get", "testIamPermissions": None, "getFromFamily": None,
}  # fmt: skip
#: Checked by the real service on top of a method's own permission; the emulator knows methods only.
FINER = {
    "disks.create", "disks.setLabels", "instances.setTags", "snapshots.create", "snapshots.setLabels",
    "snapshots.useReadOnly", "subnetworks.use", "subnetworks.useExternalIp",
}  # fmt: skip


def documented() -> set[str]:
    return set(re.findall(r"^  - compute\.(\S+)$", PAGE.read_text(), re.MULTILINE))


def permission(action: str) -> str | None:
    kind, _, method = action.partition(".")
    name = NAMES.get(method, method)
    return None if name is None else f"{kind}.{name}"


def test_the_documented_role_is_enough_and_not_too_much(world: Callable[..., World]) -> None:
    role = documented()
    denied = tuple(r.action for r in ROUTES if (needed := permission(r.action)) and needed not in role)
    assert "instances.suspend" in denied, "there is something to deny"
    made = world(denied=denied)
    asked: set[str] = set()
    admit = made.emulator._service._admit

    def note(action: str, project: str) -> None:
        asked.update(filter(None, [permission(action)]))
        admit(action, project)

    made.emulator._service._admit = note  # type: ignore[method-assign]
    everything(made)
    assert role - FINER == asked


def everything(world: World) -> None:
    """Each thing that fcctl asks a cloud for, once; none is refused."""
    cloud = world.cloud
    machine = world.stopped()
    world.ok(cloud.set_max_run(machine, 1800, rid()))
    world.ok(cloud.set_labels(machine, {"fcctl": "yes"}, rid()))
    world.ok(cloud.set_metadata(world.get(), {"a": "b"}, rid()))
    world.ok(cloud.start(world.get(), rid()))
    machine = world.get()
    assert cloud.guest_attributes(machine, HOST_KEYS_PATH)
    cloud.serial_output(machine)
    assert cloud.machines({"fcctl": None})[0]
    assert cloud.operations(machine.zone, machine.name)
    assert cloud.missing_permissions(machine, ["compute.instances.suspend"]) == ["compute.instances.suspend"]
    assert cloud.quotas("us-central1")
    assert cloud.firewall_allows_iap("default") is not None
    assert cloud.billable_resources()[1] == []
    assert cloud.disks(machine)
    world.ok(cloud.snapshot(machine, "copy", rid()))
    assert cloud.has_snapshot("copy")
    world.ok(cloud.delete_snapshot("copy", rid()))
    world.ok(cloud.stop(world.get(), rid()))
    world.ok(cloud.delete(world.get(), rid()))
