from __future__ import annotations

import pytest

from rollhook_browser.origins import Origin, elsewhere

ALLOWED = [Origin("http", "a.test", 80), Origin("https", "b.test", 8443), Origin("http", "::1", 81)]


@pytest.mark.parametrize(
    "url",
    [
        "http://a.test",
        "http://a.test/",
        "http://a.test?q",
        "http://a.test/x#y",
        "https://b.test:8443/",
        "http://[::1]:81/",
        "about:blank",
        "data:text/html,x",
        "blob:http://a.test/1",
    ],
)
def test_what_is_inside_passes(url: str) -> None:
    assert elsewhere(ALLOWED).match(url) is None


@pytest.mark.parametrize(
    "url",
    [
        "https://a.test/",
        "http://a.test:81/",
        "http://a.test.evil.test/",
        "http://a.test@evil.test/",
        "http://xa.test/",
        "http://evil.test/http://a.test/",
        "https://b.test/",
        "file:///etc/passwd",
        "chrome://settings",
        "view-source:http://a.test/",
        "ftp://a.test/",
        "",
    ],
)
def test_everything_else_is_elsewhere(url: str) -> None:
    assert elsewhere(ALLOWED).match(url)


@pytest.mark.parametrize(
    "url", ["", "x", "file:///a", "javascript:1", "http://", "http://a:99999/", "//a.test/"]
)
def test_no_origin_but_of_http(url: str) -> None:
    assert Origin.of(url) is None


def test_default_ports_and_case_do_not_count() -> None:
    assert Origin.of("HTTP://A.test:80/x") == Origin.of("http://a.test") == ALLOWED[0]
    assert str(ALLOWED[1]) == "https://b.test:8443"
