"""Whether two runs may share a file, by where their samples come from."""

from collections.abc import Iterator
from pathlib import Path

import msgspec

from underclock.core.tracing.recapture import difference, identity
from underclock.errors import UsageError
from underclock.records import Kernel, MeasurementSettings, Provenance, SampleSet, Step
from underclock.store import SampleFile

_REPEAT = "name another file with -o, or repeat the options it was begun with"
_NEAR = (
    "name another file with -o for this board; with --near a plan of the other board, few windows "
    "will do"
)


def check_same_campaign(path: Path, begun: SampleSet, wanted: SampleSet) -> tuple[str, ...]:
    """Refuse to mix two campaigns in one file; return what its reader must be told.

    Raises:
        UsageError: Something differs that decides the samples.
    """
    for noun, before, now, hint in _compared(begun, wanted):
        if before != now:
            raise UsageError(
                f"{path} holds samples of another {noun}: it was begun with {before}, this run "
                f"has {now}; they do not mix",
                hint=hint,
            )
    old = begun.provenance.version if begun.provenance else None
    new = wanted.provenance.version if wanted.provenance else None
    if old == new:
        return ()
    return (f"begun with underclock {old or 'unknown'}, gone on with {new or 'unknown'}",)


def set_apart(file: SampleFile, wanted: SampleSet) -> tuple[str, ...]:
    """Let a file go on with a step whose libraries chose other algorithms; say what that left.

    Samples of kernels that run as before stay. The others, and those of the whole step, are of what
    no longer runs: they are put into a file of their own, and taken anew.

    Raises:
        UsageError: Something else differs too.
    """
    begun = file.header
    if begun.fingerprint == wanted.fingerprint or not _is_recaptured(begun, wanted):
        return ()
    header = msgspec.structs.replace(
        begun,
        kernels=wanted.kernels,
        order=wanted.order,
        modules=wanted.modules,
        fingerprint=wanted.fingerprint,
        expected_samples=wanted.expected_samples,
        lacking=wanted.lacking,
    )
    check_same_campaign(file.path, header, wanted)
    before = {identity(kernel): kernel.name for kernel in begun.kernels}
    same = {kernel.name for kernel in wanted.kernels if before.get(identity(kernel)) == kernel.name}
    apart, left = file.set_apart(header, same)
    words = (
        f"other algorithms were chosen than when this file was begun: {left} measurements, of the "
        f"whole step and of kernels that run otherwise now, lie in {apart.name}"
    )
    return (words,)


def _is_recaptured(begun: SampleSet, wanted: SampleSet) -> bool:
    """Whether two runs are of one step but for its algorithms."""
    if not (begun.order and wanted.order):
        return False
    if any(kernel.launch is None for kernel in (*begun.kernels, *wanted.kernels)):
        return False
    one, other = (
        Step(name=each.workload, kernels=each.kernels, order=each.order) for each in (begun, wanted)
    )
    return difference(one, other) is None


def _compared(begun: SampleSet, wanted: SampleSet) -> Iterator[tuple[str, str, str, str]]:
    """Yield what must be the same: its name, both values in words, and what to do."""
    old, new = begun.gpu, wanted.gpu
    yield "kind of evidence", begun.evidence, wanted.evidence, _REPEAT
    yield "GPU", old.name, new.name, _REPEAT
    if old.is_another_board(new):
        yield "GPU", f"board {old.uuid}", f"board {new.uuid}", _NEAR
    yield "driver", str(old.driver), str(new.driver), _REPEAT
    yield "power limit", f"{old.power_limit_w} W", f"{new.power_limit_w} W", _REPEAT
    yield "workload", repr(begun.workload), repr(wanted.workload), _REPEAT
    yield "step", f"step {begun.fingerprint}", f"step {wanted.fingerprint}", _REPEAT
    if begun.provenance and wanted.provenance:
        yield from _provenances(begun.provenance, wanted.provenance)
    before, now = _without_noise(begun.kernels), _without_noise(wanted.kernels)
    yield "set of kernels", *_told(before, now, "kernels"), _REPEAT
    yield "clock grid", *_told(begun.settings, wanted.settings, "clock pairs"), _REPEAT
    yield "number of repeats", str(begun.repeats), str(wanted.repeats), _REPEAT
    yield "grid", _expected(begun), _expected(wanted), _REPEAT


def _provenances(begun: Provenance, wanted: Provenance) -> Iterator[tuple[str, str, str, str]]:
    yield (
        "table",
        f"content {begun.table}",
        f"content {wanted.table}",
        "name another file with -o: the rows of two tables are not repeats of one another",
    )
    yield "seed", f"--seed {begun.seed}", f"--seed {wanted.seed}", _REPEAT
    if begun.measuring and wanted.measuring:
        for name in MeasurementSettings.__struct_fields__:
            before, now = getattr(begun.measuring, name), getattr(wanted.measuring, name)
            yield "measuring settings", f"{name} {before:g}", f"{name} {now:g}", _REPEAT
    which = {True: "the whole step run too", False: "isolated kernels only"}
    yield "closure", which[begun.in_situ], which[wanted.in_situ], _REPEAT


def _without_noise(kernels: tuple[Kernel, ...]) -> tuple[Kernel, ...]:
    """Return kernels without what no two profiles say alike: a file keeps what it began with."""
    return tuple(msgspec.structs.replace(kernel, waited_for=1.0) for kernel in kernels)


def _told(begun: tuple[object, ...], wanted: tuple[object, ...], noun: str) -> tuple[str, str]:
    """Return two lists in words that differ where the lists do."""
    others = "" if begun == wanted or len(begun) != len(wanted) else " others"
    return f"{len(begun)} {noun}", f"{len(wanted)}{others} {noun}"


def _expected(header: SampleSet) -> str:
    samples = header.expected_samples
    return "an adaptive one" if samples is None else f"one of {samples} samples"
