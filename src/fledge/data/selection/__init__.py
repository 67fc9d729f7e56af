"""Selection of the sources' prompts: deduplicated, matched to traffic, mixed by weight, in bounded memory."""

from fledge.data.selection.duplicates import DuplicateFinder
from fledge.data.selection.matching import TrafficModel, distance
from fledge.data.selection.quotas import share_out
from fledge.data.selection.select import PoolSource, Selected, select_prompts

__all__ = [
    "DuplicateFinder",
    "PoolSource",
    "Selected",
    "TrafficModel",
    "distance",
    "select_prompts",
    "share_out",
]
