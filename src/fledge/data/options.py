"""Options of a recipe for prompts and responses. The field descriptions are the documentation."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Annotated, TypeAlias

from pydantic import Field, field_validator, model_validator

from fledge.base.options import RecipePart
from fledge.data.sources.options import SourceOptions

Share = Annotated[float, Field(ge=0.0, le=1.0)]
Weight = Annotated[float, Field(ge=0.0)]

# progress(done, total, note): called often; `note` is a short text such as "941 tokens/s".
Progress: TypeAlias = Callable[[float, float, str], None]

_TEMPLATE_ROOM = 256  # tokens before a user's first word: a default system prompt
_LONGEST_OWN = 300  # words of the target's own prompts, unless the recipe says otherwise
_SHORT_PROMPTS = 1024  # tokens that a conversation may always have
_OPENING_ROOM = 128  # tokens of a shipped opening, with its words filled in


def silent(done: float, total: float, note: str) -> None:
    """The progress callback that shows nothing."""


class Opening(RecipePart):
    """A short neutral beginning of a user turn, which the target continues."""

    category: str = Field(min_length=1, description="workload the prompt counts as")
    text: str = Field(
        "",
        description="beginning of the user turn, may be empty; {name}, {object}, {topic} and the like are replaced "
        "by a word drawn from the shipped lists per prompt",
    )
    until: str | None = Field(
        default=None, min_length=1, description="text that ends the turn; a turn without it is rejected"
    )
    weight: Weight = Field(
        default=1.0, description="frequency relative to the other openings of the category"
    )


class PromptOptions(RecipePart):
    """Prompts that the target writes itself (Magpie, arXiv 2406.08464), or that are read from sources and selected."""

    count: int = Field(2000, ge=1, description="prompts wanted after filtering and selection")
    sources: tuple[SourceOptions, ...] = Field(
        (), description="where prompts come from, mixed by weight (docs/data.md); empty: the target itself"
    )
    seed: int = Field(0, ge=0, description="seed of the stage; prompt i depends on the seed and on i alone")
    temperature: float = Field(0.8, gt=0.0, le=2.0, description="sampling temperature of the user turns")
    top_p: float = Field(0.9, gt=0.0, le=1.0, description="nucleus of the user turns")
    max_tokens: int = Field(256, ge=8, description="tokens of a user turn; one cut by this limit is rejected")
    openings: tuple[Opening, ...] | None = Field(
        None, description="beginnings of user turns; null: the shipped list"
    )
    mix: dict[str, Weight] | None = Field(
        None,
        description="weight per category, to match traffic; a category left out is not used; null: shipped mix",
    )
    min_words: int = Field(4, ge=1, description="conversations with fewer words of the user are rejected")
    max_words: int | None = Field(
        None,
        ge=1,
        description="prompts with a longer turn are rejected; null: 300 for the target's own, no limit for sources",
    )
    near_repeat: Share = Field(
        0.5, description="share of 8-grams seen before from which on a prompt is a repeat"
    )
    evaluation_files: tuple[str, ...] = Field(
        (),
        description="files of evaluation prompts, of any format and shape of sources; overlapping prompts go",
    )
    near_duplicate: float = Field(
        0.7, gt=0.0, le=1.0, description="Jaccard similarity from which on prompts of sources are duplicates"
    )
    languages: tuple[str, ...] = Field(
        (), description="ISO 639-1 codes of the languages kept from sources; empty: all"
    )
    max_record_kib: int = Field(256, ge=1, description="KiB of a source's record; a larger one is rejected")
    traffic: tuple[SourceOptions, ...] = Field(
        (), description="samples of production prompts that the sources' prompts are matched to, per category"
    )
    max_attempts: float = Field(
        20.0, ge=1.0, description="attempts per prompt wanted before the stage gives up"
    )
    shard_size: int = Field(500, ge=1, description="attempts per shard, the most a kill loses")
    max_batch: int = Field(
        default=64, ge=1, description="requests in the engine at once; the result is the same"
    )

    @field_validator("sources", "traffic")
    @classmethod
    def _names_differ(cls, sources: tuple[SourceOptions, ...]) -> tuple[SourceOptions, ...]:
        names = [source.label for source in sources]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"two sources are called {', '.join(twice)}; give them different names")
        return sources

    @field_validator("traffic")
    @classmethod
    def _traffic_is_sampled(cls, traffic: tuple[SourceOptions, ...]) -> tuple[SourceOptions, ...]:
        if any(source.kind == "self" for source in traffic):
            raise ValueError(
                "the target itself (kind self) is no sample of traffic; name files, logs or datasets"
            )
        if any(source.weight != 1.0 for source in traffic):
            raise ValueError("samples of traffic have no weight: each counts with the prompts it has")
        return traffic

    @model_validator(mode="after")
    def _traffic_has_a_choice(self) -> PromptOptions:
        if self.traffic and not self.sources:
            raise ValueError("traffic decides which of the sources' prompts are chosen; name `sources`, too")
        return self

    @field_validator("languages")
    @classmethod
    def _languages_are_codes(cls, languages: tuple[str, ...]) -> tuple[str, ...]:
        # LanguageFilter checks that py3langid knows the language; loading it here would take seconds.
        wrong = [language for language in languages if not re.fullmatch("[a-z]{2,3}", language)]
        if wrong:
            raise ValueError(f"{', '.join(wrong)} isn't a language's code; use codes such as en, de, fr")
        return languages

    @field_validator("mix")
    @classmethod
    def _mix_has_weight(cls, mix: dict[str, float] | None) -> dict[str, float] | None:
        if mix is not None and sum(mix.values()) <= 0:
            raise ValueError("at least one category needs a weight above 0")
        return mix

    @field_validator("openings")
    @classmethod
    def _openings_not_empty(cls, openings: tuple[Opening, ...] | None) -> tuple[Opening, ...] | None:
        if openings is not None and not openings:
            raise ValueError("give at least one opening, or null for the shipped list")
        return openings

    @property
    def own_max_words(self) -> int:
        """The limit on the target's own prompts."""
        return _LONGEST_OWN if self.max_words is None else self.max_words

    @property
    def writes(self) -> bool:
        """True if the target itself writes prompts."""
        return not self.sources or any(source.kind == "self" for source in self.sources)

    @property
    def longest_request(self) -> int:
        """Tokens of context an engine needs for this stage, with room for the template's own words."""
        openings = [len(opening.text.encode()) for opening in self.openings or ()]
        return self.max_tokens + max([_OPENING_ROOM, *openings]) + _TEMPLATE_ROOM


