"""What steps may do to the host program, and how each ends. All real: tmux, bash, signals, disks."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fcctl_remote import wire
from fcctl_remote.base import hostfacts
from tests.integration.host_program.agent_client import LIMITS_S, Agent, Host, step
from tests.support.scripts import script
from tests.support.small_disk import small_disk
from tests.support.waiting import wait_for

#: A step that goes on until its test has seen enough.
WAIT = 'while [ ! -e "$FCCTL_RUN_DIR/go" ]; do sleep 0.02; done'
LINUX_ONLY = pytest.mark.skipif(sys.platform != "linux", reason="daemons are found through /proc")


def test_steps_run_in_order_in_the_snapshot_with_their_environment(host: Host, agent: Agent) -> None:
    run_id = agent.submit(
        step(
            "first", 'cat hello.txt; echo "$FCCTL_STEP $FCCTL_RUN_ID $COLOUR $SHADE"; echo kept > "$FCCTL_ARTIFACTS/a"'
        ),
        step("second", 'cat "$FCCTL_ARTIFACTS/a"; pwd -P; [ -d "$FCCTL_OUT" ]', env={"SHADE": "dark"}),
        env={"COLOUR": "red", "SHADE": "light"},
    )
    outcome = agent.outcome(run_id)
    folder = host.run_dir(run_id)
    assert outcome.status == "passed", outcome
    assert [s.status for s in outcome.steps] == ["passed", "passed"]
    assert (folder / "steps/first/log.txt").read_text() == f"hello\nfirst {run_id} red light\n"
    assert (folder / "steps/second/log.txt").read_text() == f"kept\n{(folder / 'src').resolve()}\n"
    assert outcome.host["hostname"] == os.uname().nodename


def test_a_program_beside_the_python_is_found_after_all_others(host: Host, agent: Agent, tmp_path: Path) -> None:
    """As ninja is that pip installed there: PyTorch's builds look for it by name."""
    for name in ("ninja-of-pip", "cat"):
        script(tmp_path / name, "echo beside")
    one = step("one", "ninja-of-pip; cat hello.txt", env={"FCCTL_PYTHON": str(tmp_path / "python")})
    two = step("two", "ninja-of-pip", env={"FCCTL_PYTHON": str(tmp_path / "python"), "PATH": os.environ["PATH"]})
    run_id = agent.passed(one, two)
    folder = host.run_dir(run_id)
    assert (folder / "steps/one/log.txt").read_text() == "beside\nhello\n"
    assert (folder / "steps/two/log.txt").read_text() == "beside\n"


@pytest.mark.parametrize(("mark", "variable"), [("pyvenv.cfg", "VIRTUAL_ENV"), ("conda-meta", "CONDA_PREFIX")])
def test_the_environment_of_the_targets_python_is_active(
    host: Host, agent: Agent, tmp_path: Path, mark: str, variable: str
) -> None:
    python = script(tmp_path / "env/bin/python3", "echo of the environment")
    show = step("show", f"python3; echo $FCCTL_PYTHON ${variable}")
    plain = agent.passed(show, python=str(python))
    assert str(python) not in host.log(plain, "show"), "it is in no environment"
    (tmp_path / "env" / mark).touch()
    expected = f"of the environment\n{python} {tmp_path / 'env'}\n"
    assert host.log(agent.passed(show, python=str(python)), "show") == expected
    other = agent.passed(show, python=str(python), env={"FCCTL_PYTHON": sys.executable})
    assert f"{sys.executable}\n" in host.log(other, "show"), "a job or target that names another has that"


def test_the_submitting_connection_does_not_leak_into_steps(host: Host) -> None:
    agent = host.agent(SSH_AUTH_SOCK="/tmp/agent.sock", TMUX="/tmp/other,1,0", KEEP="yes")
    run_id = agent.submit(step("show", 'echo "[${SSH_AUTH_SOCK-}][${TMUX-}][$KEEP]"'))
    assert agent.follow(run_id, log_step="show")[1] == b"[][][yes]\n"


