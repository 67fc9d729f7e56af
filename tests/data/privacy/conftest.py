"""One filter for all tests of the room: making one takes a second."""

import pytest

from fledge.data import PrivacyFilter, PrivacyOptions


@pytest.fixture(scope="session")
def privacy() -> PrivacyFilter:
    return PrivacyFilter(policy="surrogate")


@pytest.fixture(scope="session")
def redact() -> PrivacyFilter:
    return PrivacyFilter(options=PrivacyOptions(policy="redact"))
