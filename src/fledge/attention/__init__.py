"""Tree attention over a paged KV pool: the reference that defines it, and fast paths tested against it."""

from fledge.attention.batched import PagedAttention
from fledge.attention.layout import PagedRows, kv_slots, row_requests, write_slots
from fledge.attention.reference import reference_attention

__all__ = ["PagedAttention", "PagedRows", "kv_slots", "reference_attention", "row_requests", "write_slots"]
