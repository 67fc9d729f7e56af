"""fledge compared with other engines: same weights, same prompts, same number of tokens, in alternation.

catalogue.py  the engines      workers/   a script per engine, run by the engine's own Python
run.py        all of them in turn          table.py   the table
"""

from benchmarks.peers.run import PeerOptions, PeersFound, run_peers

__all__ = ["PeerOptions", "PeersFound", "run_peers"]
