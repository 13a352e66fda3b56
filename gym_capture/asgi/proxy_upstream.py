"""Where the proxy forwards to: one origin, with a base path perhaps."""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import SplitResult, urlsplit

from gym_capture.errors import ConfigError

DEFAULT_PORTS = {"http": 80, "https": 443}
_PATH = re.compile(r"(/[A-Za-z0-9\-._~!$&'()*+,;=:@%]*)*")


@dataclass(frozen=True, slots=True)
class Upstream:
    """A model server's base URL.

    Args:
        scheme: `http` or `https`.
        host: name or address, IPv6 without its brackets, lower case.
        port: of the connection.
        base_path: what stands before every path; empty, or from a slash on and without one at its end.
    """

    scheme: str
    host: str
    port: int
    base_path: str

    @property
    def authority(self) -> str:
        """Host and port as a URL has them; the port is left out where it is the scheme's."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == DEFAULT_PORTS[self.scheme] else f"{host}:{self.port}"

    @property
    def url(self) -> str:
        """The base URL again, in its plainest form."""
        return f"{self.scheme}://{self.authority}{self.base_path}"

    def local_location(self, location: str) -> str:
        """A `Location` that points at the upstream, as a path at the proxy; any other one as it is.

        The base path goes, because the proxy adds it; what lies outside it cannot be reached here and stays.
        """
        try:
            target = urlsplit(location)
            inside = self._is_mine(target)
        except ValueError:
            return location
        if not inside:
            return location
        path = target.path or "/"
        if self.base_path:
            if path != self.base_path and not path.startswith(f"{self.base_path}/"):
                return location
            path = path[len(self.base_path) :] or "/"
        if path.startswith("//"):
            return location  # as a reference of its own it would name another host
        query = f"?{target.query}" if target.query else ""
        fragment = f"#{target.fragment}" if target.fragment else ""
        return f"{path}{query}{fragment}"

    def _is_mine(self, target: SplitResult) -> bool:
        if not target.netloc:
            # A path from the root is one at the upstream, and changes where a base path has to go.
            return not target.scheme and bool(self.base_path) and target.path.startswith("/")
        scheme = target.scheme.lower() or self.scheme
        port = target.port or DEFAULT_PORTS.get(scheme)
        return (scheme, (target.hostname or "").lower(), port) == (self.scheme, self.host, self.port)


def parse_upstream(url: str) -> Upstream:
    """The upstream that a base URL names.

    Raises:
        ConfigError: it is not an absolute http or https URL with a host, or has a query, a fragment or credentials.
    """
    try:
        parts = urlsplit(url.strip())
        port = parts.port
    except ValueError as error:
        raise _wrong(url, str(error)) from None
    if parts.scheme.lower() not in DEFAULT_PORTS:
        raise _wrong(url, "it does not begin with http:// or https://")
    if not parts.hostname:
        raise _wrong(url, "it names no host")
    if parts.username is not None or parts.password is not None:
        raise _wrong("(not shown)", "it carries credentials; clients send theirs, and they are passed on")
    if parts.query or parts.fragment or "?" in url or "#" in url:
        raise _wrong(url, "a base URL has no query and no fragment")
    if not parts.hostname.isascii() or not re.fullmatch(r"[A-Za-z0-9._:%-]+", parts.hostname):
        raise _wrong(url, "its host has characters that a host cannot have")
    if port == 0:
        raise _wrong(url, "port 0 is none")
    base_path = parts.path.rstrip("/")
    if not _PATH.fullmatch(base_path):
        raise _wrong(url, "its path has characters that have to be percent-encoded")
    if base_path.endswith("/v1"):
        raise _wrong(url, "it ends in /v1, which every call's path brings along")
    scheme = parts.scheme.lower()
    return Upstream(scheme, parts.hostname.lower(), port or DEFAULT_PORTS[scheme], base_path)


def _wrong(url: str, why: str) -> ConfigError:
    return ConfigError(
        f"proxy.upstream is {url!r}: {why}. Nothing was started; give the model server's base URL without /v1, "
        "http://10.0.0.7:8000 say."
    )
