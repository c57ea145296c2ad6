"""What an arm that was found costs."""

from underclock.records import Arm, Cost


def arm_cost(arm: Arm) -> Cost:
    assert arm.cost is not None
    return arm.cost
