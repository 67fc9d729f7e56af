"""Skips tests of the compiled kernels where they can't run, and says so in the suite's last line.

On a CPU the kernels are what users run: a suite that skipped them is green without having tested that. Tests that need
them carry `pytest.mark.kernels`; those that only need a compiler skip themselves for a reason that begins "kernels: ".
"""

from __future__ import annotations

import os
from collections.abc import Generator

import pytest

from fledge.native.build import unavailable_reason, unfit_machine

ACCEPT = "FLEDGE_TESTS_WITHOUT_KERNELS"
_BEGINNING = "Skipped: kernels: "


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test marked `kernels` where they can't run."""
    if item.get_closest_marker("kernels") and (reason := unavailable_reason()):
        pytest.skip(f"kernels: {reason}")


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> Generator[None]:
    """Say below the terminal's summary how many tests of kernels were skipped, and fail the suite where $CI is set.

    $FLEDGE_TESTS_WITHOUT_KERNELS accepts it on a machine that can't run them. A missing compiler is no such machine.
    """
    yield
    terminal = session.config.pluginmanager.get_plugin("terminalreporter")
    if terminal is None:  # a worker of xdist; its controller has everyone's reports
        return
    told = [report.longrepr[2] for report in terminal.stats.get("skipped", [])]
    reasons = [reason.removeprefix(_BEGINNING) for reason in told if reason.startswith(_BEGINNING)]
    if not reasons:
        return
    line = (
        f"kernels: {len(reasons)} tests skipped because {'; '.join(sorted(set(reasons)))}: "
        "the CPU path that users run was not tested"
    )
    fails = bool(os.environ.get("CI")) and not (os.environ.get(ACCEPT) and set(reasons) == {unfit_machine()})
    if fails:
        line += f" (a failure in CI; {ACCEPT}=1 accepts it where the processor can't run them)"
        session.exitstatus = session.exitstatus or pytest.ExitCode.TESTS_FAILED
    terminal.write_line(line, red=fails, yellow=not fails)
