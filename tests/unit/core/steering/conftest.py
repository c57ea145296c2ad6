"""A campaign that steered, for whoever only reads it."""

import pytest

from steered_gpu import Synthetic, campaign
from underclock.records import SampleSet


@pytest.fixture(scope="session")
def steered() -> SampleSet:
    return campaign(Synthetic(seed=1))
