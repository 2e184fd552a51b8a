"""The agent's protocol as a controller sees it."""

from __future__ import annotations

import hashlib
import json
import os
import socket
import time
from pathlib import Path
from typing import Any

import pytest

from fcctl_remote import wire
from fcctl_remote.agent import calls
from fcctl_remote.base import tree
from tests.integration.host_program.agent_client import Agent, CallFailed, Host, new_run_id, prepared, step
from tests.support.waiting import wait_for


def test_hello_tells_where_one_is(host: Host, agent: Agent) -> None:
    hello = wire.decode(wire.Hello, agent.call("hello"))
    assert (hello.wire_version, hello.root) == (wire.WIRE_VERSION, str(host.root))
    assert hello.runner_sha256 == host.runner.stem
    assert hello.tools["tmux"] is not None
    assert hello.free_bytes > 0
    assert abs(hello.time - time.time()) < 60
    assert (host.root / "runner" / f"{host.runner.stem}.d" / "fcctl_remote" / "wire.py").is_file()
    assert host.root.stat().st_mode & 0o077 == 0 or host.root.parent == host.base


@pytest.mark.full
def test_ticks_come_while_nothing_is_asked_and_during_a_long_call(agent: Agent) -> None:
    run_id = agent.started(step("quiet", "sleep 300"))
    size = (agent.host.run_dir(run_id) / "events.jsonl").stat().st_size
    began, agent.ticks = time.monotonic(), 0
    agent.call("watch", wire.encode(wire.WatchRequest(run_id, size, wait_s=2 * wire.TICK_S)))
    assert 2 * wire.TICK_S - 0.1 < time.monotonic() - began < 250, "and not until the step ends"
    assert agent.ticks >= 2


def test_calls_may_be_sent_ahead_and_cut_a_long_poll_short(agent: Agent) -> None:
    run_id = agent.started(step("quiet", "sleep 300"))
    size = (agent.host.run_dir(run_id) / "events.jsonl").stat().st_size
    began = time.monotonic()
    poll = agent.send("watch", wire.encode(wire.WatchRequest(run_id, size, wait_s=calls.MAX_WAIT_S)))
    time.sleep(0.2)
    cancel = agent.send("cancel", {"run_id": run_id, "reason": "x", "grace_s": 0})
    assert [agent.receive()[0]["id"] for _ in range(2)] == [poll, cancel]
    assert time.monotonic() - began < calls.MAX_WAIT_S - 1, "not the minute that it asked for"


def test_news_arrives_at_once(agent: Agent) -> None:
    run_id = agent.started(step("talk", "while sleep 0.4; do date +%s.%N; done"))
    size = (agent.host.run_dir(run_id) / "events.jsonl").stat().st_size
    request = wire.WatchRequest(run_id, size, "talk", 0, wait_s=calls.MAX_WAIT_S)

    def late_s() -> float:
        """How old the newest line was on its arrival; a machine that has much to do lets one or the other wait."""
        reply, blob = agent.call_blob("watch", wire.encode(request))
        request.log_offset = reply["log_offset"] + len(blob)
        return time.time() - float(blob.split()[-1])

    late_s()  # the poll may have begun after the line
    wait_for(lambda: late_s() < 0.25)


def test_the_current_steps_log_can_be_tailed(agent: Agent) -> None:
    run_id = agent.submit(step("one", "seq 20000"), step("two", "echo second; sleep 300"))
    request = wire.WatchRequest(run_id, 0, "@current", tail=True, wait_s=0)
    reply, blob = agent.call_blob("watch", wire.encode(request))
    while reply["log_step"] != "two" or not blob:
        assert len(blob) <= calls.TAIL_BYTES
        request.log_offset, request.log_offset_step = reply["log_offset"] + len(blob), reply["log_step"]
        reply, blob = agent.call_blob("watch", wire.encode(request))
    assert blob == b"second\n"
    # A new connection knows as well that 60,000 bytes were of another step.
    request.log_offset, request.log_offset_step = 60_000, "one"
    assert agent.host.agent().call_blob("watch", wire.encode(request))[1] == b"second\n"


