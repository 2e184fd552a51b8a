"""Who may ask the dashboard for anything.

It listens on loopback, where every program of the machine and every page in any of its browsers can reach it. So:

* the ``Host`` must be this server's own, or a name that an attacker points at 127.0.0.1 would read along;
* an ``Origin``, where a browser sends one, must be this server's own, and ``Sec-Fetch-Site`` must not be another site;
* nothing is answered without the session's cookie, which a link on the terminal sets once (as Jupyter's does);
* all pages are below a path that only the link's browser knows: a browser sends its cookies to every port of a host, so
  that another server on 127.0.0.1 would get this one, too, were it not for this path only;
* what changes something is a POST with the token of this start, which only our own pages hold.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from urllib.parse import urlencode

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

#: Pages hold no inline script or style, and load nothing but this server's own.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self';"
    " form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",  # with no-referrer, browsers send forms with the origin null
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}
MAX_BODY_BYTES = 64 * 1024
PARAMETER = "token"


@dataclass
class Access:
    """The secrets of one start. ``announce`` hears the link for the next browser when one has been used."""

    port: int
    announce: Callable[[str], None] = lambda _: None
    #: All paths begin so.
    root: str = field(default_factory=lambda: f"/{secrets.token_urlsafe(16)}")
    session: str = field(default_factory=lambda: secrets.token_urlsafe(32))
    action: str = field(default_factory=lambda: secrets.token_urlsafe(32))
    _code: str = field(default_factory=lambda: secrets.token_urlsafe(32))

    @property
    def link(self) -> str:
        """Opens the dashboard in one browser, once."""
        return f"http://127.0.0.1:{self.port}{self.root}/?{PARAMETER}={self._code}"

    @property
    def cookie(self) -> str:
        """Cookies know no ports: two dashboards on one machine need two names."""
        return f"fcctl_{self.port}"

    @property
    def hosts(self) -> frozenset[str]:
        return frozenset(f"{name}:{self.port}" for name in ("127.0.0.1", "localhost", "[::1]"))

    def redeem(self, code: str) -> bool:
        """Whether ``code`` is the link's; it is good for one browser."""
        if not hmac.compare_digest(code.encode(), self._code.encode()):
            return False
        self._code = secrets.token_urlsafe(32)
        self.announce(self.link)
        return True

    def may_act(self, token: str) -> bool:
        return hmac.compare_digest(token.encode(), self.action.encode())


class Guard:
    """The outermost layer: nothing behind it sees a request that is not to be answered."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app = app
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":  # no WebSocket here
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return
        root, path = self._access.root, scope["path"]
        inside, request = path.startswith(f"{root}/"), Request({**scope, "path": path.removeprefix(root)})
        refusal = self._judge(request) or (self._admit(request) if inside else _unknown())
        await (refusal or self._app)(request.scope, _limited(receive), _with_headers(send, root))

    def _judge(self, request: Request) -> Response | None:
        headers = request.headers
        host = headers.get("host", "")
        if host not in self._access.hosts:
            return _refused(421, "wrong host name: open the link that fcctl ui printed")
        if headers.get("origin", f"http://{host}") != f"http://{host}":
            return _refused(403, "requests from another origin are refused")
        if headers.get("sec-fetch-site", "none") not in ("none", "same-origin") and request.scope["path"] != "/":
            return _refused(403, "requests from another site are refused")
        return None

    def _admit(self, request: Request) -> Response | None:
        code = request.query_params.get(PARAMETER)
        given = request.cookies.get(self._access.cookie, "")
        known = hmac.compare_digest(given.encode(), self._access.session.encode())
        if code is None or request.method != "GET":
            return None if known else _unknown()
        rest = urlencode([pair for pair in request.query_params.multi_items() if pair[0] != PARAMETER])
        there = RedirectResponse(_local(request.scope["path"]) + (f"?{rest}" if rest else ""), 303)
        if self._access.redeem(code):
            there.set_cookie(
                self._access.cookie, self._access.session, httponly=True, samesite="lax", path=self._access.root
            )
            return there
        return there if known else _refused(403, "this link was already used: fcctl ui printed a new one")


def _unknown() -> Response:
    return _refused(401, "open the link that fcctl ui printed in its terminal; each link opens one browser")


def _local(path: str) -> str:
    """``path`` as a redirect's target: never ``//elsewhere``."""
    return "/" + path.lstrip("/\\")


def _refused(status: int, said: str) -> Response:
    return PlainTextResponse(f"{said}\n", status)


def _with_headers(send: Send, root: str) -> Send:
    """Also puts ``root`` in front of the path of a redirect."""

    async def wrapped(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            if "location" in headers:
                headers["location"] = root + headers["location"]
            for name, value in HEADERS.items():
                headers.setdefault(name, value)
        await send(message)

    return wrapped


def _limited(receive: Receive) -> Receive:
    """A body is a small form or nothing."""
    seen = 0

    async def wrapped() -> Message:
        nonlocal seen
        message = await receive()
        seen += len(message.get("body", b""))
        if seen > MAX_BODY_BYTES:
            return {"type": "http.disconnect"}
        return message

    return wrapped