def test_a_failed_step_says_why_and_ends_the_run(agent: Agent) -> None:
    run_id = agent.submit(step("build", "echo compiling; compiler-of-nowhere x.cu"), step("test", "echo never"))
    outcome = agent.outcome(run_id)
    build, test = outcome.steps
    assert (outcome.status, outcome.exit_code) == ("failed", 100)
    assert (build.status, build.exit_code, test.status) == ("failed", 127, "skipped")
    assert "compiling" in build.message
    assert "command not found" in build.message
    assert "install it" in build.hint
    assert "step 'build'" in outcome.message


def test_an_optional_step_may_fail_and_exit_codes_are_mapped(agent: Agent) -> None:
    run_id = agent.submit(
        step("lint", "exit 3", optional=True),
        step("preflight", "exit 1", exit_codes={"1": "warned"}),
        step("gpu", "exit 69", exit_codes={"69": "unavailable"}, optional=True),
        step("last", "true"),
    )
    outcome = agent.outcome(run_id)
    assert [s.status for s in outcome.steps] == ["failed", "warned", "unavailable", "passed"]
    assert outcome.status == "passed"


def test_a_step_that_keeps_going_fails_the_run_at_its_end(agent: Agent) -> None:
    run_id = agent.submit(
        step("build", "echo 'b.cu: no'; exit 2", keep_going=True),
        step("run", "true"),
        step("c", "echo invalid device function; exit 1", env={"FCCTL_CUDA_ARCH": "90"}),
    )
    outcome = agent.outcome(run_id)
    assert [s.status for s in outcome.steps] == ["failed", "passed", "failed"]
    assert (outcome.status, outcome.exit_code) == ("failed", 100)
    assert "step 'build'" in outcome.message
    assert "-arch=sm_$FCCTL_CUDA_ARCH (here sm_90)" in outcome.steps[2].hint
    needs_more = step("gpu", "true", needs=wire.Needs(tools=["fcctl-no-such-tool"]), keep_going=True)
    assert [s.status for s in agent.outcome(agent.submit(needs_more, step("run", "true"))).steps] == [
        "unavailable",
        "skipped",
    ]


def test_unmet_needs_are_unavailable_and_end_the_run_unless_optional(agent: Agent) -> None:
    lacking = wire.Needs(tools=["fcctl-no-such-tool"])
    run_id = agent.submit(
        step("a", "echo never", needs=lacking, optional=True), step("b", "true"), step("c", "true", needs=lacking)
    )
    outcome = agent.outcome(run_id)
    assert [s.status for s in outcome.steps] == ["unavailable", "passed", "unavailable"]
    assert outcome.status == "failed"
    assert "fcctl-no-such-tool" in outcome.steps[0].message


def test_a_timeout_ends_a_step_that_ignores_sigterm(host: Host, agent: Agent) -> None:
    script = "trap '' TERM; echo ready; while true; do sleep 0.05; done"
    for limit_s in LIMITS_S:
        run_id = agent.submit(step("deaf", script, timeout_s=limit_s, env={"FCCTL_KILL_GRACE_S": "0.4"}))
        outcome = agent.outcome(run_id)
        if "ready" in host.log(run_id, "deaf"):  # it was deaf before its time was over
            break
    (deaf,) = outcome.steps
    assert (deaf.status, outcome.status) == ("timed_out", "failed")
    assert limit_s + 0.4 <= deaf.duration_s < limit_s + 57
    assert deaf.message == f"ran longer than its timeout of {limit_s:g} s and was ended"
    assert host.processes(f"FCCTL_RUN_ID={run_id}") == []


def test_a_step_that_heeds_sigterm_is_not_kept_waiting(agent: Agent) -> None:
    run_id = agent.submit(step("slow", "sleep 600", timeout_s=0.3, env={"FCCTL_KILL_GRACE_S": "300"}))
    assert agent.outcome(run_id).steps[0].duration_s < 100, "not the five minutes of grace"


