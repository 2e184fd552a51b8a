"""Google's billing lines: the detailed BigQuery export of Cloud Billing, as CSV or JSON lines. A CSV joins the names of
nested fields with a point or an underscore. The file is not trusted; every error names its line.
https://cloud.google.com/billing/docs/how-to/export-data-bigquery-tables/detailed-usage"""

from __future__ import annotations

import csv
import itertools
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

from orchestrator.base.errors import UsageError

Kind = Literal["machine", "disk", "snapshot", "address", "network", "other"]

MAX_LINE_BYTES = 1024 * 1024
MAX_LINES = 5_000_000
#: Of one line. Billing lines are of an hour of one resource.
_SANE_USD = 1_000_000.0
#: From the first day of the service to beyond anybody's clock.
_SANE_TIMES = (datetime(2008, 1, 1, tzinfo=UTC).timestamp(), datetime(2200, 1, 1, tzinfo=UTC).timestamp())
_LONGEST_S = 32 * 86400.0
_NEEDED = ("usage_start_time", "usage_end_time", "cost")
_RESOURCE = ("resource_name", "resource_global_name")
_GLOBAL_NAME = re.compile(r"/(instances?|disks?|snapshots?|addresses|globalAddresses)/([^/]+)$")
_KINDS: dict[str, Kind] = {
    "instance": "machine", "instances": "machine", "disk": "disk", "disks": "disk", "snapshot": "snapshot",
    "snapshots": "snapshot", "addresses": "address", "globalAddresses": "address",
}  # fmt: skip
_QUERY = (
    "export BigQuery's table gcp_billing_export_resource_v1_ACCOUNT as CSV or as JSON lines; docs/ledger.md has the "
    "query"
)


@dataclass(frozen=True)
class BillingLine:
    """One line of the export. Times are epoch seconds."""

    start: float
    end: float
    #: Before credits.
    usd: float
    #: What was taken off it: zero or less.
    credits_usd: float
    kind: Kind
    #: As the user called the resource; empty: the line is of none.
    name: str
    #: The cloud's number of it; empty: the line does not say.
    resource_id: str
    project: str
    labels: Mapping[str, str]


def read_export(lines: Iterable[bytes], file: str) -> Iterator[BillingLine]:
    """Yields the lines of an export; ``file`` names it in messages. Raises UsageError, with the line and the cause."""
    reader = _Reader(file)
    for number, row in _rows(lines, file):
        yield reader.line(number, row)
    reader.check_end()


