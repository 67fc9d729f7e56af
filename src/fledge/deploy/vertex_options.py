"""Options of `fledge deploy vertex`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

from pydantic import BeforeValidator, Field, model_validator

from fledge.base.errors import EngineError, FledgeError
from fledge.base.options import Flag, Options, Whole

Name = Annotated[str, Field(min_length=1)]
Replicas = Annotated[Whole, Field(ge=1)]
Accelerator = Annotated[str | None, BeforeValidator(lambda name: None if name == "none" else name)]


class VertexOptions(Options):
    """Deployment settings: the model, and the machines to run it on."""

    error: ClassVar[type[FledgeError]] = EngineError

    project: Name = Field(description="Google Cloud project")
    region: Name = Field(description="such as us-central1")
    image: Name = Field(description="container image with fledge and the engine")
    target: Name = Field(description="hub id, or a folder in the image")
    head: Name = Field(description="gs:// folder, hub id, or a folder in the image")
    name: Name = Field("fledge", description="display name of model and endpoint")
    engine: Literal["sglang", "vllm", "fledge"] = Field("sglang", description="what serves")
    machine_type: Name = Field("a3-highgpu-1g", description="machine type on Vertex AI")
    accelerator: Accelerator = Field("NVIDIA_H100_80GB", description="Vertex AI's AcceleratorType, or none")
    accelerator_count: Replicas = Field(1, description="accelerators per replica")
    min_replicas: Replicas = Field(1, description="fewest replicas")
    max_replicas: Replicas = Field(1, description="most replicas")
    service_account: str | None = Field(None, description="account that may read the head's bucket")
    environment: Annotated[Mapping[str, str], Flag(hidden=True)] = Field(
        {}, repr=False, description="of the container, such as HF_TOKEN"
    )

    @model_validator(mode="after")
    def _fits(self) -> VertexOptions:
        if self.engine == "fledge" and self.accelerator_count > 1:
            raise ValueError(
                "fledge's own engine uses one accelerator per replica: use more replicas, or --engine sglang or vllm"
            )
        if self.min_replicas > self.max_replicas:
            raise ValueError(
                f"{self.min_replicas} to {self.max_replicas} replicas are none: raise max_replicas"
            )
        return self
