"""Run the paper's study on the simulated GPU: docs/evidence/paper.md.

python studies/paper.py
"""

from itertools import groupby

from pages import fill, markdown
from underclock.paper.command import number_text
from underclock.paper.study import PAPERS_GPU, Conditions, Study, basis_of, run_study


def _quoted(study: Study) -> str:
    parts = []
    for group, numbers in groupby(study.quoted, key=lambda number: number.group):
        rows = [
            [
                number.name,
                *(
                    number_text(value, number.unit)
                    for value in (number.paper, number.ours, number.difference)
                ),
                number.unit,
                basis_of(number.group, number.name),
            ]
            for number in numbers
        ]
        table = markdown([("", "paper", "ours", "difference", "", ""), *rows])
        parts.append(f"## {group}\n\n{table}\n")
    return f"{study.agreement}.\n\n" + "\n".join(parts)


def main() -> None:
    """Fill the page."""
    gpus = (PAPERS_GPU, f"{PAPERS_GPU}#paper")
    studies = [run_study(Conditions(gpu=gpu)) for gpu in gpus]
    fitted = [f"- `{gpu}`: {study.calibration}" for gpu, study in zip(gpus, studies, strict=True)]
    fitted.append(f"- {studies[0].second}")
    told = []
    for gpu, study in zip(gpus, studies, strict=True):
        warnings = [f"**{warning}**\n" for warning in study.warnings]
        told += [f"# `{gpu}`\n", *warnings, _quoted(study)]
    fill(
        "paper",
        {"fitted": "\n".join(fitted), "numbers": "\n".join(told)},
        repeats="One study a board; only the simulated GPU's noise scatters; its seed is fixed.",
    )


if __name__ == "__main__":
    main()
