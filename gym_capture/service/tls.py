"""TLS for the owner's stream, with the certificates that Ray itself was given."""

from __future__ import annotations

import ssl
from collections.abc import Mapping

from gym_capture.errors import ConfigError

_VARIABLES = ("RAY_TLS_SERVER_CERT", "RAY_TLS_SERVER_KEY", "RAY_TLS_CA_CERT")


def server_ssl_context(environment: Mapping[str, str]) -> ssl.SSLContext | None:
    """The context of a server whose clients show a certificate of Ray's authority; None when Ray runs without TLS.

    Args:
        environment: the process's, with Ray's variables (docs.ray.io, "TLS authentication").

    Raises:
        ConfigError: RAY_USE_TLS is set and the certificates are missing or cannot be loaded.
    """
    if environment.get("RAY_USE_TLS", "0").lower() not in ("1", "true"):
        return None
    missing = [name for name in _VARIABLES if not environment.get(name)]
    if missing:
        raise ConfigError(f"RAY_USE_TLS is set, but {', '.join(missing)} is not: set it for the owner's process.")
    certificate, key, authority = (environment[name] for name in _VARIABLES)
    try:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=authority)
        context.load_cert_chain(certificate, key)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(
            f"Ray's TLS certificates cannot be loaded ({error}): check {', '.join(_VARIABLES)}."
        ) from error
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.verify_mode = ssl.CERT_REQUIRED
    return context