WITHOUT_PROC = """if True:
    import os, sys
    sys.path.insert(0, "remote")
    from fcctl_remote.base import processes
    from fcctl_remote.run import process
    processes.IS_LINUX = process.IS_LINUX = False
    process.NOTE_S = 0.1
    argv = ["sh", "-c", "setsid sleep 3001 & until [ -e noted ]; do sleep 0.05; done"]
    signals = process.Signals()
    signals.install()
    step = process.StepProcess(argv, sys.argv[1], os.environ, sys.argv[1] + "/log", 60.0, signals)
    def idle():
        if step._sessions and {process.name_of(pid) for pid in step._sessions} == {"sleep"}:  # it is no setsid any more
            open(sys.argv[1] + "/noted", "w").close()
    ended = step.wait(lambda: None, idle, lambda: 1.0)
    print(ended.how, ended.leftovers, [process.family(session=pid) for pid in step._sessions])
"""


FORKSERVER = b"""
import multiprocessing
if __name__ == "__main__":
    process = multiprocessing.get_context("forkserver").Process(target=print)
    process.start()
    process.join()
"""


@LINUX_ONLY
def test_what_ends_by_itself_is_not_left_behind(agent: Agent) -> None:
    run_id = agent.submit(step("build", "python3 forks.py"), contents={"forks.py": FORKSERVER})
    assert [e.data["message"] for e in agent.follow(run_id)[0] if e.type == "warning"] == []


@LINUX_ONLY
def test_a_daemon_is_ended_where_there_is_no_subreaper_and_no_proc(tmp_path: Path) -> None:
    """As on macOS: the session that it made was noted while the step was its parent."""
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_PROC, str(tmp_path)], capture_output=True, text=True, check=True
    )
    assert done.stdout == "exited ['sleep'] [set()]\n"


@LINUX_ONLY
def test_daemons_are_ended_with_their_step_and_reported(host: Host, agent: Agent) -> None:
    script = (
        "up='touch ../up-$0; exec sleep 30$0'; (setsid setsid sh -c \"$up\" 0 >/dev/null 2>&1 &); "
        '(trap \'\' TERM HUP; sh -c "$up" 1 & sh -c "$up" 2 & wait) & '
        "until [ -e ../up-0 ] && [ -e ../up-1 ] && [ -e ../up-2 ]; do sleep 0.02; done"
    )
    run_id = agent.submit(step("daemons", script), step("next", "true"))
    events, _ = agent.follow(run_id)
    assert [e.data["status"] for e in events if e.type == "step_finished"] == ["passed", "passed"]
    warnings = [e.data["message"] for e in events if e.type == "warning"]
    assert len(warnings) == 1, events
    assert "sleep" in warnings[0]
    assert host.processes(f"FCCTL_RUN_ID={run_id}") == []


def test_a_step_that_deletes_the_folder_of_all_steps_ends_the_run_as_it_says(agent: Agent) -> None:
    run_id = agent.submit(step("delete", "rm -rf ../steps"), step("next", "true"))
    assert [one.status for one in agent.outcome(run_id).steps] == ["passed", "passed"]


def test_retries_stop_at_the_first_success_and_keep_one_log(host: Host, agent: Agent) -> None:
    script = 'echo x >> ../count; n=$(wc -l < ../count); echo "try $n"; echo {} > "$FCCTL_OUT/$n.json"; [ "$n" -ge 3 ]'
    run_id = agent.submit(step("flaky", script, retries=5))
    events, log = agent.follow(run_id, log_step="flaky")
    outcome = agent.outcome(run_id)
    assert (outcome.steps[0].status, outcome.steps[0].attempts) == ("passed", 3)
    text = log.decode().replace(" ", "")
    assert [text.index(f"try{n}") for n in (1, 2, 3)] == sorted(text.index(f"try{n}") for n in (1, 2, 3))
    assert [e.data["attempt"] for e in events if e.type == "step_started"] == [1, 2, 3]
    assert os.listdir(host.run_dir(run_id) / "steps/flaky/out") == ["3.json"]


