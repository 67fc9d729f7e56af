"""Features of any GGUF file that llama.cpp runs, on any device that it was built for.

    llama_decode(ids) --cb_eval--> l_out-<low>, l_out-<middle>, l_out-<high>   features, outputs of layers
                                   result_norm                                 hidden
                      --logits---> argmax

llama.cpp calls `cb_eval` with each tensor of its graph, asks whether it is wanted, and waits until it has been copied.
Hybrid and other architectures that fledge's own decoder doesn't know come this way. Conversations run one by one.
"""

from __future__ import annotations

import ctypes
import logging
import weakref
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fledge.base.errors import DataError, TargetError
from fledge.data import Conversation
from fledge.features.extract import check_runnable, sample_of
from fledge.features.options import FeatureOptions
from fledge.features.shard import FeatureSample
from fledge.sources.gguf import is_gguf
from fledge.target import Target

logger = logging.getLogger("fledge")

_ROWS = 512  # of one forward: llama.cpp keeps the logits of each
_F32 = 0  # ggml's number of the type
_LAST = "result_norm"  # its name of the final norm's output
_ERROR = 4  # its level of a log line


class LlamaCppExtractor:
    """llama.cpp as a feature extractor; owns a model and a context in it. Not thread-safe."""

    shards_ahead = 0

    def __init__(self, target: Target, file: Path) -> None:
        """`file`: a GGUF file of the target, in any quantisation; of several parts the first.

        Raises a TargetError if llama.cpp can't load it, or if it is another model than the target.
        """
        self._api = _load_library()
        self._log = _log()
        config = target.config
        self.hidden_size = config.hidden_size
        self._limit, self._vocab_size = config.max_position_embeddings, config.vocab_size
        self._names = [f"l_out-{layer}" for layer in config.feature_layers]
        api = self._api
        api.llama_backend_init()
        self._log.last = ""
        self._model = api.llama_model_load_from_file(str(file).encode(), api.llama_model_default_params())
        if not self._model:
            raise TargetError(
                f"llama.cpp can't load {file} ({self._log.last}): use a file that llama-server takes, or a newer "
                "llama-cpp-python"
            )
        weakref.finalize(self, api.llama_model_free, self._model)
        width = api.llama_model_n_embd(self._model)
        tokens = api.llama_vocab_n_tokens(api.llama_model_get_vocab(self._model))
        layers = api.llama_model_n_layer(self._model)
        if layers < config.num_layers:  # more: some predict further tokens
            raise TargetError(
                f"{file} has {layers} layers, the target {config.num_layers}: set features.gguf to a file of the "
                "target itself"
            )
        if (width, tokens) != (self.hidden_size, self._vocab_size):
            raise TargetError(
                f"{file} has {tokens:,} tokens and hidden states of {width:,}, the target {self._vocab_size:,} and "
                f"{self.hidden_size:,}: set features.gguf to a file of the target itself"
            )
        self._read = _Reader(self._api, [*self._names, _LAST])
        self._context: Any = None
        self._free: weakref.finalize[..., Any] | None = None
        self._capacity = 0

    @classmethod
    def for_target(cls, target: Target, options: FeatureOptions) -> LlamaCppExtractor:
        """The target run by llama.cpp, from `options.gguf` or its own file."""
        file = Path(options.gguf).expanduser() if options.gguf else target.place
        if not is_gguf(file):
            raise TargetError(
                f"features.engine=llama.cpp runs a GGUF file, and {file} isn't one: set features.gguf to one of the "
                "target"
            )
        return cls(target, file)

    def extract(self, conversations: list[Conversation]) -> list[FeatureSample]:
        """The conversations' samples, in order."""
        check_runnable(conversations, self._limit, self._vocab_size)
        self._make_room(max(len(c.token_ids) for c in conversations))
        return [self._one(c) for c in conversations]

    def _one(self, c: Conversation) -> FeatureSample:
        api = self._api
        wanted = torch.tensor([*c.loss_mask[1:], 0], dtype=torch.bool)  # whose next token was generated
        argmax = torch.full((len(wanted),), -1, dtype=torch.int32)
        api.llama_memory_clear(api.llama_get_memory(self._context), True)
        self._read.parts.clear()
        for start in range(0, len(wanted), _ROWS):
            ids = c.token_ids[start : start + _ROWS]
            self._decode(ids, start, c.conversation_id)
            rows = wanted[start : start + _ROWS].nonzero().flatten()
            if len(rows):
                logits = np.ctypeslib.as_array(
                    api.llama_get_logits(self._context), (len(ids), self._vocab_size)
                )
                argmax[start + rows] = torch.from_numpy(logits[rows.numpy()].argmax(-1)).int()
        *features, hidden = [self._states(name, len(wanted)) for name in self._read.names]
        return sample_of(c, argmax, torch.cat(features, -1), hidden)

    def _decode(self, ids: list[int], start: int, conversation: str) -> None:
        batch = self._api.llama_batch_init(len(ids), 0, 1)
        try:
            batch.n_tokens = len(ids)
            for row, token in enumerate(ids):
                batch.token[row], batch.pos[row] = token, start + row
                batch.n_seq_id[row], batch.seq_id[row][0] = 1, 0
                batch.logits[row] = True  # or the last layer computes fewer rows
            self._log.last = ""
            status = self._api.llama_decode(self._context, batch)
        finally:
            self._api.llama_batch_free(batch)
        if status:
            raise DataError(
                f"llama.cpp can't run conversation {conversation} ({self._log.last or f'status {status}'}): leave it "
                "out, or lower respond.max_prompt_tokens or respond.max_new_tokens and run respond again"
            )

    def _states(self, name: str, rows: int) -> Tensor:
        """The tensor read under a name, [rows, Ht]."""
        found = self._read.parts.get(name, [])
        states = torch.cat(found) if found else torch.empty(0)
        if states.numel() != rows * self.hidden_size:
            raise TargetError(
                f"llama.cpp gives {states.numel():,} numbers as {name} of this architecture, expected {rows:,} rows of "
                f"{self.hidden_size:,}: features of it can't be read this way; use features.device_map or "
                "features.server"
            )
        return states.view(rows, self.hidden_size)

    def _make_room(self, tokens: int) -> None:
        """A context of at least so many tokens."""
        if tokens <= self._capacity:
            return
        if self._free is not None:
            self._free()  # its memory, before there is another
        api, params = self._api, self._api.llama_context_default_params()
        self._capacity = 0
        params.n_ctx = -(-tokens // _ROWS) * _ROWS
        params.n_batch = params.n_ubatch = _ROWS
        params.n_threads = params.n_threads_batch = torch.get_num_threads()
        params.type_k = params.type_v = _F32
        params.flash_attn_type = api.LLAMA_FLASH_ATTN_TYPE_DISABLED  # it rounds values to 16 bits
        params.cb_eval, params.no_perf = self._read.callback, True
        self._log.last = ""
        self._context = api.llama_init_from_model(self._model, params)
        if not self._context:
            raise DataError(
                f"llama.cpp has no room for conversations of {tokens:,} tokens ({self._log.last}): lower "
                "respond.max_prompt_tokens or respond.max_new_tokens and run respond again"
            )
        self._free = weakref.finalize(self, api.llama_free, self._context)
        self._capacity = params.n_ctx


class _Reader:
    """Copies the tensors of some names while llama.cpp computes them."""

    def __init__(self, api: ModuleType, names: list[str]) -> None:
        self.names = names
        self.parts: dict[str, list[Tensor]] = {}  # by name, each flat float32, in the order of the rows
        self._ggml = _ggml()
        self.callback = api.ggml_backend_sched_eval_callback(self._called)

    def _called(self, tensor: int, asks: bool, _: object) -> bool:
        """If llama.cpp asks: whether it is wanted. Else it has been computed, and True goes on."""
        name = self._ggml.ggml_get_name(tensor).decode()
        if asks or name not in self.names:
            return name in self.names
        values = torch.empty(self._ggml.ggml_nelements(tensor))
        size = self._ggml.ggml_nbytes(tensor)
        if size == values.nbytes:  # float32; of another type there is nothing, which is an error later
            self._ggml.ggml_backend_tensor_get(tensor, values.data_ptr(), 0, size)
            self.parts.setdefault(name, []).append(values)
        return True


class _Log:
    """Takes llama.cpp's log from the screen, and keeps its last error; there is one log in a process."""

    def __init__(self, api: ModuleType) -> None:
        self.last = ""
        self._callback = api.llama_log_callback(self._line)
        api.llama_log_set(self._callback, None)

    def _line(self, level: int, text: bytes, _: object) -> None:
        line = text.decode(errors="replace").strip()
        logger.debug("llama.cpp: %s", line)
        if level == _ERROR and line:
            self.last = line


@cache
def _log() -> _Log:
    return _Log(_load_library())


def _load_library() -> ModuleType:
    try:
        import llama_cpp
    except ImportError as error:
        raise TargetError(
            "features.engine=llama.cpp needs llama-cpp-python: pip install 'fledge[llama-cpp]'"
        ) from error
    return llama_cpp


def _ggml() -> ctypes.CDLL:
    """The functions of a ggml tensor, which llama-cpp-python brings along and doesn't declare."""
    from llama_cpp._ggml import libggml

    for name, result, arguments in (
        ("ggml_get_name", ctypes.c_char_p, [ctypes.c_void_p]),
        ("ggml_nelements", ctypes.c_int64, [ctypes.c_void_p]),
        ("ggml_nbytes", ctypes.c_size_t, [ctypes.c_void_p]),
        (
            "ggml_backend_tensor_get",
            None,
            [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t],
        ),
    ):
        function = getattr(libggml, name)
        function.restype, function.argtypes = result, arguments
    return libggml
