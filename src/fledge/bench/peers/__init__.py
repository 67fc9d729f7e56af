"""fledge beside other engines: same weights, same prompts, same number of tokens, in alternation.

catalogue.py  which engines there are      workers/   a script per engine, run by the engine's own Python
run.py        all of them in turn          table.py   what is shown
"""

from fledge.bench.peers.run import PeerOptions, PeersFound, run_peers

__all__ = ["PeerOptions", "PeersFound", "run_peers"]
