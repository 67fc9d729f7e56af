"""A load generator for any OpenAI-compatible streaming server.

options.py   what is sent, and how hard         drive.py     closed loop, Poisson, replayed traffic
client.py    one streamed request, timed        metrics.py   percentiles, throughput, goodput
counters.py  the server's counters of drafts results.py   the files, and comparisons
servers.py   running servers, or started ones   run.py       all servers and levels, in alternation
"""

from fledge.bench.load.drive import read_traffic
from fledge.bench.load.options import LoadOptions, Objective
from fledge.bench.load.results import LoadResult
from fledge.bench.load.run import run_load
from fledge.bench.load.servers import parse_servers

__all__ = [
    "LoadOptions",
    "LoadResult",
    "Objective",
    "parse_servers",
    "read_traffic",
    "run_load",
]
