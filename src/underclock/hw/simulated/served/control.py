"""Faults on demand in GPUs that another process serves, and what is true behind the driver."""

from types import TracebackType
from typing import Any, Self

from underclock.errors import DeviceError, UsageError
from underclock.hw.simulated.served.client import connected
from underclock.hw.wire import Gone, Message, Reader, send


class Control:
    """A connection over which things go wrong; for tests, and for those who judge.

    Args:
        path: Of the socket.

    Raises:
        DeviceError: Nobody answers there.
    """

    def __init__(self, path: str) -> None:
        self._connection = connected(path)
        self._reader = Reader(self._connection)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._connection.close()

    def fault(self, name: str, value: float | None = None, *, gpu: int | None = None) -> None:
        """Let something go wrong, until `heal`.

        Args:
            name: One of `fault_requests.FAULT_NAMES`.
            value: For how many seconds setters hang, or the power limit in W that somebody sets.
            gpu: Which GPU; by default all.

        Raises:
            UsageError: No such fault or GPU.
            DeviceError: Nobody answers any more.
        """
        self._ask({"do": "fault", "name": name, "value": value, "gpu": gpu})

    def heal(self, *, gpu: int | None = None) -> None:
        """End what is wrong with a GPU, or with all; a lost one comes back without locks."""
        self._ask({"do": "heal", "gpu": gpu})

    def truth(self, gpu: int = 0) -> dict[str, Any]:
        """Return what is true of a GPU: time, energy, clocks, locks, limit, launches."""
        return self._ask({"do": "truth", "gpu": gpu})

    def _ask(self, message: Message) -> Message:
        try:
            send(self._connection, message)
            answer = self._reader.receive()
        except Gone as exc:
            raise DeviceError(
                f"the simulated GPUs are gone: {exc}", hint="start them anew"
            ) from exc
        if "error" in answer:
            raise UsageError(answer["error"], hint=answer.get("hint", ""))
        return answer
