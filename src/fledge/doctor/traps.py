"""Silent treatment of a head's files by SGLang and vLLM, each by its own rules; what costs acceptance in llama.cpp."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from fledge.base import llama_server
from fledge.base.errors import HeadError
from fledge.doctor.files import meant_layers
from fledge.doctor.findings import Defect
from fledge.heads.engines import instead_of_last_layer, refusal, sglang_misses
from fledge.target import Target
from fledge.target.config import engine_feature_layers

_IDS = "eagle_aux_hidden_state_layer_ids"
_EXPORT = "fledge export HEAD FOLDER --form {}"
_DRAFT = f"start it as {llama_server.command('TARGET.gguf', 'HEAD.gguf')}"
# What of the server's command can't be seen from outside.
_LLAMA_CPP = (
    "the file after -md may be another head",
    "the target's file may come from an old converter: convert it again",
    "-ctkd, -ctvd and a head in 4 bit cost acceptance",
)


def engine_findings(
    engine: str, raw: Mapping[str, Any], tensor_names: Iterable[str], target: Target
) -> Iterator[Defect]:
    """The traps of `sglang` or `vllm`."""
    if engine == "sglang":
        yield from _sglang(raw, list(tensor_names))
    elif engine == "vllm":
        yield from _vllm(raw)
    else:
        raise HeadError(f"--engine {engine} is unknown: use vllm, sglang or a server's URL")
    if sentence := refusal(engine, target.config.architecture):
        yield Defect(
            "engine", sentence, "serve with another engine or version, if a newer one can", certain=False
        )
    yield from _layers(engine, raw, target)


def _sglang(raw: Mapping[str, Any], names: list[str]) -> Iterator[Defect]:
    remedy = _EXPORT.format("sglang")
    if raw.get("architectures") != ["LlamaForCausalLMEagle3"]:
        yield Defect(
            "engine", f"SGLang loads the class LlamaForCausalLMEagle3, not {raw.get('architectures')}", remedy
        )
    if any("layers.0." in name for name in names):
        yield Defect("engine", "older SGLang versions drop tensors called layers.0.* silently", remedy)
    if raw.get("draft_vocab_size") is None and "lm_head.weight" in names:
        yield Defect(
            "engine",
            "without draft_vocab_size SGLang takes the target's lm_head instead of the head's",
            remedy,
        )
    if raw.get("tie_word_embeddings") and "lm_head.weight" in names:
        yield Defect(
            "engine",
            "with tie_word_embeddings SGLang drops the head's lm_head and takes its embedding instead",
            'write "tie_word_embeddings": false into config.json',
        )
    if raw.get("norm_before_residual"):
        yield Defect(
            "engine",
            "SGLang leaves norm_before_residual out: the head's layer starts from another residual there",
            "serve this head with fledge or vLLM",
        )


def _vllm(raw: Mapping[str, Any]) -> Iterator[Defect]:
    if raw.get("speculators_model_type"):
        if "norm_before_residual" not in raw:
            yield Defect(
                "engine",
                "norm_before_residual is left out; vLLM takes true, a plain EAGLE-3 head needs false",
                _EXPORT.format("speculators"),
            )
        return
    architecture = (raw.get("architectures") or ["none"])[0]
    if "Eagle3" not in architecture:
        yield Defect("engine", f"vLLM has no EAGLE-3 class {architecture}", _EXPORT.format("vllm"))


def _layers(engine: str, raw: Mapping[str, Any], target: Target) -> Iterator[Defect]:
    """The layers this engine would actually read, counted by output."""
    n = target.config.num_layers
    default = engine_feature_layers(n) or (1, n // 2 - 1, n - 4)
    nested, top = (raw.get("eagle_config") or {}).get(_IDS), raw.get(_IDS)
    if engine == "sglang":
        read = tuple(nested) if nested else default
    else:
        ids = top or nested
        read = tuple(i - 1 for i in ids)[:3] if ids else default
    meant = meant_layers(raw, target)
    if engine == "sglang" and (missed := sglang_misses(meant, n)):
        yield Defect("layers", missed, instead_of_last_layer(n))
    elif read != meant:
        expected = ", ".join(map(str, meant))
        yield Defect(
            "layers",
            f"{engine} would read the outputs of layers {', '.join(map(str, read))}; the features are {expected}",
            _EXPORT.format(engine) + " --target TARGET",
        )


def llama_cpp_drafters(drafters: str, *, drafts: bool) -> Defect | None:
    """A defect if llama-server doesn't draft, or not with an EAGLE-3 head alone. `drafters`: its speculative.types."""
    names = [name for name in dict.fromkeys(drafters.split(",")) if name not in ("", "none")]
    if not drafts:
        loaded = f", although it has {', '.join(names)}" if names else ""
        remedy = "its log says why the head didn't load" if llama_server.EAGLE in names else _DRAFT
        return Defect("served-tau", f"llama-server drafts nothing{loaded}", remedy)
    if names in ([], [llama_server.EAGLE]):
        return None
    what = f"llama-server drafts with {', '.join(names)}, so its acceptance isn't that of the head"
    remedy = f"{_DRAFT}; a text that n-grams have seen before is replayed, too"
    return Defect("served-tau", what, remedy)


def llama_cpp_causes(model: str, target: Path, depth: int | None, longest: int, cut: bool) -> str:
    """Why llama-server may accept less than our chains; first what can be seen of it from outside.

    Args:
        model: the file that it serves, by its own word.
        target: where the target's weights are here.
        depth: the length that our chains were asked to have; None: the server's.
        longest: the most tokens that it drafted at once; 0: unknown.
        cut: whether some of its drafts were shorter.
    """
    seen = []
    if cut:
        seen.append("--spec-draft-p-min cuts its drafts: set it to 0")
    if depth and longest and depth != longest:
        seen.append(f"it drafts {longest} tokens at once, not {depth}: leave --depth out")
    if Path(model).name != target.name:
        seen.append(f"it serves {model}, and the target here is {target}")
    return "; ".join((*seen, *_LLAMA_CPP))
