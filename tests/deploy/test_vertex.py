"""Vertex AI through Google's own library, with the network under it replaced: its channel answers from memory."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import pytest

aiplatform_v1 = pytest.importorskip("google.cloud.aiplatform_v1")

import grpc  # noqa: E402
from google.cloud.aiplatform_v1.services.endpoint_service.transports import (  # noqa: E402
    EndpointServiceGrpcTransport,
)
from google.cloud.aiplatform_v1.services.model_service.transports import ModelServiceGrpcTransport  # noqa: E402
from google.longrunning import operations_pb2  # noqa: E402

from fledge.base.errors import EngineError  # noqa: E402
from fledge.deploy.vertex import (  # noqa: E402
    SHARED_BY,
    VertexClients,
    as_dict,
    deploy_vertex,
    parse_environment,
    send,
    vertex_requests,
)
from fledge.deploy.vertex_options import VertexOptions  # noqa: E402

OPTIONS = VertexOptions(
    project="p",
    region="us-central1",
    image="us-docker.pkg.dev/p/fledge:cuda",
    target="meta-llama/Llama-3.1-8B-Instruct",
    head="gs://bucket/head",
    max_replicas=3,
)
ANSWERS = {
    "UploadModel": lambda: aiplatform_v1.UploadModelResponse(model="projects/p/models/7"),
    "CreateEndpoint": lambda: aiplatform_v1.Endpoint(name="projects/p/endpoints/9"),
    "DeployModel": lambda: aiplatform_v1.DeployModelResponse(),
}


class Network(grpc.GenericRpcHandler):
    """Stands where Google's servers would: takes the bytes the library sends, answers with finished operations."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, bytes]] = []
        self.refuse = ""

    def service(self, details: Any) -> Any:
        name = details.method.rsplit("/", 1)[-1]

        def answer(request: bytes, context: Any) -> bytes:
            self.calls.append((name, request))
            if name == self.refuse:
                context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "quota exceeded")
            done = operations_pb2.Operation(name=f"operations/{len(self.calls)}", done=True)
            done.response.Pack(type(ANSWERS[name]()).pb(ANSWERS[name]()))
            return bytes(done.SerializeToString())

        return grpc.unary_unary_rpc_method_handler(answer)


class Vertex(NamedTuple):
    """The network, and clients that believe it to be Google's."""

    network: Network
    clients: VertexClients


@pytest.fixture
def vertex() -> Iterator[Vertex]:
    network = Network()
    server = grpc.server(ThreadPoolExecutor(1))
    server.add_generic_rpc_handlers((network,))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        models = ModelServiceGrpcTransport(channel=channel)
        endpoints = EndpointServiceGrpcTransport(channel=channel)
        yield Vertex(
            network,
            VertexClients(
                aiplatform_v1.ModelServiceClient(transport=models),
                aiplatform_v1.EndpointServiceClient(transport=endpoints),
            ),
        )
    server.stop(None)


def test_the_calls_reach_the_network_in_order_with_each_others_results(vertex: Vertex) -> None:
    assert send(vertex_requests(OPTIONS), vertex.clients) == "projects/p/endpoints/9"
    assert [name for name, _ in vertex.network.calls] == ["UploadModel", "CreateEndpoint", "DeployModel"]
    upload = aiplatform_v1.UploadModelRequest.deserialize(vertex.network.calls[0][1])
    spec = upload.model.container_spec
    assert upload.parent == "projects/p/locations/us-central1"
    assert list(spec.args)[:4] == ["serve", "meta-llama/Llama-3.1-8B-Instruct", "--head", "gs://bucket/head"]
    assert list(spec.args)[4:6] == ["--engine", "sglang"]
    assert (spec.predict_route, spec.health_route) == ("/vertex_generate", "/health")
    deploy = aiplatform_v1.DeployModelRequest.deserialize(vertex.network.calls[2][1])
    assert (deploy.endpoint, deploy.deployed_model.model) == ("projects/p/endpoints/9", "projects/p/models/7")
    resources = deploy.deployed_model.dedicated_resources
    assert resources.machine_spec.accelerator_type == aiplatform_v1.AcceleratorType.NVIDIA_H100_80GB
    assert (resources.min_replica_count, resources.max_replica_count) == (1, 3)
    assert dict(deploy.traffic_split) == {"0": 100}