class AnswerServerOptions(RecipePart):
    """An OpenAI-compatible server, or a llama-server, that serves the target and answers instead of the engine."""

    url: str = Field(min_length=1, description="address without /v1, such as http://localhost:8000")
    model: str = Field("", description="the served model; empty: the only one the server lists")
    api_key_env: str = Field("", description="environment variable that holds the key")
    concurrency: int = Field(default=32, ge=1, le=1024, description="requests at once")
    timeout_s: float = Field(600.0, gt=0.0, description="seconds until an answer is given up")
    retries: int = Field(5, ge=0, description="further attempts after a lost connection or a busy server")
    backoff_s: float = Field(
        1.0, ge=0.0, description="pause before the second attempt, doubled before each later one"
    )
    requests_per_second: float | None = Field(None, gt=0.0, description="limit on requests")
    token_budget: int | None = Field(
        None, ge=1, description="generated tokens per call of the stage, then it stops"
    )

    @model_validator(mode="before")
    @classmethod
    def _address_alone(cls, value: object) -> object:
        return {"url": value} if isinstance(value, str) else value

    def share_of(self, actors: int) -> AnswerServerOptions:
        """The limits for each of `actors` actors, so that together they keep these."""
        rate, budget = self.requests_per_second, self.token_budget
        return self.model_copy(
            update={
                "concurrency": max(1, self.concurrency // actors),
                "requests_per_second": None if rate is None else rate / actors,
                "token_budget": None if budget is None else max(1, budget // actors),
            }
        )


class RespondOptions(RecipePart):
    """The target's answers to the prompts: what the head learns from."""

    seed: int = Field(0, ge=0, description="seed of the stage; an answer depends on it and its prompt alone")
    temperatures: dict[Annotated[float, Field(ge=0.0, le=2.0)], Weight] = Field(
        default={0.0: 0.5, 0.7: 0.25, 1.0: 0.25},
        description="share of answers per temperature; 0 is greedy",
    )
    top_p: float = Field(1.0, gt=0.0, le=1.0, description="nucleus of sampled answers")
    max_new_tokens: int = Field(
        256, ge=1, description="longest answer; one cut here keeps finish_reason `length`"
    )
    max_prompt_tokens: int | None = Field(
        None,
        ge=1,
        description="conversations whose next prompt is longer end before it; null: as long as the prompts need, at "
        "least 1024, within the context of target and engine",
    )
    second_turn: Share = Field(
        0.0,
        description="share of conversations that go on with a second, self-synthesised user turn and its answer",
    )
    user_temperature: float = Field(
        1.0, gt=0.0, le=2.0, description="sampling temperature of second user turns"
    )
    user_top_p: float = Field(0.9, gt=0.0, le=1.0, description="nucleus of second user turns")
    user_max_tokens: int = Field(
        128, ge=8, description="tokens of a second user turn; one cut here is not used"
    )
    heldout: Share = Field(0.05, description="share of prompts, by hash, kept for evaluation")
    shard_size: int = Field(256, ge=1, description="conversations per shard")
    max_batch: int = Field(
        default=64, ge=1, description="requests in the engine at once; the result is the same"
    )
    server: AnswerServerOptions | None = Field(
        None,
        description="let a server answer: its address, or {url, model, concurrency, token_budget, ...} (docs/data.md)",
    )

    @field_validator("temperatures")
    @classmethod
    def _temperatures_have_weight(cls, temperatures: dict[float, float]) -> dict[float, float]:
        if sum(temperatures.values()) <= 0:
            raise ValueError("at least one temperature needs a share above 0")
        return temperatures

    @property
    def longest_prompt(self) -> int:
        """`max_prompt_tokens`, or what it is without prompts to look at."""
        return _SHORT_PROMPTS if self.max_prompt_tokens is None else self.max_prompt_tokens

    @property
    def longest_request(self) -> int:
        """Tokens of context an engine needs for this stage."""
        return self.longest_prompt + self._longest_answer

    @property
    def _longest_answer(self) -> int:
        return max(self.max_new_tokens, self.user_max_tokens if self.second_turn else 0)

    def for_prompts(self, needed: int, context: int) -> RespondOptions:
        """These options with `max_prompt_tokens` set, if it isn't: for prompts that need so many tokens."""
        if self.max_prompt_tokens is not None:
            return self
        longest = min(max(needed, _SHORT_PROMPTS), context - self._longest_answer)
        return self.model_copy(update={"max_prompt_tokens": max(1, longest)})
