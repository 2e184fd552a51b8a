"""The sshd of the tests: what it lets others do while it is stopped."""

from __future__ import annotations

import socket
import sys

import pytest

from tests.support.sshd import LoopbackSshd


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere two cannot bind a port")
def test_nobody_gets_its_port_while_it_is_stopped(sshd: LoopbackSshd) -> None:
    for _ in range(2):
        socket.create_connection(("127.0.0.1", sshd.port)).close()
        sshd.stop()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", sshd.port))
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind(("127.0.0.1", sshd.port))
        sshd.start()
