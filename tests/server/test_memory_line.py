"""What a start says of memory."""

from __future__ import annotations

import re

from fledge.engine import Engine
from fledge.server.launch import memory_line
from fledge.target import Target


def test_the_line_has_what_is_taken_the_bound_and_the_option_that_changes_it(target: Target) -> None:
    line = memory_line(Engine(target, max_batch=2, kv_tokens=640))
    assert re.fullmatch(
        r"memory: \d+\.\d GiB; the KV pool grows by use, to at most \d+\.\d GiB \(640 tokens; --kv-tokens changes it\)",
        line,
    ), line
