"""Coverage does not follow all tests: `make test` would take longer, and be none the wiser."""

import coverage
import pytest


@pytest.mark.slow
def test_coverage_does_not_follow_a_slow_test() -> None:
    assert coverage.Coverage.current() is None


@pytest.mark.untraced
def test_nor_one_that_asks_for_it() -> None:
    assert coverage.Coverage.current() is None


def test_it_goes_on_after_one(pytestconfig: pytest.Config) -> None:
    if pytestconfig.getoption("cov_source", default=None):
        assert coverage.Coverage.current() is not None
