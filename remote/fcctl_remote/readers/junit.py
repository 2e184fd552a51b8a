"""Reader ``junit``: the XML that pytest (``--junitxml``), GoogleTest (``--gtest_output=xml:``) and ctest write.

Properties named as the correctness document names its figures (``max_err``, ``seed``, ..) become the case's figures:
pytest's ``record_property("max_err", 0.0012)`` is enough for a gate on ``correctness.summary.max_err``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from xml.parsers import expat  # noqa: S407 - a document type, and with it every entity, is refused below

from fcctl_remote.readers import source
from fcctl_remote.readers.source import MAX_ROWS, MAX_TEXT, ReaderError, clean, finite, open_file

MAX_ELEMENTS_DEEP = 50
_CHUNK = 64 * 1024
_FIGURES = ("max_err", "mean_err", "rel_rms", "tolerance", "seed", "nan", "inf")
_OUTCOMES = {"failure": "failed", "error": "error", "skipped": "skipped"}
#: What ctest writes as "skipped" but counts as failed itself.
_NOT_RUN = ("Unable to find executable", "Unable to find required file", "Fixture dependency failed")


def read(path: str, env: Mapping[str, str]) -> dict[str, Any]:  # noqa: ARG001
    collector = _Collector()
    with open_file(path) as stream:
        collector.feed(stream)
    if not collector.cases:
        hint = "check that the test run selects at least one test"
        raise ReaderError("contains no test case", hint, empty=True)
    return {"kind": "correctness", "tool": "junit", "cases": collector.cases, "summary": _summary(collector.cases)}


def _summary(cases: list[dict[str, Any]]) -> dict[str, Any]:
    def count(*statuses: str) -> int:
        return sum(case["status"] in statuses for case in cases)

    def known(figure: str) -> list[float]:
        """The cases' figures; none at all if one of them was NaN, so that no gate passes on the others."""
        values = [case[figure] for case in cases if figure in case]
        return [] if None in values else values

    max_errs, mean_errs = known("max_err"), known("mean_err")
    return {
        "total": len(cases),
        "passed": count("passed"),
        "failed": count("failed", "error"),
        "skipped": count("skipped"),
        "max_err": max(max_errs) if max_errs else None,
        "mean_err": sum(mean_errs) / len(mean_errs) if mean_errs else None,
    }


class _Collector:
    """Builds cases from parse events, so that memory does not grow with the text the tests printed."""

    def __init__(self) -> None:
        self.cases: list[dict[str, Any]] = []
        self.stack: list[str] = []
        self.case: dict[str, Any] | None = None
        self.text: list[str] = []
        self.parser = expat.ParserCreate()
        self.parser.StartDoctypeDeclHandler = self.doctype
        self.parser.StartElementHandler = self.start
        self.parser.EndElementHandler = self.end
        self.parser.CharacterDataHandler = self.characters

    def feed(self, stream: Any) -> None:
        try:
            while True:
                chunk = stream.read(_CHUNK)
                self.parser.Parse(chunk, not chunk)
                if not chunk:
                    return
        except expat.ExpatError as error:
            line = "line %d" % error.lineno
            raise ReaderError(
                "not XML: %s, %s" % (expat.ErrorString(error.code), line),
                "the test run may have been killed while it wrote the file",
            ) from None
        except (ValueError, LookupError, UnicodeError) as error:  # an encoding nobody knows
            raise ReaderError("not XML: %s" % clean(error)) from None

    def doctype(self, *_declaration: Any) -> None:
        raise ReaderError("has a document type declaration, which test reports do not have")

    def start(self, tag: str, attributes: dict[str, str]) -> None:
        self.stack.append(tag)
        if len(self.stack) == 1 and tag not in ("testsuites", "testsuite"):
            raise ReaderError("not a JUnit report but <%s>" % clean(tag, 60))
        if len(self.stack) > MAX_ELEMENTS_DEEP or len(self.cases) >= MAX_ROWS:
            raise ReaderError("too large or too deeply nested for a test report")
        if tag == "testcase" and self.case is None:
            self.case = _case(attributes)
        elif self.case is not None and self.stack[-2] == "testcase" and tag in _OUTCOMES:
            self.verdict(tag, attributes)
        elif self.case is not None and tag == "property":
            _property(self.case, attributes.get("name", ""), attributes.get("value", ""))

    def verdict(self, tag: str, attributes: dict[str, str]) -> None:
        assert self.case is not None  # noqa: S101 - start() looked
        message = clean(attributes.get("message", "")).strip()
        status = _OUTCOMES[tag]
        if tag == "skipped" and message.startswith(_NOT_RUN):
            status = "failed"
        if self.case["status"] not in ("failed", "error"):  # the first of several failures is the one to show
            self.case["status"] = status
            self.case["message"] = message or None
            self.text = []

    def characters(self, data: str) -> None:
        """Text inside <failure> and the like stands in where there is no message attribute."""
        needs_text = self.case is not None and self.case["message"] is None and self.stack[-1] in _OUTCOMES
        if needs_text and sum(map(len, self.text)) < MAX_TEXT:
            self.text.append(data[:MAX_TEXT])

    def end(self, tag: str) -> None:
        self.stack.pop()
        if self.case is None:
            return
        if self.text and self.case["message"] is None:
            self.case["message"] = clean("".join(self.text).strip()) or None
        self.text = []
        if tag == "testcase" and "testcase" not in self.stack:
            self.case["passed"] = self.case["status"] == "passed"
            self.cases.append(self.case)
            self.case = None


def _case(attributes: dict[str, str]) -> dict[str, Any]:
    name = attributes.get("name", "?")
    group = attributes.get("classname", "")
    notrun = attributes.get("result") in ("suppressed", "skipped") or attributes.get("status") in ("disabled", "notrun")
    case: dict[str, Any] = {
        "name": clean(name),
        "group": clean(group) if group and group != name else None,
        "status": "skipped" if notrun else "failed" if attributes.get("status") == "fail" else "passed",
        "passed": False,
        "duration_s": finite(attributes.get("time")),
        "message": None,
    }
    shape = source.shape(name)
    if shape:
        case["shape"] = shape
    return case


def _property(case: dict[str, Any], name: str, value: str) -> None:
    if name in _FIGURES:
        number = finite(value)
        # "nan" as an error is no figure, and must not be lost either: such a case has NaNs in its output.
        word = value.strip().lower().lstrip("+-")  # C prints -nan
        if number is None and name.endswith("err") and word.startswith(("nan", "inf")):
            case[word[:3]] = 1
        case[name] = int(number) if number is not None and name in ("seed", "nan", "inf") else number
    elif name == "shape" and source.shape(value):
        case["shape"] = source.shape(value)
    elif len(case.setdefault("properties", {})) < 50:
        case["properties"][clean(name, 80)] = clean(value, 200)
