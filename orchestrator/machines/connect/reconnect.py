"""Opens sessions with a target's machine; calls on a host that are repeated on a new one after the connection broke."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING, TypeVar, cast

from orchestrator.base.clock import in_thread, iso, when_late
from orchestrator.base.errors import ConfigError, FcctlError, HostError, HostFault, HostUnreachable, LinkLost
from orchestrator.machines.targets import CloudTarget, LocalTarget, SandboxTarget, SshTarget, Target

if TYPE_CHECKING:
    from fcctl_remote import wire
    from orchestrator.base.clock import Clock
    from orchestrator.base.observer import Observer
    from orchestrator.machines.connect.bootstrap import RunnerArchive
    from orchestrator.machines.connect.ssh.ssh import SshTransport
    from orchestrator.machines.connect.transport import Transport
    from orchestrator.machines.interfaces import HostConnector, HostSession, MachineCache

R = TypeVar("R")

#: Waits between attempts, in seconds; the last one repeats.
BACKOFF_S = (0.2, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0)

#: A larger clock difference is reported, seconds.
CLOCK_OFF_S = 86400.0

#: A sleeping laptop that wakes has, for a while, no name service, no route and no open port. A wrong key or login
#: is not resolved by waiting.
_PASSING = frozenset({"name", "port", "timeout", "proxy"})


class Hurry:
    """For a command that queries many hosts: the time limit for each, and which did not answer: those are not queried
    again."""

    def __init__(self, seconds: float = 5.0) -> None:
        self.seconds = seconds
        self._silent: dict[str, HostError] = {}

    def within(self, target: Target, action: Callable[[], R], late: Callable[[R], None]) -> R:
        """Runs ``action`` on the host of ``target``; a result after the limit is passed to ``late``. Raises
        HostUnreachable: no answer within the limit, now or before."""
        # A run has its target as saved: the address may have changed since.
        name, host = target.name, target.model_dump_json(exclude={"env", "idle", "usd_per_hour"})
        if host in self._silent:
            raise self._silent[host]
        answer = in_thread(action, "fcctl-ask")
        try:
            return answer.result(self.seconds)
        except TimeoutError:
            when_late(answer, late)
            error: HostError = HostUnreachable(
                f"{name} did not answer within {self.seconds:g} s", reason="timeout",
                hint=f"check whether the machine is on and responds: fcctl doctor --on {name}",
            )  # fmt: skip
        except (HostUnreachable, LinkLost) as lost:
            error = lost
        self._silent[host] = error
        raise error


class ReconnectingHost:
    """Calls on one target, repeated over new sessions until :attr:`Target.reconnect_s` passed without success.

    Every call may be repeated: calls are idempotent by run id, content or offset. The first connection is not retried.
    """

    def __init__(
        self, hosts: HostConnector, target: Target, clock: Clock, observer: Observer, hurry: Hurry | None = None
    ) -> None:
        self.target = target
        #: A limit for connecting and :meth:`ask` in place of the target's.
        self.hurry = hurry
        #: Called after each failed attempt to reconnect; they raise to stop the attempts.
        self.doubts: list[Callable[[], None]] = []
        self._host_ahead_s = 0.0
        self._hosts = hosts
        self._clock = clock
        self._observer = observer
        self._session: HostSession | None = None
        self._opening: Future[HostSession] | None = None

    def __enter__(self) -> ReconnectingHost:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def open_soon(self) -> None:
        """Begin to connect in the background, while the caller loads the job and reads the source."""
        if self._session is None and self._opening is None:
            self._opening = in_thread(self._connect, "fcctl-connect")

    def _connect(self) -> HostSession:
        session = self._hosts.connect(self.target)
        self._host_ahead_s = session.hello.time - self._clock.now()
        if abs(self._host_ahead_s) > CLOCK_OFF_S:
            self._observer.note(
                f"the clock of {self.target.name} is wrong: it shows {iso(session.hello.time)}; times and limits of "
                f"runs on it are wrong too; set it: sudo timedatectl set-ntp true"
            )
        if session.hello.mended:
            self._observer.note(f"{self.target.name}: {mended(session.hello)}")
        return session

    def opened(self) -> bool | None:
        """Whether there is a session, or (None) it is still being opened; False if that failed."""
        if self._session is not None:
            return True
        if self._opening is None:
            return False
        if not self._opening.done():
            return None
        return self._opening.exception() is None

    def session(self) -> HostSession:
        """The live session, connecting first if there is none."""
        if self._session is None:
            opening, self._opening = self._opening, None
            if self.hurry is not None:
                self._session = self.hurry.within(self.target, self._connect, lambda late: late.close())
            else:
                self._session = opening.result() if opening else self._connect()
        return self._session

    def host_now(self) -> float:
        """The time on the host's clock, epoch seconds."""
        self.session()
        return self._clock.now() + self._host_ahead_s

    def ask(self, action: Callable[[HostSession], R]) -> R:
        """:meth:`call` for a query, within the limit of :attr:`hurry`. Raises HostUnreachable, LinkLost: there is no
        answer in time."""
        if self.hurry is None:
            return self.call(action)
        session, self._session = self._session, None  # owned by the thread until it answers

        def asked() -> tuple[HostSession, R | None, HostFault | None]:
            own = session or self._connect()
            try:
                return own, action(own), None
            except HostFault as refused:
                return own, None, refused
            except BaseException:
                own.close()
                raise

        self._session, answer, refused = self.hurry.within(self.target, asked, lambda late: late[0].close())
        if refused is not None:
            raise refused
        return cast("R", answer)

    def call(self, action: Callable[[HostSession], R]) -> R:
        """``action`` on the live session; on a broken link, on the next one. Raises LinkLost: the host stayed away for
        ``reconnect_s``."""
        try:
            return action(self.session())
        except LinkLost as lost:
            return self._again(action, lost)

    def _again(self, action: Callable[[HostSession], R], lost: FcctlError) -> R:
        deadline = self._clock.monotonic() + self.target.reconnect_s
        attempt = 0
        self._observer.note(f"lost the connection to {self.target.name} ({lost.cause or lost.message}); reconnecting")
        while True:
            self.close()
            wait = BACKOFF_S[min(attempt, len(BACKOFF_S) - 1)]
            if self._clock.monotonic() + wait > deadline:
                raise LinkLost(
                    f"no connection to {self.target.name} for {self.target.reconnect_s:.0f} s",
                    cause=lost.cause or lost.message,
                    hint=lost.hint,
                ) from lost
            self._clock.sleep(wait)
            attempt += 1
            try:
                return action(self.session())
            except LinkLost as e:
                self._check_doubts()
                lost = e
            except HostUnreachable as e:
                self._check_doubts()
                if e.reason not in _PASSING and not (e.reason == "login" and self.doubts):
                    raise
                lost = e

    def _check_doubts(self) -> None:
        """Runs the checks for a machine that may be off; while it boots, refused logins are retried."""
        for doubt in self.doubts:
            doubt()

    def close(self) -> None:
        """End the session; the next call opens another."""
        session, self._session = self._session, None
        opening, self._opening = self._opening, None
        if opening is not None:
            when_late(opening, lambda late: late.close())
        if session is not None:
            session.close()