def test_a_log_that_never_rests_is_told_now_and_then(agent: Agent) -> None:
    """Where it is for a progress line: a host that measures has something else to do than to answer."""
    run_id = agent.started(step("talk", "while sleep 0.005; do echo talk; done"))
    size = (agent.host.run_dir(run_id) / "events.jsonl").stat().st_size
    request = wire.WatchRequest(run_id, size, "@current", 0, tail=True, wait_s=calls.MAX_WAIT_S)
    began = time.monotonic()
    for _ in range(3):
        reply, blob = agent.call_blob("watch", wire.encode(request))
        assert blob
        request.log_offset, request.log_offset_step = reply["log_offset"] + len(blob), reply["log_step"]
    assert time.monotonic() - began >= 3 * calls.TAIL_EVERY_S


@pytest.mark.parametrize(
    ("method", "params", "code"),
    [
        ("dance", {}, "bad_request"),
        ("watch", {"run_id": new_run_id()}, "not_found"),
        ("watch", {"run_id": "../../etc"}, "bad_request"),
        ("watch", {"run_id": new_run_id(), "log_step": "../x"}, "bad_request"),
        ("files", {"run_id": new_run_id()}, "not_found"),
        ("files", {}, "bad_request"),
        ("cancel", {"run_id": "x" * 64}, "bad_request"),
        ("tree_diff", {"workspace": "../trees"}, "bad_request"),
        ("tree_diff", {"workspace": ".index"}, "bad_request"),
        ("submit", {"plan": {"run_id": 3}}, "bad_request"),
        ("lease", {"op": "extend"}, "bad_request"),
    ],
)
def test_bad_calls_are_answered_and_the_agent_lives_on(agent: Agent, method: str, params: dict, code: str) -> None:
    with pytest.raises(CallFailed, match=code):
        agent.call(method, params, b"[]" if method == "tree_diff" else b"")
    assert agent.call("hello")["wire_version"] == wire.WIRE_VERSION


def test_nonsense_on_the_wire_ends_the_agent(host: Host) -> None:
    done = host.program("agent", input=b"GET / HTTP/1.1\n")
    assert done.returncode == 1
    assert b"not JSON" in done.stderr


