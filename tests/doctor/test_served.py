"""The doctor against a server that speaks vLLM's or SGLang's interface, with our own engine behind it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fledge.base.errors import EngineError
from fledge.doctor import PROMPTS, ServedEngine, chain_tau, diagnose
from fledge.engine import Engine, TreeShape
from fledge.heads import Head
from tests.doctor.conftest import TOKENS, Patient
from tests.heads.tiny_head import load_tiny_target
from tests.stand_in import StandIn, listening

DEPTH = 3


class Backend:
    """An engine with counters, as a server keeps them."""

    def __init__(
        self,
        patient: Patient,
        folder: Path | None,
        *,
        sglang: bool,
        template: bool,
        owner: str,
        depth: int,
        correct: bool,
    ) -> None:
        head = None if folder is None else Head.load(str(folder))
        self.engine = Engine(patient.target, head, tree=TreeShape(depth, 1, depth + 1) if head else None)
        self.owner = owner
        self.sglang, self.template = sglang, template
        self.correct = correct  # SGLang counts accepted drafts, as from 0.5.23 on
        self.drafts = self.accepted = 0

    def get(self, path: str) -> Any:
        if path == "/v1/models":
            return {"data": [{"id": "tiny", "owned_by": self.owner}]}
        if path == "/get_model_info" and self.sglang:
            return {"model_path": "tiny"}
        if path == "/metrics":
            return (
                "# HELP drafts\n"
                f'vllm:spec_decode_num_drafts_total{{engine="0"}} {float(self.drafts)}\n'
                f'vllm:spec_decode_num_accepted_tokens_total{{engine="0"}} {float(self.accepted)}\n'
            )
        return None

    def post(self, path: str, body: dict[str, Any]) -> Any:
        if path == "/tokenize":
            ids = self.engine.prompt_ids(body["messages"])
            return {"tokens": ids if self.template else ids[2:]}
        if path == "/v1/completions" and not self.sglang:
            answer = self._answer(body["prompt"], body["max_tokens"])
            return {"choices": [{"text": answer.text, "token_ids": answer.token_ids}]}
        if path == "/generate" and self.sglang:
            answer = self._answer(body["input_ids"], body["sampling_params"]["max_new_tokens"])
            meta = {
                "completion_tokens": len(answer.token_ids),
                "spec_verify_ct": answer.stats.rounds,
            }
            if self.correct:
                meta["spec_num_correct_drafts"] = sum(answer.stats.accepted_by_depth)
            return {"text": answer.text, "output_ids": answer.token_ids, "meta_info": meta}
        return None

    def _answer(self, prompt: list[int], max_tokens: int) -> Any:
        answer = self.engine.generate([prompt], max_tokens=max_tokens)[0]
        self.drafts += answer.stats.drafted_rounds
        self.accepted += sum(answer.stats.accepted_by_depth)
        return answer


@pytest.fixture
def serve(patient: Patient) -> Iterator[Callable[..., str]]:
    def start(
        *,
        head: Path | None = patient.head,
        sglang: bool = False,
        template: bool = True,
        key: str = "",
        owner: str = "someone",
        depth: int = DEPTH,
        metrics: bool = True,
        correct: bool = True,
    ) -> str:
        backend = Backend(
            patient, head, sglang=sglang, template=template, owner=owner, depth=depth, correct=correct
        )

        class Handler(StandIn):
            def do_GET(self) -> None:
                self._reply(backend.get(self.path) if metrics or self.path != "/metrics" else None)

            def do_POST(self) -> None:
                self._reply(backend.post(self.path, json.loads(self.read())))

            def _reply(self, value: Any) -> None:
                known = not key or self.headers["Authorization"] == f"Bearer {key}"
                self.answer(401 if not known else 404 if value is None else 200, value)

        return servers.enter_context(listening(Handler))

    with ExitStack() as servers:
        yield start


def test_a_server_that_wants_a_key_gets_it(
    serve: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    url = serve(key="sesame")
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises(EngineError, match="refuses: 401"):
        ServedEngine(url)
    monkeypatch.setenv("OPENAI_API_KEY", "sesame")
    assert ServedEngine(url).model == "tiny"


@pytest.mark.parametrize("sglang", [False, True])
def test_a_server_that_accepts_as_we_do_has_no_finding(
    patient: Patient, serve: Callable[..., str], sglang: bool
) -> None:
    url = serve(sglang=sglang)
    found = diagnose(
        patient.target, str(patient.head), engine=url, prompts=PROMPTS[:3], max_tokens=TOKENS, depth=DEPTH
    )
    assert found.findings == []
    rows = {row.name: row.value for row in found.measured}
    assert rows["answers equal to our plain decode"] == "3 of 3"
    served, ours = rows["prompt 1: tau served / ours"].split(" / ")
    assert float(served) == pytest.approx(float(ours), rel=0.2)
    assert float(ours) > 1.5


@pytest.mark.parametrize("correct", [False, True])
def test_the_prefills_token_is_no_acceptance_of_sglangs(
    patient: Patient, serve: Callable[..., str], tmp_path: Path, correct: bool
) -> None:
    head = Head.load(str(patient.head))
    useless = Head(head.config, replace(head.weights, lm_head=-head.weights.lm_head), head.metadata)
    useless.save(str(tmp_path / "useless"))
    prompt = patient.target.chat.prompt_ids([{"role": "user", "content": PROMPTS[0]}])
    for folder, least, most in ((tmp_path / "useless", 1.0, 1.0), (patient.head, 1.5, DEPTH + 1)):
        answer = ServedEngine(serve(head=folder, sglang=True, correct=correct)).answer(prompt, TOKENS)
        (ours,) = chain_tau(patient.target, Head.load(str(folder)), [prompt], TOKENS, DEPTH)
        assert least <= answer.tau <= most
        assert answer.tau == pytest.approx(
            ours, rel=0.1 if correct else 1e-6
        )  # accepted past the answer's end


def test_a_server_that_plans_its_drafts_is_not_held_against_chains(
    patient: Patient, serve: Callable[..., str]
) -> None:
    for owner, faults in (("someone", ["served-tau"]), ("fledge", [])):
        url = serve(depth=1, owner=owner)
        found = diagnose(
            patient.target, str(patient.head), engine=url, prompts=PROMPTS[:3], max_tokens=TOKENS, depth=DEPTH
        )
        assert [f.fault for f in found.findings] == faults, found.measured


def test_a_server_without_metrics_reports_no_drafts(patient: Patient, serve: Callable[..., str]) -> None:
    url = serve(metrics=False)
    found = diagnose(
        patient.target, str(patient.head), engine=url, prompts=PROMPTS[:2], max_tokens=TOKENS, depth=DEPTH
    )
    assert [(f.fault, f.what) for f in found.findings] == [
        ("served-tau", "the server reports no drafts at all")
    ]
    assert {row.name: row.value for row in found.measured}["answers equal to our plain decode"] == "2 of 2"


def test_a_server_that_is_not_there_is_told_before_anything_takes_time(patient: Patient) -> None:
    told: list[str] = []
    with pytest.raises(EngineError, match="can't be reached"):
        diagnose(
            patient.target, str(patient.head), engine="http://127.0.0.1:9",
            progress=lambda done, total, note: told.append(note),
        )  # fmt: skip
    assert "the target answers" not in told


def test_a_server_without_speculation_and_with_another_template_is_named(
    patient: Patient, serve: Callable[..., str]
) -> None:
    url = serve(head=None, template=False)
    found = diagnose(
        patient.target, str(patient.head), engine=url, prompts=PROMPTS[:2], max_tokens=TOKENS, depth=DEPTH
    ).findings
    assert [f.fault for f in found] == ["served-prompt", "served-tau"]
    assert "they part at token 0" in found[0].what


def test_a_server_that_runs_another_head_is_named(
    patient: Patient, serve: Callable[..., str], tmp_path: Path
) -> None:
    head = Head.load(str(patient.head))
    worse = Head(head.config, replace(head.weights, fc=head.weights.fc.roll(7, dims=1)), head.metadata)
    worse.save(str(tmp_path / "worse"))
    url = serve(head=tmp_path / "worse")
    found = diagnose(
        patient.target, str(patient.head), engine=url, prompts=PROMPTS[:3], max_tokens=TOKENS, depth=DEPTH
    ).findings
    assert [f.fault for f in found] == ["served-tau"]


def test_of_a_target_that_fledge_cannot_run_files_and_server_are_looked_at(
    patient: Patient, serve: Callable[..., str]
) -> None:
    target = load_tiny_target(patient.target.folder)
    target.config = replace(target.config, undecodable="it is of another kind")

    def examine(**options: Any) -> tuple[list[str], dict[str, str]]:
        found = diagnose(
            target, str(patient.head), prompts=PROMPTS[:2], max_tokens=TOKENS, depth=DEPTH, **options
        )
        return [f.fault for f in found.findings], {row.name: row.value for row in found.measured}

    faults, rows = examine(engine="vllm")
    assert faults == []
    assert "decoder can't run" in rows["not looked at"]
    faults, rows = examine(engine=serve())
    assert faults == []
    assert float(rows["prompt 1: tau served"]) > 1.5
    assert examine(engine=serve(head=None, template=False))[0] == ["served-prompt", "served-tau"]


def test_an_address_without_a_server_is_one_clear_error() -> None:
    with pytest.raises(EngineError, match="can't be reached"):
        ServedEngine("http://127.0.0.1:9")
