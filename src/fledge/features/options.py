"""Feature extraction options of a recipe. The field descriptions are the documentation."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator, model_validator

from fledge.base.options import RecipePart

Codec = Literal["bf16", "fp8"]


class FeatureServers(RecipePart):
    """Servers that hold the target and give its hidden states: the target isn't loaded here (see Features)."""

    urls: tuple[str, ...] = Field(
        min_length=1, description="addresses, such as http://localhost:8000; each does a share of the work"
    )
    engine: Literal["vllm", "sglang"] = Field("vllm", description="engine of the servers; sglang is refused")
    model: str = Field("", description="the served model; empty: the only one a server lists")
    concurrency: int = Field(8, ge=1, le=1024, description="requests at once to each")
    ahead: int = Field(
        4,
        ge=1,
        description="batches in flight where training reads from the servers (feed=online), limited by memory",
    )
    timeout_s: float = Field(600.0, gt=0.0, description="seconds until a request is given up")
    retries: int = Field(
        5, ge=0, description="pauses of a request that all servers fail, then the stage ends"
    )
    backoff_s: float = Field(
        1.0, ge=0.0, description="first pause, also of a server that failed; doubled before each later one"
    )

    @field_validator("engine")
    @classmethod
    def _writes_all_layers(cls, engine: str) -> str:
        if engine == "sglang":
            raise ValueError(
                "SGLang (0.5.23) returns the three feature layers as JSON numbers, and not the last hidden state with "
                "them; serve the target in vLLM for this stage, or set features.device_map"
            )
        return engine

    @model_validator(mode="before")
    @classmethod
    def _addresses_alone(cls, value: object) -> object:
        if isinstance(value, str):
            value = (value,)
        return {"urls": value} if isinstance(value, list | tuple) else value


class FeatureOptions(RecipePart):
    """The target's hidden states over the conversations: what the head reads and learns from."""

    batch_tokens: int = Field(
        4096, ge=16, description="rows of one prefill of the target, conversations packed"
    )
    feed: Literal["offline", "online", "hybrid"] = Field(
        "offline",
        description="source of training: offline a store, online the target (or server) at work, hybrid the same in "
        "the first pass and what was kept of it later; held-out features are always stored",
    )
    codec: Codec = Field(
        "bf16",
        description="storage type of hidden states: bf16, or fp8 with a scale per row at half the bytes",
    )
    shard_mib: int = Field(256, ge=1, description="size of a shard in MiB: a kill loses up to one shard")
    device_map: str | None = Field(
        None,
        description="extract with transformers' own model instead of fledge's decoder, spread over devices as its "
        "device_map says (`auto`, `balanced`, ...): for a target that is larger than one device",
    )
    engine: Literal["fledge", "llama.cpp"] = Field(
        "fledge",
        description="what runs the target here: fledge's decoder, or llama.cpp (extra `llama-cpp`), which knows more "
        "architectures and devices, from a GGUF file",
    )
    gguf: str | None = Field(
        None, description="the target's file that engine=llama.cpp runs; null: the target itself is one"
    )
    server: FeatureServers | None = Field(
        None, description="servers that give the target's hidden states, or just their address; null: none"
    )
    price_per_gb: float = Field(
        0.02, ge=0.0, description="monthly cost of a GB (10^9 bytes) where the store is, for estimates"
    )

    @model_validator(mode="after")
    def _decoder_feeds_training(self) -> FeatureOptions:
        given = {"device_map": self.device_map, "engine=llama.cpp": self._llama_cpp, "server": self.server}
        several = [name for name, value in given.items() if value]
        if len(several) > 1:
            raise ValueError(f"{' and '.join(several)} both extract: leave one of them out")
        if several and several != ["server"] and self.feed != "offline":
            raise ValueError(
                f"feed={self.feed} runs fledge's own decoder or servers during training; {several[0]} needs "
                "feed=offline"
            )
        if self.gguf and not self._llama_cpp:
            raise ValueError(
                "gguf is the file that llama.cpp runs: set engine=llama.cpp, too, or leave it out"
            )
        return self

    @property
    def _llama_cpp(self) -> bool:
        return self.engine == "llama.cpp"

    @property
    def uses_decoder(self) -> bool:
        """True if fledge's own decoder extracts the features."""
        return self.device_map is None and self.server is None and not self._llama_cpp