def test_the_runs_own_time_limit(host: Host, agent: Agent) -> None:
    agent.outcome(agent.submit(step("first", "true")))  # to look the machine over takes seconds, of the first run here
    for limit_s in LIMITS_S:
        run_id = agent.submit(step("long", "echo up; sleep 600"), step("later", "true"), max_minutes=limit_s / 60)
        outcome = agent.outcome(run_id)
        if host.log(run_id, "long"):  # it began before the time was over
            break
    assert [s.status for s in outcome.steps] == ["timed_out", "skipped"]
    assert outcome.status == "failed"
    assert "limit" in outcome.message


# ------------------------------------------------------------------------------------------------ hostile output
def test_a_large_log_arrives_whole_and_costs_no_memory(host: Host, agent: Agent) -> None:
    size = 64 * 1024 * 1024
    run_id = agent.submit(step("flood", f"head -c {size} /dev/zero | tr '\\0' 'x'"), step("look", WAIT))
    agent.wait_for(run_id, "step_finished")
    supervisor = host.supervisor(run_id)
    assert _peak_mb(supervisor) <= 30
    (host.run_dir(run_id) / "go").touch()
    _, log = agent.follow(run_id, log_step="flood")
    assert len(log) == size
    assert set(log[:: 1024 * 1024]) == {ord("x")}
    assert _peak_mb(agent.process.pid) <= 30


