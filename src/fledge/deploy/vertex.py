"""`fledge deploy vertex`: the model upload and endpoint deployment on Vertex AI, with Google's own client library.

    UploadModel -> CreateEndpoint -> DeployModel        three long-running operations; only printed without --run

The requests are the library's own message types, so an unknown field is an error even in the dry run.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fledge.base.console import console
from fledge.base.errors import EngineError
from fledge.deploy.vertex_options import VertexOptions

# Each server's route for Vertex's raw predictions; all of them respond at /health.
PREDICT_ROUTES = {
    "sglang": "/vertex_generate",
    "vllm": "/v1/chat/completions",
    "fledge": "/v1/chat/completions",
}
# Each server's option for several accelerators.
SHARED_BY = {"sglang": "--tp-size", "vllm": "--tensor-parallel-size"}
_INSTALL = 'Vertex AI needs its client library: pip install "fledge[vertex]"'
_PORT = 8080
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SECONDS = 7200.0  # per operation: a deployment waits for machines


@dataclass(frozen=True)
class VertexRequests:
    """The calls, in order. `{model}` and `{endpoint}` are placeholders for the earlier calls' results."""

    upload: Any  # UploadModelRequest
    endpoint: Any  # CreateEndpointRequest
    deploy: Any  # DeployModelRequest


@dataclass(frozen=True)
class VertexClients:
    """The two services."""

    models: Any  # ModelServiceClient
    endpoints: Any  # EndpointServiceClient


def deploy_vertex(options: VertexOptions, *, run: bool = False) -> None:
    """Print the calls, without the environment's values; with `run`, make them and print the endpoint."""
    requests = vertex_requests(options)
    shown = vertex_requests(options.changed(environment=dict.fromkeys(options.environment, "***")))
    for call, request in (
        ("ModelService.UploadModel", shown.upload),
        ("EndpointService.CreateEndpoint", shown.endpoint),
        ("EndpointService.DeployModel", shown.deploy),
    ):
        console.print(call, style="bold")
        console.print(json.dumps(as_dict(request), indent=2), markup=False, soft_wrap=True)
    if not run:
        console.print("dry run: nothing was sent; add --run to make these calls")
        return
    console.print(f"endpoint: {send(requests, connect(options.region))}")


def vertex_requests(options: VertexOptions) -> VertexRequests:
    """The three requests as the library's own messages."""
    v1 = _library()
    parent = f"projects/{options.project}/locations/{options.region}"
    command = ["serve", options.target, "--head", options.head]
    if options.engine != "fledge":
        command += ["--engine", options.engine, "--python", "/usr/bin/python3"]
        if options.accelerator is not None and options.accelerator_count > 1:
            command.append(f"--argument={SHARED_BY[options.engine]}={options.accelerator_count}")
    elif options.accelerator is not None:
        command += ["--device", "cuda"]  # the default of fledge's engine is the CPU
    try:
        model = v1.Model(
            display_name=options.name,
            description=f"{options.target} with the draft head {options.head}, served by {options.engine}",
            container_spec=v1.ModelContainerSpec(
                image_uri=options.image,
                command=["fledge"],
                args=[*command, "--host", "0.0.0.0", "--port", str(_PORT)],
                env=[v1.EnvVar(name=name, value=value) for name, value in options.environment.items()],
                ports=[v1.Port(container_port=_PORT)],
                predict_route=PREDICT_ROUTES[options.engine],
                health_route="/health",
                shared_memory_size_mb=16384,
                deployment_timeout={"seconds": int(_SECONDS)},
            ),
            labels={"made-with": "fledge"},
        )
        machine = v1.MachineSpec(machine_type=options.machine_type)
        if options.accelerator is not None:
            machine.accelerator_type = v1.AcceleratorType[options.accelerator]
            machine.accelerator_count = options.accelerator_count
        deployed = v1.DeployedModel(
            model="{model}",
            display_name=options.name,
            dedicated_resources=v1.DedicatedResources(
                machine_spec=machine,
                min_replica_count=options.min_replicas,
                max_replica_count=options.max_replicas,
            ),
            service_account=options.service_account or "",
        )
        return VertexRequests(
            v1.UploadModelRequest(parent=parent, model=model),
            v1.CreateEndpointRequest(parent=parent, endpoint=v1.Endpoint(display_name=options.name)),
            v1.DeployModelRequest(endpoint="{endpoint}", deployed_model=deployed, traffic_split={"0": 100}),
        )
    except KeyError as error:
        raise EngineError(
            f"Vertex AI has no accelerator {error}: use a name of its AcceleratorType"
        ) from error
    except (TypeError, ValueError) as error:
        raise EngineError(f"Vertex AI's library refuses the request ({error}): check the options") from error


def parse_environment(texts: Sequence[str], environment: Mapping[str, str]) -> dict[str, str]:
    """Variables from NAME=VALUE, or from NAME alone with the value from our own environment."""
    variables = {}
    for text in texts:
        name, has_value, value = text.partition("=")
        if not _VARIABLE.fullmatch(name):
            raise EngineError(
                f"--env {name!r} isn't a variable: write NAME=VALUE, or NAME for the value it has here"
            )
        if not has_value and name not in environment:
            raise EngineError(f"--env {name} isn't set here: set it, or write {name}=VALUE")
        variables[name] = value if has_value else environment[name]
    return variables


def connect(region: str) -> VertexClients:
    """Clients for a region, with the environment's credentials."""
    v1 = _library()
    options = {"api_endpoint": f"{region}-aiplatform.googleapis.com"}
    try:
        return VertexClients(
            v1.ModelServiceClient(client_options=options), v1.EndpointServiceClient(client_options=options)
        )
    except Exception as error:  # google.auth's own type, from an optional package
        raise EngineError(
            f"no access to Vertex AI ({error}): run `gcloud auth application-default login`"
        ) from error


def send(requests: VertexRequests, clients: VertexClients) -> str:
    """Make the calls, each waiting for the previous one; returns the endpoint's resource name."""
    done = "nothing was made yet"
    try:
        model = clients.models.upload_model(request=requests.upload).result(timeout=_SECONDS).model
        done = f"the model {model} stays uploaded"
        endpoint = clients.endpoints.create_endpoint(request=requests.endpoint).result(timeout=_SECONDS).name
        done += f", the endpoint {endpoint} stays empty"
        requests.deploy.endpoint = endpoint
        requests.deploy.deployed_model.model = model
        clients.endpoints.deploy_model(request=requests.deploy).result(timeout=_SECONDS)
    except Exception as error:  # google.api_core's own types, from an optional package
        raise EngineError(
            f"Vertex AI refuses ({error}); {done}: delete it or deploy it in the console"
        ) from error
    return str(endpoint)


def as_dict(request: Any) -> dict[str, Any]:
    """A request as JSON values, without defaults."""
    values: dict[str, Any] = json.loads(
        type(request).to_json(request, including_default_value_fields=False, use_integers_for_enums=False)
    )
    return values


def _library() -> Any:
    try:
        from google.cloud import aiplatform_v1
    except ImportError:
        raise EngineError(_INSTALL) from None
    return aiplatform_v1
