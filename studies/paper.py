"""Run the paper's study on the simulated GPU: docs/evidence/paper.md.

python studies/paper.py
"""

from collections.abc import Sequence
from itertools import groupby

from pages import fill, markdown
from underclock.paper.command import number_text
from underclock.paper.study import PAPERS_BOARD, PAPERS_GPU, Conditions, Study, basis_of, run_study


def _quoted(studies: Sequence[Study]) -> str:
    """Return a row for each thing that the paper has numbers of, theirs beside ours of each GPU."""
    rows = []
    both = zip(*(study.quoted for study in studies), strict=True)
    named = ((*each[0].name.partition(": ")[::2], each) for each in both)
    for (of, group, unit), some in groupby(
        named, key=lambda one: (one[0], one[2][0].group, one[2][0].unit)
    ):
        parts, numbers = zip(*(one[1:] for one in some), strict=True)
        columns = [[each[0].paper for each in numbers]]
        for at in range(len(studies)):
            columns += [
                [each[at].ours for each in numbers],
                [each[at].difference for each in numbers],
            ]
        name = f"{group}: {of}" + (f": {', '.join(parts)}" if any(parts) else "")
        cells = (", ".join(number_text(value, unit) for value in column) for column in columns)
        rows.append([name, *cells, unit, basis_of(group, numbers[0][0].name)])
    head = ["", "paper", f"`{PAPERS_GPU}`", "difference", "`#paper`", "difference"]
    return markdown([[*head, "unit", "rests on"], *rows])


def main() -> None:
    """Fill the page."""
    gpus = (PAPERS_GPU, PAPERS_BOARD)
    studies = [run_study(Conditions(gpu=gpu)) for gpu in gpus]
    each = list(zip(gpus, studies, strict=True))
    fitted = [f"- `{gpu}`: {study.calibration}" for gpu, study in each]
    agreed = [f"- `{gpu}`: {study.agreement}." for gpu, study in each]
    agreed += [f"- **{warning}**" for _, study in each for warning in study.warnings]
    fill(
        "paper",
        {
            "fitted": "\n".join([*fitted, f"- {studies[0].second}"]),
            "numbers": "\n".join([*agreed, "", _quoted(studies)]),
        },
        repeats="One study a board; only the simulated GPU's noise scatters; its seed is fixed.",
    )


if __name__ == "__main__":
    main()
