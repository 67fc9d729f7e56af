"""Options of a recipe for one source of prompts."""

from __future__ import annotations

import re
from typing import Literal

from pydantic import Field, model_validator

from fledge.base.options import RecipePart

Kind = Literal["self", "file", "dataset", "log"]
ShapeName = Literal["auto", "sharegpt", "messages", "alpaca", "turns", "prompt", "request", "alternating"]
_OF_DATASETS = ("config", "split", "revision")
_NOT_OF: dict[Kind, tuple[str, ...]] = {
    "self": ("path", "shape", "field", "system", "category", "limit", *_OF_DATASETS),
    "file": _OF_DATASETS,
    "log": _OF_DATASETS,
    "dataset": (),
}
_NAME = re.compile(r"[^\w.-]+")


class SourceOptions(RecipePart):
    """One source: where it is, how to read it, its weight in the mix, and its terms."""

    kind: Kind = Field("file", description="self (the target writes), file, dataset (Hugging Face) or log")
    path: str = Field(
        "", description="file, folder, glob or fsspec URL; for a dataset its hub name or folder"
    )
    name: str = Field("", description="name in records and reports; default: made from the path")
    weight: float = Field(1.0, gt=0.0, description="share of the mix, relative to others")
    shape: ShapeName = Field("auto", description="form of the turns in a row; auto looks at the first rows")
    field: str = Field(
        "",
        description="column that holds the turns, or path such as request.body.messages, where usual names don't fit",
    )
    system: bool = Field(False, description="keep system prompts too")
    category: str = Field(
        "", description="workload of all its records; default: the row's own, else `general`"
    )
    limit: int | None = Field(None, ge=1, description="rows to read at most")
    config: str | None = Field(None, description="a dataset's configuration")
    split: str = Field("train", description="a dataset's split")
    revision: str | None = Field(None, description="a dataset's revision")
    licence: str = Field("", description="its licence: an SPDX id, `own`, or a name")
    training_allowed: bool | None = Field(
        None,
        description="true if its terms allow training a draft head; needed where the licence doesn't say",
    )

    @model_validator(mode="after")
    def _has_a_place(self) -> SourceOptions:
        if self.kind != "self" and not self.path:
            raise ValueError(f"a source of kind {self.kind} needs a path")
        if self.kind == "log" and self.shape not in ("auto", "request"):
            raise ValueError("a log's shape is always request; use kind file for another shape")
        none_of_its = _NOT_OF[self.kind]
        if wrong := [n for n in none_of_its if getattr(self, n) != type(self).model_fields[n].default]:
            raise ValueError(f"a source of kind {self.kind} has no {', '.join(wrong)}; leave it out")
        if self.shape == "turns" and self.field == "data":
            raise ValueError("the column `data` holds answers between the turns; its shape is alternating")
        return self

    @property
    def label(self) -> str:
        """The name used in records, folders and reports."""
        default = "self" if self.kind == "self" else self.path.split("://")[-1].strip("/*")
        return _NAME.sub("-", self.name or default).strip("-.") or self.kind
