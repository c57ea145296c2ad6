"""What promises are worth, from the repeats of a table: docs/evidence/calibration_of_promises.md.

python studies/checked.py [--splits N] [--seed N]
"""

import argparse

from pages import MEASURED, fill, markdown
from underclock.app.checking import check
from underclock.records.outcomes import CheckedNumber, PromiseCheck
from underclock.units import format_percent

_HEADER = (
    "time budget, promised energy, executed, bias, energy covered, time covered, over budget, "
    "beyond noise, time bias"
)


def _spread(number: CheckedNumber, unit: str) -> str:
    """Write fractions as points or percent, with their interval over splits."""
    digits = "+.2f" if unit == "" else ".0f"
    value, *ends = (
        "" if each is None else f"{100.0 * each:{digits}}{unit}"
        for each in (number.value, number.low, number.high)
    )
    return f"{value} ({' to '.join(ends)})" if all(ends) else value


def _table(checked: PromiseCheck) -> str:
    rows = [
        (
            f"{100.0 * each.max_slowdown:g} %",
            format_percent(each.promised_energy.value),
            format_percent(each.executed_energy.value),
            _spread(each.energy_bias, ""),
            *(
                _spread(share, " %")
                for share in (
                    each.energy_coverage,
                    each.time_coverage,
                    each.over_budget,
                    each.beyond_noise,
                )
            ),
            _spread(each.time_bias, ""),
        )
        for each in checked.promises
    ]
    notes = "\n".join(f"- {warning}" for warning in checked.warnings).replace(f"{MEASURED}/", "")
    return f"{markdown([_HEADER.split(', '), *rows])}\n\n{notes}"


def main() -> None:
    """Split the laptop's repeats, and fill the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--splits", type=int, default=100)
    parser.add_argument("--seed", type=int, default=7)
    wanted = parser.parse_args()
    checked = check(MEASURED / "rtx_laptop_repeats.csv", splits=wanted.splits, seed=wanted.seed)
    repeats = (
        f"{checked.runs} runs of {checked.rows} rows of {checked.kernels} kernels, split "
        f"{checked.splits} times (seed {checked.seed}). Changes are against {checked.baseline}; "
        "intervals of 95 % are of more splits of this table, not of other tables."
    )
    fill("calibration_of_promises", {"checked": _table(checked)}, repeats=repeats)


if __name__ == "__main__":
    main()
