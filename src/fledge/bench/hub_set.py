"""A workload from a Hugging Face data set: `dataset:NAME,split=test,config=main,field=question,count=40`."""

from __future__ import annotations

from itertools import islice

from fledge.bench.workloads import Prompt, Workload
from fledge.data.sources.base import Record
from fledge.data.sources.opening import open_source
from fledge.data.sources.options import SourceOptions
from fledge.errors import DataError

_COUNT = 40
_KEYS = ("split", "config", "field", "revision", "count")


def hub_workload(text: str) -> Workload:
    """The user turns of a data set's first usable rows; `text` is what follows `dataset:`."""
    path, *settings = text.split(",")
    given = dict(setting.partition("=")[::2] for setting in settings)
    unknown = sorted(set(given) - set(_KEYS))
    count = given.pop("count", str(_COUNT))
    if not path or unknown or not all(given.values()) or not count.isdigit() or int(count) < 1:
        raise DataError(
            f"dataset:{text} can't be read; write dataset:NAME,count=40 with any of {', '.join(_KEYS)} as key=value"
        )
    # Prompts to measure with are never trained on, so no terms of training apply.
    options = SourceOptions.model_validate(
        {"kind": "dataset", "path": path, "training_allowed": True, **given}
    )
    source = open_source(options)
    records = (record for record in source.records() if isinstance(record, Record))
    prompts = tuple(
        Prompt(str(record.row), record.category, record.turns) for record in islice(records, int(count))
    )
    if not prompts:
        raise DataError(f"no row of {path} has a user's turn; name the column with field=")
    return Workload(source.name, prompts)
