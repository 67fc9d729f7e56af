"""Fair scheduling: clients take turns, and each client's requests stay in order.

client a   a1 a2 a3 ... a900          taken:  a1 b1 a2 b2 a3 a4 ...
client b   b1 b2                      a client with a thousand requests doesn't block another
"""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import Generic, TypeVar

Item = TypeVar("Item")


class FairQueue(Generic[Item]):
    """A queue per client, served in turns. Not thread-safe; its owner holds the lock."""

    def __init__(self) -> None:
        self._queues: OrderedDict[str, deque[Item]] = OrderedDict()
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def push(self, client: str, item: Item) -> None:
        """Append an item to the client's queue."""
        self._queues.setdefault(client, deque()).append(item)
        self._size += 1

    def take(self, limit: int) -> list[Item]:
        """Up to `limit` items; the clients they come from move to the back."""
        taken: list[Item] = []
        while len(taken) < limit and self._queues:
            client, items = self._queues.popitem(last=False)
            taken.append(items.popleft())
            if items:
                self._queues[client] = items
        self._size -= len(taken)
        return taken

    def remove(self, client: str, item: Item) -> bool:
        """Remove an item; False if it isn't queued."""
        items = self._queues.get(client)
        if items is None or item not in items:
            return False
        items.remove(item)
        self._size -= 1
        if not items:
            del self._queues[client]
        return True

    def clear(self) -> list[Item]:
        """Remove and return all items."""
        return self.take(self._size)
