"""Marks of turns in conversations that a chat template rendered, and whose turn each begins.

    <|im_start|>user     [INST]     <start_of_turn>user     <｜User｜>      known: the turns are read
    <seed:bos>user       <_user>    ]~b]user                              of unknown templates: only noticed

What templates share finds those that aren't listed: a repeated token in brackets with a role's name in it or after it.
Tags of HTML and XML, placeholders and types in code also have such names, so the token must begin a line or the text,
look like no plain tag, and mark another speaker too.
"""

from __future__ import annotations

import re

from fledge.data.sources.messages import Role

_MARKUP: tuple[tuple[str, Role], ...] = (
    (r"<<SYS>>|\[SYSTEM_PROMPT\]", "system"),
    (r"[\[<]/INST[\]>]", "assistant"),
    (r"[\[<]INST[\]>]|<</SYS>>", "user"),
    (r"\[/?(?:AVAILABLE_TOOLS|TOOL_RESULTS)\]", "tool"),
    (r"<reserved_10[26]>|<用户>", "user"),
    (r"<reserved_10[37]>|(?-i:<AI>)", "assistant"),
)
# <|im_start|>user, <|start_header_id|>user<|end_header_id|>, <start_of_turn>user, <|user|>, <|start|>user<|message|>,
# [|user|], <extra_id_1>User, <|im_user|>user<|im_middle|>
_NAMED = (
    r"<\|(?:im_start|start|start_header_id|header_start|role_start)\|>\s*(?P<a>\w+)[^<\n]*"
    r"(?:<\|(?:channel)\|>\w+)?(?:<\|(?:end_header_id|header_end|message|role_end|im_sep)\|>)?"
    r"|<start_of_turn>\s*(?P<b>\w+)"
    r"|<[|｜](?P<c>user|assistant|system|human|bot|prompter|prompt|answer|tool|observation|USER_TOKEN|CHATBOT_TOKEN|SYSTEM_TOKEN)[|｜]>:?"
    r"|<(?P<d>human|bot|user|assistant)>:"
    r"|\[\|(?P<e>system|user|human|assistant|ai|tool)\|\]:?|<extra_id_\d>(?P<f>System|User|Assistant|Tool)\b"
    r"|<\|im_(?P<g>system|user|assistant|tool)\|>[^<\n]*<\|im_middle\|>|<\|turn>(?P<h>\w+)|<role>(?P<i>\w+)</role>"
)
MARK = re.compile(
    "|".join(f"(?P<m{n}>{mark})" for n, (mark, _) in enumerate(_MARKUP)) + "|" + _NAMED, re.IGNORECASE
)
# Marks that end a turn or begin a text; BOS and EOS of many tokenizers.
ENDS = re.compile(
    r"</?s>|<[|｜](?:im_end|end|eot_id|eot|eom_id|return|endoftext|end_of_text|begin_of_text|startoftext|end_of_turn|start|"
    r"begin▁of▁sentence|end▁of▁sentence|end_of_sentence|START_OF_TURN_TOKEN|END_OF_TURN_TOKEN)[|｜]>"
    r"|<end_of_turn>|</?bos>|</?eos>|\[/SYSTEM_PROMPT\]|<BOS_TOKEN>|\[\|endofturn\|\]|<turn\|>"
    r"|\[gMASK\]|<sop>|\[Round \d+\]|\[SEP\]|\[unused\d+\]",
    re.IGNORECASE,
)

