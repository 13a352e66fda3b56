"""Redirects of an app that does not know of its rollout's prefix: those to itself get it back."""

from __future__ import annotations

from urllib.parse import urlsplit

_PORTS = {"http": "80", "https": "443"}


class Redirects:
    """Where the app of one request may send its caller.

    Args:
        scheme, host: of the request, as its caller sees them.
        root: the path that the app is mounted at, without a slash at its end (`""` mostly).
        prefixed_root: the same with the rollout's prefix.
        path: the raw path that the app saw, below `root`.
    """

    def __init__(self, scheme: str, host: str, root: str, prefixed_root: str, path: str) -> None:
        self._scheme = scheme.lower()
        self._origin = _origin(self._scheme, host)
        self._root = root.rstrip("/")
        self._prefixed = prefixed_root.rstrip("/")
        self._path = path

    def follow(self, location: str) -> str | None:
        """The location with the prefix, for one within the same app; None for any other."""
        if "\\" in location or any(character <= " " for character in location):
            return None  # clients differ over what these mean
        try:
            parts = urlsplit(location)
        except ValueError:
            return None
        scheme = parts.scheme.lower()
        if scheme not in ("", self._scheme) or (scheme and not parts.netloc):
            return None
        if parts.netloc and _origin(self._scheme, parts.netloc) != self._origin:
            return None
        if parts.netloc or location.startswith("/"):
            begin = location.index("//") + 2 + len(parts.netloc) if parts.netloc else 0
            path = self._with_prefix(_without_dots(parts.path))
            if path is None:
                return None
            return location[:begin] + path + location[begin + len(parts.path) :]
        if not parts.path:
            return location
        # Relative: the caller resolves it against the path that it asked for, the app meant the one that it saw.
        beside = self._path.rpartition("/")[0] + "/" + parts.path
        expected = self._with_prefix(_without_dots(self._root + beside))
        if expected is None:
            return None
        if _without_dots(self._prefixed + beside) == expected:
            return location
        return expected + location[len(parts.path) :]

    def _with_prefix(self, path: str) -> str | None:
        if _lies_under(path, self._prefixed):
            return path
        return self._prefixed + path[len(self._root) :] if _lies_under(path, self._root) else None


def _lies_under(path: str, root: str) -> bool:
    return path.startswith(root) and path[len(root) : len(root) + 1] in ("", "/", "?", "#")


def _without_dots(path: str) -> str:
    """A path with `.` and `..` resolved: put behind a prefix they could lead out of it."""
    parts = path.split("/")
    plain = [part.lower().replace("%2e", ".") for part in parts]
    if not {".", ".."} & set(plain):
        return path
    kept: list[str] = []
    for part, meant in zip(parts[1:], plain[1:], strict=True):
        if meant == "..":
            del kept[-1:]
        elif meant != ".":
            kept.append(part)
    if plain[-1] in (".", ".."):
        kept.append("")
    return "/" + "/".join(kept)


def _origin(scheme: str, netloc: str) -> tuple[str, str]:
    """Host and port, with the port that the scheme implies left out."""
    host, colon, port = netloc.lower().rpartition(":")
    if not colon or not port.isdigit():
        host, port = netloc.lower().rstrip(":"), ""
    return host, "" if port == _PORTS.get(scheme) else port
