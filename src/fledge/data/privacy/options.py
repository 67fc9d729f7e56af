"""Privacy options of a recipe. The field descriptions are the documentation."""

from __future__ import annotations

import hashlib
import json
import re
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from fledge.base.options import RecipePart
from fledge.data.privacy import entities

# Raise when a change of rules changes findings, so that old outputs aren't mixed with new ones.
RULES_VERSION = 15

Policy = Literal["drop", "redact", "surrogate"]
EntityName = Annotated[str, Field(pattern=r"^[A-Z][A-Z0-9_]*$")]


class CustomPattern(RecipePart):
    """A user-defined recogniser: a regular expression, optionally restricted to the vicinity of certain words."""

    entity: EntityName = Field(description="entity name of a match, in capitals such as EMPLOYEE_ID")
    regex: str = Field(
        min_length=1, description="Python regular expression; its group 1, if any, is the value"
    )
    near: tuple[str, ...] = Field(
        (), description="one of these words must stand within 50 characters before the match; empty: none"
    )
    score: float = Field(0.9, gt=0.0, le=1.0, description="confidence of a match")

    @field_validator("regex")
    @classmethod
    def _regex_compiles(cls, regex: str) -> str:
        try:
            pattern = re.compile(regex)
        except re.error as error:
            raise ValueError(f"not a regular expression: {error}") from error
        if pattern.match(""):
            raise ValueError("the regular expression matches the empty text; make it require something")
        return regex


class DenyList(RecipePart):
    """Words that are always personal data, in any context."""

    entity: EntityName = Field(description="entity name of a match")
    words: tuple[Annotated[str, Field(min_length=2)], ...] = Field(
        min_length=1, description="found as whole words in any case"
    )


class NerModel(RecipePart):
    """A model that finds names and places, run in addition to the rules; it must be installed."""

    kind: Literal["spacy", "gliner", "transformers", "presidio"] = Field(
        description="the library that runs it; presidio: an engine of its own, such as stanza's"
    )
    model: str = Field(
        min_length=1,
        description="installed spaCy package, folder or hub id; of presidio its engine's YAML file",
    )
    threshold: float | None = Field(
        None, ge=0.0, le=1.0, description="least score that counts, of gliner and transformers; null: 0.5"
    )

    @model_validator(mode="after")
    def _only_some_have_scores(self) -> NerModel:
        if self.kind in ("spacy", "presidio") and self.threshold is not None:
            raise ValueError(f"{self.kind} gives its findings no score of its own; leave the threshold out")
        return self


class CloudDlp(RecipePart):
    """Google Cloud DLP in addition to the local rules; every text is sent there."""

    project: str = Field(min_length=1, description="Google Cloud project that is billed")
    location: str = Field("global", min_length=1, description="processing location, such as europe-west1")
    min_likelihood: Literal["POSSIBLE", "LIKELY", "VERY_LIKELY"] = Field(
        "LIKELY", description="least likelihood that counts"
    )


class PrivacyOptions(RecipePart):
    """Personal data: what to search for in prompts and answers, and how to treat it."""

    enabled: bool | None = Field(
        None,
        description="true, false, or null: on for prompts from datasets and logs and the answers to them, off "
        "for prompts the target wrote itself",
    )
    policy: Policy = Field(
        "surrogate",
        description="drop the record, redact to a placeholder such as `<PERSON>`, or put an invented value there",
    )
    policies: dict[EntityName, Policy] = Field(
        default={}, description="policy of single entities, such as {API_KEY: drop}"
    )
    entities: tuple[EntityName, ...] | None = Field(
        None, description="entities to look for; null: all but ORGANIZATION"
    )
    threshold: float = Field(0.5, gt=0.0, le=1.0, description="least score that counts")
    seed: int = Field(0, ge=0, description="seed of the invented values")
    patterns: tuple[CustomPattern, ...] = Field(
        (), description="recognisers of one's own: entity, regex, near"
    )
    deny: tuple[DenyList, ...] = Field((), description="words that are always found: entity, words")
    allow: tuple[Annotated[str, Field(min_length=1)], ...] = Field(
        (), description="values that are never personal data, in any case, such as the company's own name"
    )
    ner: tuple[NerModel, ...] = Field((), description="models beside the rules: kind, model, threshold")
    cloud_dlp: CloudDlp | None = Field(
        None,
        description="Google Cloud DLP beside the rules: project, location, min_likelihood; sends all texts",
    )
    uncovered: Literal["keep", "drop", "needs_ner"] = Field(
        "keep",
        description="prompts in a language whose names the rules don't cover: keep and count them, drop them, or drop "
        "them unless there is a model under `ner`",
    )
    answers: bool = Field(
        True, description="scan the target's answers too; a conversation with a finding is dropped"
    )
    answer_entities: tuple[EntityName, ...] | None = Field(
        None,
        description="entities to scan answers for; null: as in prompts, but for PERSON, LOCATION and ORGANIZATION, "
        "which an answer may name of its own knowledge",
    )
    processes: int = Field(
        1, ge=1, description="processes that scan the rows of sources; the result is the same"
    )

    @property
    def known_entities(self) -> tuple[str, ...]:
        """All entities these options can find, custom ones included."""
        return tuple(dict.fromkeys((*entities.ALL, *self._custom)))

    @property
    def _custom(self) -> list[str]:
        return [*(pattern.entity for pattern in self.patterns), *(listed.entity for listed in self.deny)]

    @property
    def wanted(self) -> frozenset[str]:
        """The entities to search for."""
        if self.entities is not None:
            return frozenset(self.entities)
        return frozenset(self.known_entities) - {entities.ORGANIZATION}

    @field_validator("policies", "entities", "answer_entities")
    @classmethod
    def _nothing_twice(cls, value: object) -> object:
        if isinstance(value, tuple) and (not value or len(set(value)) < len(value)):
            raise ValueError("name at least one entity, and each once")
        return value

    def model_post_init(self, context: object) -> None:
        supported = self.known_entities
        named = {*(self.entities or ()), *(self.answer_entities or ()), *self.policies}
        unknown = sorted(named - set(supported))
        if unknown:
            raise ValueError(f"unknown entity {', '.join(unknown)}; use {', '.join(supported)}")
        unsought = sorted({*self.policies, *self._custom} - self.wanted)
        if unsought:
            raise ValueError(
                f"{', '.join(unsought)} would not be looked for; name it in `entities`, or leave it out"
            )
        if any(pattern.score < self.threshold for pattern in self.patterns):
            raise ValueError("a pattern whose score is below `threshold` would never count; raise its score")

    @property
    def answer_wanted(self) -> frozenset[str]:
        """The entities that answers are scanned for."""
        if self.answer_entities is not None:
            return frozenset(self.answer_entities)
        return self.wanted - {entities.PERSON, entities.LOCATION, entities.ORGANIZATION}

    def fingerprint_parts(self) -> dict[str, Any]:
        """Options that a stage's output depends on: everything except the number of processes, plus the rules' version.

        Listed words may be private themselves, so they are represented by a checksum.
        """
        shown = self.model_dump(mode="json", exclude={"processes", "enabled", "deny", "allow"})
        lists = json.dumps(self.model_dump(mode="json", include={"deny", "allow"}), sort_keys=True)
        return shown | {"lists": hashlib.sha256(lists.encode()).hexdigest(), "rules": RULES_VERSION}

    def applies(self, *, foreign: bool) -> bool:
        """True if texts are treated; `foreign`: written by people rather than by the target."""
        return foreign if self.enabled is None else self.enabled
