"""A load generator for any OpenAI-compatible streaming server.

options.py   what is sent, and how hard         drive.py     the closed loop
client.py    one streamed request, timed        metrics.py   percentiles, throughput
counters.py  the server's counters of drafts results.py   the files, and comparisons
servers.py   the servers by name                run.py       all servers and levels, in alternation

Results are read without the package aiohttp, which sends the requests: import what sends from its own file.
"""

from typing import TYPE_CHECKING

from fledge.base.lazy import on_first_use

if TYPE_CHECKING:
    from fledge.bench.load.options import LoadOptions as LoadOptions
    from fledge.bench.load.results import LoadResult as LoadResult
else:
    __getattr__ = on_first_use(__name__)
