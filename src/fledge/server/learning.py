"""Reports of a server that learns: `/v1/learn`, and metrics."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Protocol, runtime_checkable

from fastapi import FastAPI
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from fledge.engine import Engine
from fledge.server.metrics import Metrics
from fledge.server.render import Json


@runtime_checkable
class LearningRecorder(Protocol):
    """Interface of a recorder that learns (`fledge.learn.Learning`), whose packages may not be installed."""

    def start(self, engine: Engine) -> None:
        """The engine begins to serve."""

    def figures(self) -> Json:
        """Figures for metrics; reads no file."""

    def state(self) -> Json:
        """Full state for display."""

    def close(self) -> None:
        """The engine has ended."""


def add_learning(app: FastAPI, metrics: Metrics, learning: LearningRecorder) -> None:
    """Add the route and metrics of learning."""

    @app.get("/v1/learn", tags=["Operations"])
    async def learn() -> Json:
        """Progress of learning: its state, the curve of tau, and the versions."""
        return await asyncio.to_thread(learning.state)

    metrics.add(LearningMetrics(learning))


class LearningMetrics(Collector):
    """`fledge:learn_...`."""

    def __init__(self, learning: LearningRecorder) -> None:
        self._learning = learning

    def collect(self) -> Iterator[Metric]:
        """The present values."""
        state = self._learning.figures()
        counters = {
            "tokens": ("tokens taken in", state["tokens"]),
            "conversations": ("conversations taken in", state["conversations"]),
            "left_out": ("conversations that there was no room for", state["left_out"]),
            "updates": ("training steps", state["updates"]),
            "swaps": ("heads that came into service", state["swaps"]),
            "rollbacks": ("heads that went out of service because acceptance fell", state["rollbacks"]),
            "cpu_seconds": ("processor time of training", state["cpu_seconds"]),
        }
        for name, (text, value) in counters.items():
            yield CounterMetricFamily(f"fledge:learn_{name}", text, value)
        gauges = {
            "running": ("0: learning has stopped", 0 if state["state"] == "stopped" else 1),
            "version": ("the version that serves; 0: none", state["version"] or 0),
            "tau_live": ("tokens per drafted round with it", state["tau"]["live"]),
            "tau_heldout": ("tokens per round on held-out traffic, of what serves", state["tau"]["heldout"]),
            "tau_candidate": ("and of what is in training", state["tau"]["candidate"]),
        }
        for name, (text, value) in gauges.items():
            if value is not None:
                yield GaugeMetricFamily(f"fledge:learn_{name}", text, value)
