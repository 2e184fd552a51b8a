"""A host that lies: whatever it answers, the controller gets an error of ours, soon, and nothing else happens."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

import pytest

from fcctl_remote import wire
from orchestrator.base.clock import LATEST, SystemClock, iso
from orchestrator.base.errors import HostFault, HostUnreachable, HostUnusable, LinkLost
from orchestrator.base.observer import NoteKeeper
from orchestrator.machines.connect import agent
from orchestrator.machines.connect.reconnect import Connector, Hurry, ReconnectingHost
from orchestrator.machines.interfaces import HostSession
from orchestrator.machines.targets import LocalTarget
from tests.support.agents import fake_runner, scripted_python
from tests.support.sshd import LoopbackSshd
from tests.support.waiting import GUARD_S, wait_for

pytestmark = pytest.mark.usefixtures("private_home")

RUN = "20261121t081530z-phase1-l4-3fa9c1"
OTHER = "20261121t081530z-phase1-l4-000000"
SUMMARY = f'dict(run_id="{RUN}", job="j", status="running", created=1.0)'
SHA = "ab" * 32


class Connect(Protocol):
    def __call__(self, body: str, silence_s: float = 30.0) -> HostSession:
        """A session with ``body`` as the agent, which may be silent for so long."""


@pytest.fixture
def connect(tmp_path: Path) -> Iterator[Connect]:
    with contextlib.ExitStack() as opened:

        def go(body: str, silence_s: float = 30.0) -> HostSession:
            target = LocalTarget(name="local", python=scripted_python(tmp_path, body), link_timeout_s=silence_s)
            return opened.enter_context(contextlib.closing(Connector(lambda: fake_runner(tmp_path)).connect(target)))

        yield go


# ------------------------------------------------------------------------------------------------ from the first word
@pytest.mark.parametrize(
    "body",
    [
        "ready()\nout.write(b'not json\\n'); out.flush(); inp.read()",
        "ready()\nout.write(b'[1, 2]\\n'); out.flush(); inp.read()",
        "ready()\nout.write(b'[' * 100000 + b'\\n'); out.flush(); inp.read()",
        "ready()\nout.write(b'\\xff\\xfe\\n'); out.flush(); inp.read()",
        "ready()\nout.write(b'{\"id\": NaN}\\n'); out.flush(); inp.read()",
        "ready()\nsend({'id': 1, 'blob': -1}); inp.read()",
        "ready()\nsend({'id': 1, 'blob': 10 ** 12}); inp.read()",
        "ready()\nsend({'id': 1, 'blob': True}); inp.read()",
        "ready()\nsend({'id': 7, 'result': {}}); inp.read()",
        "ready()\nsend({'id': '1', 'result': {}}); inp.read()",
        "ready()\nsend({'id': [], 'result': {}}); inp.read()",
        "ready()\nsend({'id': 1}); inp.read()",
        "ready()\nsend({'id': 1, 'result': 3}); inp.read()",
        "ready()\nsend({'id': 1, 'error': 'oops'}); inp.read()",
        "hello(runner_sha256='00' * 32); inp.read()",
        "hello(wire_version=99); inp.read()",
        "hello(cpus='many'); inp.read()",
        "hello(time=float('inf')); inp.read()",
        "hello(hostname='\\x1b]0;owned\\x07'); inp.read()",
        "hello(root='relative'); inp.read()",
        "hello(tools={'rsync': '/x\\n; touch /tmp/owned'}); inp.read()",
        "hello(tools=['rsync']); inp.read()",
    ],
)
def test_nonsense_at_the_greeting(connect: Connect, body: str) -> None:
    began = time.monotonic()
    with pytest.raises(HostFault) as caught:
        connect(body)
    assert caught.value.message.isprintable()
    assert (caught.value.cause or "").isprintable()
    assert time.monotonic() - began < 60


@pytest.mark.parametrize(
    ("body", "fault", "cause"),
    [
        ("ready()\nwhile True: out.write(b'x' * 65536)", "protocol", str(wire.MAX_FRAME_BYTES)),
        ("while True: out.write(b'\\x1b[31mnoise\\n')", "noise", ""),
        ("hello(cpus='many'); inp.read()", "protocol", "Hello.cpus: expected a whole number, found 'many'"),
    ],
    ids=["frame", "noise", "type"],
)
def test_what_is_wrong_is_named(connect: Connect, body: str, fault: str, cause: str) -> None:
    with pytest.raises(HostFault) as caught:
        connect(body)
    assert caught.value.fault == fault
    assert cause in (caught.value.cause or "")


@pytest.mark.parametrize("body", ["ready()\ninp.read()", pytest.param("inp.read()", marks=pytest.mark.full)])
def test_silence(connect: Connect, body: str) -> None:
    began = time.monotonic()
    with pytest.raises(LinkLost, match="sent nothing more"):
        connect(body, 2.0)
    assert time.monotonic() - began < 60


def test_program_that_dies_is_explained(connect: Connect) -> None:
    with pytest.raises(HostUnusable) as caught:
        connect("print('\\x1b[31mno module named x', file=sys.stderr); sys.exit(5)")
    assert "no module named x" in (caught.value.cause or "")
    assert (caught.value.cause or "").isprintable()


# ------------------------------------------------------------------------------------------------ answers
def answering(result: str, blob: str = "b''") -> str:
    return f"hello()\nwhile True:\n    r = receive()\n    send({{'id': r['id'], 'result': {result}}}, {blob})\n"


PART = wire.FilePart("a", 0, 10)
LIES: list[tuple[str, str, str, Callable[[HostSession], Any]]] = [
    ("diff of other files", "dict(changed=['/etc'], removed=0, root='/t')", "b''", lambda s: s.tree_diff("w", [])),
    ("diff of the wrong type", "dict(changed='abc', removed=0, root='/t')", "b''", lambda s: s.tree_diff("w", [])),
    ("relative tree", "dict(changed=[], removed=0, root='t')", "b''", lambda s: s.tree_diff("w", [])),
    ("tree with an escape", "dict(changed=[], removed=0, root='/\\x1bt')", "b''", lambda s: s.tree_diff("w", [])),
    ("other snapshot", "dict(tree_sha256='x', files=0, bytes=0, path='/')", "b''",
     lambda s: s.snapshot("w", RUN, [], SHA)),
    ("status without runs", "dict()", "b''", lambda s: s.status()),
    ("a run that was not requested", f"dict(runs=[{SUMMARY}])", "b''", lambda s: s.status([OTHER])),
    ("run id that is a path", f"dict(runs=[dict({SUMMARY}, run_id='../../x')])", "b''", lambda s: s.status()),
    ("other run cancelled", SUMMARY, "b''", lambda s: s.cancel(OTHER, "why")),
    ("the offset of the events went backwards", f"dict(events=[], events_offset=3, summary={SUMMARY})", "b''",
     lambda s: s.watch(wire.WatchRequest(RUN, events_offset=9, wait_s=0))),
    ("log of another step", f"dict(events=[], events_offset=9, summary={SUMMARY}, log_step='b')", "b'x'",
     lambda s: s.watch(wire.WatchRequest(RUN, log_step="a", wait_s=0))),
    ("log from elsewhere", f"dict(events=[], events_offset=9, summary={SUMMARY}, log_step='a', log_offset=7)", "b'x'",
     lambda s: s.watch(wire.WatchRequest(RUN, log_step="a", log_offset=3, wait_s=0))),
    ("log of no step", f"dict(events=[], events_offset=9, summary={SUMMARY})", "b'x'",
     lambda s: s.watch(wire.WatchRequest(RUN, wait_s=0))),
    ("file listed twice", f"dict(files=[dict(path='a', size=1, sha256='{SHA}')] * 2)", "b''", lambda s: s.files(RUN)),
    ("negative size", f"dict(files=[dict(path='a', size=-1, sha256='{SHA}')])", "b''", lambda s: s.files(RUN)),
    ("hash that is none", "dict(files=[dict(path='a', size=1, sha256='../x')])", "b''", lambda s: s.files(RUN)),
    ("other file", "dict(parts=[dict(path='b', offset=0, size=1)])", "b'x'", lambda s: list(s.fetch(RUN, [PART]))),
    ("other place", "dict(parts=[dict(path='a', offset=5, size=1)])", "b'x'", lambda s: list(s.fetch(RUN, [PART]))),
    ("more than asked", "dict(parts=[dict(path='a', offset=0, size=11)])", "b'x' * 11",
     lambda s: list(s.fetch(RUN, [PART]))),
    ("less than said", "dict(parts=[dict(path='a', offset=0, size=9)])", "b'x'", lambda s: list(s.fetch(RUN, [PART]))),
    ("more parts", "dict(parts=[dict(path='a', offset=0, size=0)] * 2)", "b''", lambda s: list(s.fetch(RUN, [PART]))),
    ("no parts", "dict(parts=None)", "b''", lambda s: list(s.fetch(RUN, [PART]))),
    ("lease of text", "dict(armed='yes')", "b''", lambda s: s.lease(wire.LeaseRequest("show"))),
    ("probe without document", "dict(text='x', exit_code=0)", "b''", lambda s: s.probe({})),
    ("probe with a strange exit code", "dict(document={}, text='x', exit_code=9)", "b''", lambda s: s.probe({})),
]  # fmt: skip


@pytest.mark.parametrize(("result", "blob", "call"), [lie[1:] for lie in LIES], ids=[lie[0] for lie in LIES])
def test_answer_to_another_question(
    connect: Connect, result: str, blob: str, call: Callable[[HostSession], Any]
) -> None:
    session = connect(answering(result, blob))
    with pytest.raises(HostFault) as caught:
        call(session)
    assert caught.value.fault == "protocol"
    with pytest.raises(HostFault):  # and it is not listened to again
        session.status()


def test_giant_blob_is_refused_before_it_is_read(connect: Connect) -> None:
    session = connect("hello()\nr = receive()\nsend({'id': r['id'], 'result': {}, 'blob': 5000000})\ninp.read()")
    with pytest.raises(HostFault):
        session.files(RUN)


def test_refusal_is_cleaned_and_the_session_goes_on(connect: Connect) -> None:
    session = connect(
        "hello()\nr = receive()\nsend({'id': r['id'], 'error': dict(code='not_found', message='no \\x1b[31mrun', "
        "hint='x\\ry', data={'a': 1})})\nr = receive()\nsend({'id': r['id'], 'error': dict(code='EVIL CODE', "
        "message='')})\nr = receive()\nsend({'id': r['id'], 'result': {'runs': []}})\n"
    )
    with pytest.raises(HostFault) as caught:
        session.files(RUN)
    assert (caught.value.fault, caught.value.data) == ("not_found", {"a": 1})
    assert "\x1b" not in caught.value.message
    assert "\r" not in (caught.value.hint or "")
    with pytest.raises(HostFault) as caught:
        session.files(RUN)
    assert caught.value.fault == "internal"
    assert session.status() == []


@pytest.mark.full
def test_ticks_keep_a_long_call_alive(connect: Connect) -> None:
    session = connect(
        "hello()\nr = receive()\nfor i in range(25):\n    time.sleep(0.2); send({'tick': 1.0})\nsend({'id': r['id'], "
        "'result': {'runs': []}})\ntime.sleep(1)",
        4.0,
    )
    assert session.status() == []  # 5 s, with a timeout of 4 s


def test_ticks_without_an_answer_end_too(connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orchestrator.machines.connect.agent.WATCH_MARGIN_S", 1.0)
    session = connect("hello()\nwhile True:\n    time.sleep(0.2); send({'tick': 1.0})\n")
    with pytest.raises(HostFault, match="sent an invalid reply") as caught:
        session.watch(wire.WatchRequest(RUN, wait_s=0.1))
    assert "no answer to watch" in (caught.value.cause or "")


@pytest.mark.parametrize("end", ["sys.exit(9)", "sys.stderr.flush(); os.close(1); time.sleep(0.5); os._exit(9)"])
def test_agent_that_dies_during_a_call(connect: Connect, end: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its output ends first, and on a busy machine it is a while until it has ended itself."""
    monkeypatch.setattr(agent, "_EXIT_S", GUARD_S)
    session = connect(f"hello()\nreceive()\nprint('killed by \\x1b[31moom', file=sys.stderr)\n{end}")
    with pytest.raises(LinkLost) as caught:
        session.status()
    assert "ended with exit code 9" in (caught.value.cause or "")
    assert "oom" in (caught.value.cause or "")
    with pytest.raises(LinkLost):
        session.status()