_USERS = "user|human|prompter|用户|人类|ユーザー|사용자"
_OTHERS = "assistant|ai|bot|gpt|chatgpt|chatbot|助手|アシスタント|어시스턴트"
_OPEN, _CLOSE = r"<\[【«⟨", r">\]】»⟩"
_TOKEN = rf"(?:<\[|[{_OPEN}\]])[^\s{_OPEN}{_CLOSE}]{{1,30}}(?:\]>|[{_CLOSE}\[])"
# A token, then a role: <seed:bos>user, ]~b]user, <SPECIAL_11>User, <turn>user<sep>
_THEN = rf"(?=[ \t]*(?:\n|\Z)| name=|[{_OPEN}](?!/))"
_BEFORE = re.compile(rf"(?P<token>{_TOKEN}) ?(?P<role>{_USERS}|system|developer){_THEN}", re.IGNORECASE)
_TOKENS = re.compile(rf"(?:{_TOKEN}|\s)*")
_SPECIAL = re.compile(r"[^\w<>\[\]/.=\"'-]|_|[A-Za-z]{3}\d")  # within a token; tags have nothing of the kind
# A role within a token: <_user>, <｜hy_User｜>, <<user>>, <user_turn>
_AROUND = re.compile(
    rf"(?<![^\n{_CLOSE}])(?P<open>[{_OPEN}]+(?:[^\s{_OPEN}{_CLOSE}]{{0,20}}[^\sA-Za-z/=.\-{_OPEN}{_CLOSE}])?)"
    rf"(?:{_USERS})(?P<close>(?:[_:](?:start|begin|turn|message))?[^\s\w/{_OPEN}{_CLOSE}]*[{_CLOSE}]+)",
    re.IGNORECASE,
)
# At the beginning of a text: <message role="user">
_ATTRIBUTE = re.compile(
    rf"(?:\s|<\w+>)*(?P<tag><\w+ (?:role|from|speaker|author|sender)=[\"']?)(?:{_USERS}|system)\b",
    re.IGNORECASE,
)
_WORDS = re.compile(r"\w")


def has_markup(text: str) -> bool:
    """True if the text contains turn markers, of a known chat template or of an unknown one."""
    return any(mark["d"] is None for mark in MARK.finditer(text)) or has_unknown_marks(text)


def has_unknown_marks(text: str) -> bool:
    """True if one token marks the turns of a user and of another speaker alike."""
    if (mark := _ATTRIBUTE.match(text)) is not None:
        return _is_after_words(text, mark, rf"{re.escape(mark['tag'])}(?:{_OTHERS})\b")
    return any(_is_before_others(text, mark) for mark in _BEFORE.finditer(text)) or any(
        _is_around_others(text, mark) for mark in _AROUND.finditer(text)
    )


def _is_before_others(text: str, mark: re.Match[str]) -> bool:
    if not (_SPECIAL.search(mark["token"]) or _TOKENS.fullmatch(text, 0, mark.start())):
        return False
    other = rf"{re.escape(mark['token'])} ?(?!{mark['role']}\b)\w[\w ]{{0,20}}{_THEN}"
    return _is_after_words(text, mark, other)


def _is_around_others(text: str, mark: re.Match[str]) -> bool:
    opening, closing = mark["open"], mark["close"]
    if opening + closing in ("<>", "[]") or f"</{mark[0].lstrip('<')}" in text:
        return False  # <user> is a tag; what is closed by </chat_user> is another
    return _is_after_words(text, mark, f"{re.escape(opening)}(?:{_OTHERS}){re.escape(closing)}")


def _is_after_words(text: str, mark: re.Match[str], other: str) -> bool:
    found = re.compile(other, re.IGNORECASE).search(text, mark.end())
    return found is not None and _WORDS.search(text, mark.end(), found.start()) is not None


def marked_role(mark: re.Match[str]) -> Role | None:
    """The role whose turn a mark begins; None if it isn't known."""
    for number, (_, role) in enumerate(_MARKUP):
        if mark[f"m{number}"]:
            return role
    name = next(filter(None, map(mark.group, "abcdefghi"))).lower().removesuffix("_token")
    if name in ("user", "human", "prompter", "prompt"):
        return "user"
    if name in ("assistant", "bot", "model", "chatbot", "gpt", "ai", "answer"):
        return "assistant"
    if name in ("system", "developer"):
        return "system"
    return "tool" if name in ("tool", "observation", "ipython", "environment", "function") else None
