"""Whose a GPU is, for `underclock serve`: by a rule that the operator names in a file of root's."""

from collections.abc import Callable
from enum import StrEnum
from pathlib import Path

import msgspec

from underclock.errors import NotPermittedError, UnderclockError, UsageError
from underclock.hw.settable import UNSEEN, computing
from underclock.runtime.undo.ownership import read_trusted

RULES = Path("/etc/underclock/serve.toml")
"""Where the operator says who may lease what."""


class LeasePolicy(StrEnum):
    """Which users may lease a GPU."""

    ANY = "any"  # all who may connect
    PROCESS = "process"  # the one user who computes on it
    FILE = "file"  # whom the site's prolog names


class LeaseRules(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the operator's file says.

    Attributes:
        policy: Which users may lease a GPU.
        owners: Folder of one file per GPU, named by UUID, with the numbers of its users.
        start_s: So long a lease waits for its user to compute on a GPU that nobody computes on.
    """

    policy: LeasePolicy = LeasePolicy.PROCESS
    owners: str = "/run/underclock-owners"
    start_s: float = 120.0


def rules_in(path: Path | None) -> LeaseRules:
    """Return what a file says; without a path, what the usual one does if there is any.

    Raises:
        UsageError: It says something else, or others may have written it.
    """
    try:
        return msgspec.toml.decode(read_trusted(path or RULES), type=LeaseRules)
    except (msgspec.DecodeError, ValueError, OSError) as exc:
        if path is None and isinstance(exc, FileNotFoundError):
            return LeaseRules()
        raise UsageError(
            f"{path or RULES} does not say who may lease which GPU: {exc}",
            hint=f"a file of root's: policy = one of {', '.join(map(repr, map(str, LeasePolicy)))}",
        ) from exc


class Owners:
    """Whose the GPUs are; inside an `nvml_session`. Root and who serves may lease any.

    Args:
        rules: What the operator says.
        uid: Who serves.
        computing: Says which users compute on a GPU.
    """

    def __init__(
        self, rules: LeaseRules, *, uid: int, computing: Callable[[str], set[int]] = computing
    ) -> None:
        self.rules = rules
        self._trusted = {0, uid}
        self._computing = computing

    def check(self, uuid: str, uid: int) -> bool:
        """Refuse a user whose a GPU is not; return whether it surely is, and not nobody's.

        Raises:
            NotPermittedError: It is not; the error says what to do.
            UnderclockError: The driver does not tell.
        """
        whose = f"GPU {uuid} is not known to be user {uid}'s"
        if self.rules.policy is LeasePolicy.ANY or uid in self._trusted:
            return True
        if self.rules.policy is LeasePolicy.FILE:
            if uid not in (self._named(uuid) or ()):
                raise NotPermittedError(
                    f"{whose}: no file of the operator's says so",
                    hint=f"the job's prolog names its user in {self.rules.owners}/{uuid}",
                )
            return True
        users = self._computing(uuid) - self._trusted
        if users - {uid}:
            names = ", ".join("unknown" if it == UNSEEN else str(it) for it in sorted(users))
            raise NotPermittedError(
                f"{whose} alone: of users {names} processes compute there",
                hint=f'lease one that nobody shares, or ask for policy = "file" in {RULES}',
            )
        if not users and not self.rules.start_s > 0:
            raise NotPermittedError(
                f"{whose}: none of that user's processes computes there",
                hint="start the job first, then set clocks",
            )
        return bool(users)

    def sees(self, uuid: str, uid: int) -> bool | None:
        """Return whether a GPU still is a user's; ``None`` where it is nobody's, or not told."""
        if self.rules.policy is LeasePolicy.ANY or uid in self._trusted:
            return True
        if self.rules.policy is LeasePolicy.FILE:
            users = self._named(uuid)
        else:
            try:
                users = self._computing(uuid) - self._trusted - {UNSEEN}
            except UnderclockError:
                users = set()
        if users is None:
            return False
        return uid in users if users else None

    def _named(self, uuid: str) -> set[int] | None:
        """Return whom the site names; ``None`` where it has no file.

        Nobody is named where the file cannot be believed, or is only just being written.
        """
        try:
            return {int(word) for word in read_trusted(Path(self.rules.owners) / uuid).split()}
        except FileNotFoundError:
            return None
        except (OSError, ValueError):
            return set()
