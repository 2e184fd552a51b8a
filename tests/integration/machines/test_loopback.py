"""The fixtures themselves: what every other test over SSH stands on."""

import subprocess

import pytest

from tests.support.link import LinkProxy
from tests.support.sshd import LoopbackSshd
from tests.support.waiting import wait_for


def run(sshd: LoopbackSshd, *command: str, port: int | None = None, timeout: float = 240) -> str:
    done = subprocess.run(
        sshd.ssh_argv(*command, port=port), capture_output=True, text=True, check=True, timeout=timeout
    )
    return done.stdout.strip()


def test_far_side_has_a_home_and_a_tmux_folder_of_its_own(sshd: LoopbackSshd) -> None:
    assert run(sshd, "echo $HOME $TMUX_TMPDIR") == f"{sshd.home} {sshd.tmux_tmpdir}"


def test_restart_keeps_the_port_and_ends_sessions(sshd: LoopbackSshd) -> None:
    begun = sshd.home / "begun"
    with subprocess.Popen(sshd.ssh_argv(f"touch {begun}; sleep 60"), stderr=subprocess.DEVNULL) as held:
        wait_for(begun.exists)
        assert held.poll() is None
        sshd.restart()
        assert held.wait() == 255
    assert run(sshd, "echo again") == "again"


def test_link_relays_counts_stalls_and_resets(sshd: LoopbackSshd, link: LinkProxy) -> None:
    assert run(sshd, "echo through", port=link.port) == "through"
    assert link.connections == 1
    assert link.up > 1000
    assert link.down > 1000
    link.stall()
    with pytest.raises(subprocess.TimeoutExpired):
        run(sshd, "true", port=link.port, timeout=0.5)
    link.resume()
    begun = sshd.home / "begun"
    with subprocess.Popen(sshd.ssh_argv(f"touch {begun}; sleep 60", port=link.port), stderr=subprocess.DEVNULL) as held:
        wait_for(begun.exists)
        link.reset()
        assert held.wait() == 255


def test_link_cuts_after_so_many_bytes(sshd: LoopbackSshd, link: LinkProxy) -> None:
    link.cut_after(50_000, "down")
    done = subprocess.run(sshd.ssh_argv("head -c 1000000 /dev/zero", port=link.port), capture_output=True, check=False)
    assert done.returncode == 255
    assert link.down == 50_000
