"""What fails for the moment is tried again, with growing pauses and not for ever; what fails for good isn't."""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable

import pytest

from fledge.base import retry
from fledge.base.retry import OneRetryLine, is_transient, retried


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses that were made; none of them takes time."""
    found: list[float] = []
    monkeypatch.setattr(retry.time, "sleep", found.append)
    return found


def failing(times: int, error: Exception) -> Callable[[], int]:
    """Fails so many times, and then says how often it was called."""
    calls = 0

    def action() -> int:
        nonlocal calls
        calls += 1
        if calls <= times:
            raise error
        return calls

    return action


def test_five_attempts_are_made_and_no_more(pauses: list[float]) -> None:
    assert retried(failing(0, ConnectionResetError()), "here") == 1
    assert pauses == []
    assert retried(failing(4, ConnectionResetError()), "here") == 5
    assert len(pauses) == 4
    with pytest.raises(ConnectionResetError):
        retried(failing(5, ConnectionResetError()), "here")


def test_pauses_double_and_are_not_everyones_at_once(pauses: list[float]) -> None:
    for _ in range(20):
        retried(failing(4, TimeoutError()), "here")
    for attempt, least in enumerate((0.25, 0.5, 1.0, 2.0)):
        own = pauses[attempt::4]
        assert all(least <= pause <= 1.25 * least for pause in own)
        assert len(set(own)) > 1


def test_what_fails_for_good_is_not_tried_again(pauses: list[float]) -> None:
    for error in (
        FileNotFoundError("a"),
        PermissionError("a"),
        ValueError("a"),
        OSError(errno.ENOSPC, "full"),
    ):
        with pytest.raises(type(error)):
            retried(failing(1, error), "here")
    assert pauses == []


class Answered(Exception):
    """As stores' clients raise."""

    def __init__(self, status: object) -> None:
        super().__init__("answered")
        self.status = status


@pytest.mark.parametrize("status", [408, 425, 429, 500, 502, 503, 504, "503"])
def test_a_busy_store_is_asked_again(status: object) -> None:
    assert is_transient(Answered(status))


@pytest.mark.parametrize("status", [400, 401, 403, 404, 409, 412, 501])
def test_a_store_that_refuses_is_not(status: int) -> None:
    assert not is_transient(Answered(status))


@pytest.mark.parametrize("kind", [FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError])
def test_a_missing_or_forbidden_place_is_final_whatever_the_store_answered(kind: type[OSError]) -> None:
    error = kind("a")
    error.status = 503  # type: ignore[attr-defined]
    assert not is_transient(error)


@pytest.mark.parametrize("number", [errno.EBUSY, errno.EIO, errno.EPIPE, errno.ECONNRESET, errno.ETIMEDOUT])
def test_a_connection_that_breaks_is_made_again(number: int) -> None:
    assert is_transient(OSError(number, "broken"))


def test_a_client_that_logs_every_attempt_is_heard_once(caplog: pytest.LogCaptureFixture) -> None:
    client = logging.getLogger("some.client")
    client.addFilter(OneRetryLine())
    for attempt in range(5):
        client.warning("connection refused")
        client.warning("trying again, attempt %d", attempt)
    (line,) = caplog.messages
    assert line.startswith("connection refused; trying again")
