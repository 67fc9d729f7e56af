"""A server that learns: a draft head trained beside serving, from the serving's own hidden states.

options.py     options of a server that learns
service.py     in the server: what requests leave goes out, heads that are surely better come in
  intake.py      conversations, queued and sent; more than fits is left out
  live.py        acceptance in serving by version: a fall brings the former head back
worker.py      the process beside it: lowest priority, ends with its server
  private.py     what the privacy filter finds, masked out of the loss
  ring.py        the latest conversations in memory, a share of them held out
  student.py     steps, and measurements against the head that serves
wire.py        what the two processes say to each other
versions.py    heads on disk, each with its card
"""

from typing import TYPE_CHECKING

from fledge.base.lazy import on_first_use

if TYPE_CHECKING:
    from fledge.learn.options import LearnOptions as LearnOptions
    from fledge.learn.service import Learning as Learning
    from fledge.learn.versions import Card as Card
    from fledge.learn.versions import Versions as Versions
else:
    __getattr__ = on_first_use(__name__)
