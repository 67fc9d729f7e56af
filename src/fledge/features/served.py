"""Features from vLLM servers that write hidden states to a shared folder.

    POST /v1/completions  {"prompt": ids, "max_tokens": 1}   ->   kv_transfer_params.hidden_states_path
    that file             token_ids [n], hidden_states [n, 4, Ht]: low, middle, high, last before the final norm

A server runs vLLM's `extract_hidden_states` method with its ExampleHiddenStatesConnector; see `server_arguments`.
A conversation that a server refuses is left out and counted; what else goes wrong is tried again (servers.py).
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import safetensors.torch
import torch
from torch import Tensor

from fledge.base.errors import DataError
from fledge.base.retry import REFUSED_STATUS
from fledge.data import Conversation
from fledge.features.extract import likeliest_next, sample_of
from fledge.features.options import FeatureServers
from fledge.features.servers import FeatureServer, RequestFailed, Servers
from fledge.features.shard import FeatureSample
from fledge.target import Target
from fledge.target.qkv import rms_norm

logger = logging.getLogger("fledge")

_SHOWN = 5  # refused conversations that are named
_SHARDS_AHEAD = 8  # requested at once, the first one first, so that the end of one leaves no server idle


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
    """Servers as a feature extractor. Of the target only the final norm and lm_head are used here. Thread-safe."""

    shards_ahead = _SHARDS_AHEAD

    def __init__(
        self, target: Target, options: FeatureServers, pause: Callable[[float], None] = time.sleep
    ) -> None:
        self.hidden_size = target.config.hidden_size
        self.refused: set[str] = set()  # conversations left out, such as those longer than a --max-model-len
        self._target, self._servers = target, Servers(options, pause)
        self._requests = ThreadPoolExecutor(options.concurrency * len(options.urls), "fledge-features")
        self._lock = threading.Lock()

    def extract(self, conversations: list[Conversation]) -> list[FeatureSample]:
        """The conversations' samples, in order, without those that a server refuses."""
        samples = self._requests.map(self._one, conversations)
        return [sample for sample in samples if sample is not None]

    def _one(self, conversation: Conversation) -> FeatureSample | None:
        states = self._servers.ask(lambda server: self._states(server, conversation))
        return None if states is None else self._sample(conversation, states)

    def _states(self, server: FeatureServer, conversation: Conversation) -> Tensor | None:
        """The hidden states [n, 4, Ht] that the server wrote, None if it refuses; the file is removed."""
        server.model = server.model or _only_model(server)
        body = {"model": server.model, "prompt": conversation.token_ids, "max_tokens": 1, "temperature": 0.0}
        reply = server.request("POST", "/v1/completions", body)
        if reply.status_code in REFUSED_STATUS:
            self._refuse(f"{server.url} refuses it ({reply.status_code}: {reply.text[:200]})", conversation)
            return None
        if reply.is_error:
            raise DataError(
                f"{server.url} answers {reply.status_code} ({reply.text[:200]}): check features.server and its log"
            )
        try:
            tensors = _read(reply.json()["kv_transfer_params"]["hidden_states_path"])
            ids, states = tensors["token_ids"], tensors["hidden_states"]
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(
                f"{server.url} returned no hidden states; start it with the arguments that "
                "fledge.features.server_arguments(target, folder) returns"
            ) from error
        except (
            OSError,
            safetensors.SafetensorError,
        ) as error:  # also if it was killed before it had written them
            raise RequestFailed(
                f"wrote hidden states that can't be read ({error}), though it and this process must see the same folder"
            ) from error
        expected = (len(conversation.token_ids), 4, self.hidden_size)
        if ids.tolist() != list(conversation.token_ids) or tuple(states.shape) != expected:
            raise DataError(
                f"{server.url} returned hidden states {tuple(states.shape)} for conversation "
                f"{conversation.conversation_id}, expected {expected} of the same tokens; start it with the arguments "
                "that fledge.features.server_arguments(target, folder) returns"
            )
        return states

    def _refuse(self, reason: str, conversation: Conversation) -> None:
        with self._lock:
            self.refused.add(conversation.conversation_id)
            shown = len(self.refused) <= _SHOWN
        logger.log(
            logging.WARNING if shown else logging.INFO,
            "%s is left out: %s", conversation.conversation_id, reason,
        )  # fmt: skip

    def _sample(self, c: Conversation, states: Tensor) -> FeatureSample:
        config, weights = self._target.config, self._target.ends
        normed = rms_norm(states[:, 3].float(), weights.norm.float().cpu(), config.rms_norm_eps)
        lm_head = weights.lm_head

        def logits(rows: Tensor) -> Tensor:
            return rows.to(lm_head.device, lm_head.dtype) @ lm_head.t()

        return sample_of(
            c, likeliest_next(torch.tensor(c.loss_mask), normed, logits), states[:, :3].flatten(1), normed
        )


def _only_model(server: FeatureServer) -> str:
    try:
        (model,) = server.request("GET", "/v1/models").json()["data"]
        return str(model["id"])
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(
            f"{server.url} names no single model at /v1/models: set features.server.model, or check the address"
        ) from error


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
