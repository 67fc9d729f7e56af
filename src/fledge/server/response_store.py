"""Responses that clients may go on from, read again or delete, in memory; the oldest are forgotten for new ones."""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple

from fledge.server import errors
from fledge.server.errors import ApiError
from fledge.server.render import Json

_MOST_BYTES = 32 << 20  # of requests and answers


class StoredResponse(NamedTuple):
    """A response, and the conversation that it ends."""

    response: Json
    messages: list[Json]  # without instructions
    size: int  # bytes of JSON that led here: of this request and its answer, and of the earlier ones


class ResponseStore:
    """Each client sees its own responses only."""

    def __init__(self) -> None:
        self._stored: OrderedDict[tuple[str, str], StoredResponse] = OrderedDict()
        self._items: dict[tuple[str, str], Json] = {}  # of all outputs, by client and id
        self._bytes = 0

    def find(self, client: str, response_id: str) -> StoredResponse | None:
        """A response of this client; None if it isn't there."""
        stored = self._stored.get((client, response_id))
        if stored is not None:
            self._stored.move_to_end((client, response_id))
        return stored

    def earlier(self, client: str, response_id: str | None) -> StoredResponse | None:
        """The response that a request continues; an ApiError if it isn't stored."""
        stored = None if response_id is None else self.find(client, response_id)
        if stored is None and response_id is not None:
            raise errors.invalid(
                "previous_response_id names no response that this server has kept; send the conversation as input",
                "previous_response_id",
                "previous_response_not_found",
            )
        return stored

    def get(self, client: str, response_id: str) -> Json:
        """A response as it was sent; an ApiError if it isn't there."""
        stored = self.find(client, response_id)
        if stored is None:
            raise _not_found()
        return stored.response

    def item(self, client: str, item_id: str) -> Json:
        """An item of a response's output; an ApiError if it isn't there."""
        item = self._items.get((client, item_id))
        if item is None:
            raise errors.invalid(
                "input refers to an item that this server has not kept; send the item", "input"
            )
        return item

    def delete(self, client: str, response_id: str) -> None:
        """Forget a response; an ApiError if it isn't there. Conversations that went on from it stay."""
        if (client, response_id) not in self._stored:
            raise _not_found()
        self._forget(client, response_id)

    def keep(self, client: str, response_id: str, stored: StoredResponse) -> None:
        """Keep a response, if its conversation isn't too long."""
        if stored.size > _MOST_BYTES:
            return
        self._stored[client, response_id] = stored
        self._items |= {(client, item["id"]): item for item in stored.response.get("output", ())}
        self._bytes += stored.size
        while self._bytes > _MOST_BYTES:
            self._forget(*next(iter(self._stored)))

    def _forget(self, client: str, response_id: str) -> None:
        stored = self._stored.pop((client, response_id))
        for item in stored.response.get("output", ()):
            del self._items[client, item["id"]]
        self._bytes -= stored.size


def _not_found() -> ApiError:
    return ApiError(
        404,
        "this server has no response of this id; it keeps the latest ones, in memory",
        param="response_id",
        code="response_not_found",
    )
