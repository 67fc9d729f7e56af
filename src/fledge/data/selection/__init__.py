"""Selection of the sources' prompts: deduplicated, matched to traffic, mixed by weight, in bounded memory."""

from fledge.data.selection.duplicates import DuplicateFinder as DuplicateFinder
from fledge.data.selection.matching import TrafficModel as TrafficModel
from fledge.data.selection.matching import distance as distance
from fledge.data.selection.quotas import share_out as share_out
from fledge.data.selection.select import PoolSource as PoolSource
from fledge.data.selection.select import Selected as Selected
from fledge.data.selection.select import select_prompts as select_prompts
