"""Who may call the daemon: the token, one-time links, sessions that may only read."""

from __future__ import annotations

from starlette.requests import Request

from tlmd.daemon.access import AccessControl, cookie_name

HOST = "127.0.0.1:8123"


def request(
    method: str = "GET", path: str = "/v1/status", query: str = "", **headers: str
) -> Request:
    named = {"host": HOST, **{name.replace("_", "-"): value for name, value in headers.items()}}
    return Request(
        {
            "type": "http",
            "method": method,
            "scheme": "http",
            "server": ("127.0.0.1", 8123),
            "path": path,
            "query_string": query.encode(),
            "headers": [(k.lower().encode(), v.encode()) for k, v in named.items()],
        }
    )


def opened(access: AccessControl) -> str:
    """The cookie header of a browser that opened a link."""
    session = access.open_session(access.make_link())
    assert session is not None
    return f"{cookie_name(request())}={session}"


def test_the_token_may_do_everything() -> None:
    access = AccessControl("secret")
    for method in ("GET", "POST"):
        assert access.allows(request(method, authorization="Bearer secret"))
        assert not access.allows(request(method, authorization="Bearer wrong"))
        assert not access.allows(request(method))
    assert not access.allows(request(query="token=secret", path="/"))


def test_a_session_may_only_read() -> None:
    access = AccessControl("secret")
    cookie = opened(access)
    assert "secret" not in cookie
    assert access.allows(request(cookie=cookie))
    assert not access.allows(request("POST", "/v1/jobs", cookie=cookie))
    assert not access.allows(request("POST", "/v1/jobs", cookie=cookie, content_type="text/plain"))


def test_a_page_of_another_port_or_name_is_refused() -> None:
    access = AccessControl("secret")
    cookie = opened(access)
    bearer = "Bearer secret"
    for origin in ("http://127.0.0.1:9999", "https://evil.example", "null"):
        assert not access.allows(request(cookie=cookie, origin=origin))
        assert not access.allows(request("POST", authorization=bearer, origin=origin))
    assert access.allows(request(cookie=cookie, origin=f"http://{HOST}"))
    assert not access.allows(request(authorization=bearer, host="evil.example:8123"))


def test_a_link_opens_one_session_within_ten_minutes() -> None:
    now = [0.0]
    access = AccessControl("secret", lambda: now[0])
    link = access.make_link()
    assert access.open_session(link) is not None and access.open_session(link) is None
    old = access.make_link()
    now[0] = 601.0
    assert access.open_session(old) is None and access.open_session("") is None


def test_the_oldest_sessions_are_forgotten() -> None:
    access = AccessControl("secret")
    first = opened(access)
    for _ in range(100):
        last = opened(access)
    assert not access.allows(request(cookie=first)) and access.allows(request(cookie=last))
