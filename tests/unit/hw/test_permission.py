"""Whether this process may set a GPU by itself."""

from pathlib import Path

import pynvml
import pytest

from underclock.hw.nvml_calls import is_admin, may_set, nvml_session
from underclock.testing import simulated_driver

_EVERYBODY = "         0          0 4294967295\n"


@pytest.mark.parametrize(
    ("capabilities", "uid_map", "admin"),
    [
        ("000001ffffffffff", _EVERYBODY, True),  # root
        ("0000000000200000", _EVERYBODY, True),  # CAP_SYS_ADMIN alone
        ("00000000a80425fb", _EVERYBODY, False),  # root in an ordinary container
        ("0000000000000000", _EVERYBODY, False),  # anybody else
        ("000001ffffffffff", "0 1000 1\n", False),  # root of a user namespace only
    ],
)
def test_it_takes_cap_sys_admin_outside_any_user_namespace(
    capabilities: str, uid_map: str, *, admin: bool
) -> None:
    status = f"Name:\tpython\nCapPrm:\t0000000000000000\nCapEff:\t{capabilities}\n"
    assert is_admin(status, uid_map) == admin


def test_what_says_nothing_of_capabilities_has_none() -> None:
    assert not is_admin("Name:\tpython\n", _EVERYBODY)


@pytest.mark.parametrize("root", [True, False])
def test_a_simulated_driver_says_so_itself(*, root: bool) -> None:
    with simulated_driver("a40", root=root), nvml_session():
        assert may_set() == root


def test_a_real_driver_asks_the_kernel() -> None:
    own = Path("/proc/self")
    if pynvml.nvmlLib is None:
        assert may_set() == is_admin((own / "status").read_text(), (own / "uid_map").read_text())