def _rows(lines: Iterable[bytes], file: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """(number of its line, values by joined name) of each row."""
    texts = _texts(lines, file)
    first = next((both for both in texts if both[1].strip()), None)
    if first is None:
        raise UsageError(f"{file} is empty", hint=_QUERY)
    number, text = first
    start = text.lstrip()[:1]
    if start == "[":
        raise UsageError(
            f"{file}:{number}: this is one JSON array; fcctl needs JSON lines, one object per line",
            hint=f"jq -c '.[]' {file} > lines.json",
        )
    yield from _json_rows(first, texts, file) if start == "{" else _csv_rows(first, texts, file)


def _texts(lines: Iterable[bytes], file: str) -> Iterator[tuple[int, str]]:
    for number, line in enumerate(lines, 1):
        if len(line) > MAX_LINE_BYTES:
            raise UsageError(f"{file}:{number}: the line is longer than {MAX_LINE_BYTES} bytes", hint=_QUERY)
        if number > MAX_LINES:
            raise UsageError(f"{file}: more than {MAX_LINES} lines", hint="export fewer days at once")
        if number == 1 and line.startswith(b"\x1f\x8b"):
            raise UsageError(f"{file} is compressed", hint=f"gunzip {file}")
        try:
            text = line.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError:
            raise UsageError(f"{file}:{number}: not UTF-8 text", hint=_QUERY) from None
        if "\0" in text:
            raise UsageError(f"{file}:{number}: not text: it contains a zero byte", hint=_QUERY)
        yield number, text


def _json_rows(
    first: tuple[int, str], texts: Iterator[tuple[int, str]], file: str
) -> Iterator[tuple[int, dict[str, Any]]]:
    for number, text in itertools.chain([first], texts):
        if text.strip():
            yield number, _json_row(text, number, file)


def _json_row(text: str, number: int, file: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{file}:{number}: not JSON", cause=str(error)[:200], hint=_QUERY) from None
    if not isinstance(value, dict):
        raise UsageError(f"{file}:{number}: not a JSON object but {type(value).__name__}", hint=_QUERY)
    values: dict[str, Any] = {}
    for key, inner in value.items():
        name = _column(key)
        if isinstance(inner, dict) and name != "labels":
            values.update({f"{name}_{_column(part)}": one for part, one in inner.items()})
            values[name] = None
        else:
            values[name] = inner
    return values


def _csv_rows(
    first: tuple[int, str], texts: Iterator[tuple[int, str]], file: str
) -> Iterator[tuple[int, dict[str, Any]]]:
    at = first[0]

    def counted() -> Iterator[str]:
        nonlocal at
        yield first[1]
        for at, text in texts:  # noqa: B007 - the reader below tells it
            yield text

    reader = csv.reader(counted(), strict=True)
    try:
        header = [_column(name) for name in next(reader)]
        _check_header(header, first[0], file)
        for cells in reader:
            if not any(cell.strip() for cell in cells):
                continue
            if len(cells) != len(header):
                raise UsageError(
                    f"{file}:{at}: the row has {len(cells)} cells, but the header has {len(header)} columns",
                    hint=_QUERY,
                )
            yield at, dict(zip(header, cells, strict=True))
    except csv.Error as error:
        raise UsageError(f"{file}:{at}: not CSV: {error}", hint=_QUERY) from None


def _check_header(header: list[str], number: int, file: str) -> None:
    missing = [name for name in _NEEDED if name not in header]
    if missing:
        raise UsageError(f"{file}:{number}: the header has no column {', '.join(missing)}", hint=_QUERY)
    if len(set(header)) != len(header):
        twice = next(name for name in header if header.count(name) > 1)
        raise UsageError(f"{file}:{number}: the column {twice} appears twice", hint=_QUERY)
    if not any(name in header for name in _RESOURCE):
        raise _standard_export(file)


def _column(name: str) -> str:
    return name.strip().lower().replace(".", "_")


def _standard_export(file: str) -> UsageError:
    return UsageError(
        f"{file} has no column resource.name, so its lines name no resource",
        cause="only Google's detailed export has this column, not the standard export",
        hint=_QUERY,
    )


class _Reader:
    """Values of a row, checked."""

    def __init__(self, file: str) -> None:
        self._file = file
        self._knows_resources = False

    def line(self, number: int, row: Mapping[str, Any]) -> BillingLine:
        start, end = self._time(number, row, "usage_start_time"), self._time(number, row, "usage_end_time")
        if end < start:
            raise self._fault(number, "usage_end_time is before usage_start_time")
        if end - start > _LONGEST_S:
            raise self._fault(number, "the line is usage of more than a month")
        rate = self._number(number, "currency_conversion_rate", row.get("currency_conversion_rate")) or 1.0
        currency = str(row.get("currency") or "USD").strip()[:8]
        if currency != "USD" and not row.get("currency_conversion_rate"):
            raise self._fault(number, f"the cost is in {currency}, but currency_conversion_rate is missing")
        if not rate > 0:
            raise self._fault(number, f"currency_conversion_rate is {rate:g}")
        cost = self._number(number, "cost", row.get("cost"))
        if cost is None:
            raise self._fault(number, "the cost is missing")
        self._knows_resources = self._knows_resources or any(name in row for name in ("resource", *_RESOURCE))
        name, global_name = (str(row.get(key) or "").strip()[:500] for key in _RESOURCE)
        kind, resource_id = _what(global_name, name, str(row.get("sku_description") or ""))
        return BillingLine(
            start, end, cost / rate, self._credits(number, row.get("credits")) / rate, kind,
            name.rstrip("/").rpartition("/")[2], resource_id, str(row.get("project_id") or "").strip()[:100],
            self._labels(number, row.get("labels")),
        )  # fmt: skip

    def check_end(self) -> None:
        if not self._knows_resources:
            raise _standard_export(self._file)

    def _fault(self, number: int, what: str) -> UsageError:
        return UsageError(f"{self._file}:{number}: {what}", hint=_QUERY)

    def _time(self, number: int, row: Mapping[str, Any], key: str) -> float:
        """BigQuery writes ``2026-11-20 08:00:00 UTC``; a time without a zone is UTC."""
        text = str(row.get(key) or "").strip()
        try:
            when = datetime.fromisoformat(text.removesuffix(" UTC"))
        except ValueError:
            raise self._fault(number, f"{key} is {text[:40]!r}, which is not a time") from None
        moment = (when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp()
        if not _SANE_TIMES[0] <= moment <= _SANE_TIMES[1]:
            raise self._fault(number, f"{key} is {text[:40]!r}")
        return moment

    def _number(self, number: int, key: str, value: Any) -> float | None:
        if value is None or (isinstance(value, str) and not value.strip()):
            return None
        try:
            amount = math.nan if isinstance(value, bool) else float(value)
        except (TypeError, ValueError):
            amount = math.nan
        if not abs(amount) <= _SANE_USD:  # also where it is none
            raise self._fault(number, f"{key} is {str(value)[:40]!r}, which is not an amount")
        return amount

    def _credits(self, number: int, value: Any) -> float:
        """The sum of a list of ``{amount, ..}``, or a sum that the query made."""
        value = self._nested(value)
        if not isinstance(value, list):
            return self._number(number, "credits", value) or 0.0
        if not all(isinstance(one, dict) for one in value):
            raise self._fault(number, "credits is not a list of objects with an amount")
        return sum(self._number(number, "credits.amount", one.get("amount")) or 0.0 for one in value)

    def _labels(self, number: int, value: Any) -> dict[str, str]:
        value = self._nested(value)
        if value in (None, "", []):
            return {}
        if not isinstance(value, list) or not all(isinstance(one, dict) for one in value):
            raise self._fault(number, "labels is not a list of objects with key and value")
        return {str(one.get("key"))[:63]: str(one.get("value"))[:63] for one in value[:128]}

    def _nested(self, value: Any) -> Any:
        """A repeated field: a list in JSON; in a cell of a CSV the same as text (``TO_JSON_STRING``)."""
        if isinstance(value, str) and value.lstrip().startswith("["):
            try:
                return json.loads(value)
            except (ValueError, RecursionError):
                return value
        return value


def _what(global_name: str, name: str, sku: str) -> tuple[Kind, str]:
    """What a line is of, and the resource's number. What a machine sends, and its address, are lines of the machine."""
    match = _GLOBAL_NAME.search(global_name)
    number = match[2] if match is not None and match[2].isdecimal() else ""
    kind: Kind = _KINDS[match[1]] if match is not None else _by_sku(sku) if name else "other"
    if kind == "machine":
        of_it = _by_sku(sku)
        kind = of_it if of_it in ("address", "network") else "machine"
    return kind, number


#: The first that fits, in the words of SKUs of Compute Engine.
_SKUS: tuple[tuple[str, Kind], ...] = (
    (r"snapshot", "snapshot"), (r"\bip charge\b|\bexternal ip\b|static ip", "address"),
    (r"egress|ingress|data transfer|network", "network"),
    (r"instance core|instance ram|\bgpu\b|running in|\bcore\b|\bram\b", "machine"),
    (r"\bpd\b|capacity|hyperdisk|disk|ssd", "disk"),
)  # fmt: skip


def _by_sku(sku: str) -> Kind:
    return next((kind for pattern, kind in _SKUS if re.search(pattern, sku.lower())), "other")
