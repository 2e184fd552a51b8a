"""What rsync starts in place of ssh: hands its own standard input and output to the controller and waits.

Runs as ``python -I -S rsync_shim.py SOCKET HOST rsync --server ...`` and imports little. The controller moves the bytes
to and from a channel of its connection; the answer, one byte, is the exit status."""

from __future__ import annotations

import json
import socket
import struct
import sys


def main() -> int:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as controller:
        controller.connect(sys.argv[1])
        words = json.dumps(sys.argv[3:]).encode() + b"\n"
        descriptors = (socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack("2i", 0, 1))
        sent = controller.sendmsg([words], [descriptors])
        controller.sendall(words[sent:])
        status = controller.recv(1)
    return status[0] if status else 255


if __name__ == "__main__":
    sys.exit(main())
