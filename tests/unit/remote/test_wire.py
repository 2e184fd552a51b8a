"""What both ends of the link agree on: defaults, limits, and what is refused."""

from __future__ import annotations

import dataclasses
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter

from fcctl_remote import record, wire
from fcctl_remote.base import files
from fcctl_remote.base.strict_json import MAX_NESTED, parse_json, to_strict_json
from fcctl_remote.run import documents
from orchestrator.base import json_text

REMOTE = str(Path(wire.__file__).parents[1])


def test_what_ends_a_step_from_outside() -> None:
    ended = (signal.SIGHUP, signal.SIGINT, signal.SIGKILL, signal.SIGTERM)
    assert tuple(128 + number for number in ended) == wire.ENDED_BY_OTHERS


@pytest.mark.parametrize("module", ["agent.agent", "run.supervisor", "run.telemetry"])
def test_no_process_of_a_run_imports_what_is_slow(module: str) -> None:
    """dataclasses and typing took more than half of a start."""
    program = f"import sys, fcctl_remote.{module}; print({{'dataclasses', 'inspect', 'typing'}} & set(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-S", "-c", program], env={"PYTHONPATH": REMOTE}, stdout=subprocess.PIPE, check=False
    )
    assert (done.returncode, done.stdout) == (0, b"set()\n")


def test_pydantic_and_dataclasses_take_a_message_for_a_dataclass() -> None:
    part = TypeAdapter(wire.FilePart).validate_json(b'{"path": "a", "offset": 0, "size": 1}', strict=True)
    assert dataclasses.replace(part, size=2) == wire.FilePart("a", 0, 2)
    assert dataclasses.asdict(wire.Needs(tools=["ncu"])) == wire.encode(wire.Needs(tools=["ncu"]))
    for wrong in ((1, 2, 3, 4), (1,)):
        with pytest.raises(TypeError):
            wire.FilePart(*wrong)  # type: ignore[arg-type]


def test_equal_is_what_says_the_same_and_is_of_one_kind() -> None:
    assert wire.FilePart("a", 0, 1) == wire.FilePart("a", 0, 1)
    assert wire.FilePart("a", 0, 1) != wire.FilePart("a", 0, 2)
    assert wire.FileEntry("a", 1, "0") != wire.FilePart("a", 0, 1)
    assert wire.FilePart("a", 0, 1) != "a"
    assert repr(wire.FilePart("a", 0, 1)) == "FilePart(path='a', offset=0, size=1)"
    with pytest.raises(TypeError, match="unhashable"):
        hash(wire.FilePart("a", 0, 1))


@pytest.mark.parametrize(
    ("cls", "value", "message"),
    [
        (wire.FilePart, [], "FilePart: expected an object, got list"),
        (wire.FilePart, {"path": "a", "offset": 0}, "FilePart.size: missing"),
        (wire.FilePart, {"path": "a", "offset": 0, "size": "1"}, "FilePart.size: expected int, got str"),
        (wire.FilePart, {"path": "a", "offset": True, "size": 1}, "FilePart.offset: expected int, got bool"),
        (wire.FilePart, {"path": None, "offset": 0, "size": 1}, "FilePart.path: expected str, got NoneType"),
        (wire.PutFile, {"path": "a", "size": 1, "mtime": True}, "PutFile.mtime: expected float, got bool"),
        (wire.Needs, {"gpu": 1}, "Needs.gpu: expected bool, got int"),
        (wire.Needs, {"tools": "nvcc"}, "Needs.tools: expected a list, got str"),
        (wire.Needs, {"tools": ["nvcc", 3]}, "Needs.tools[1]: expected str, got int"),
        (wire.StepSpec, {"id": "a", "run": "b", "env": []}, "StepSpec.env: expected an object, got list"),
        (wire.StepSpec, {"id": "a", "run": "b", "env": {"K": 1}}, "StepSpec.env.K: expected str, got int"),
        (wire.StepSpec, {"id": "a", "run": "b", "needs": 1}, "StepSpec.needs: expected an object, got int"),
        (wire.FileList, {"files": [{"path": "a", "size": 1}]}, "FileList.files[0].sha256: missing"),
    ],
)
def test_what_has_not_the_shape_is_refused_by_its_place(cls: type, value: Any, message: str) -> None:
    with pytest.raises(wire.WireError) as refused:
        wire.decode(cls, value)
    assert str(refused.value) == message


