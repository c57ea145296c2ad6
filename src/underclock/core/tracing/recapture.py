"""A step captured anew, held against the step that was traced: the same but for its algorithms?

Libraries and autotuners choose by timing, so another process may run other kernels for the same
operators, or other numbers of them. What must be the same is what the step asks for: operators,
their shapes, pass and order, and how often each is called. A launch without a known operator
is identified by its function.
"""

import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

import msgspec

from underclock.core.tracing.names import NO_SIZE, numbered, short, without_sizes
from underclock.records import Kernel, Pass, Step
from underclock.units import first_and_more

ALIKE = 0.1
"""Of the launches: steps that differ by less are alike."""
_Key = tuple[Pass, str, str]


@dataclass(frozen=True, slots=True)
class _Calls:
    """Launches in a row by one operator on the same shapes: of one call of it, or of several."""

    key: _Key  # what was asked for
    kernels: tuple[Kernel, ...]  # of each launch

    @property
    def identities(self) -> tuple[str, ...]:
        return tuple(map(identity, self.kernels))

    @property
    def sized(self) -> bool:
        """Whether the data decides their sizes."""
        return NO_SIZE in self.key[2]

    @property
    def modules(self) -> set[str]:
        """Where the operator may have been called."""
        return {module for kernel in self.kernels for module in kernel.section.split(", ")}


def difference(traced: Step, captured: Step) -> str | None:
    """Say how a step asks for something else than it did; ``None`` where it does not.

    The words end the sentence "it runs".
    """
    ours, theirs = _both(traced, captured)
    if [calls.key for calls in ours] != [calls.key for calls in theirs]:
        # Say which operators, or shapes of theirs, one side has and the other has not.
        before, now = (
            {each.key: each.kernels[0].name for each in calls} for calls in (ours, theirs)
        )
        gone = [before[key] for key in before if key not in now]
        new = [now[key] for key in now if key not in before]
        often = Counter(calls.key for calls in ours), Counter(calls.key for calls in theirs)
        moved = [before[key] for key in before if key in now and often[0][key] != often[1][key]]
        said = ("without", gone), ("with a new", new), ("at other places or numbers", moved)
        words = [f"{what} {first_and_more(names)}" for what, names in said if names]
        return ", ".join(words) or "its kernels in another order"
    for one, other in zip(ours, theirs, strict=True):
        name = one.kernels[0].name
        if one.modules.isdisjoint(other.modules):
            return f"{name!r} in another module, {other.kernels[0].section or 'or none'}"
        if not _called_as_often(one, other):
            return f"{name!r} {len(other.kernels)} x instead of {len(one.kernels)} x in a row"
    return None


def unlike(step: Step, before: Step) -> tuple[str, ...]:
    """Say how a script's step differs from one that was looked at before, in the same way.

    Some launches always come and go, and data decides some sizes.
    """
    most, numbers = ALIKE * len(step.order), (len(step.order), len(before.order))
    ours, theirs = (
        Counter(_shaped(each.kernels[k]) for k in each.order) for each in (step, before)
    )
    gone = {key[:2]: key[2] for key in reversed(list(theirs - ours))}
    other = {key: count for key, count in (ours - theirs).items() if key[:2] in gone}
    if abs(numbers[0] - numbers[1]) > most:
        note = (
            "steps of this script differ: {} launches in this one, {} in one before (evaluation, "
            "checkpoints, closures or optimizers by turns); underclock.step() says where steps end"
        ).format(*numbers)
    elif sum(other.values()) > most:
        pass_, operator, shapes = next(iter(other))
        note = (
            f"lengths vary among this script's steps: {operator} is of {shapes} in this one, and "
            f"of {gone[pass_, operator]} in another; each length is a step of its own"
        )
    else:
        return ()
    return (note,)


def _shaped(kernel: Kernel) -> _Key:
    launch = kernel.launch
    if launch is None:
        return kernel.pass_, kernel.name, kernel.shape
    return kernel.pass_, launch.operator, launch.shapes


