"""Google's billing lines as CSV and as JSON lines, from a file that is not trusted."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

import pytest

from orchestrator.base.errors import UsageError
from orchestrator.money.billing import export as billing_export
from orchestrator.money.billing.export import BillingLine, read_export

START = datetime(2026, 11, 20, 8, tzinfo=UTC).timestamp()
ROW: dict[str, Any] = {
    "billing_account_id": "01AAAA-BBBBBB-CCCCCC",
    "service": {"id": "6F81-5844-456A", "description": "Compute Engine"},
    "sku": {"id": "1234-5678-9ABC", "description": "Nvidia L4 GPU running in Oregon"},
    "usage_start_time": "2026-11-20 08:00:00 UTC",
    "usage_end_time": "2026-11-20 09:00:00 UTC",
    "project": {"id": "my-project", "number": "123456789012", "ancestors": []},
    "labels": [{"key": "fcctl", "value": "yes"}, {"key": "fcctl-workspace", "value": "flashcore"}],
    "system_labels": [],
    "location": {"location": "us-west1", "country": "US", "region": "us-west1", "zone": "us-west1-c"},
    "resource": {
        "name": "vm",
        "global_name": "//compute.googleapis.com/projects/123456789012/zones/us-west1-c/instances/4242",
    },
    "cost": 0.56,
    "currency": "USD",
    "currency_conversion_rate": 1.0,
    "credits": [{"name": "a", "amount": -0.06, "type": "DISCOUNT"}, {"name": "b", "amount": -0.1, "type": "PROMOTION"}],
    "cost_type": "regular",
}


def row(**changed: Any) -> dict[str, Any]:
    return {**ROW, **changed}


def as_json(*rows: dict[str, Any]) -> list[bytes]:
    return [json.dumps(one).encode() + b"\n" for one in rows]


def as_csv(*rows: dict[str, Any], joint: str = "_") -> list[bytes]:
    """As a query makes it that gives nested fields a name of their own and repeated ones as JSON."""
    columns = {
        "usage_start_time": lambda r: r["usage_start_time"], "usage_end_time": lambda r: r["usage_end_time"],
        f"resource{joint}name": lambda r: r["resource"]["name"],
        f"resource{joint}global_name": lambda r: r["resource"]["global_name"],
        f"sku{joint}description": lambda r: r["sku"]["description"], f"project{joint}id": lambda r: r["project"]["id"],
        "cost": lambda r: r["cost"], "currency": lambda r: r["currency"],
        "currency_conversion_rate": lambda r: r["currency_conversion_rate"],
        "credits": lambda r: json.dumps(r["credits"]), "labels": lambda r: json.dumps(r["labels"]),
    }  # fmt: skip
    made = io.StringIO(newline="")
    writer = csv.writer(made)
    writer.writerow(columns)
    writer.writerows([take(one) for take in columns.values()] for one in rows)
    return made.getvalue().encode().splitlines(keepends=True)


def read(lines: Iterable[bytes]) -> list[BillingLine]:
    return list(read_export(lines, "export"))


@pytest.mark.parametrize("lines", [as_json(ROW), as_csv(ROW), as_csv(ROW, joint="."), [b"\xef\xbb\xbf", *as_csv(ROW)]])
def test_a_line_of_either_form_is_the_same(lines: list[bytes]) -> None:
    if lines[0] == b"\xef\xbb\xbf":
        lines = [b"".join(lines[:2]), *lines[2:]]
    (line,) = read(lines)
    assert line == BillingLine(
        START, START + 3600, 0.56, pytest.approx(-0.16), "machine", "vm", "4242", "my-project",
        {"fcctl": "yes", "fcctl-workspace": "flashcore"},
    )  # fmt: skip


@pytest.mark.parametrize(
    ("text", "hours"),
    [("2026-11-20 08:00:00", 0), ("2026-11-20T08:00:00Z", 0), ("2026-11-20 00:00:00-08:00", 0),
     ("2026-11-20 07:59:59.500000 UTC", -0.5 / 3600)],
)  # fmt: skip
def test_times_without_a_zone_are_utc(text: str, hours: float) -> None:
    (line,) = read(as_json(row(usage_start_time=text)))
    assert line.start == START + hours * 3600


def test_another_currency_is_converted() -> None:
    (line,) = read(as_json(row(currency="EUR", cost="1.84", currency_conversion_rate="0.92")))
    assert line.usd == pytest.approx(2.0)
    assert line.credits_usd == pytest.approx(-0.16 / 0.92)


def test_credits_that_a_query_has_summed() -> None:
    (line,) = read(as_json(row(credits="-0.25", labels=None)))
    assert (line.credits_usd, line.labels) == (-0.25, {})


BASE = "//compute.googleapis.com/projects/1/"


@pytest.mark.parametrize(
    ("global_name", "sku", "kind", "number"),
    [
        (f"{BASE}zones/us-west1-c/instances/77", "G2 Instance Core running in Oregon", "machine", "77"),
        (f"{BASE}zones/us-west1-c/instances/77", "External IP Charge on a Standard VM", "address", "77"),
        (f"{BASE}zones/us-west1-c/instances/77", "Network Internet Data Transfer Out from Oregon", "network", "77"),
        (f"{BASE}zones/us-west1-c/instances/vm", "Spot Preemptible G2 Instance Ram running in Oregon", "machine", ""),
        (f"{BASE}zones/us-west1-c/disk/78", "Balanced PD Capacity in Oregon", "disk", "78"),
        (f"{BASE}global/snapshots/79", "Storage PD Snapshot in Oregon", "snapshot", "79"),
        (f"{BASE}regions/us-west1/addresses/80", "Static Ip Charge in Oregon", "address", "80"),
        ("", "Nvidia L4 GPU attached to Spot Preemptible VMs running in Oregon", "machine", ""),
        ("", "Balanced PD Capacity in Oregon", "disk", ""),
        ("", "Vertex AI prediction", "other", ""),
    ],
)
def test_what_a_line_is_of(global_name: str, sku: str, kind: str, number: str) -> None:
    resource = {"name": "projects/p/instances/vm", "global_name": global_name}
    (line,) = read(as_json(row(resource=resource, sku={"description": sku})))
    assert (line.kind, line.name, line.resource_id) == (kind, "vm", number)


def test_a_line_without_a_resource_is_of_nothing() -> None:
    tax = row(resource={"name": None, "global_name": None}, sku={"description": "Tax"}, cost_type="tax")
    assert [line.kind for line in read(as_json(ROW, tax))] == ["machine", "other"]


GOOD = as_json(ROW)[0]
HEADER, CELLS = as_csv(ROW)


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        ([], "export is empty"),
        ([b"\n", b"  \n"], "export is empty"),
        ([b"[" + GOOD + b"]"], "export:1: this is one JSON array"),
        ([GOOD, b"{]\n"], "export:2: not JSON"),
        ([GOOD, b"3\n"], "export:2: not a JSON object but int"),
        ([GOOD, b'{"a": ' + b"[" * 100_000 + b"\n"], "export:2: not JSON"),
        ([GOOD, b"\n", *as_json(row(cost="much"))], "export:3: cost is 'much', which is not an amount"),
        ([*as_json(row(cost="NaN"))], "export:1: cost is 'NaN', which is not an amount"),
        ([*as_json(row(cost=True))], "export:1: cost is 'True', which is not an amount"),
        ([*as_json(row(cost=1e300))], "export:1: cost is '1e+300', which is not an amount"),
        ([*as_json(row(cost=None))], "export:1: the cost is missing"),
        ([*as_json(row(usage_start_time="soon"))], "export:1: usage_start_time is 'soon', which is not a time"),
        ([*as_json(row(usage_start_time=None))], "export:1: usage_start_time is '', which is not a time"),
        ([*as_json(row(usage_start_time="1970-01-01 00:00:00 UTC"))], "export:1: usage_start_time is '1970"),
        ([*as_json(row(usage_end_time="2026-11-20 07:00:00 UTC"))], "export:1: usage_end_time is before"),
        ([*as_json(row(usage_end_time="2027-11-20 07:00:00 UTC"))], "export:1: the line is usage of more than a month"),
        (
            [*as_json(row(currency="EUR", currency_conversion_rate=None))],
            "export:1: the cost is in EUR, but currency_co",
        ),
        ([*as_json(row(currency_conversion_rate=-1))], "export:1: currency_conversion_rate is -1"),
        ([*as_json(row(credits=[1]))], "export:1: credits is not a list of objects"),
        ([*as_json(row(credits="[1"))], "export:1: credits is '[1', which is not an amount"),
        ([*as_json(row(labels="x"))], "export:1: labels is not a list of objects"),
        ([*as_json({k: v for k, v in ROW.items() if k != "resource"})], "export has no column resource.name"),
        ([b"usage_start_time,usage_end_time,cost\n"], "export has no column resource.name"),
        ([b"resource_name,cost\n"], "export:1: the header has no column usage_start_time, usage_end_time"),
        ([HEADER.rstrip() + b",cost\n"], "export:1: the column cost appears twice"),
        ([HEADER, CELLS, b"1,2\n"], "export:3: the row has 2 cells, but the header has 11 columns"),
        ([HEADER, CELLS, b'"open\n', b"to the end\n"], "not CSV"),
        ([HEADER, CELLS[:-2] + b"\xff\n"], "export:2: not UTF-8 text"),
        ([GOOD, b"\0\n"], "export:2: not text"),
        ([b"\x1f\x8b\x08"], "export is compressed"),
        (
            [GOOD, b"{" + b" " * billing_export.MAX_LINE_BYTES + b"}\n"],
            "export:2: the line is longer than 1048576 bytes",
        ),
        ([HEADER, b'"' + b"x" * 200_000 + b'"\n'], "export:2: not CSV: field larger than field limit"),
    ],
)
def test_each_fault_is_told_with_its_line_and_what_to_do(lines: list[bytes], says: str) -> None:
    with pytest.raises(UsageError) as caught:
        read(lines)
    assert says in caught.value.message
    assert caught.value.hint


def test_a_file_is_read_no_further_than_its_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(billing_export, "MAX_LINES", 3)
    asked = 0

    def endless() -> Iterable[bytes]:
        nonlocal asked
        while True:
            asked += 1
            yield GOOD

    with pytest.raises(UsageError, match="more than 3 lines"):
        read(endless())
    assert asked == 4


def test_a_cell_over_several_lines_is_one_row() -> None:
    noted = row(sku={"description": "Nvidia L4 GPU running in\nOregon"})
    lines = as_csv(noted, row(cost="x"))
    with pytest.raises(UsageError, match="export:4: cost is 'x'"):
        read(lines)
    assert len(read(as_csv(noted, ROW))) == 2