def test_whole_numbers_are_seconds_too() -> None:
    found = wire.decode(wire.PutFile, {"path": "a", "size": 1, "mtime": 3})
    assert isinstance(found.mtime, float)


def test_two_threads_may_ask_for_a_class_as_a_dataclass_at_once() -> None:
    names = [f"f{number}" for number in range(20)]
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for _ in range(200):
            body = {name: record.field(default_factory=list) for name in names}
            own = {"__annotations__": dict.fromkeys(names, "list[int]"), "__module__": __name__, **body}
            cls: Any = type(wire.Record)("Many", (wire.Record,), own)
            with ThreadPoolExecutor(2) as pool:
                for seen in [pool.submit(dataclasses.fields, cls) for _ in range(2)]:
                    assert [one.name for one in seen.result()] == names
    finally:
        sys.setswitchinterval(before)


#: What a message says that leaves it out. All else that may be left out is then zero, empty, no or unknown.
LEFT_OUT = {
    ("StepSpec", "timeout_s"): 600.0, ("StepSpec", "activity"): "test", ("StepResult", "activity"): "test",
    ("RunPlan", "lock"): "exclusive", ("RunPlan", "wire_version"): 1, ("Outcome", "wire_version"): 1,
    ("PutFile", "last"): True, ("WatchRequest", "wait_s"): 10.0,
    ("LeaseRequest", "dry"): True, ("Lease", "dry"): True,
}  # fmt: skip


def test_what_an_older_program_leaves_out_is_nothing() -> None:
    """None of it is taken for something that was done, allowed or asked for."""
    messages = [cls for cls in vars(wire).values() if isinstance(cls, type) and wire.Record in cls.__bases__]
    assert len(messages) > 25
    given = {
        (cls.__name__, one.name): one.default
        for cls in messages
        for one in dataclasses.fields(cls)
        if one.default is not dataclasses.MISSING and one.default
    }
    assert given == LEFT_OUT


def test_a_refusal_says_what_it_was_given() -> None:
    assert wire.Refusal("denied", "no").error == wire.CallError("denied", "no", None, {})
    error = wire.Refusal("denied", "no", "ask", {"a": 1}).error
    assert (error.hint, error.data, str(wire.Refusal("denied", "no"))) == ("ask", {"a": 1}, "no")


def test_limits_and_versions_are_those_of_other_places() -> None:
    """What is in the store of a user, and what a step may write, has version 1."""
    document = {"kind": "metrics", "schema_version": 1, "values": {}, "metrics": {}}
    documents.check(document, "a.json")
    with pytest.raises(documents.Malformed, match="schema_version 2; this host program reads 1"):
        documents.check({**document, "schema_version": 2}, "a.json")
    assert wire.MAX_FRAME_BYTES == files.MAX_JSON_BYTES == 16 << 20, "a file of JSON fits into a frame"
    assert wire.MAX_FRAME_BYTES == 4 * wire.MAX_BLOB_BYTES, "so does a piece of a file"
    assert wire.TICK_S == 2.0, "other versions wait for it"
    assert f"FCCTL-AGENT-READY {wire.WIRE_VERSION}" == wire.READY == "FCCTL-AGENT-READY 1"


@pytest.mark.parametrize(
    ("text", "arrives"), [("\ud800", "?"), ("a\udcffb", "a?b"), ("\udc00\ud800", "??"), ("ä😀\0\u2028", "ä😀\0\u2028")]
)
def test_any_text_arrives(text: str, arrives: str) -> None:
    assert json_text.loads(to_strict_json({text: [text]})) == {arrives: [arrives]}


def nested(depth: int) -> Any:
    value: Any = 1
    for number in range(depth):
        value = [value] if number % 2 else {"a": value, "b": 1}
    return value


def test_what_is_nested_too_deep_for_the_controller_is_refused() -> None:
    within = to_strict_json(nested(MAX_NESTED))
    assert parse_json(within) == nested(MAX_NESTED)
    assert json_text.loads(to_strict_json([[[[[[[[nested(MAX_NESTED)]]]]]]]])) is not None, "as a part of a reply"
    for depth in (MAX_NESTED + 1, 300):
        with pytest.raises(ValueError, match="nested too deep"):
            parse_json(to_strict_json(nested(depth)))
    for data in (b"[" * 300 + b"]" * 300, b"[" * 100_000):
        with pytest.raises(ValueError, match=r"nested too deep|Expecting"):
            parse_json(data)
    with pytest.raises(ValueError, match="nested too deep"):
        to_strict_json(nested(100_000))