# ------------------------------------------------------------------------------------------------ results
def test_files_lists_regular_files_only_and_fetch_brings_them_and_no_others(host: Host, agent: Agent) -> None:
    run_id = agent.passed(step("make", "echo log; printf abc > $FCCTL_ARTIFACTS/good; echo '{}' > $FCCTL_OUT/x.json"))
    artifacts = host.run_dir(run_id) / "artifacts"
    (artifacts / "link").symlink_to("/etc/passwd")
    (artifacts / "linked").symlink_to("/etc")
    os.mkfifo(artifacts / "pipe")
    with socket.socket(socket.AF_UNIX) as server:
        here = Path.cwd()
        os.chdir(artifacts)
        server.bind("sock")
        os.chdir(here)
    for name in (b"new\nline", b"back\\slash", b"bad\xff", b"esc\x1b[31m", b"rtl\xe2\x80\xaeevil"):
        (Path(os.fsdecode(os.fsencode(artifacts) + b"/" + name))).write_bytes(b"x")
    (artifacts / "quote'\"; rm -rf $HOME").write_bytes(b"quoted")
    with (artifacts / "sparse").open("wb") as stream:
        stream.truncate(5 * 1024**3)
    deep = artifacts.joinpath(*["d" * 200] * 5)
    deep.mkdir(parents=True)
    (deep / "lost").write_bytes(b"x")
    began = time.monotonic()
    listed = wire.decode(wire.FileList, agent.call("files", {"run_id": run_id}))
    assert time.monotonic() - began < 100
    files = {entry.path: entry for entry in listed.files}
    quoted = "artifacts/quote'\"; rm -rf $HOME"
    assert {"events.jsonl", "outcome.json", "steps/make/script.sh", "steps/make/log.txt"} <= set(files)
    assert {"steps/make/out/x.json", "artifacts/good", quoted} <= set(files)
    assert not any(path.startswith("src") for path in files)
    assert not {"plan.json", "submission.json"} & set(files)  # the controller has its own; the environment stays here
    reasons = {omitted.path.removeprefix("artifacts/"): omitted.reason for omitted in listed.omitted}
    assert reasons.pop("/".join(["d" * 200] * 5)[: 900 - len("artifacts/")]) == "bad_name"
    assert reasons == {
        "link": "symlink", "linked": "symlink", "pipe": "fifo", "sock": "socket", "sparse": "too_large",
        "new\\nline": "bad_name", "back\\slash": "bad_name", "bad\\udcff": "bad_name", "esc\\x1b[31m": "bad_name",
        "rtl\\u202eevil": "bad_name",
    }  # fmt: skip
    assert files["artifacts/good"].sha256 == hashlib.sha256(b"abc").hexdigest()
    parts = [wire.FilePart("artifacts/good", 1, 2), wire.FilePart(quoted, 0, 6), wire.FilePart("artifacts/good", 3, 9)]
    reply, blob = agent.call_blob("fetch", {"run_id": run_id, "parts": wire.encode(parts)})
    assert [part["size"] for part in reply["parts"]] == [2, 6, 0]
    assert blob == b"bcquoted"
    for path in (
        "artifacts/link", "artifacts/linked/passwd", "artifacts/pipe", "artifacts/../plan.json", "/etc/passwd",
        "src/hello.txt", "artifacts", "submission.json", "artifacts/absent",
    ):  # fmt: skip
        with pytest.raises(CallFailed, match="not_found"):
            agent.call("fetch", {"run_id": run_id, "parts": [{"path": path, "offset": 0, "size": 10}]})


def test_a_fetch_is_cut_at_the_blobs_limit(host: Host, agent: Agent) -> None:
    run_id = agent.passed(step("a", "head -c 5000000 /dev/zero > $FCCTL_ARTIFACTS/big"))
    part = {"path": "artifacts/big", "offset": 0, "size": 5_000_000}
    reply, blob = agent.call_blob("fetch", {"run_id": run_id, "parts": [part, part]})
    assert [p["size"] for p in reply["parts"]] == [wire.MAX_BLOB_BYTES, 0]
    assert len(blob) == wire.MAX_BLOB_BYTES


def test_forget_spares_a_living_run(host: Host, agent: Agent) -> None:
    run_id = agent.started(step("busy", "sleep 300"))
    with pytest.raises(CallFailed, match="conflict"):
        agent.call("forget", {"run_id": run_id})
    agent.call("cancel", {"run_id": run_id, "reason": "x", "grace_s": 0})
    agent.outcome(run_id)
    assert agent.call("forget", {"run_id": run_id}) == {}
    assert agent.call("forget", {"run_id": run_id}) == {}
    assert [name for name in os.listdir(host.root / "runs") if run_id in name] == []


def test_a_run_that_was_forgotten_before_it_was_submitted_is_not_begun(agent: Agent) -> None:
    run_id, plan = prepared(agent, step("a", "true"))
    agent.call("forget", {"run_id": run_id})
    with pytest.raises(CallFailed, match="has no snapshot"):
        agent.call("submit", {"plan": plan})


