"""A step that is told to end while it is starting something."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import pytest

from tests.integration.host_program.agent_client import Agent, Host, step
from tests.support.waiting import wait_for

#: What a shell does that gets SIGTERM as it starts a program, with the moment drawn out: the signal is held back until
#: the program runs, and then ends the shell.
SHELL = """
import os, signal, sys, time
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
print("up", flush=True)
while signal.SIGTERM not in signal.sigpending():
    time.sleep(0.01)
time.sleep(0.3)
if os.fork() == 0:
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
    os.execlp("bash", "bash", "-c", sys.argv[1])
while not os.path.exists("../started"):
    time.sleep(0.01)
signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
"""
PROGRAM = "trap 'echo heard; exit' TERM; echo started; touch ../started; while true; do sleep 0.05; done"
#: The same signal, in the hands of somebody who tidies up: what that takes is not told to end.
TIDY = "trap 'bash -c \"sleep 1; echo saved\"; exit' TERM; echo up; while true; do sleep 0.05; done"


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="elsewhere nobody adopts orphans")
def test_what_was_started_too_late_to_hear_it_hears_it_too(host: Host, agent: Agent) -> None:
    script = f"exec {shlex.quote(sys.executable)} -c {shlex.quote(SHELL)} {shlex.quote(PROGRAM)}"
    run_id = agent.submit(step("busy", script))
    wait_for(lambda: "up\n" in host.log(run_id, "busy"))
    agent.call("cancel", {"run_id": run_id, "reason": "enough", "grace_s": 60})
    assert agent.outcome(run_id).status == "cancelled"
    assert host.log(run_id, "busy") == "up\nstarted\nheard\n"


def test_what_tidies_up_is_left_in_peace(host: Host, agent: Agent) -> None:
    run_id = agent.submit(step("busy", TIDY))
    wait_for(lambda: "up\n" in host.log(run_id, "busy"))
    agent.call("cancel", {"run_id": run_id, "reason": "enough", "grace_s": 60})
    assert agent.outcome(run_id).status == "cancelled"
    assert host.log(run_id, "busy").endswith("saved\n")
