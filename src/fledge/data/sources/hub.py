"""Rows of a Hugging Face data set: a hub name, or a folder that `datasets` can load. Streamed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from typing import Any

from fledge.base import storage
from fledge.base.errors import DataError, one_line
from fledge.data.sources.files import digest_of
from fledge.data.sources.options import SourceOptions


class HubRows:
    """A data set's rows through the `datasets` library, an optional dependency."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._dataset = _load(options)

    def rows(self, skip: int = 0) -> Iterator[Any]:
        """All rows except the first `skip`."""
        try:
            yield from self._dataset.skip(skip) if skip else self._dataset
        except Exception as error:  # the library raises whatever the loader of the format raises
            raise DataError(
                f"reading the data set {self._options.path} failed ({one_line(error)}); "
                "run again to resume, or remove the source"
            ) from error

    def digest(self) -> str:
        """Over the data set's name and options (pin a `revision`, or it can change unnoticed), and a folder's files."""
        chosen = self._options
        parts = [chosen.path, chosen.config, chosen.split, chosen.revision]
        parts += [str(self._dataset.info.version), self._dataset.info.dataset_size]
        filesystem, place = storage.resolve(chosen.path)
        if filesystem.isdir(place):
            parts.append(digest_of(filesystem, sorted(filesystem.find(place))))
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()

    @property
    def licence(self) -> str:
        """The licence the data set declares, often none."""
        return str(self._dataset.info.license or "")


def _load(options: SourceOptions) -> Any:
    try:
        import datasets
    except ImportError as error:
        raise DataError(
            f"reading the data set {options.path} needs a package: pip install 'fledge[datasets]'"
        ) from error
    try:
        if storage.exists(storage.join(options.path, "state.json")):
            return datasets.load_from_disk(options.path)  # what its `save_to_disk` wrote
        return datasets.load_dataset(
            options.path, options.config, split=options.split, revision=options.revision, streaming=True
        )
    except Exception as error:  # as above
        raise DataError(
            f"can't load the data set {options.path}, split {options.split} ({one_line(error)}); "
            "check its name, configuration, split and revision, and the connection"
        ) from error