def test_of_an_agent_that_fails_the_reason_is_told_and_no_traceback(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many frames stand above it."""
    monkeypatch.setattr(agent, "_EXIT_S", GUARD_S)
    deep = "def down(n):\n    if n == 0: raise MemoryError('no room \\x1b[31mleft')\n    down(n - 1)\n"
    with pytest.raises(HostUnusable) as refused:
        connect(f"{deep}down(40)")
    assert refused.value.cause == "MemoryError: no room  [31mleft"
    with pytest.raises(LinkLost) as lost:
        connect(f"hello()\nreceive()\n{deep}down(40)").status()
    assert lost.value.cause == "the host program ended with exit code 1: MemoryError: no room  [31mleft"


@pytest.mark.full
def test_agent_that_stops_reading(connect: Connect) -> None:
    session = connect("hello()\ntime.sleep(600)", 4.0)
    entries = [wire.TreeEntry(f"f{n}", SHA, 1) for n in range(5000)]
    with pytest.raises(LinkLost, match="sent nothing more"):
        session.tree_diff("w", entries)


# ------------------------------------------------------------------------------------------------ clocks and numbers
@pytest.mark.parametrize("moment", [1e12, -1e12, 1e300, -5, 10**400])
def test_a_clock_far_off_is_brought_into_range_and_told(connect: Connect, moment: float) -> None:
    summary = SUMMARY.replace("created=1.0", f"created={moment!r}, heartbeat={moment!r}, step_index={10**40}")
    session = connect(answering(f"dict(runs=[{summary}])").replace("hello()", f"hello(time={moment!r})"))
    (found,) = session.status()
    for time_there in (found.created, found.heartbeat, session.hello.time):
        assert time_there in (0.0, LATEST)
        assert str(iso(time_there))[:4] in ("1970", "2100")
    assert found.step_index == 2**63 - 1


def hurried_link(folder: Path, body: str, hurry: Hurry, name: str = "slow") -> tuple[ReconnectingHost, NoteKeeper]:
    notes = NoteKeeper()
    target = LocalTarget(name=name, python=scripted_python(folder, body, name), reconnect_s=0)
    return ReconnectingHost(Connector(lambda: fake_runner(folder)), target, SystemClock(), notes, hurry), notes


TICKING = "while True:\n    time.sleep(0.05); send({'tick': 1.0})\n"


@pytest.mark.parametrize(
    "body",
    [
        "hello()\n" + TICKING,
        pytest.param("ready()\n" + TICKING, marks=pytest.mark.full),
        pytest.param("inp.read()", marks=pytest.mark.full),
    ],
)
def test_a_host_that_does_not_answer_in_time_is_asked_once(tmp_path: Path, body: str) -> None:
    hurry, asked = Hurry(1.0), tmp_path / "asked"
    asked.touch()
    for _ in range(20):  # runs on it
        marked = f"import signal; signal.alarm(3); print(file=open({str(asked)!r}, 'a'))\n{body}"
        link, _ = hurried_link(tmp_path, marked, hurry)
        with pytest.raises(HostUnreachable, match="did not answer within 1 s"):
            link.ask(lambda s: s.status([RUN]))
        link.close()
    assert asked.read_text() in ("", "\n")
    hurry.seconds = GUARD_S  # the other one may take its time to start
    answers = answering(f"dict(runs=[{SUMMARY}])").replace("hello()", "hello(time=1e12)")
    other, notes = hurried_link(tmp_path, answers, hurry, "other")
    assert other.ask(lambda s: s.status([RUN]))[0].run_id == RUN
    assert [note for note in notes.notes if "2100" in note and "timedatectl" in note]
    with pytest.raises(HostFault, match="sent an invalid reply"):
        other.ask(lambda s: s.status([OTHER]))
    other.close()
    wait_for(lambda: all(thread.name != "fcctl-ask" for thread in threading.enumerate()))  # its agent has ended


def test_a_question_has_a_limit_whatever_comes_meanwhile(connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(agent.QUESTION_LIMIT_S, "status", 1.0)
    drips = 'hello()\nr = receive()\nout.write(b\'{"id": 2, "result": [\')\n'
    session = connect(drips + "while True: out.write(b'1, '); out.flush(); time.sleep(0.02)")
    began = time.monotonic()
    with pytest.raises(HostFault) as caught:
        session.status()
    assert "no answer to status within 1 s" in (caught.value.cause or "")
    assert time.monotonic() - began < 60


# ------------------------------------------------------------------------------------------------ fetching
FETCHING = """
hello()
while True:
    r = receive()
    if r["method"] == "status":
        send({"id": r["id"], "result": {"runs": []}})
        continue
    parts = r["params"]["parts"]
    send({"id": r["id"], "result": {"parts": parts}}, b"".join(p["path"].encode()[:1] * p["size"] for p in parts))
"""


def test_fetch_cuts_large_parts_and_keeps_the_order(connect: Connect) -> None:
    session = connect(FETCHING)
    size = 2 * wire.MAX_BLOB_BYTES + 5
    parts = [wire.FilePart("a", 100, size), wire.FilePart("b", 0, 0), wire.FilePart("c", 7, 3)]
    found = list(session.fetch(RUN, parts))
    assert [(p.path, p.offset) for p, _ in found] == [
        ("a", 100), ("a", 100 + wire.MAX_BLOB_BYTES), ("a", 100 + 2 * wire.MAX_BLOB_BYTES), ("b", 0), ("c", 7),
    ]  # fmt: skip
    assert all(len(data) == part.size <= wire.MAX_BLOB_BYTES for part, data in found)
    assert b"".join(data for _, data in found) == b"a" * size + b"ccc"


def test_fetch_of_many_small_parts_does_not_block_itself(connect: Connect) -> None:
    session = connect(FETCHING)
    parts = [wire.FilePart(f"{n}-{'x' * 200}", 0, 2000) for n in range(5000)]
    began = time.monotonic()
    assert sum(len(data) for _, data in session.fetch(RUN, parts)) == 10_000_000
    assert time.monotonic() - began < 100


def test_fetch_given_up_leaves_the_session_usable(connect: Connect) -> None:
    session = connect(FETCHING)
    parts = [wire.FilePart(f"{n}", 0, wire.MAX_BLOB_BYTES) for n in range(6)]
    pieces = session.fetch(RUN, parts)
    next(pieces)
    assert session.status() == []  # another call in between
    assert next(pieces)[0].path == "1"
    pieces.close()  # type: ignore[attr-defined]
    assert session.status() == []
    assert [part.path for part, _ in session.fetch(RUN, parts[:2])] == ["0", "1"]


def test_interrupt_while_waiting_leaves_the_session_usable(connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    session = connect(
        "hello()\nfirst, second = receive(), receive()\nsend({'id': first['id'], 'result': {'runs': [1]}})\n"
        "send({'id': second['id'], 'result': {'runs': []}})\ninp.read()"
    )

    read = session._frames.read

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    def waits() -> object:
        """The request is out: an interrupt amid that would be another story, in which the link is of no use."""
        signal.setitimer(signal.ITIMER_REAL, 0.3)
        return read()

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        with monkeypatch.context() as patch:
            patch.setattr(session._frames, "read", waits)
            with pytest.raises(KeyboardInterrupt):
                session.status()
    finally:
        signal.signal(signal.SIGALRM, before)
    assert session.status() == []


def test_hostile_agent_over_ssh(sshd: LoopbackSshd, tmp_path: Path) -> None:
    connector = Connector(lambda: fake_runner(tmp_path))
    for number, body in enumerate(("ready()\nout.write(b'x' * 20000000); out.flush()", "while True: out.write(b'x')")):
        python = scripted_python(tmp_path, body, f"p{number}")
        with pytest.raises(HostFault):
            connector.connect(sshd.target(python=python))
    python = scripted_python(tmp_path, "hello()\nwhile True: os.write(2, b'e' * 65536); time.sleep(0.001)", "p9")
    session = connector.connect(sshd.target(python=python))
    assert isinstance(session, agent.AgentSession)
    session._frames._timeout_s = 2.0  # from here on: it may take its time to start
    with pytest.raises(LinkLost, match="sent nothing more"):
        session.status()
    session.close()
