"""Origins: who a page belongs to, and so what a rollout may reach.

Invariant: two URLs have one Origin exactly when a browser says that they are of the same origin; what is
neither http nor https has none.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self
from urllib.parse import urlsplit

_PORTS = {"http": 80, "https": 443}
INNER_SCHEMES = ("data", "blob", "about")
"""Schemes whose content a page brought along itself."""


@dataclass(frozen=True, slots=True)
class Origin:
    """scheme is http or https; host is lower case, IPv6 without brackets."""

    scheme: str
    host: str
    port: int

    @classmethod
    def of(cls, url: str) -> Self | None:
        """The origin of an absolute http or https URL; None for any other text."""
        try:
            parts = urlsplit(url)
            host, port = parts.hostname, parts.port
        except ValueError:
            return None
        if parts.scheme not in _PORTS or not host:
            return None
        return cls(parts.scheme, host, _PORTS[parts.scheme] if port is None else port)

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}" + ("" if self.port == _PORTS[self.scheme] else f":{self.port}")


def elsewhere(allowed: Iterable[Origin]) -> re.Pattern[str]:
    """Matches, as Python and as JavaScript, each URL that is neither of `allowed` nor inside a page."""
    inside = [f"{scheme}:" for scheme in INNER_SCHEMES]
    origins = [re.escape(str(origin)) + "(?:[/?#]|$)" for origin in sorted(allowed, key=str)]
    return re.compile(f"^(?!{'|'.join(origins + inside)})")
