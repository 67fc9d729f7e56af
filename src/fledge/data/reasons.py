"""Why rows and attempts were rejected, and what kept prompts lack, in lines that name the option."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import BaseModel

from fledge.base.console import plural

# Reason -> the option that decides it, without the name of its stage.
_OPTIONS = {
    "too_short": "min_words",
    "too_long": "max_words",
    "too_large": "max_record_kib",
    "language": "languages",
    "evaluation": "evaluation_files",
    "near_repeat": "near_duplicate",
    "cut": "max_tokens",
    "uncovered_language": "privacy.uncovered",
    "later_turn_too_long": "max_prompt_tokens",
    "shape": "prompts.sources.field",
}
_RESPOND = {"too_long": "max_prompt_tokens"}
_UNCOVERED = "uncovered_"  # and the language
_LONGEST = 60  # characters of an option's value
LOSSES = {
    "system": "lack their system prompt (`system: true` of the source keeps it)",
    "system_moved": "have a later system prompt at their beginning",
    "opening": "lack what the assistant or a tool said before their first turn",
    "prefill": "lack the beginning of their answer (continue_final_message)",
    "media": "end before a turn with an image, a file or another attachment",
    "empty_turn": "end before an empty turn",
    "role": "end before a message whose role isn't known",
    "tools": "lack their tools, since the target's chat template shows none",
    "tool_results": "end before a tool's result, since there are no tools or the target's chat template shows none",
    "app_tools": "lack what the tools of the application that exported them returned",
    "other_tools": "lack tools that aren't functions",
    "documents": "lack the documents or the context beside their messages",
    "template_options": "lack chat_template_kwargs that the target's chat template doesn't ask for",
    "later_too_long": "end before a turn longer than prompts.max_words",
}


def rejected_line(rejected: Mapping[str, int], options: BaseModel) -> str:
    """Number of rejected attempts, with the reasons."""
    reasons = reasons_line(rejected, options)
    return f"{plural(sum(rejected.values()), 'attempt')} rejected{': ' if reasons else ''}{reasons}"


def reasons_line(rejected: Mapping[str, int], options: BaseModel) -> str:
    """Reasons with their counts, most frequent first, and the options that decide them."""
    ordered = sorted(rejected.items(), key=lambda item: (-item[1], item[0]))
    return ", ".join(f"{count:,} {reason}{_option(reason, options)}" for reason, count in ordered)


def loss_lines(losses: Mapping[str, int]) -> list[str]:
    """Parts of rows that kept prompts have lost, one line for each kind."""
    lines = [
        f"{count:,} {LOSSES.get(loss, _later(loss))}"
        for loss, count in sorted(losses.items())
        if not loss.startswith(_UNCOVERED)
    ]
    if uncovered := uncovered_languages(losses):
        names = ", ".join(f"{name} {count:,}" for name, count in uncovered.items())
        lines.append(
            f"{sum(uncovered.values()):,} are in a language whose names the privacy rules don't cover ({names}; "
            "privacy.uncovered is keep, and a model under privacy.ner can look for them)"
        )
    return lines


def uncovered_languages(losses: Mapping[str, int]) -> dict[str, int]:
    """Language -> kept prompts in it whose names the privacy rules don't cover."""
    return {
        loss.removeprefix(_UNCOVERED): count
        for loss, count in sorted(losses.items())
        if loss.startswith(_UNCOVERED)
    }


def _later(loss: str) -> str:
    return f"end before a turn that was rejected ({loss.removeprefix('later_')})"


def _option(reason: str, options: BaseModel) -> str:
    stage = "prompts" if "sources" in type(options).model_fields else "respond"
    names = {**_OPTIONS, **(_RESPOND if stage == "respond" else {})}
    name = names.get(reason)
    if reason.startswith("private_"):
        return " (privacy)"
    if name is not None and "." in name:
        return f" ({name})"
    if name is None or name not in type(options).model_fields:
        return ""
    value = getattr(options, name)
    shown = str(value)
    if value is None or len(shown) > _LONGEST or not isinstance(value, int | float | tuple):
        return f" ({stage}.{name})"
    return f" ({stage}.{name} is {', '.join(map(str, value)) if isinstance(value, tuple) else value})"
