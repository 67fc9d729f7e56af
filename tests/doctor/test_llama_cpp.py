"""The doctor against a server that speaks llama-server's interface, with our own engine behind it, and against a real
one."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fledge.deploy.exchange import export_head
from fledge.doctor import PROMPTS, Diagnosis, ServedEngine, diagnose
from fledge.engine import Completion, Engine, TreeShape
from fledge.heads import Head
from fledge.sources.find import DEFAULT_TARGET
from fledge.target import Target
from tests import interop
from tests.doctor.conftest import TOKENS, Patient
from tests.stand_in import StandIn, listening

LONGEST = 4
ASKED = PROMPTS[:6]


def events(answer: Completion, max_tokens: int, longest: int, types: str) -> list[dict[str, Any]]:
    """An answer as llama-server streams it: a token each, with the counts after its verify."""
    found: list[dict[str, Any]] = []
    origins, drafted, accepted = answer.stats.token_origins, 0, 0
    for number, token in enumerate(answer.token_ids):
        if number and origins[number - 1] == 0:  # a verify begins after the last one's own token
            rest = [origin > 0 for origin in origins[number:]]
            room = max_tokens - number - 1  # leaves one for the verify's own
            accepted += min([*rest, False].index(False), room)
            drafted += min(longest, room)
        timings = {"predicted_n": number + 1}
        if drafted:
            timings |= {"draft_n": drafted, "draft_n_accepted": accepted}
        found.append({"content": "", "tokens": [token], "timings": timings})
    settings = {"speculative.types": types}
    last = {"content": answer.text, "tokens": [], "stop": True, "generation_settings": settings}
    return [*found, last | {"timings": found[-1]["timings"]}]


@pytest.fixture
def serve(patient: Patient) -> Iterator[Callable[..., str]]:
    def start(
        *,
        head: Head | None = Head.load(str(patient.head)),  # noqa: B008
        lengths: Sequence[int] = (LONGEST,),  # of the drafts, of one answer after the other
        types: str = "none,draft-eagle3",
        text: str = "{}",
        dropped: Sequence[int] = (),  # events
    ) -> str:
        engines = [
            Engine(patient.target, head, tree=TreeShape(n, 1, n + 1) if head else None) for n in lengths
        ]
        asked = 0

        class Handler(StandIn):
            def do_GET(self) -> None:
                models = {"data": [{"id": "/models/tiny.gguf", "owned_by": "llamacpp"}]}
                self.answer(200 if self.path == "/v1/models" else 404, models)

            def do_POST(self) -> None:
                nonlocal asked
                body = json.loads(self.read())
                if self.path == "/apply-template":
                    self.answer(200, {"prompt": body["messages"][0]["content"]})
                elif self.path == "/tokenize":
                    question = [{"role": "user", "content": text.format(body["content"])}]
                    self.answer(200, {"tokens": patient.target.chat.prompt_ids(question)})
                else:
                    assert (self.path, body["temperature"], body["stream"]) == ("/completion", 0, True)
                    engine, length = engines[asked % len(engines)], lengths[asked % len(engines)]
                    asked += 1
                    (answer,) = engine.generate([body["prompt"]], max_tokens=body["n_predict"])
                    stream = events(answer, body["n_predict"], length if head else 0, types)
                    kept = [event for n, event in enumerate(stream) if n not in dropped]
                    self.answer(200, "".join(f"data: {json.dumps(event)}\n\n" for event in kept))

        return servers.enter_context(listening(Handler))

    with ExitStack() as servers:
        yield start


def examined(patient: Patient, url: str, *, depth: int | None = None) -> tuple[Diagnosis, dict[str, str]]:
    found = diagnose(
        patient.target, str(patient.head), engine=url, prompts=ASKED, max_tokens=TOKENS, depth=depth
    )
    return found, {row.name: row.value for row in found.measured}


def test_a_server_that_accepts_as_chains_of_its_length_has_no_finding(
    patient: Patient, serve: Callable[..., str]
) -> None:
    found, rows = examined(patient, serve())
    assert found.findings == []
    assert rows["tokens that the server drafts at once"] == str(LONGEST)
    assert rows["answers equal to our plain decode"] == "6 of 6"
    for number in range(1, 7):
        served, ours = rows[f"prompt {number}: tau served / ours"].split(" / ")
        assert served == ours
    assert float(ours) > 1.5


def test_a_server_that_drafts_nothing_is_told_how_it_would(
    patient: Patient, serve: Callable[..., str]
) -> None:
    for types, what, remedy in (
        ("none", "drafts nothing", "--spec-type draft-eagle3"),
        ("none,draft-eagle3", "although it has draft-eagle3", "log"),
    ):
        (finding,) = examined(patient, serve(head=None, types=types))[0].findings
        assert finding.fault == "served-tau"
        assert what in finding.what
        assert remedy in finding.remedy


def test_drafts_of_others_than_the_head_are_no_measure_of_it(
    patient: Patient, serve: Callable[..., str]
) -> None:
    (finding,) = examined(patient, serve(types="none,draft-eagle3,ngram-mod"))[0].findings
    assert "draft-eagle3, ngram-mod" in finding.what


def test_drafts_that_are_cut_explain_a_low_tau(patient: Patient, serve: Callable[..., str]) -> None:
    found, rows = examined(patient, serve(lengths=(LONGEST, 1, 1, 1, 1, 1)))
    (finding,) = found.findings
    assert finding.fault == "served-tau"
    assert finding.remedy.startswith("--spec-draft-p-min")
    assert rows["tokens that the server drafts at once"].startswith(f"{LONGEST}, fewer in ")


def test_another_head_or_file_or_length_explains_a_low_tau(
    patient: Patient, serve: Callable[..., str]
) -> None:
    head = Head.load(str(patient.head))
    worse = replace(head.weights, fc=head.weights.fc.roll(7, dims=1))
    (finding,) = examined(patient, serve(head=Head(head.config, worse)))[0].findings
    assert "another head" in finding.remedy
    assert "it serves /models/tiny.gguf" in finding.remedy
    assert "p-min" not in finding.remedy
    (finding,) = examined(patient, serve(lengths=(1,)), depth=LONGEST)[0].findings
    assert f"it drafts 1 tokens at once, not {LONGEST}" in finding.remedy


def test_another_template_of_the_servers_is_named(patient: Patient, serve: Callable[..., str]) -> None:
    (finding,) = examined(patient, serve(text="Be brief. {}"))[0].findings
    assert finding.fault == "served-prompt"


def test_held_back_characters_hide_tokens_but_not_acceptance(
    patient: Patient, serve: Callable[..., str]
) -> None:
    prompt = patient.target.chat.prompt_ids([{"role": "user", "content": ASKED[0]}])
    whole = ServedEngine(serve()).answer(prompt, TOKENS)
    parted = ServedEngine(serve(dropped=(3, 4, 9))).answer(prompt, TOKENS)
    assert parted.token_ids == []
    assert parted.tau == pytest.approx(whole.tau, rel=0.05)
    assert max(r.drafted for r in parted.rounds) == LONGEST
    assert {r for r in parted.rounds if r.drafted < min(LONGEST, r.room)} == set()


@pytest.mark.slow
def test_a_real_llama_server_accepts_what_the_doctor_expects(tmp_path: Path) -> None:
    target, file = Target.load(DEFAULT_TARGET), tmp_path / "head.gguf"
    export_head("released", str(file), form="gguf", target=DEFAULT_TARGET, dtype="q8_0")

    draft = ("--spec-draft-n-max", "4")
    with interop.llama_server(target.place, file, draft) as url:
        found = diagnose(target, str(file), engine=url, prompts=PROMPTS[:4], max_tokens=32)
    assert found.findings == []
    assert ("tokens that the server drafts at once", "4") in [(row.name, row.value) for row in found.measured]
    prompt = target.chat.prompt_ids([{"role": "user", "content": PROMPTS[0]}])
    with interop.llama_server(target.place, file, (*draft, "--spec-draft-p-min", "0.9")) as url:
        cut = ServedEngine(url).answer(prompt, 32)
    assert any(r.drafted < min(4, r.room) for r in cut.rounds)
    with interop.llama_server(target.place, None) as url:
        plain = ServedEngine(url).answer(prompt, 32)
    assert (plain.drafts, plain.tau, len(plain.token_ids)) == (0, 0.0, 32)
