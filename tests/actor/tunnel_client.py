"""A client's side of the tunnel by hand: messages as a test wants them."""

from __future__ import annotations

from gym_capture.actor.tunnel import Message
from gym_capture.model.endpoint import Endpoint
from gym_capture.model.messages import PREFIX_BYTES, PROTOCOL_VERSION, Batch, FromClient, Hello, encode_message
from gym_capture.model.rows import ClaimRow, ClientRow, ReleaseRow


class Says:
    """Numbers batches and encodes what one client says."""

    def __init__(self, endpoint: Endpoint, client: bytes = b"\xab" * 16) -> None:
        self._endpoint = endpoint
        self._client = client
        self._batch = 0

    def hello(self) -> list[Message]:
        """The first message."""
        return [_message(Hello(PROTOCOL_VERSION, "test", self._endpoint.token, "", self._client, [], "a test"))]

    def claim(self, rollout_id: str, number: int) -> list[Message]:
        """A batch of one claim."""
        return self._rows(ClaimRow(rollout_id, number))

    def release(self, rollout_id: str, number: int) -> list[Message]:
        """A batch that releases it."""
        return self._rows(ReleaseRow(rollout_id, number))

    def _rows(self, row: ClientRow) -> list[Message]:
        self._batch += 1
        return [_message(Batch(self._batch, 0, [row]))]


def _message(message: FromClient) -> Message:
    return bytes(encode_message(message)[0])[PREFIX_BYTES:], b""
