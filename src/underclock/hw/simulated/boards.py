"""What no fit touches of the simulated GPUs: memory, cores, identity, and their sensors."""

from dataclasses import dataclass

from underclock.gpus.models import AMPERE, GA100, HOPPER, Sensors

_HOPPER = (9, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Board:
    """One kind of board, from its data sheet.

    Attributes:
        cores: CUDA cores.
        memory_mib: Device memory that the driver reports.
        capability: CUDA compute capability.
        pci_device: PCI device number.
        geforce: Whether it is sold under that brand.
        fan: Whether it has one of its own.
        hbm: Whether it has stacked memory: such a board stays in P0 at its highest memory clock
            while it rests (read from an H200), and can be split (MIG).
        sensors: What it measures with.
    """

    cores: int
    memory_mib: int
    capability: tuple[int, int]
    pci_device: int
    geforce: bool = False
    fan: bool = False
    hbm: bool = False
    sensors: Sensors = AMPERE

    @property
    def counters(self) -> bool:
        """Whether it counts how busy its parts are: NVML's GPM, which Hopper brought."""
        return self.capability >= _HOPPER


# By the name the driver gives them.
_BOARDS = {
    "NVIDIA GeForce RTX 3080 Ti": Board(
        cores=10240,
        memory_mib=12288,
        capability=(8, 6),
        pci_device=0x2208,
        geforce=True,
        fan=True,
    ),
    "NVIDIA RTX A4000": Board(
        cores=6144, memory_mib=16376, capability=(8, 6), pci_device=0x24B0, fan=True
    ),
    "NVIDIA A40": Board(cores=10752, memory_mib=46068, capability=(8, 6), pci_device=0x2235),
    "NVIDIA A100-SXM4-40GB": Board(
        cores=6912,
        memory_mib=40960,
        capability=(8, 0),
        pci_device=0x20B0,
        hbm=True,
        sensors=GA100,
    ),
    "NVIDIA H200": Board(
        cores=16896,
        memory_mib=143771,
        capability=(9, 0),
        pci_device=0x2335,
        hbm=True,
        sensors=HOPPER,
    ),
}


def board_of(name: str) -> Board | None:
    """Return the board of a GPU; ``None`` where nothing is written down of it."""
    return _BOARDS.get(name)


def rests(name: str) -> bool:
    """Return whether a GPU lowers its memory clock when it rests."""
    board = board_of(name)
    return board is None or not board.hbm


def sensors_of(name: str) -> Sensors:
    """Return the sensors of a GPU; Ampere's where nothing is written down of it."""
    board = board_of(name)
    return AMPERE if board is None else board.sensors


def has_counters(name: str) -> bool:
    """Return whether a GPU counts how busy its parts are; not where nothing is written down."""
    board = board_of(name)
    return board is not None and board.counters
