from pathlib import Path

import pytest

import undo_model as protocol
from underclock.hw.nvml_calls import SettableGpu
from underclock.runtime.undo.guarded_gpu import GuardedGpu, restore
from underclock.units import Domain
from undo_model import Act, Sequences, Violation, acts_of, explore


def share_lock(lock: object) -> None:
    del lock


def test_the_code_does_the_acts_that_are_explored(gpu: SettableGpu, folder: Path) -> None:
    made: list[GuardedGpu] = []

    def arm() -> None:
        made.append(GuardedGpu(gpu, folder, share_lock=share_lock))

    arm()
    assert acts_of(lambda: made[0].set(Domain.CORE, 1200)) == protocol.CHANGE
    assert acts_of(lambda: made[0].set(Domain.CORE, 1500)) == (Act.SET,)
    made[0].lock.release()
    assert acts_of(arm) == protocol.ARM
    made[1].set(Domain.CORE, 1200)
    assert acts_of(made[1].end) == protocol.END
    arm()
    made[2].set(Domain.CORE, 1200)
    made[2].lock.release()
    assert acts_of(lambda: restore(folder, ["GPU-0"], lambda _: gpu)) == protocol.RESTORE


@pytest.mark.slow
def test_no_death_stop_crash_or_hostile_user_leaves_anything_behind_in_any_interleaving() -> None:
    states, depth = explore(Sequences())

    assert states > 10_000
    assert depth >= 12


def _moved(acts: tuple[Act, ...], act: Act, before: Act) -> tuple[Act, ...]:
    left = [one for one in acts if one is not act]
    left.insert(left.index(before), act)
    return tuple(left)


def _without(acts: tuple[Act, ...], act: Act) -> tuple[Act, ...]:
    return tuple(one for one in acts if one is not act)


WRONG = {
    "set, then journal": Sequences(change=_moved(protocol.CHANGE, Act.SET, Act.WRITE_JOURNAL)),
    "set before the journal is in its place": Sequences(
        change=_moved(protocol.CHANGE, Act.SET, Act.PLACE_JOURNAL)
    ),
    "set before the journal's name is synced": Sequences(
        change=_moved(protocol.CHANGE, Act.SET, Act.SYNC_FOLDER)
    ),
    "journal in its place before its contents are synced": Sequences(
        change=_moved(protocol.CHANGE, Act.PLACE_JOURNAL, Act.SYNC_JOURNAL)
    ),
    "journal's contents not synced": Sequences(change=_without(protocol.CHANGE, Act.SYNC_JOURNAL)),
    "found read before it is mended": Sequences(arm=_moved(protocol.ARM, Act.READ_FOUND, Act.UNDO)),
    "armed without mending": Sequences(arm=_without(protocol.ARM, Act.UNDO)),
    "mended without the lock": Sequences(
        arm=(*_without(protocol.ARM, Act.TAKE_LOCK), Act.TAKE_LOCK)
    ),
    "set without a watchdog": Sequences(arm=_without(protocol.ARM, Act.SHARE_LOCK)),
    "journal removed before the undo": Sequences(
        end=_moved(protocol.END, Act.REMOVE_JOURNAL, Act.UNDO)
    ),
    "lock given back before the undo": Sequences(
        end=_moved(protocol.END, Act.RELEASE_LOCK, Act.UNDO)
    ),
    "journal not removed": Sequences(end=_without(protocol.END, Act.REMOVE_JOURNAL)),
    "watchdog writes beside a stopped controller": Sequences(
        take_over=_without(protocol.TAKE_OVER, Act.END_CONTROLLER)
    ),
    "watchdog undoes, then ends the controller": Sequences(
        take_over=_moved(protocol.TAKE_OVER, Act.UNDO, Act.END_CONTROLLER)
    ),
    "watchdog removes the journal first": Sequences(
        take_over=_moved(protocol.TAKE_OVER, Act.REMOVE_JOURNAL, Act.UNDO)
    ),
    "restored without the lock": Sequences(restore=_without(protocol.RESTORE, Act.TAKE_LOCK)),
    "restored after the lock was given back": Sequences(
        restore=_moved(protocol.RESTORE, Act.RELEASE_LOCK, Act.UNDO)
    ),
}


@pytest.mark.untraced
@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_order_is_found_out(wrong: str) -> None:
    with pytest.raises(Violation):
        explore(WRONG[wrong])


_AS_ROOT = _without(protocol.RESTORE_ALL, Act.BECOME_OWNER)
_KILLS_NOBODY = _without(protocol.RESTORE, Act.TAKE_LOCK)
TRUSTING = {
    "killed because a hostile lock names him": Sequences(restore_all=_AS_ROOT),
    "what is set is not in the journal": Sequences(
        restore_all=_AS_ROOT, restore_theirs=_KILLS_NOBODY
    ),
    "takes clocks off a live run": Sequences(
        restore_all=_AS_ROOT, restore_theirs=_KILLS_NOBODY, clocks_only=True
    ),
    "keeps root's own from its undo": Sequences(restore_all=(*protocol.THEIRS, Act.RESTORE_OWN)),
    "set is not in the journal": Sequences(applies_earlier=True),
    "is not in the journal|before everything is as found": Sequences(
        restore_all=_moved(protocol.RESTORE_ALL, Act.BECOME_OWNER, Act.RESTORE_OWN)
    ),
}


@pytest.mark.untraced
@pytest.mark.parametrize("what", TRUSTING)
def test_trust_in_what_a_hostile_user_or_an_earlier_boot_wrote_is_found_out(what: str) -> None:
    with pytest.raises(Violation, match=what):
        explore(TRUSTING[what])
