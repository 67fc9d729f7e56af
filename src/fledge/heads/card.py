"""The model card of an exported head: README.md with the front matter model hubs read, from what the head knows."""

from __future__ import annotations

import json
from typing import Literal

import yaml

from fledge.base import llama_server
from fledge.draft.provenance import HeadParts
from fledge.heads.forms import Form

_SERVE = {
    "sglang": "python -m sglang.launch_server --model-path {target} --speculative-algorithm EAGLE3 \\\n"
    "    --speculative-draft-model-path {head} --speculative-num-steps 3 --speculative-eagle-topk 1 \\\n"
    "    --speculative-num-draft-tokens 4",
    "vllm": "vllm serve {target} --speculative-config \\\n"
    '    \'{{"method": "eagle3", "model": "{head}", "num_speculative_tokens": 3}}\'',
    "gguf": llama_server.command("{target}.gguf", "{head}.gguf"),
    "eagle4": "fledge serve {target} --head {head}",
    "eagle": "EaModel.from_pretrained(base_model_path={target!r}, ea_model_path={head!r}, use_eagle3=True)",
}


def model_card(head: HeadParts, form: Form | Literal["gguf"], name: str) -> str:
    """The card of a head written in `form`; `name` is what readers call it."""
    c, m = head.config, head.metadata
    target = m.target_name or "the target"
    front = {
        "library_name": "fledge",
        "tags": ["eagle3", "speculative-decoding", "draft-head", form],
        **({"base_model": m.target_name} if "/" in m.target_name else {}),
    }
    parameters = sum(tensor.numel() for tensor in head.weights.trainable().values())
    facts = [
        ("target", target),
        ("target revision", m.target_revision or "not recorded"),
        ("target quantization", m.target_quantization or "not recorded"),
        ("chat template (hash)", m.template_hash or "not recorded"),
        ("kind", c.version),
        ("form", form),
        ("parameters", f"{parameters:,}"),
        ("draft vocabulary", f"{c.draft_vocab_size:,} of {c.vocab_size:,} tokens"),
        ("feature layers (by output)", ", ".join(map(str, m.feature_layers)) or "the default ones"),
        ("context", f"{c.max_position_embeddings:,} positions, RoPE base {c.rope_theta:g}"),
        ("embedding", "the target's" if head.weights.embedding is None else "included"),
    ]
    lines = [
        "---",
        yaml.safe_dump(front, sort_keys=False).strip(),
        "---",
        f"# {name}",
        "",
        f"An {c.version} draft head for {target}. It makes decoding faster and leaves the output as it is. It belongs",
        "to this one target: another revision or chat template costs acceptance without an error.",
        "",
        "| | |",
        "|---|---|",
        *(f"| {key} | {value} |" for key, value in facts),
        "",
        *_training(dict(m.training)),
        "## Use",
        "```",
        _SERVE[{"specforge": "sglang", "speculators": "vllm"}.get(form, form)].format(
            target=target, head=name
        ),
        "```",
        "`fledge doctor TARGET HEAD` says why, if acceptance is low.",
    ]
    return "\n".join(lines) + "\n"


def _training(facts: dict[str, object]) -> list[str]:
    if not facts:
        return []
    rows = [
        f"| {key} | {value if isinstance(value, str) else json.dumps(value)} |"
        for key, value in facts.items()
    ]
    return ["## Training", "| fact | value |", "|---|---|", *rows, ""]
