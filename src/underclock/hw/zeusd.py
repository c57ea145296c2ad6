"""Setting GPUs through zeusd, the Zeus project's daemon, over its Unix socket.

It speaks HTTP: what is asked stands in the path and the query, with ``gpu_ids`` and ``block=true``,
and the body is empty. It knows no owner and undoes nothing: our own watchdog stays in charge. It
closes connections that rest for some seconds.
"""

import http.client
import json
import os
import socket
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any
from urllib.parse import urlencode

import pynvml

from underclock.errors import (
    DeviceError,
    NotPermittedError,
    NotSupportedError,
    UnderclockError,
    UsageError,
)
from underclock.hw.nvml_calls import SettableNvmlGpu, Value, call, check_writable
from underclock.hw.wire import Message
from underclock.units import Domain

SOCKET = "ZEUSD_SOCK_PATH"
"""Zeus's own name for where its daemon listens."""
_TOKEN = "ZEUSD_TOKEN"  # noqa: S105 - the name of the variable
_USUAL = ("/run/zeusd/zeusd.sock", "/var/run/zeusd.sock")
_CONTROL = "gpu-control"  # the group of endpoints that set something
_PATIENCE_S = 30.0  # a setter that hangs for 10 s is waited for


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str) -> None:
        super().__init__("zeusd", timeout=_PATIENCE_S)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


def socket_path() -> str:
    """Return where zeusd listens, as the environment says, or where it usually does."""
    named = os.environ.get(SOCKET, "")
    return named or next((path for path in _USUAL if os.path.exists(path)), _USUAL[0])  # noqa: PTH110 - one call, no import


class Zeusd:
    """A connection to the daemon at a socket."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._connection = _UnixConnection(path)
        self._token = os.environ.get(_TOKEN, "")

    def discover(self) -> Message:
        """Return what it says of itself."""
        found = self.ask("GET", "/discover", {}, "ask zeusd what it can do")
        groups = found.get("enabled_api_groups")
        if groups is not None and _CONTROL not in groups:
            raise NotPermittedError(
                f"zeusd at {self.path} was started to read only",
                hint=f"its operator can start it with --enable {_CONTROL}",
            )
        if found.get("auth_required") and not self._token:
            raise NotPermittedError(
                f"zeusd at {self.path} asks for a token",
                hint=f"put one with the scope {_CONTROL} into {_TOKEN}",
            )
        return found

    def close(self) -> None:
        """Close the connection; it opens again when it is used."""
        self._connection.close()

    def ask(self, method: str, path: str, query: Mapping[str, object], what: str) -> Message:
        """Ask, and again where the connection had rested too long: setting twice is no harm."""
        target = f"{path}?{urlencode(query)}" if query else path
        headers = {"Authorization": f"Bearer {self._token}"} if self._token else {}
        for rested in (self._connection.sock is not None, False):
            try:
                self._connection.request(method, target, headers=headers)
                response = self._connection.getresponse()
                body = response.read()
                break
            except (OSError, http.client.HTTPException) as exc:
                self._connection.close()
                if rested and not isinstance(exc, TimeoutError):
                    continue
                raise DeviceError(
                    f"could not {what}: zeusd at {self.path} does not answer: {exc}",
                    hint="its operator can start it again",
                ) from exc
        if response.status != http.client.OK:
            raise _error(response.status, body, what)
        found: Message = json.loads(body) if body else {}
        return found


def _error(status: int, body: bytes, what: str) -> UnderclockError:
    try:
        said = "; ".join(str(words) for words in json.loads(body)["errors"].values())
    except (ValueError, KeyError, TypeError, AttributeError):
        said = body.decode(errors="replace").strip() or "nothing"
    words = f"could not {what}: zeusd answered {status}: {said}"
    match status:
        case HTTPStatus.UNAUTHORIZED | HTTPStatus.FORBIDDEN:
            hint = f"it needs to run as root, and {_TOKEN} to allow {_CONTROL}"
            return NotPermittedError(words, hint=hint)
        case HTTPStatus.NOT_FOUND:
            hint = f"its operator can start it with --enable {_CONTROL}"
            return NotPermittedError(words, hint=hint)
        case HTTPStatus.BAD_REQUEST if what.startswith("unlock"):  # nothing could be bad
            return NotSupportedError(words)
        case HTTPStatus.BAD_REQUEST:
            return UsageError(words, hint="see `underclock doctor` for valid clocks")
    return DeviceError(words)


class ZeusdGpu(SettableNvmlGpu):
    """One NVIDIA GPU, read through NVML and set through zeusd; inside an `nvml_session`."""

    def __init__(self, uuid: str, zeusd: Zeusd) -> None:
        super().__init__(uuid)
        self._zeusd = zeusd
        found = zeusd.discover()
        listed: list[Any] = found.get("gpus") or []
        # The daemon's own number; a container may count fewer GPUs than the daemon does.
        if any("pci_address" in gpu for gpu in listed):
            bus = call("read the bus address", pynvml.nvmlDeviceGetPciInfo, self._handle).busId
            here = _address(bus.decode() if isinstance(bus, bytes) else bus)
            ids = [int(gpu["id"]) for gpu in listed if _address(gpu.get("pci_address", "")) == here]
        else:
            index = int(call("read the index", pynvml.nvmlDeviceGetIndex, self._handle))
            known = found.get("gpu_ids", [gpu.get("id") for gpu in listed])
            ids = [index] if index in known else []
        if not ids:
            raise NotSupportedError(
                f"zeusd at {zeusd.path} has no GPU {uuid}",
                hint="it may see other GPUs of this machine",
            )
        self._id = ids[0]

    def write(self, setting: Domain, value: Value) -> None:
        """Have it set, and wait until it is; ``None`` gives a clock back to the driver."""
        does, what = "reset", f"unlock the {setting}"
        query: dict[str, object] = {"gpu_ids": self._id, "block": "true"}
        if value is not None:
            low, high = value if isinstance(value, tuple) else (int(value), int(value))
            does, what = "set", f"lock the {setting} at {low} to {high} MHz"
            query |= {"min_clock_mhz": low, "max_clock_mhz": high}
        check_writable(what)
        domain = "gpu" if setting is Domain.CORE else "mem"
        self._zeusd.ask("POST", f"/gpu/{does}_{domain}_locked_clocks", query, what)


def _address(text: str) -> str:
    domain, _, rest = text.lower().partition(":")
    return f"{domain.lstrip('0')}:{rest}"