# ------------------------------------------------------------------------------------------------ the tree
def test_a_tampered_tree_is_noticed_and_can_be_sent_again(host: Host, agent: Agent) -> None:
    contents = {"a.cu": b"int a;", "dir/b.cu": b"int b;", "big.bin": b"x" * 1_200_000}
    first = agent.snapshot(new_run_id(), contents)
    root = host.root / "trees/ws"
    entries = [wire.TreeEntry(p, hashlib.sha256(c).hexdigest(), len(c)) for p, c in contents.items()]
    blob = json.dumps(wire.encode(entries)).encode()
    for path in ("a.cu", "big.bin"):
        facts = (root / path).stat()
        (root / path).unlink()
        (root / path).write_bytes(bytes(len(contents[path])))
        os.utime(root / path, ns=(facts.st_atime_ns, facts.st_mtime_ns))
    params = {"workspace": "ws", "run_id": new_run_id(), "tree_sha256": first.tree_sha256}
    with pytest.raises(CallFailed) as caught:
        agent.call("snapshot", params, blob)
    assert caught.value.code == "tree_mismatch"
    assert sorted(caught.value.error["data"]["paths"]) == ["a.cu", "big.bin"]
    assert sorted(agent.call("tree_diff", {"workspace": "ws"}, blob)["changed"]) == ["a.cu", "big.bin"]
    again = agent.snapshot(params["run_id"], contents)
    assert again.tree_sha256 == first.tree_sha256
    assert agent.call("snapshot", params, blob)["path"] == again.path  # asked twice, made once


def put(agent: Agent, blob: bytes, *files: wire.PutFile) -> Any:
    return agent.call("tree_put", {"workspace": "ws", "files": wire.encode(list(files))}, blob)


def test_a_large_file_comes_in_parts_and_appears_when_it_is_whole(host: Host, agent: Agent) -> None:
    root = host.root / "trees/ws"
    first = wire.PutFile("dir/a.sh", 3, 1.7e9, executable=True, last=False)
    put(agent, b"lost", wire.PutFile("dir/a.sh", 4, 1.7e9, last=False))  # the link broke; the sender begins anew
    put(agent, b"one", first)
    put(agent, b"two", wire.PutFile("dir/a.sh", 3, 1.7e9, executable=True, offset=3, last=False))
    assert [path.name.startswith(".fcctl-part-") for path in (root / "dir").iterdir()] == [True]
    put(agent, b"", wire.PutFile("dir/a.sh", 0, 1.7e9, executable=True, offset=6))
    assert (root / "dir/a.sh").read_bytes() == b"onetwo"
    assert (root / "dir/a.sh").stat().st_mode & 0o777 == 0o755
    assert (root / "dir/a.sh").stat().st_mtime == 1.7e9
    for offset in (0, 3):  # nothing has begun, and then something else has
        with pytest.raises(CallFailed, match="bad_request"):
            put(agent, b"x", wire.PutFile("b", 1, 0.0, offset=offset + 1, last=False))
        put(agent, b"x", wire.PutFile("b", 1, 0.0, last=False))


def test_parts_are_written_below_the_tree_only(host: Host, agent: Agent) -> None:
    outside = host.base / "outside"
    outside.mkdir()
    root = host.root / "trees/ws"
    root.mkdir(parents=True)
    (root / "dir").symlink_to(outside)
    put(agent, b"x", wire.PutFile("dir/a", 1, 0.0, last=False))
    part = next((root / "dir").iterdir())
    part.unlink()
    part.symlink_to(outside / "a")
    with pytest.raises(CallFailed, match="first part of the file is missing"):
        put(agent, b"y", wire.PutFile("dir/a", 1, 0.0, offset=1))
    with pytest.raises(CallFailed, match="refused path"):
        put(agent, b"x", wire.PutFile("../evil", 1, 0.0, last=False))
    assert os.listdir(outside) == []
    assert not (host.root / "trees" / "evil").exists()


def test_the_shim_in_a_step_is_this_host_program(host: Host, agent: Agent) -> None:
    run_id = agent.submit(step("ask", 'fcctl-host version; "$FCCTL_HOST" version'))
    _, log = agent.follow(run_id, log_step="ask")
    assert log.decode().count(host.runner.stem) == 2


def test_tree_digest_is_what_both_sides_compute() -> None:
    entries = [wire.TreeEntry("b", "2" * 64, 1, executable=True), wire.TreeEntry("a", "1" * 64, 1)]
    text = f"a\0-\0{'1' * 64}\nb\0x\0{'2' * 64}\n"
    assert tree.tree_digest(entries) == hashlib.sha256(text.encode()).hexdigest()
