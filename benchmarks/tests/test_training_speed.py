"""What speculators' trainer is handed, and how the instrument is told to ask it; the trainer isn't installed here."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from benchmarks.training_speed import __main__ as speed
from benchmarks.training_speed.speculators_peer import as_speculators
from tests.train.samples import make_sample


def test_its_last_norm_gives_our_hidden_states_again():
    norm = torch.rand(64) + 0.1
    hidden = F.rms_norm(torch.randn(12, 64), (64,), norm)
    sample = replace(make_sample([(5, 7)], seed=1), hidden=hidden)
    before = as_speculators(sample, norm)["verifier_last_hidden_states"]
    torch.testing.assert_close(F.rms_norm(before, (64,), norm), hidden, rtol=1e-4, atol=1e-4)


def test_its_mask_marks_the_token_before_each_generated_one():
    made = as_speculators(make_sample([(3, 2), (2, 1)], seed=1), torch.ones(64))
    assert made["loss_mask"].tolist() == [False, False, True, True, False, False, True, False]


def test_speed_names_the_option(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.setattr("sys.argv", ["speed", "--help"])
    with pytest.raises(SystemExit, match="0"):
        speed.main()
    assert "--speculators PYTHON" in capsys.readouterr().out
