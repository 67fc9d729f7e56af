"""Other engines beside fledge: which are there, how they are asked, what the table says."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from benchmarks.command import run
from benchmarks.peers import PeerOptions, PeersFound, run_peers
from benchmarks.peers.__main__ import main
from benchmarks.peers.catalogue import PEERS, Peer, installed
from benchmarks.peers.run import PeerRow, choose_peers, start_worker
from benchmarks.peers.table import peers_notes, peers_table, read_peers, write_peers
from fledge.base.errors import DataError, ServerError
from fledge.draft import DraftVocabulary
from fledge.heads import Head
from fledge.target import Target
from tests.commands.command import Fledge
from tests.run.small_run import start_fledge

OPTIONS = PeerOptions(target="t", head=None)


def rows(peer: str, mode: str, speeds: list[float], level: int = 1) -> list[PeerRow]:
    return [
        PeerRow(peer, mode, f"{peer} 1.0", level, repeat, 1e3 / speed, speed, 3, 4, 4)
        for repeat, speed in enumerate(speeds)
    ]


def test_engines_that_are_missing_say_how_to_install_them() -> None:
    assert installed(sys.executable, "transformers")
    assert not installed(sys.executable, "no_such_engine")
    assert not installed("/no/such/python", "transformers")
    chosen, missing = choose_peers(OPTIONS)
    assert {one.peer.name for one in chosen} >= {"fledge", "transformers"}
    assert [one.mode for one in chosen if one.peer.name == "transformers"] == ["plain", "ngram"]
    assert "eagle3" not in {one.mode for one in chosen}  # there is no head
    assert all("--program" in line for line in missing)
    assert sum("pip install" in line for line in missing) >= len(missing) - 1  # llama.cpp is built
    with pytest.raises(DataError, match="no peer is called 'tgi'"):
        choose_peers(PeerOptions(target="t", head=None, peers=("tgi",)))
    with pytest.raises(DataError, match="no mode is called 'medusa'"):
        choose_peers(PeerOptions(target="t", head=None, modes=("medusa",)))
    with pytest.raises(DataError, match=r"concurrency is \(\)"):
        PeerOptions(target="t", head=None, concurrency=())


def test_an_engine_with_forms_of_its_own_needs_weights_and_head_in_them(tmp_path: Path) -> None:
    program = tmp_path / "llama-server"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    options = PeerOptions(target="t", head="h", peers=("llama.cpp",), programs={"llama.cpp": str(program)})
    chosen, missing = choose_peers(options)
    assert chosen == []
    assert "--model llama.cpp=PATH" in missing[0]
    chosen, missing = choose_peers(options.changed(models={"llama.cpp": "m.gguf"}))
    assert [one.mode for one in chosen] == ["plain"]
    assert "--draft llama.cpp=PATH" in missing[0]
    forms = options.changed(models={"llama.cpp": "m.gguf"}, drafts={"llama.cpp": "h.gguf"})
    chosen, missing = choose_peers(forms)
    assert [(one.mode, one.program) for one in chosen] == [
        (mode, str(program)) for mode in ("plain", "eagle3")
    ]
    assert missing == []
    assert [one.mode for one in choose_peers(forms.changed(modes=("ngram",)))[0]] == ["ngram"]
    assert [one.mode for one in choose_peers(forms.changed(head=None, drafts={}))[0]] == ["plain", "ngram"]


def test_every_peer_has_its_worker() -> None:
    folder = Path(sys.modules[run_peers.__module__].__file__ or "").parent / "workers"
    assert {peer.worker for peer in PEERS} | {"protocol.py"} == {path.name for path in folder.glob("*.py")}


def test_the_table_pairs_blocks_and_says_who_is_ahead(tmp_path: Path) -> None:
    measured = rows("fledge", "plain", [100, 110, 120]) + rows("fledge", "eagle3", [150, 165, 180])
    measured += rows("vllm", "plain", [50, 55, 60]) + rows("vllm", "eagle3", [200, 220, 240])
    found = PeersFound(measured, ["llama.cpp: not installed"], OPTIONS)
    table = peers_table(found)
    assert [row[0] + " " + row[1] for row in table.rows] == [
        "vllm 1.0 eagle3",
        "fledge 1.0 eagle3",
        "fledge 1.0 plain",
        "vllm 1.0 plain",
    ]
    assert table.rows[1][5:7] == ["1.50×", "1.50–1.50"]  # paired by block: the drift cancels
    ahead, missing, few = peers_notes(found)
    assert "ahead of fledge are vllm 1.33×" in ahead
    assert missing == "llama.cpp: not installed"
    assert "With --repeats 3" in few
    write_peers(str(tmp_path), found)
    assert "| vllm 1.0 | eagle3 | 1 |" in (tmp_path / "peers.md").read_text()
    assert len((tmp_path / "peers.jsonl").read_text().splitlines()) == 12
    assert peers_table(read_peers(str(tmp_path / "peers.jsonl"))).rows == table.rows


@pytest.mark.slow
def test_answers_are_compared_only_with_what_was_measured(tiny_target_folder: Path) -> None:
    options = PeerOptions(
        target=str(tiny_target_folder),
        head=None,
        peers=("transformers",),
        modes=("ngram",),
        prompts=1,
        max_tokens=4,
        concurrency=(1,),
        repeats=1,
    )
    found = run_peers(Target.load(str(tiny_target_folder)), options)
    assert [(row.own, row.identical) for row in found.rows] == [(None, None)]
    assert peers_table(found).rows[0][-2:] == ["–", "–"]


def test_fewer_prompts_than_requests_in_flight_are_refused(tiny_target_folder: Path) -> None:
    options = PeerOptions(target="t", head=None, prompts=4, concurrency=(1, 8))
    with pytest.raises(DataError, match="4 prompts can't keep 8 requests in flight; raise --prompts"):
        run_peers(Target.load(str(tiny_target_folder)), options)


def test_a_worker_that_fails_is_told() -> None:
    peer = Peer("transformers", "transformers_worker.py", ("plain",), "pip install", module="transformers")
    config = {"model": "/no/such/model", "mode": "plain", "head": None, "max_batch": 1, "max_context": 64}
    with (
        pytest.raises(ServerError, match=r"transformers \(plain\) failed: .*no/such/model"),
        start_worker(peer, "plain", sys.executable, config) as worker,
    ):
        worker.receive()


@pytest.mark.parametrize("number", [pytest.param(signal.SIGTERM, marks=pytest.mark.slow), signal.SIGKILL])
def test_a_bench_that_ends_leaves_no_stopped_worker(
    tiny_target_folder: Path, tmp_path: Path, number: signal.Signals
) -> None:
    target = str(tiny_target_folder)
    command = ["--target", target, "--head", "none"]
    command += ["--peer", "fledge", "--peer", "transformers", "--mode", "plain", "--prompts", "1"]
    command += ["--concurrency", "1", "--max-tokens", "8", "--repeats", "100000", "--run-dir", str(tmp_path)]
    bench = start_fledge(*command, output=tmp_path / "output", entry=partial(run, main))
    workers: list[psutil.Process] = []
    # The engines, and what wakes them; the first engine may be stopped before there is a second one.
    while bench.is_alive() and not (
        len(workers) == 3 and any(w.status() == psutil.STATUS_STOPPED for w in workers)
    ):
        time.sleep(0.05)
        workers = psutil.Process(bench.pid).children()
    psutil.Process(bench.pid).send_signal(number)
    bench.join()
    gone, alive = psutil.wait_procs(workers, timeout=30)
    assert len(gone) == 3
    assert alive == []


@pytest.mark.slow
def test_fledge_and_transformers_answer_alike(tiny_target_folder: Path, tmp_path: Path) -> None:
    target = Target.load(str(tiny_target_folder))
    import torch

    vocabulary = DraftVocabulary.from_counts(torch.ones(target.config.vocab_size), 64)
    Head.from_target(target, vocabulary).save(str(tmp_path / "head"))
    options = PeerOptions(
        target=str(tiny_target_folder),
        head=str(tmp_path / "head"),
        peers=("fledge", "transformers"),
        prompts=2,
        max_tokens=8,
        concurrency=(1, 2),
        repeats=1,
    )
    found = run_peers(target, options)
    assert [(row.peer, row.mode, row.concurrency) for row in found.rows] == [
        (peer, mode, level)
        for level in (1, 2)
        for peer, mode in (
            ("fledge", "plain"),
            ("fledge", "eagle3"),
            ("transformers", "plain"),
            ("transformers", "ngram"),
        )
    ]
    assert all(row.answers == 2 for row in found.rows)
    assert all(row.throughput > 0 for row in found.rows)
    assert all(row.tpot_ms is not None for row in found.rows if row.concurrency == 1)


def test_peers_and_modes_are_checked_before_the_target_is_sought(
    instrument: Callable[[Callable[..., Any]], Fledge], tmp_path: Path
) -> None:
    error, arguments = instrument(main).error, ("--target", "/no/such/target", "--run-dir", tmp_path)
    assert "no peer is called 'vlm'" in error(*arguments, "--peer", "vlm")
    assert "no peer is called 'vlm'" in error(*arguments, "--program", "vlm=/usr/bin/python3")
    assert "no mode is called 'eagle'" in error(*arguments, "--mode", "eagle")
    assert "no target '/no/such/target'" in error(*arguments, "--peer", "vllm")
    assert list(tmp_path.iterdir()) == []
