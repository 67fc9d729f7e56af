"""Facts read from a run's folders."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from fledge.base.errors import StorageError
from fledge.base.storage import Manifest
from fledge.bench.report import data_facts, training_facts
from fledge.data.conversations import shard_bytes
from fledge.heads import Head
from tests.data.conversation import conversation


def test_data_facts_count_conversations_and_what_the_draft_vocabulary_covers(
    tmp_path: Path, head: Head
) -> None:
    known = head.vocabulary.token_ids.tolist()
    unknown = next(token for token in range(512) if token not in set(known))
    conversations = [
        conversation("0", [1, 2, 3], [known[0], known[1], unknown, known[2]]),
        conversation("1", [1, 2, 3], [known[0], unknown], "heldout", "code", 0.8),
        conversation("2", [1, 2, 3], [known[0]] * 4),
    ]
    Manifest.load(str(tmp_path)).write_shard("part.parquet", shard_bytes(conversations), records=3, tokens=19)
    facts = data_facts(str(tmp_path), head=head)
    assert facts is not None
    assert (facts.conversations, facts.heldout, facts.response_tokens) == (3, 1, 10)
    assert facts.categories == {"chat": 2, "code": 1}
    assert facts.greedy_share == pytest.approx(2 / 3)
    assert facts.coverage == pytest.approx(7 / 8)
    assert facts.draft_vocabulary == 64
    assert "wrote the prompts itself" in facts.source


def test_data_that_is_not_there_gives_no_facts(tmp_path: Path) -> None:
    assert data_facts(str(tmp_path / "nowhere")) is None


def test_training_facts_are_the_curves_of_metrics_and_the_heads_own_words(tmp_path: Path, head: Head) -> None:
    rows = [
        {"step": 0, "loss": None, "tau": 1.2, "tokens": 0, "seconds": 0.0},
        {"step": 10, "loss": 3.0, "tau": None, "tokens": 500, "seconds": 4.0},
        {"step": 20, "loss": 2.5, "tau": 1.6, "tokens": 1000, "seconds": 8.0},
    ]
    path = tmp_path / "metrics.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    facts = {"steps": 20, "epochs": 2.0, "supervised_tokens": 500}
    Head(head.config, head.weights, replace(head.metadata, training=facts)).save(str(tmp_path / "head"))
    found = training_facts(str(tmp_path / "head"), str(path))
    assert found is not None
    assert found.loss == [(10, 3.0), (20, 2.5)]
    assert found.tau == [(0, 1.2), (20, 1.6)]
    assert (found.steps, found.epochs, found.tokens, found.seconds) == (20, 2.0, 1000, 8.0)
    assert found.parameters == sum(weight.numel() for weight in head.weights.trainable().values())
    assert training_facts(str(tmp_path / "head"), str(tmp_path / "nowhere.jsonl")) is None
    assert training_facts(str(tmp_path / "nowhere"), str(path)) is None
    for other in ("[]", "null", '{"step": 1}'):
        path.write_text(other)
        with pytest.raises(StorageError, match="isn't what `fledge train` writes"):
            training_facts(str(tmp_path / "head"), str(path))
    path.write_text("{")
    with pytest.raises(StorageError, match="damaged"):
        training_facts(str(tmp_path / "head"), str(path))
