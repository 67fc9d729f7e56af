"""Features from a vLLM server that writes hidden states to a shared folder.

    POST /v1/completions  {"prompt": ids, "max_tokens": 1}   ->   kv_transfer_params.hidden_states_path
    that file             token_ids [n], hidden_states [n, 4, Ht]: low, middle, high, last before the final norm

The server runs vLLM's `extract_hidden_states` method with its ExampleHiddenStatesConnector; see `server_arguments`.
A busy server is asked again; a conversation that it refuses is left out and counted.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import safetensors.torch
from torch import Tensor

from fledge.base.errors import DataError
from fledge.data import Conversation
from fledge.features.extract import likeliest_next, sample_of
from fledge.features.shard import FeatureSample
from fledge.target import Target
from fledge.target.qkv import rms_norm

if TYPE_CHECKING:
    import httpx2

logger = logging.getLogger("fledge")

_REFUSED = (400, 413, 422)  # by the conversation's fault: too long, say
_BUSY = (408, 425, 429, 500, 502, 503, 504)
_ATTEMPTS, _FIRST_PAUSE_S = 6, 1.0  # the pause doubles each time: half a minute altogether


def server_arguments(target: Target, folder: str) -> list[str]:
    """Arguments of `vllm serve` for this target; hidden states are exchanged through `folder`."""
    config = target.config
    # vLLM counts layers by their input.
    layers = [*(layer + 1 for layer in config.feature_layers), config.num_layers]
    method = {
        "method": "extract_hidden_states",
        "num_speculative_tokens": 1,
        "draft_model_config": {"hf_config": {"eagle_aux_hidden_state_layer_ids": layers}},
    }
    transfer = {
        "kv_connector": "ExampleHiddenStatesConnector",
        "kv_role": "kv_producer",
        "kv_connector_extra_config": {"shared_storage_path": folder},
    }
    return ["--speculative-config", json.dumps(method), "--kv-transfer-config", json.dumps(transfer)]


class ServedExtractor:
    """A server as a feature extractor. Of the target only the final norm and lm_head are used here."""

    def __init__(
        self,
        target: Target,
        url: str,
        model: str | None = None,
        *,
        concurrency: int = 8,
        timeout_s: float = 600.0,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        """`url` as in http://host:8000; `model` is the name it serves, None: its only one."""
        import httpx2  # of the data extra, as below

        self.hidden_size = target.config.hidden_size
        self.refused = 0  # conversations left out, such as those longer than the server's --max-model-len
        self._target, self._url, self._model, self._pause = target, url.rstrip("/"), model, pause
        self._concurrency = concurrency
        self._client = httpx2.Client(base_url=self._url, timeout=timeout_s)

    def extract(self, conversations: list[Conversation]) -> list[FeatureSample]:
        """The conversations' samples, in order; several requests run at once."""
        if self._model is None:
            self._model = self._only_model()
        with ThreadPoolExecutor(self._concurrency) as pool:
            states = list(pool.map(self._states, conversations))
        self.refused += states.count(None)
        pairs = zip(conversations, states, strict=True)
        return [self._sample(c, state) for c, state in pairs if state is not None]

    def _states(self, conversation: Conversation) -> Tensor | None:
        """The hidden states [n, 4, Ht] that the server wrote, None if it refuses; the file is removed."""
        import httpx2

        body = {"model": self._model, "prompt": conversation.token_ids, "max_tokens": 1, "temperature": 0.0}
        try:
            reply = self._answer(body)
            if reply.status_code in _REFUSED:
                logger.warning(
                    "%s is left out: the server refuses it (%d: %s)",
                    conversation.conversation_id, reply.status_code, reply.text[:200],
                )  # fmt: skip
                return None
            reply.raise_for_status()
            path = reply.json()["kv_transfer_params"]["hidden_states_path"]
            tensors = _read(path)
            ids, states = tensors["token_ids"], tensors["hidden_states"]
        except httpx2.HTTPError as error:
            raise DataError(
                f"{self._url} doesn't answer ({error}); finished shards are kept: check the server's log, and run "
                "again to resume"
            ) from error
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(
                f"{self._url} returned no hidden states; start it with the arguments that "
                "fledge.features.server_arguments(target, folder) returns"
            ) from error
        except (OSError, safetensors.SafetensorError) as error:
            raise DataError(
                f"can't read the hidden states that {self._url} wrote ({error}); server and this process must see the "
                "same folder"
            ) from error
        expected = (len(conversation.token_ids), 4, self.hidden_size)
        if ids.tolist() != list(conversation.token_ids) or tuple(states.shape) != expected:
            raise DataError(
                f"{self._url} returned hidden states {tuple(states.shape)} for conversation "
                f"{conversation.conversation_id}, expected {expected} of the same tokens; start it with the arguments "
                "that fledge.features.server_arguments(target, folder) returns"
            )
        return states

    def _answer(self, body: dict[str, Any]) -> httpx2.Response:
        """The server's reply, asked again with growing pauses while it is busy or can't be reached."""
        import httpx2

        for attempt in range(1, _ATTEMPTS):
            try:
                reply = self._client.post("/v1/completions", json=body)
                if reply.status_code not in _BUSY:
                    return reply
                reason = f"status {reply.status_code}"
            except httpx2.HTTPError as error:
                reason = f"{type(error).__name__} {error}"
            seconds = _FIRST_PAUSE_S * 2 ** (attempt - 1)
            logger.info("%s: %s; trying again in %.0f s", self._url, reason, seconds)
            self._pause(seconds)
        return self._client.post("/v1/completions", json=body)

    def _only_model(self) -> str:
        import httpx2

        try:
            (model,) = self._client.get("/v1/models").json()["data"]
            return str(model["id"])
        except (httpx2.HTTPError, KeyError, TypeError, ValueError) as error:
            raise DataError(
                f"{self._url} names no single model at /v1/models ({error}): check the address, and the server's log"
            ) from error

    def _sample(self, c: Conversation, states: Tensor) -> FeatureSample:
        config, weights = self._target.config, self._target.ends
        normed = rms_norm(states[:, 3].float(), weights.norm.float().cpu(), config.rms_norm_eps)
        lm_head = weights.lm_head

        def logits(rows: Tensor) -> Tensor:
            return rows.to(lm_head.device, lm_head.dtype) @ lm_head.t()

        return sample_of(c, likeliest_next(c, normed, logits), states[:, :3].flatten(1), normed)


def _read(path: str) -> dict[str, Any]:
    """The file's tensors, once the server has released its lock; both files are removed."""
    lock = path + ".lock"
    if os.path.exists(lock):
        with open(lock) as held:
            fcntl.flock(held, fcntl.LOCK_SH)
    tensors: dict[str, Any] = safetensors.torch.load_file(path)
    for name in (path, lock):
        if os.path.exists(name):
            os.remove(name)
    return tensors
