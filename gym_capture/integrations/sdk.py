"""Ready-made clients of the providers' SDKs, whose calls are captured: at a proxy, or in this process."""

from __future__ import annotations

import importlib
import os
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any
from urllib.request import getproxies

from gym_capture.errors import MissingExtra
from gym_capture.extras import how_to_install

if TYPE_CHECKING:
    from anthropic import AsyncAnthropic
    from openai import AsyncOpenAI

    from gym_capture.client.rollout import RolloutHandle

NO_KEY = "not-needed"
"""The API key of a client that talks to a proxy and has been given none."""


def openai_client(
    base_url: str | None, rollout: RolloutHandle, /, *, non_generating: Sequence[str] = (), **kwargs: Any
) -> AsyncOpenAI:
    """An `openai.AsyncOpenAI` whose model calls are captured for a rollout. Close it, or use it with `async with`.

    Args:
        base_url: the capturing proxy's URL with the rollout in it (`http://…/ng-rollout/<token>`), without `/v1`; None:
            the provider is called directly, and calls are captured in this process.
        rollout: whom they belong to; calls through the proxy are counted there as issued.
        non_generating: further requests that call no model, `/v1/embeddings` say; a proxy goes by its own.
        kwargs: anything else that `AsyncOpenAI` takes, but `http_client`.

    Raises:
        MissingExtra: openai is not installed.
        TypeError: `http_client` was given.
    """
    sdk = _sdk("openai")
    given = {**kwargs, "http_client": _http_client(sdk, base_url, rollout, non_generating, kwargs)}
    if base_url is not None:
        given["base_url"] = f"{base_url.rstrip('/')}/v1"
        if not os.environ.get("OPENAI_API_KEY"):
            given.setdefault("api_key", NO_KEY)
    client: AsyncOpenAI = sdk.AsyncOpenAI(**given)
    return client


def anthropic_client(
    base_url: str | None, rollout: RolloutHandle, /, *, non_generating: Sequence[str] = (), **kwargs: Any
) -> AsyncAnthropic:
    """An `anthropic.AsyncAnthropic` whose model calls are captured for a rollout; see `openai_client`.

    Raises:
        MissingExtra: anthropic is not installed.
        TypeError: `http_client` was given.
    """
    sdk = _sdk("anthropic")
    given = {**kwargs, "http_client": _http_client(sdk, base_url, rollout, non_generating, kwargs)}
    if base_url is not None:
        given["base_url"] = base_url.rstrip("/")
        if not (
            os.environ.get("ANTHROPIC_API_KEY") or os.environ.get("ANTHROPIC_AUTH_TOKEN") or "auth_token" in kwargs
        ):
            given.setdefault("api_key", NO_KEY)
    client: AsyncAnthropic = sdk.AsyncAnthropic(**given)
    return client


def _sdk(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise MissingExtra(
            f"the {name} package is not installed, so there is no client of it; {how_to_install(name)}"
        ) from error


def _http_client(
    sdk: Any, base_url: str | None, rollout: RolloutHandle, non_generating: Sequence[str], kwargs: dict[str, Any]
) -> Any:
    """The SDK's own kind of HTTP client, over a transport of ours."""
    if "http_client" in kwargs:
        raise TypeError(
            "this client brings its own http_client. To bring yours, make the SDK's client yourself: with base_url set "
            "to the session's, or over gym_capture.integrations.httpx.AsyncCaptureTransport(rollout, inner=…)"
        )
    kind = sdk.DefaultAsyncHttpxClient
    library = next(base.__module__ for base in kind.__mro__ if base.__module__.startswith("httpx")).partition(".")[0]
    http, ours = importlib.import_module(library), importlib.import_module(f"gym_capture.integrations.{library}")
    limits = sdk.DEFAULT_CONNECTION_LIMITS
    if base_url is not None:
        # The proxy is near: what the environment names for the way out is not on the way to it.
        sending = http.AsyncHTTPTransport(verify=_tls(library), limits=limits, trust_env=False)
        return kind(transport=ours.CountingTransport(rollout, sending))

    def capturing(proxy: str | None) -> Any:
        sending = http.AsyncHTTPTransport(verify=_tls(library), limits=limits, proxy=proxy)
        return ours.AsyncCaptureTransport(rollout, sending, non_generating=non_generating)

    return kind(transport=capturing(None), mounts=_mounts(capturing))


@cache
def _tls(library: str) -> Any:
    """The library's default certificates, read once a process: that takes 50 ms, and each rollout may have a client."""
    return importlib.import_module(library).create_ssl_context()


def _mounts(capturing: Any) -> dict[str, Any]:
    """Transports for the proxies that the environment names; one of ours would hide them from the HTTP client."""
    named = getproxies()
    mounts = {f"{scheme}://": capturing(named[scheme]) for scheme in ("http", "https", "all") if named.get(scheme)}
    for host in (each.strip().lstrip(".") for each in named.get("no", "").split(",")):
        if host == "*":
            return {}
        if host and mounts:
            plain = capturing(None)
            mounts |= {f"all://{host}": plain, f"all://*.{host}": plain}
    return mounts


__all__ = ["anthropic_client", "openai_client"]