def _peak_mb(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            return int(line.split()[1]) / 1024
    raise AssertionError("no VmHWM")


def test_a_line_of_ten_megabytes_invalid_utf8_and_escapes(host: Host, agent: Agent) -> None:
    script = (
        "head -c 10000000 /dev/zero | tr '\\0' 'y'; echo\nprintf 'bad \\377\\376 bytes\\n\\033[31mred\\033[0m "
        "\\033]0;title\\007 \\033]52;c;ZXZpbA==\\007bell\\007\\n'\nexit 5"
    )
    run_id = agent.submit(step("noise", script))
    _, log = agent.follow(run_id, log_step="noise")
    assert log.startswith(b"y" * 10_000_000 + b"\n")
    assert b"\xff\xfe" in log  # the log is a copy, byte for byte
    message = agent.outcome(run_id).steps[0].message
    assert "bad \ufffd\ufffd bytes" in message
    assert "red  bell" in message
    assert not any(ord(char) < 32 and char != "\n" for char in message)
    assert len(message) < 3000


def test_who_attaches_sees_live_output_made_safe(host: Host, agent: Agent) -> None:
    run_id = agent.submit(step("talk", "printf 'visible \\033]0;evil\\007line\\n'; sleep 300"))

    def shown() -> str:
        return host.tmux("capture-pane", "-p", "-t", f"=fcctl-{run_id}:run").stdout

    wait_for(lambda: "visible line" in shown())
    assert "step talk" in shown()
    names = host.tmux("list-windows", "-t", f"=fcctl-{run_id}", "-F", "#{window_name} #{pane_title}").stdout
    assert names.split("\n")[0].startswith("run ")
    assert names.split("\n")[1].startswith("gpu ")
    assert "evil" not in names
    agent.call("cancel", {"run_id": run_id, "reason": "seen", "grace_s": 0.1})
    assert agent.outcome(run_id).status == "cancelled"


# ------------------------------------------------------------------------------------------------ documents and gates
CORRECT = {"kind": "correctness", "schema_version": 1, "cases": [], "summary": {"total": 20, "passed": 20, "failed": 0}}


def _emit(document: object, name: str = "doc.json") -> str:
    return f"cat > \"$FCCTL_OUT/{name}\" <<'EOF'\n{json.dumps(document)}\nEOF\n"


def test_gates_decide_and_the_first_failed_one_ends_the_run(agent: Agent) -> None:
    run_id = agent.submit(
        step("check", _emit(CORRECT), gates=[wire.GateSpec("correctness.summary.passed == 20")]),
        step(
            "later",
            "true",
            gates=[wire.GateSpec("correctness.summary.failed > 0"), wire.GateSpec("step.duration_s < 600")],
        ),
        step("never", "true"),
    )
    events, _ = agent.follow(run_id)
    outcome = agent.outcome(run_id)
    check, later, never = outcome.steps
    assert [d.path for d in check.documents] == ["steps/check/out/doc.json"]
    assert [(g.verdict, g.value) for g in check.gates] == [("pass", 20)]
    assert [g.verdict for g in later.gates] == ["fail", "pass"]
    assert (check.status, later.status, never.status, outcome.status) == ("passed", "failed", "skipped", "failed")
    assert "correctness.summary.failed > 0" in later.message
    assert [e.data["verdict"] for e in events if e.type == "gate"] == ["pass", "fail", "pass"]
    assert [e.data["kind"] for e in events if e.type == "document"] == ["correctness"]


SPEEDUP = wire.GateSpec("benchmark.speedup > 2")


EMPTY = {
    "ptxas": "make: all is up to date", "junit": "<testsuites/>", "metrics": "{}", "times": "no", "rates": "no",
    "google-benchmark": '{"context": {}, "benchmarks": []}', "ncu": '"ID","Kernel Name"',
}  # fmt: skip


def test_an_optional_file_with_nothing_to_read_in_it_is_no_error(agent: Agent) -> None:
    collect = [wire.CollectSpec(reader, f"{reader}.csv", optional=True) for reader in EMPTY]
    script = "\n".join(f"echo '{text}' > {reader}.csv" for reader, text in EMPTY.items())
    run_id = agent.passed(step("build", script, collect=collect))
    assert "with nvcc -Xptxas=-v" in (agent.outcome(run_id).steps[0].message or "")
    required = [wire.CollectSpec(reader, f"{reader}.csv") for reader in EMPTY]
    outcome = agent.outcome(agent.submit(step("build", script, collect=required)))
    assert outcome.steps[0].message.count(".csv: ") == len(EMPTY)


def test_a_gate_without_a_value_never_passes(agent: Agent) -> None:
    steps = step("a", "true", gates=[SPEEDUP], optional=True), step("b", "true", gates=[SPEEDUP]), step("c", "true")
    outcome = agent.outcome(agent.submit(*steps))
    assert [s.status for s in outcome.steps] == ["unavailable", "unavailable", "skipped"]
    assert [(g.verdict, g.optional) for s in outcome.steps for g in s.gates] == [
        ("unavailable", True),
        ("unavailable", False),
    ]
    assert (outcome.status, outcome.exit_code) == ("incomplete", 104)
    assert outcome.message.startswith("step 'b': gate without a value: benchmark.speedup > 2: ")
    assert "'benchmark' does not exist here" in outcome.message
    assert "set 'optional: true' on the gate" in outcome.message


def test_a_step_that_may_be_unavailable_goes_on_past_its_undecided_gate_and_the_run_does_not_pass(agent: Agent) -> None:
    hinted = wire.GateSpec("benchmark.speedup > 2", hint="print the speedup")
    outcome = agent.outcome(agent.submit(step("a", "true", gates=[hinted], unavailable_ok=True), step("b", "true")))
    assert [s.status for s in outcome.steps] == ["unavailable", "passed"]
    assert outcome.status == "incomplete"
    assert outcome.message.endswith("; print the speedup")


def test_a_step_that_the_machine_cannot_measure_leaves_its_gates_open(agent: Agent) -> None:
    report = "echo 'ERR_NVGPUCTRPERM' > prof.csv"
    collect = [wire.CollectSpec("ncu", "prof.csv")]
    gates = [wire.GateSpec("len(profile.kernels) > 0")]
    first = step("may", report, collect=collect, gates=gates, unavailable_ok=True)
    outcome = agent.outcome(agent.submit(first, step("must", report, collect=collect, gates=gates)))
    assert [(s.status, s.gates[0].verdict, s.gates[0].optional) for s in outcome.steps] == [
        ("unavailable", "unavailable", False),
        ("unavailable", "unavailable", False),
    ]
    assert outcome.status == "incomplete"
    assert outcome.message.startswith("step 'may'")


@pytest.mark.parametrize(
    "how",
    [{"needs": wire.Needs(tools=["no-such-profiler"])}, {"run": "exit 69", "exit_codes": {"69": "unavailable"}}],
    ids=["needs", "exit code"],
)
def test_a_step_that_the_machine_cannot_run_leaves_its_gates_open(agent: Agent, how: dict[str, Any]) -> None:
    gates = [
        wire.GateSpec("len(profile.kernels) > 0"),
        wire.GateSpec("1 < 2"),
        wire.GateSpec("1 < 2", when='env.CARD == "L4"'),
    ]
    spec = step("profile", how.pop("run", "true"), gates=gates, unavailable_ok=True, env={"CARD": "none"}, **how)
    outcome = agent.outcome(agent.submit(spec, step("later", "true")))
    assert [s.status for s in outcome.steps] == ["unavailable", "passed"]
    assert [g.verdict for g in outcome.steps[0].gates] == ["unavailable", "unavailable", "not_applicable"]
    assert (outcome.status, outcome.exit_code) == ("incomplete", 104)
    assert outcome.message.startswith("step 'profile': gate without a value: len(profile.kernels) > 0 (and 1 more): ")
    assert ("no-such-profiler" if "needs" in how else "exit code 69") in outcome.message
    for gate in gates:
        gate.optional = True
    assert agent.outcome(agent.submit(spec, step("later", "true"))).status == "passed"


def test_of_a_step_that_a_run_cannot_go_on_without_the_step_itself_is_why(agent: Agent) -> None:
    needs = wire.Needs(tools=["no-such-profiler"])
    outcome = agent.outcome(agent.submit(step("must", "true", gates=[wire.GateSpec("1 < 2")], needs=needs)))
    assert (outcome.status, outcome.steps[0].gates) == ("failed", [])


def test_what_is_worse_wins_over_a_gate_without_a_value(agent: Agent) -> None:
    left_open = step("open", "true", gates=[SPEEDUP], unavailable_ok=True)
    false = wire.GateSpec("step.duration_s < 0")
    for worse in (
        [left_open, step("fails", "exit 3")],
        [left_open, step("slow", "sleep 60", timeout_s=0.5)],
        [left_open, step("gated", "true", gates=[false])],
        [step("both", "true", gates=[SPEEDUP, false])],
    ):
        outcome = agent.outcome(agent.submit(*worse))
        assert (outcome.status, outcome.exit_code) == ("failed", 100)
    run_id = agent.submit(left_open, step("waits", WAIT))
    wait_for(lambda: agent.call("status", {"run_ids": [run_id]})["runs"][0]["step"] == "waits")
    agent.call("cancel", {"run_id": run_id, "reason": "enough", "grace_s": 0.2})
    agent.follow(run_id)
    assert agent.outcome(run_id).status == "cancelled"


COLLECTED = [wire.CollectSpec("junit", pattern) for pattern in ("missing.xml", "../../../../../etc/hostname", "leak")]
ALONE: list[tuple[str, dict[str, Any], str, int, str]] = [
    ("kill -SEGV $$", {}, "failed", 139, "SIGSEGV"),
    ("false | cat", {}, "failed", 1, "exit code 1"),
    ("if read -r answer; then exit 1; fi", {}, "passed", 0, ""),  # its input is empty
    ("exit 4", {"retries": 2}, "failed", 4, "exit code 4"),
    ("true", {"gates": [wire.GateSpec("benchmark.x > 2", when='step.id == "two"')]}, "passed", 0, ""),
    (_emit([1]) + _emit({"kind": "recipe"}, "b.json"), {}, "passed", 0, ""),
    ("echo '{not json' > $FCCTL_OUT/a.json", {}, "failed", 0, "a.json is not JSON"),
    ("ln -s /etc/passwd $FCCTL_OUT/a.json", {}, "failed", 0, "a.json is a symbolic link"),
    ("mkfifo $FCCTL_OUT/a.json", {}, "failed", 0, "a.json is not a regular file"),
    ("truncate -s 33M $FCCTL_OUT/a.json", {}, "failed", 0, "a.json has 33 MiB; a document may have at most 32"),
    (_emit({"kind": "build", "schema_version": 1}), {}, "failed", 0, "a build document needs 'kernels' to be a list"),
    (_emit({"kind": "build", "schema_version": 9, "kernels": []}), {}, "failed", 0, "schema_version 9"),
    (_emit({"kind": "benchmark", "benchmarks": [{"name": "a"}]}), {}, "failed", 0, "benchmarks[0] needs 'name'"),
    (_emit({"kind": "benchmark", "benchmarks": [3]}), {}, "failed", 0, "needs 'name' and 'stats', such as"),
    ("echo no figure", {"collect": [wire.CollectSpec("times", "@log", True)]}, "passed", 0, ""),
    ("echo no figure", {"collect": [wire.CollectSpec("times", "@log")]}, "failed", 0, "no time with a unit"),
    ("true", {"collect": [wire.CollectSpec("ptxas", "b.log", True)]}, "passed", 0, ""),
    ("echo t: nan us", {"collect": [wire.CollectSpec("times", "@log", True)]}, "failed", 0, "not a number"),
    *(("ln -sf /etc/hostname leak", {"collect": [spec]}, "failed", 0, f"collect: no file matches {spec.file!r}")
      for spec in COLLECTED),
]  # fmt: skip


def test_how_a_single_step_ends(agent: Agent) -> None:
    steps = [step(f"s{n}", one[0], timeout_s=60, optional=True, **one[1]) for n, one in enumerate(ALONE)]
    results = agent.outcome(agent.submit(*steps)).steps
    for result, (what, fields, status, code, says) in zip(results, ALONE, strict=True):
        assert (result.status, result.exit_code) == (status, code), what
        assert says in (result.message or ""), what
        assert result.attempts == 1 + fields.get("retries", 0), what
        assert result.documents == [], what


def test_editing_the_source_in_place_reaches_neither_tree_nor_other_runs(host: Host, agent: Agent) -> None:
    first = agent.passed(step("edit", "echo changed >> hello.txt; mkdir sub; chmod 500 sub"))
    second = agent.submit(step("look", "cat hello.txt"))
    assert agent.follow(second, log_step="look")[1] == b"hello\n"
    agent.call("forget", {"run_id": first})
    assert not host.run_dir(first).exists()


# ------------------------------------------------------------------------------------------------ a full disk
@pytest.mark.parametrize(
    ("script", "timeout_s"),
    [
        ("cat /dev/zero > filler", 60.0),
        ("cat /dev/zero > filler || true", 60.0),
        ("(cat /dev/zero > filler || true); while true; do echo x >> more || true; done", 4.0),
    ],
    ids=["fails", "carries-on", "goes-on-writing"],
)
def test_a_full_disk_still_has_an_ending(tmp_path: Path, script: str, timeout_s: float) -> None:
    with small_disk(tmp_path / "disk", "6m"), contextlib.closing(Host(tmp_path, root=tmp_path / "disk/fcctl")) as host:
        agent = host.agent()
        run_id = agent.submit(
            step("fill", script, timeout_s=timeout_s, env={"FCCTL_KILL_GRACE_S": "0.1"}), step("then", "true")
        )
        outcome = agent.outcome(run_id)
        assert outcome.status in ("failed", "error")
        told = " ".join(str(text) for text in (outcome.message, outcome.steps[0].message, outcome.steps[0].hint))
        assert "disk is full" in told or "No space left" in told
        events, _ = agent.follow(run_id)
        assert events[-1].type == "run_finished"


def test_a_run_that_has_filled_the_disk_can_be_cancelled(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "6m"), contextlib.closing(Host(tmp_path, root=tmp_path / "disk/fcctl")) as host:
        agent = host.agent()
        run_id = agent.submit(step("fill", "cat /dev/zero > filler || sleep 300"))
        wait_for(lambda: hostfacts.free_bytes(str(host.root)) == 0)
        agent.call("cancel", {"run_id": run_id, "reason": "enough", "grace_s": 0})
        outcome = agent.outcome(run_id)
        assert (outcome.status, outcome.steps[0].status) == ("cancelled", "cancelled")