def test_our_own_engine_is_told_to_use_the_accelerator_it_was_given() -> None:
    own = OPTIONS.changed(engine="fledge")
    args = list(vertex_requests(own).upload.model.container_spec.args)
    assert args[4:6] == ["--device", "cuda"]
    bare = vertex_requests(own.changed(accelerator=None)).upload.model.container_spec.args
    assert "--device" not in bare


@pytest.mark.parametrize("engine", sorted(SHARED_BY))
def test_an_engine_is_told_of_all_accelerators_it_was_given(engine: str) -> None:
    requests = vertex_requests(OPTIONS.changed(engine=engine, accelerator_count=8))
    assert f"--argument={SHARED_BY[engine]}=8" in requests.upload.model.container_spec.args


def test_the_server_gets_the_environment_and_nobody_sees_its_values(
    capsys: pytest.CaptureFixture[str],
) -> None:
    environment = parse_environment(["HF_TOKEN", "MODE=a=b", "EMPTY="], {"HF_TOKEN": "hf_secret"})
    assert environment == {"HF_TOKEN": "hf_secret", "MODE": "a=b", "EMPTY": ""}
    options = OPTIONS.changed(environment=environment)
    sent = {v.name: v.value for v in vertex_requests(options).upload.model.container_spec.env}
    assert sent == environment
    deploy_vertex(options)
    output = capsys.readouterr().out + repr(options)
    assert '"HF_TOKEN"' in output
    assert "hf_secret" not in output
    for wrong, message in (
        ("NOT_SET", "isn't set here"),
        ("=x", "isn't a variable"),
        ("A B=x", "isn't a variable"),
    ):
        with pytest.raises(EngineError, match=message):
            parse_environment([wrong], {})


def test_a_refusal_says_what_was_made_already(vertex: Vertex) -> None:
    vertex.network.refuse = "CreateEndpoint"
    with pytest.raises(EngineError, match=r"quota exceeded.*model projects/p/models/7 stays uploaded"):
        send(vertex_requests(OPTIONS), vertex.clients)


def test_a_dry_run_prints_requests_the_library_accepts(capsys: pytest.CaptureFixture[str]) -> None:
    deploy_vertex(OPTIONS)
    output = capsys.readouterr().out
    assert "dry run: nothing was sent" in output
    requests = vertex_requests(OPTIONS)
    for request in (requests.upload, requests.endpoint, requests.deploy):
        text = json.dumps(as_dict(request), indent=2)
        assert text in output
        assert type(request).from_json(text) == request  # unknown fields would be refused


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"accelerator": "NVIDIA_ABACUS"}, "has no accelerator"),
        ({"engine": "tgi"}, "use 'sglang', 'vllm' or 'fledge'"),
        ({"min_replicas": 4}, "raise max_replicas"),
        ({"image": ""}, "image is ''; String should have at least 1 character"),
        ({"accelerator_count": 0}, "use 1 or more"),
        ({"engine": "fledge", "accelerator_count": 2}, "one accelerator per replica"),
    ],
)
def test_what_vertex_would_refuse_is_refused_before(change: dict[str, Any], message: str) -> None:
    with pytest.raises(EngineError, match=message):
        vertex_requests(OPTIONS.changed(**change))


def test_a_missing_library_is_its_install_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "google.cloud.aiplatform_v1", None)
    monkeypatch.delattr("google.cloud.aiplatform_v1", raising=False)
    with pytest.raises(EngineError, match=r'pip install "fledge\[vertex\]"'):
        vertex_requests(OPTIONS)
