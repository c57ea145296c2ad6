"""Sample sets made of parts: windows of kernels alone, of the step alone, and what tells more."""

from collections.abc import Iterable
from typing import TypeVar

import msgspec

from underclock.records import ALONE, Plan, SampleSet, Window


def gathered(
    samples: Iterable[Window] = (),
    *,
    in_situ: Iterable[Window] = (),
    mixed: Iterable[Window] = (),
) -> tuple[Window, ...]:
    """Return all windows; what is given with and without what was timed inside is one."""
    windows = [*samples, *(msgspec.structs.replace(window, kernel="") for window in in_situ)]
    rest = []
    for window in mixed:
        same = [
            n
            for n, plain in enumerate(windows)
            if not plain.kernel_s and (plain.what, plain.time_s) == (window.what, window.time_s)
        ]
        if window.mix == ALONE and same:
            plain = windows[same[0]]
            windows[same[0]] = msgspec.structs.replace(
                window, observed=plain.observed, repeat=plain.repeat
            )
        else:
            rest.append(window)
    return (*windows, *rest)


_R = TypeVar("_R", bound=SampleSet | Plan)


def with_step(record: _R, **changes: object) -> _R:
    """Return a record of another step."""
    return msgspec.structs.replace(record, step=msgspec.structs.replace(record.step, **changes))


def having(
    sample_set: SampleSet,
    *,
    samples: Iterable[Window] | None = None,
    in_situ: Iterable[Window] | None = None,
    mixed: Iterable[Window] | None = None,
    **changed: object,
) -> SampleSet:
    """Return a sample set with some of its windows replaced by others."""
    windows = gathered(
        (w.untimed() for w in (sample_set.samples if samples is None else samples)),
        in_situ=(w.untimed() for w in (sample_set.in_situ if in_situ is None else in_situ)),
        mixed=sample_set.mixed if mixed is None else mixed,
    )
    return msgspec.structs.replace(sample_set, windows=windows, **changed)
