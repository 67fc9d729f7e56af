"""A tiny target that has learnt a few answers by heart, and templates that tell it of tools."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from fledge.target import Target
from tests.tiny import TinyShape, save_tiny_target

_TURNS = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}{{ m.content }}"
    "{% for call in m.tool_calls or [] %}CALL{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% if think %}<think>\n{% endif %}{% endif %}"
)
_TOOLS = "{% if tools %}{% for tool in tools %}{{ tool.function | tojson }}\n{% endfor %}{% endif %}"
_ONE = '{"name": "{{ call.function.name }}", "KEY": {{ call.function.arguments | tojson }}}'
TEMPLATES = {
    "hermes": _TOOLS + _TURNS.replace("CALL", f"<tool_call>\n{_ONE}\n</tool_call>").replace("KEY", "arguments"),
    "llama3_json": _TOOLS + _TURNS.replace("CALL", _ONE).replace("KEY", "parameters"),
    "llama3_json, one call": "{% for m in messages if m.tool_calls and m.tool_calls | length > 1 %}"
    "{{ raise_exception('one at a time') }}{% endfor %}"
    + _TOOLS
    + _TURNS.replace("CALL", _ONE).replace("KEY", "parameters"),
    "mistral": _TOOLS + _TURNS.replace("CALL", f"[TOOL_CALLS] [{_ONE}]").replace("KEY", "arguments"),
    "mistral, named": _TOOLS
    + _TURNS.replace("CALL", "[TOOL_CALLS]{{ call.function.name }}[ARGS]{{ call.function.arguments | tojson }}"),
    "unknown": _TOOLS + _TURNS.replace("CALL", "<invoke {{ call.function.name }}>"),
    "qwen3_coder": _TOOLS
    + _TURNS.replace(
        "CALL",
        "<tool_call>\n<function={{ call.function.name }}>\n{% for k, v in call.function.arguments.items() %}"
        "<parameter={{ k }}>\n{{ v if v is string else v | tojson }}\n</parameter>\n{% endfor %}</function>\n"
        "</tool_call>",
    ),
    "glm45": _TOOLS
    + _TURNS.replace(
        "CALL",
        "<tool_call>{{ call.function.name }}\n{% for k, v in call.function.arguments.items() %}"
        "<arg_key>{{ k }}</arg_key>\n<arg_value>{{ v if v is string else v | tojson }}</arg_value>\n{% endfor %}"
        "</tool_call>",
    ),
    "pythonic": _TOOLS
    + _TURNS.replace(
        "CALL",
        "[{{ call.function.name }}({% for k, v in call.function.arguments.items() %}{{ ', ' if not loop.first }}"
        "{{ k }}={{ v | tojson }}{% endfor %})]",
    ),
    "deepseek_v3": _TOOLS
    + _TURNS.replace(
        "CALL",
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>{{ call.function.name + '\n```json\n' + "
        "call.function.arguments + '\n```' }}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    ),
    "deepseek_v31": _TOOLS
    + _TURNS.replace(
        "CALL",
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>{{ call.function.name }}<｜tool▁sep｜>"
        "{{ '' + call.function.arguments }}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    ),
    "hermes, shown only": "{% if tools %}Call like <tool_call>\n{\"name\": ...}\n</tool_call>{% endif %}"
    + _TOOLS
    + _TURNS.replace("CALL", ""),
}  # fmt: skip


def teach(
    folder: Path,
    template: str,
    lessons: Sequence[tuple[Mapping[str, Any], str]],
    special: Mapping[str, str] | None = None,
) -> Target:
    """A target that answers each conversation, given as the arguments of `prompt_ids`, with the text beside it.

    `special`: other names for special tokens that nothing else uses.
    """
    shape = TinyShape(layers=3, heads=2, kv_heads=1, positions=1024)
    save_tiny_target(folder, shape=shape, dtype=torch.float32, chat_template=template)
    for file in (folder / "tokenizer.json", folder / "tokenizer_config.json"):
        text = file.read_text()
        for old, new in (special or {}).items():
            text = text.replace(json.dumps(old), json.dumps(new))
        file.write_text(text)
    target = Target.load(str(folder), dtype="float32", backend="torch")
    prompts = [target.chat.prompt_ids(**conversation) for conversation, _ in lessons]
    answers = [[*target.tokenizer.encode(answer), target.tokenizer.eos_token_id] for _, answer in lessons]
    longest = max(len(prompt + answer) for prompt, answer in zip(prompts, answers, strict=True))
    ids = torch.zeros(len(lessons), longest, dtype=torch.long)
    labels = torch.full_like(ids, -100)
    for row, (prompt, answer) in enumerate(zip(prompts, answers, strict=True)):
        ids[row, : len(prompt + answer)] = torch.tensor(prompt + answer)
        labels[row, len(prompt) : len(prompt + answer)] = torch.tensor(answer)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # so small a model is faster so
    try:
        for _ in range(400):
            loss = model(input_ids=ids, labels=labels).loss
            if loss.item() < 0.01:
                break
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    finally:
        torch.set_num_threads(threads)
    model.save_pretrained(folder)
    return Target.load(str(folder), dtype="float32", backend="torch")
