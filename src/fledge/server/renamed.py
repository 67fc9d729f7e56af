"""Fields that llama.cpp's, Ollama's and other servers' clients send, as the ones that mean the same here."""

from __future__ import annotations

from typing import Any

_SAME = {
    "n_predict": "max_tokens",
    "num_predict": "max_tokens",
    "repeat_penalty": "repetition_penalty",
}
_THINKING = {"enabled": True, "adaptive": True, "auto": True, "disabled": False}


def generation(body: dict[str, Any]) -> dict[str, Any]:
    """A request for an answer; what it says itself counts before Ollama's `options`."""
    fields = dict(body)
    if isinstance(options := fields.get("options"), dict):
        del fields["options"]
        for name, value in options.items():
            if fields.get(same := _SAME.get(str(name), str(name))) is None:
                fields[same] = value
    for name, same in _SAME.items():
        if name in fields and fields.get(same) in (None, fields[name]):
            fields[same] = fields.pop(name)
    if fields.get("grammar") == "":  # llama.cpp's default
        del fields["grammar"]
    return fields


def chat(body: dict[str, Any]) -> dict[str, Any]:
    """A chat: the other names of `enable_thinking`."""
    fields = generation(body)
    for name in ("thinking", "think"):
        value = fields.get(name)
        if isinstance(value, dict) and isinstance(value.get("type"), str):
            value = _THINKING.get(value["type"])
        if isinstance(value, bool) and fields.get("enable_thinking") in (None, value):
            fields["enable_thinking"] = value
            del fields[name]
    return fields


def tokenize(body: dict[str, Any]) -> dict[str, Any]:
    """llama.cpp's `content` is a text, to which it adds no special tokens by default."""
    if not isinstance(body.get("content"), str) or "prompt" in body:
        return body
    fields = {
        name: value for name, value in body.items() if name not in ("content", "add_special", "parse_special")
    }
    if body.get("parse_special") not in (None, True):
        fields["parse_special"] = body["parse_special"]
    return {"add_special_tokens": body.get("add_special", False), **fields, "prompt": body["content"]}
