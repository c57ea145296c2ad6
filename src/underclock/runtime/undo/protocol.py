"""Who may write what when: the undo protocol as data.

Each sequence below is what the processes carry out, act by act (`carry_out`), and what the
exhaustive test takes apart: it lets every process die, stop or be overtaken between any two acts.
So the order that is proven is the order that runs.

Four rules make it safe.

* Clocks are set only while a journal says, on disk, what was found.
* Only a process that has the GPU's lock writes to it or to its journal. Controller and watchdog
  have one lock together (one open file), which is free when both have ended.
* The watchdog writes only once the controller has ended. It ends one that hangs or is stopped, so
  nothing can be set afterwards by a process that wakes up late.
* Root reads only what root wrote. What another user's files say is done with that user's rights: he
  may write anything at any time, and could have done as much himself.
"""

from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum


class Act(StrEnum):
    """One step that a process takes; between any two of them it may die."""

    TAKE_LOCK = "take the GPU's lock, or end"
    SHARE_LOCK = "give the watchdog the same lock, and wait until it watches"
    READ_FOUND = "read what is set on the GPU"
    WRITE_JOURNAL = "write the journal beside its place"
    SYNC_JOURNAL = "sync its contents"
    PLACE_JOURNAL = "rename it into its place"
    SYNC_FOLDER = "sync its name"
    SET = "set something on the GPU"
    END_CONTROLLER = "kill the controller and wait until it has ended"
    UNDO = "put back what the journal says was changed"
    REMOVE_JOURNAL = "remove the journal"
    RELEASE_LOCK = "give the lock back"
    BECOME_OWNER = "give up all rights but those of whose files come next"
    RESTORE_OWN = "restore by one's own folder, GPU by GPU"
    RESTORE_THEIRS = "restore by another user's folder, GPU by GPU"


_JOURNAL = (Act.WRITE_JOURNAL, Act.SYNC_JOURNAL, Act.PLACE_JOURNAL, Act.SYNC_FOLDER)
_MEND = (Act.UNDO, Act.REMOVE_JOURNAL)  # nothing where there is no journal

ARM = (Act.TAKE_LOCK, *_MEND, Act.READ_FOUND, Act.SHARE_LOCK)
CHANGE = (*_JOURNAL, Act.SET)  # a change that the journal covers already is its last act alone
REFUSED = (Act.REMOVE_JOURNAL,)  # where the driver took nothing of this run: nothing to undo
END = (*_MEND, Act.RELEASE_LOCK)
TAKE_OVER = (Act.END_CONTROLLER, *_MEND, Act.RELEASE_LOCK)
RESTORE = (Act.TAKE_LOCK, *_MEND, Act.RELEASE_LOCK)
THEIRS = (Act.BECOME_OWNER, Act.RESTORE_THEIRS)  # in a process that others do not wait for
RESTORE_ALL = (Act.RESTORE_OWN, *THEIRS)


def carry_out(acts: Sequence[Act], hands: Mapping[Act, Callable[[], None]]) -> None:
    """Do one act after the other; what raises ends the sequence there."""
    for act in acts:
        hands[act]()
