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
from http.cookies import CookieError, SimpleCookie
from urllib.parse import parse_qsl, urlencode

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
        scope = {**scope, "path": path.removeprefix(root)}
        send = _with_headers(send, root)
        refusal = self._judge(scope) if path.startswith(f"{root}/") else self._judge_host(scope) or _unknown()
        if refusal is not None:
            await refusal(scope, receive, send)
        else:
            await self._app(scope, _limited(receive), send)

    def _judge(self, scope: Scope) -> Response | None:
        return self._judge_host(scope) or self._admit(scope, _headers(scope))

    def _judge_host(self, scope: Scope) -> Response | None:
        headers = _headers(scope)
        host = headers.get("host", "")
        if host not in self._access.hosts:
            return _refused(421, "wrong host name: open the link that fcctl ui printed")
        origin, site = headers.get("origin"), headers.get("sec-fetch-site", "none")
        if origin is not None and origin != f"http://{host}":
            return _refused(403, "requests from another origin are refused")
        if site not in ("none", "same-origin") and scope["path"] != "/":
            return _refused(403, "requests from another site are refused")
        return None

    def _admit(self, scope: Scope, headers: dict[str, str]) -> Response | None:
        query = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        code = next((value for name, value in query if name == PARAMETER), None)
        known = hmac.compare_digest(_cookie(headers, self._access.cookie).encode(), self._access.session.encode())
        if code is not None and scope["method"] == "GET":
            rest = urlencode([pair for pair in query if pair[0] != PARAMETER])
            there = RedirectResponse(_local(scope["path"]) + (f"?{rest}" if rest else ""), 303)
            if self._access.redeem(code):
                there.set_cookie(
                    self._access.cookie, self._access.session, httponly=True, samesite="lax", path=self._access.root
                )
                return there
            return there if known else _refused(403, "this link was already used: fcctl ui printed a new one")
        if known:
            return None
        return _unknown()


def _unknown() -> Response:
    return _refused(401, "open the link that fcctl ui printed in its terminal; each link opens one browser")


def _headers(scope: Scope) -> dict[str, str]:
    return {k.decode("latin-1"): v.decode("latin-1") for k, v in scope["headers"]}


def _cookie(headers: dict[str, str], name: str) -> str:
    try:
        found = SimpleCookie(headers.get("cookie", "")).get(name)
    except CookieError:
        return ""
    return found.value if found else ""


def _local(path: str) -> str:
    """``path`` as a redirect's target: never ``//elsewhere``."""
    return "/" + path.lstrip("/\\")


def _refused(status: int, said: str) -> Response:
    return PlainTextResponse(f"{said}\n", status)


def _with_headers(send: Send, root: str) -> Send:
    """Also puts ``root`` in front of the path of a redirect."""

    async def wrapped(message: Message) -> None:
        if message["type"] == "http.response.start":
            given = [(k, root.encode() + v if k == b"location" else v) for k, v in message["headers"]]
            there = {name for name, _ in given}
            more = [(k.encode(), v.encode()) for k, v in HEADERS.items() if k.encode() not in there]
            message["headers"] = [*given, *more]
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
