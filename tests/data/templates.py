"""Twenty chat templates in the shapes real models use, written for these tests, and what they must give.

`samples` are the training samples of a two-turn conversation, trained tokens between « and »; more than one where the
template rewrites history. They are written by hand, not rendered.
"""

from __future__ import annotations

from dataclasses import dataclass

U1, A1, U2, A2 = "Why is the sky blue?", "It scatters.", "And red?", "No."
SYSTEM = "You are short."


@dataclass(frozen=True)
class Fixture:
    """A template, its special tokens, and its expected behaviour."""

    name: str
    template: str
    specials: tuple[str, ...]
    eos: str
    samples: tuple[str, ...]
    bos: str = "<s>"
    system: str = "same"  # status of a conversation with a system prompt
    thinking: int = 2  # samples of a two-turn conversation with thinking
    tools: str = "ignored"


def _chatml(extra: str = "", content: str = "m['content']", start: str = "") -> str:
    return (
        start
        + "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\\n' + ("
        + content
        + ") + '<|im_end|>\\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n"
        + extra
        + "' }}{% endif %}"
    )


def _im(role: str, text: str) -> str:
    return f"<|im_start|>{role}\n{text}<|im_end|>\n"


_IM = ("<|im_start|>", "<|im_end|>")
_OPEN = "<|im_start|>assistant\n"
_DEFAULT = (
    "{% if messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\\nYou are helpful.<|im_end|>\\n' }}{% endif %}"
)
_NO_THOUGHT = "m['content'].split('</think>')[-1] if m['role'] == 'assistant' else m['content']"
_TOOL_CHATML = (
    "{% for m in messages %}{% if m['tool_calls'] %}{{ '<|im_start|>assistant\\n' }}{% for c in m['tool_calls'] %}"
    "{{ '<tool_call>' + (c['function'] | tojson) + '</tool_call>' }}{% endfor %}{{ '<|im_end|>\\n' }}"
    "{% elif m['role'] == 'tool' %}{{ '<|im_start|>user\\n<tool_response>' + m['content'] + '</tool_response>"
    "<|im_end|>\\n' }}{% else %}{{ '<|im_start|>' + m['role'] + '\\n' + m['content'] + '<|im_end|>\\n' }}{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
_PLAIN = f"{_im('user', U1)}{_OPEN}«{A1}<|im_end|>»\n{_im('user', U2)}{_OPEN}«{A2}<|im_end|>»"
_SPLIT = (
    f"{_im('user', U1)}{_OPEN}«{A1}<|im_end|>»",
    f"{_im('user', U1)}{_im('assistant', A1)}{_im('user', U2)}{_OPEN}«{A2}<|im_end|>»",
)

_L3 = ("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>")


def _head(role: str) -> str:
    return f"<|start_header_id|>{role}<|end_header_id|>\n\n"


_LLAMA3_BODY = (
    "{% for m in messages %}{{ '<|start_header_id|>' + m['role'] + '<|end_header_id|>\\n\\n' + (m['content'] | trim) "
    "+ '<|eot_id|>' }}{% endfor %}{% if add_generation_prompt %}"
    "{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}"
)
_LLAMA3 = (
    f"{_head('user')}{U1}<|eot_id|>{_head('assistant')}«{A1}<|eot_id|>»"
    f"{_head('user')}{U2}<|eot_id|>{_head('assistant')}«{A2}<|eot_id|>»"
)
_LLAMA31 = (
    "{{ bos_token }}{% if messages[0]['role'] == 'system' %}{% set s = messages[0]['content'] %}"
    "{% set rest = messages[1:] %}{% else %}{% set s = '' %}{% set rest = messages %}{% endif %}"
    "{{ '<|start_header_id|>system<|end_header_id|>\\n\\nKnowledge ends in 2023.\\n' + s + '<|eot_id|>' }}"
    "{% for m in rest %}{% if m['tool_calls'] %}{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' + "
    "(m['tool_calls'][0]['function'] | tojson) + '<|eot_id|>' }}{% elif m['role'] == 'tool' %}"
    "{{ '<|start_header_id|>ipython<|end_header_id|>\\n\\n' + m['content'] + '<|eot_id|>' }}{% else %}"
    "{{ '<|start_header_id|>' + m['role'] + '<|end_header_id|>\\n\\n' + (m['content'] | trim) + '<|eot_id|>' }}"
    "{% endif %}{% endfor %}{% if add_generation_prompt %}"
    "{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}"
)

_LLAMA2 = (
    "{% if messages[0]['role'] == 'system' %}{% set s = '<<SYS>>\\n' + messages[0]['content'] + '\\n<</SYS>>\\n\\n' %}"
    "{% set rest = messages[1:] %}{% else %}{% set s = '' %}{% set rest = messages %}{% endif %}"
    "{% for m in rest %}{% if m['role'] == 'user' %}{{ bos_token + '[INST] ' + (s if loop.first else '') + "
    "m['content'] + ' [/INST]' }}{% else %}{{ ' ' + m['content'] + ' ' + eos_token }}{% endif %}{% endfor %}"
)
_MISTRAL = (
    "{{ bos_token }}{% for m in messages %}{% if m['role'] == 'user' %}{{ '[INST] ' + m['content'] + ' [/INST]' }}"
    "{% elif m['role'] == 'assistant' %}{{ m['content'] + eos_token }}"
    "{% else %}{{ raise_exception('only user and assistant') }}{% endif %}{% endfor %}"
)
_MISTRAL_TOOLS = (
    "{{ bos_token }}{% for m in messages %}{% if m['role'] == 'system' %}"
    "{{ '[SYSTEM_PROMPT]' + m['content'] + '[/SYSTEM_PROMPT]' }}{% elif m['role'] == 'user' %}"
    "{{ '[INST]' + m['content'] + '[/INST]' }}{% elif m['tool_calls'] %}{{ '[TOOL_CALLS]' + "
    "(m['tool_calls'][0]['function'] | tojson) + eos_token }}{% elif m['role'] == 'tool' %}"
    "{{ '[TOOL_RESULTS]' + m['content'] + '[/TOOL_RESULTS]' }}{% else %}{{ m['content'] + eos_token }}{% endif %}"
    "{% endfor %}"
)
_GEMMA = (
    "{{ bos_token }}{% if messages[0]['role'] == 'system' %}SYSTEM{% endif %}{% for m in messages %}"
    "{{ '<start_of_turn>' + ('model' if m['role'] == 'assistant' else m['role']) + '\\n' + (m['content'] | trim) + "
    "'<end_of_turn>\\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<start_of_turn>model\\n' }}{% endif %}"
)
_GEMMA_STRICT = _GEMMA.replace("SYSTEM", "{{ raise_exception('no system role') }}")
_GEMMA_FOLDED = (
    "{{ bos_token }}{% if messages[0]['role'] == 'system' %}{% set s = messages[0]['content'] + '\\n\\n' %}"
    "{% set rest = messages[1:] %}{% else %}{% set s = '' %}{% set rest = messages %}{% endif %}{% for m in rest %}"
    "{{ '<start_of_turn>' + ('model' if m['role'] == 'assistant' else 'user') + '\\n' + (s if loop.first else '') + "
    "(m['content'] | trim) + '<end_of_turn>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<start_of_turn>model\\n' }}{% endif %}"
)
_GEMMA_TEXT = (
    f"<s><start_of_turn>user\n{U1}<end_of_turn>\n<start_of_turn>model\n«{A1}<end_of_turn>»\n"
    f"<start_of_turn>user\n{U2}<end_of_turn>\n<start_of_turn>model\n«{A2}<end_of_turn>»"
)
_TURN = ("<start_of_turn>", "<end_of_turn>")


def _roles(before: str, after: str, end: str, opening: str) -> str:
    return (
        "{% for m in messages %}{{ '" + before + "' + m['role'] + '" + after + "' + m['content'] + '" + end + "' }}"
        "{% endfor %}{% if add_generation_prompt %}{{ '" + opening + "' }}{% endif %}"
    )  # fmt: skip


_DEEPSEEK = (
    "{{ bos_token }}{% for m in messages %}{% if m['role'] == 'system' %}{{ m['content'] }}"
    "{% elif m['role'] == 'user' %}{{ '<|User|>' + m['content'] }}{% else %}"
    "{{ '<|Assistant|>' + CONTENT + '<|end_of_sentence|>' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|Assistant|>OPENING' }}{% endif %}"
)
_DS = ("<|User|>", "<|Assistant|>", "<|end_of_sentence|>")
_COMMAND = (
    "{{ bos_token }}{% for m in messages %}{{ '<|START|>' + {'user': '<|USER|>', 'assistant': '<|BOT|>', "
    "'system': '<|SYSTEM|>'}[m['role']] + m['content'] + '<|END|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|START|><|BOT|>' }}{% endif %}"
)

FIXTURES = (
    Fixture("chatml", _chatml(), _IM, "<|im_end|>", (_PLAIN,)),
    Fixture("chatml-eos-elsewhere", _chatml(), _IM, "</s>", (_PLAIN,)),
    Fixture("chatml-default-system", _chatml(start=_DEFAULT), _IM, "<|im_end|>",
            (_im("system", "You are helpful.") + _PLAIN,)),
    Fixture("chatml-tools", _TOOL_CHATML, _IM, "<|im_end|>", (_PLAIN,), tools="same"),
    Fixture("chatml-strips-thinking", _chatml(content=_NO_THOUGHT), _IM, "<|im_end|>", (_PLAIN,)),
    Fixture("chatml-empty-thought", _chatml(extra="<think>\\n\\n</think>\\n\\n"), _IM, "<|im_end|>",
            tuple(s.replace(f"{_OPEN}«", f"{_OPEN}<think>\n\n</think>\n\n«") for s in _SPLIT), system="same"),
    Fixture("chatml-trims", _chatml(content="m['content'] | trim"), _IM, "<|im_end|>", (_PLAIN,)),
    Fixture("counts-turns", _chatml(start="{{ messages | length }}"), _IM, "<|im_end|>",
            ("1" + _SPLIT[0], "3" + _SPLIT[1])),
    Fixture("llama-3", "{{ bos_token }}" + _LLAMA3_BODY, _L3, "<|eot_id|>", ("<s>" + _LLAMA3,)),
    Fixture("llama-3.1-tools", _LLAMA31, _L3, "<|eot_id|>",
            (f"<s>{_head('system')}Knowledge ends in 2023.\n<|eot_id|>{_LLAMA3}",), tools="same"),
    Fixture("llama-2", _LLAMA2, (), "</s>",
            (f"<s>[INST] {U1} [/INST]«{A1}</s>»", f"<s>[INST] {U1} [/INST] {A1} </s><s>[INST] {U2} [/INST]«{A2}</s>»")),
    Fixture("mistral", _MISTRAL, (), "</s>",
            (f"<s>[INST] {U1} [/INST]«{A1}</s>»[INST] {U2} [/INST]«{A2}</s>»",), system="refused", tools="refused"),
    Fixture("mistral-tools", _MISTRAL_TOOLS, ("[INST]", "[/INST]", "[TOOL_CALLS]"), "</s>",
            (f"<s>[INST]{U1}[/INST]«{A1}</s>»[INST]{U2}[/INST]«{A2}</s>»",), tools="same"),
    Fixture("gemma", _GEMMA_STRICT, _TURN, "<end_of_turn>", (_GEMMA_TEXT,), system="refused"),
    Fixture("gemma-folded-system", _GEMMA_FOLDED, _TURN, "<end_of_turn>", (_GEMMA_TEXT,)),
    Fixture("phi", _roles("<|", "|>\\n", "<|end|>\\n", "<|assistant|>\\n"),
            ("<|user|>", "<|assistant|>", "<|system|>", "<|end|>"), "<|end|>",
            (f"<|user|>\n{U1}<|end|>\n<|assistant|>\n«{A1}<|end|>»\n<|user|>\n{U2}<|end|>\n<|assistant|>\n«{A2}<|end|>»",)),
    Fixture("zephyr", _roles("<|", "|>\\n", "</s>\\n", "<|assistant|>\\n"), (), "</s>",
            (f"<|user|>\n{U1}</s>\n<|assistant|>\n«{A1}</s>»\n<|user|>\n{U2}</s>\n<|assistant|>\n«{A2}</s>»",)),
    Fixture("deepseek", _DEEPSEEK.replace("CONTENT", "m['content']").replace("OPENING", ""), _DS,
            "<|end_of_sentence|>",
            (f"<s><|User|>{U1}<|Assistant|>«{A1}<|end_of_sentence|>»<|User|>{U2}<|Assistant|>«{A2}<|end_of_sentence|>»",)),
    Fixture("opens-thinking", _DEEPSEEK.replace("CONTENT", "m['content'].split('</think>')[-1]")
            .replace("OPENING", "<think>\\n"), _DS, "<|end_of_sentence|>",
            (f"<s><|User|>{U1}<|Assistant|><think>\n«{A1}<|end_of_sentence|>»",
             f"<s><|User|>{U1}<|Assistant|>{A1}<|end_of_sentence|><|User|>{U2}<|Assistant|><think>\n"
             f"«{A2}<|end_of_sentence|>»")),
    Fixture("command", _COMMAND, ("<|START|>", "<|END|>", "<|USER|>", "<|BOT|>", "<|SYSTEM|>"), "<|END|>",
            (f"<s><|START|><|USER|>{U1}<|END|><|START|><|BOT|>«{A1}<|END|>»"
             f"<|START|><|USER|>{U2}<|END|><|START|><|BOT|>«{A2}<|END|>»",), tools="refused"),
)  # fmt: skip