def recaptured(traced: Step, captured: Step) -> tuple[Step, tuple[str, ...]]:
    """Return a step as it is captured now, in the names of the traced one.

    Args:
        captured: As it is; it asks for the same, so that there is no `difference`. Its
            waits stay as traced, for no two profiles agree on them.

    Returns:
        The step, and in words what runs otherwise; none where all is as it was.
    """
    known = {identity(kernel): kernel.name for kernel in traced.kernels}
    names = {
        each: known[each] for kernel in captured.kernels if (each := identity(kernel)) in known
    }
    changes: dict[str, None] = {}
    for one, other in zip(*_both(traced, captured), strict=True):
        matcher = SequenceMatcher(None, one.identities, other.identities, autojunk=False)
        for before, now in [
            (one.kernels[a_from:a_to], other.kernels[b_from:b_to])
            for tag, a_from, a_to, b_from, b_to in matcher.get_opcodes()
            if tag != "equal"
        ]:
            name, was, is_ = (before or one.kernels)[0].name, _functions(before), _functions(now)
            if was != is_ and not now:
                changes[f"{name!r} runs no {was} any more"] = None
            elif was != is_:
                instead = f" instead of {was}" if before else " as well"
                changes[f"{name!r} runs {is_}{instead}"] = None
            elif not one.sized:
                changes[f"{name!r} runs {was} with another grid or other attributes"] = None
            pairs = zip(before, now, strict=True) if len(before) == len(now) else ()
            for old, new in pairs:
                if old.name not in names.values():
                    names.setdefault(identity(new), old.name)
    shares = {kernel.name: kernel.waited_for for kernel in traced.kernels}
    # What is new has its own name, or a number where that is taken.
    new = [kernel.name for kernel in captured.kernels if identity(kernel) not in names]
    own = iter(numbered([*shares, *new])[len(shares) :])
    kernels = []
    for kernel in captured.kernels:
        name = names.get(identity(kernel)) or next(own)
        share = shares.get(name, kernel.waited_for)
        kernels.append(msgspec.structs.replace(kernel, name=name, waited_for=share))
    kept = {each: getattr(traced, each) for each in ("name", "parameters", "source")}
    step = msgspec.structs.replace(captured, kernels=tuple(kernels), **kept)
    return step, tuple(changes)


def identity(kernel: Kernel) -> str:
    """Return what two kernels share whose measurements are of the same thing."""
    if kernel.launch is None:
        return msgspec.json.encode(
            msgspec.structs.replace(kernel, count=1, waited_for=1.0)
        ).decode()
    return f"{kernel.pass_} {kernel.launch.identity}"


def _both(traced: Step, captured: Step) -> list[list[_Calls]]:
    # What came out of either's data counts for neither: the other may have just that number too.
    sizes = frozenset((*traced.data_sizes, *captured.data_sizes))

    def key_of(kernel: Kernel) -> _Key:
        launch = kernel.launch
        if launch is None:
            return kernel.pass_, identity(kernel), ""
        shapes = without_sizes(launch.shapes, known=sizes)
        return kernel.pass_, launch.operator or launch.function, shapes

    found = []
    for step in (traced, captured):
        keys = [key_of(kernel) for kernel in step.kernels]
        grouped = itertools.groupby(step.order, key=keys.__getitem__)
        found.append([_Calls(key, tuple(step.kernels[k] for k in some)) for key, some in grouped])
    return found


def _called_as_often(ours: _Calls, theirs: _Calls) -> bool:
    """Whether launches in a row can be of as many calls, each of as many launches."""
    # The same launches, but more or fewer, are more or fewer calls. Different ones may be another
    # algorithm, which takes the same number of launches in every call. Where the data decides
    # sizes, every call may have an algorithm of its own.
    if ours.sized and len(ours.kernels) == len(theirs.kernels):
        return True
    if set(ours.identities) == set(theirs.identities):
        return ours.identities == theirs.identities

    def repeats(launches: Sequence[str]) -> int:
        length = len(launches)
        parts = (part for part in range(1, length + 1) if length % part == 0)
        return next(length // part for part in parts if launches[part:] == launches[:-part])

    one, other = repeats(ours.identities), repeats(theirs.identities)
    return one % other == 0 or other % one == 0


def _functions(kernels: Sequence[Kernel]) -> str:
    functions = dict.fromkeys(short(kernel.launch.function) for kernel in kernels if kernel.launch)
    return " and ".join(functions)