def mended(hello: wire.Hello) -> str:
    """Which files of the host program were damaged, and that it was installed again."""
    more = len(hello.mended) - 3
    files = ", ".join(hello.mended[:3])[:500] + (f" and {more} more" if more > 0 else "")
    return f"files of the host program were damaged on the machine's disk ({files}); fcctl installed it again"


#: What :meth:`orchestrator.machines.interfaces.Clouds.resolve` does.
Resolve = Callable[[CloudTarget | SandboxTarget], CloudTarget]


class Connector:
    """The :class:`~orchestrator.machines.interfaces.HostConnector` for machines that are on.

    Args:
        book, resolve: the machine cache, and which machine a target means; without them no cloud machine is reachable.
        may_ask: whether a login may ask for a passphrase, on a terminal.
    """

    def __init__(
        self,
        runner: Callable[[], RunnerArchive] | None = None,
        *,
        book: MachineCache | None = None,
        resolve: Resolve | None = None,
        may_ask: bool = True,
    ) -> None:
        self._make_runner = runner
        self._book = book
        self._resolve = resolve
        self._may_ask = may_ask
        self._runner: RunnerArchive | None = None
        self._making = threading.Lock()

    @staticmethod
    def load(target: Target) -> None:
        """Imports the modules for a login: if one thread imports while another connects, both are slow."""
        if not isinstance(target, LocalTarget):
            import orchestrator.machines.connect.ssh.ssh  # noqa: F401

    def prepare(self) -> None:
        """Imports and builds what a session needs after the login, while another thread connects."""
        import orchestrator.machines.connect.bootstrap  # noqa: F401

        self._archive()

    def _archive(self) -> RunnerArchive:
        from orchestrator.machines.connect.bootstrap import build_runner

        with self._making:
            self._runner = self._runner or (self._make_runner or build_runner)()
            return self._runner

    def connect(self, target: Target) -> HostSession:
        """Log in and start the host program. Raises HostUnreachable, HostUnusable, HostFault, LinkLost: see the
        port."""
        transport: Transport
        if isinstance(target, LocalTarget):
            from orchestrator.machines.connect.transport import LocalTransport

            transport = LocalTransport()
        else:
            transport = self.ssh(target)
        try:
            from orchestrator.machines.connect.bootstrap import start

            # On this machine, the controller's Python is new enough.
            python = target.python or (None if transport.remote else sys.executable)
            return start(transport, self._archive(), root=target.root, python=python, timeout_s=target.link_timeout_s)
        except BaseException:
            transport.close()
            raise

    def ssh(self, target: SshTarget | CloudTarget | SandboxTarget) -> SshTransport:
        """A login alone, without the host program. Raises HostUnreachable: see the port."""
        from orchestrator.machines.connect.ssh import ssh

        if isinstance(target, SshTarget):
            try:
                return ssh.log_in(target, may_ask=self._may_ask)
            except HostUnreachable as error:
                from orchestrator.machines.connect.ssh.terminal import compare_with_openssh

                raise compare_with_openssh(target, error) from None
        if self._book is None or self._resolve is None:
            raise ConfigError(
                f"target '{target.name}' is of kind {target.kind}, which needs a cloud, and none is configured here"
            )
        machine = self._resolve(target)
        # The cached endpoint: a warm start sends the cloud no request.
        return ssh.log_in_to_cloud(
            self._book.known(machine.project, machine.instance), target, machine.connect_timeout_s
        )
