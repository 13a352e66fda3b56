"""Where a proxy listens, and what address callers are told."""

from __future__ import annotations

NODE = "node"
"""The `proxy.host` that stands for the node's own address."""

EVERY_ADDRESS = ("0.0.0.0", "::", "")


def addresses(host: str) -> tuple[str, str]:
    """The address to listen on and the one that callers are told, of a `proxy.host`.

    The node's own address is the one that Ray takes for it, also where no cluster runs.
    """
    if host != NODE and host not in EVERY_ADDRESS:
        return host, host
    import ray

    own = str(ray.util.get_node_ip_address())  # type: ignore[no-untyped-call]
    return (own if host == NODE else host), own
