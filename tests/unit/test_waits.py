"""No wait in the source without a deadline, but for those listed here with what ends them."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src" / "underclock"

_ENDS = "a thread of the process that ends with it"
_READY = "asked once a look with a deadline has found something to read"
_AT_ONCE = "the descriptor does not block"
WAITS = {
    "app/output.py _shown.print_lines": f"{_ENDS}, or with what is shown",
    "app/services.py apply": "a person, by Ctrl-C; it polls every 0.05 s",
    "app/services.py simulate": "a person, by Ctrl-C; it polls every second",
    "campaign/switches.py _between": "`switch`: a look of 5 s that finds nothing is an error",
    "hw/measurer.py GpuMeasurer._window": "`WatchedLoop`: a loop that stands still is an error",
    "hw/cuda/feed.py CudaSmallKernels.run.launch": "`Feed.close`, with a deadline",
    "hw/cuda/driver.py wait_for_gpu.wait": f"{_ENDS}; who asked waits with a deadline",
    "hw/simulated/launcher.py _VirtualLoop.durations": "a loop that does not launch is an error",
    "hw/simulated/served/server.py PacedClock.run": f"{_ENDS}, or with what is served",
    "hw/simulated/served/server.py PacedClock.wait_until": "time, which goes on, or the end of it",
    "hw/wire.py MessageReader.receive": "the connection's timeout; of a server, its client's end",
    "hw/wire.py answering.accept": f"{_ENDS}, or with the socket",
    "runtime/controller/booking.py Booking._write_on": f"{_ENDS}, or with the run",
    "runtime/controller/governor.py Governing._notes": _AT_ONCE,
    "runtime/controller/nodes.py DecidingRanks.tend": _AT_ONCE,
    "runtime/controller/nodes.py _Link.received": _AT_ONCE,
    "runtime/controller/process.py _Ends.why": _READY,
    "runtime/controller/starting.py ControllerProcess._line": _READY,
    "runtime/machine/machine.py Machine.asked": "no wait: a lock of clocks that a driver accepts",
    "runtime/trainer/notes.py Hook._say": _AT_ONCE,
    "runtime/undo/guarded_gpu.py _ProcessGuard._keep": f"{_ENDS}, or with `end`",
    "runtime/undo/watchdog.py Watchdog.__init__": "the controller's first words, or its end",
    "runtime/undo/watchdog.py Watchdog.hear": _READY,
    "runtime/undo/watchdog.py main": "the controller's end: it is what a watchdog is for",
    "runtime/undo/watchdog_process.py WatchdogProcess._listen": _AT_ONCE,
    "runtime/undo/watchdog_process.py WatchdogProcess.ready": "`poll`: three watchdogs, 10 s each",
}
"""By file and function: what ends a wait that has no deadline of its own."""

_LONE = {"get", "wait", "join", "acquire", "result", "communicate"}
"""Methods that wait for ever where they are given nothing."""
_ALWAYS = {"recv", "recv_into", "recv_fds", "recv_bytes", "recvmsg", "accept", "synchronize"}
"""Methods that know no deadline."""
_FUNCTIONS = {
    "input": (),
    "os.read": (),
    "os.wait": (),
    "os.waitpid": ("WNOHANG",),
    "os.waitid": ("WNOHANG",),
    "fcntl.flock": ("LOCK_NB",),
    "fcntl.lockf": ("LOCK_NB",),
    "signal.pause": (),
    "signal.sigwait": (),
    "ray.get": ("timeout",),
    "ray.wait": ("timeout",),
    "subprocess.run": ("timeout",),
    "subprocess.call": ("timeout",),
    "subprocess.check_call": ("timeout",),
    "subprocess.check_output": ("timeout",),
    "socket.create_connection": ("timeout",),
    "urllib.request.urlopen": ("timeout",),
    "urlopen": ("timeout",),
}
"""Functions that wait, each with the words of which one in the call bounds it."""
_SLEEPS = {"sleep", "sleep_s", "wait", "wait_for", "poll", "select", "check", "query"}
"""What a loop calls between two looks at something that another process or device does."""
_CLOCKS = {"now_s", "monotonic", "perf_counter", "time"}


def _name(call: ast.Call) -> str:
    return ast.unparse(call.func)


def _last(call: ast.Call) -> str:
    return _name(call).rpartition(".")[2]


def _is_none(argument: ast.expr) -> bool:
    return isinstance(argument, ast.Constant) and argument.value is None


def _is_unbounded(call: ast.Call) -> bool:
    """Whether a call may wait for ever."""
    name, given = _name(call), [*call.args, *(each.value for each in call.keywords)]
    if name == "select.select":
        return len(given) < 4 or _is_none(given[3])
    if name in _FUNCTIONS:
        return not any(word in ast.unparse(call) for word in _FUNCTIONS[name])
    if not isinstance(call.func, ast.Attribute):
        return False
    if _last(call) == "wait_for":  # of a condition: what for, and how long
        return all(map(_is_none, given[1:]))
    if _last(call) in _LONE:
        return all(map(_is_none, given))
    return _last(call) in _ALWAYS


def _polls_for_ever(loop: ast.While) -> bool:
    """Whether a loop looks again and again, and compares no clock with anything."""
    nodes = list(ast.walk(loop))
    calls = [node for node in nodes if isinstance(node, ast.Call)]
    if not any(_last(call) in _SLEEPS for call in calls):
        return False
    compared = [ast.unparse(node) for node in nodes if isinstance(node, ast.Compare)]
    words = {word for each in compared for word in each.replace("(", " ").replace(".", " ").split()}
    return not (words & _CLOCKS or any(word.endswith("_s") for word in words))


def waits_in(text: str) -> Iterator[tuple[str, str]]:
    """Yield each wait without a deadline: the function it stands in, and its words."""

    def walk(node: ast.AST, inside: str) -> Iterator[tuple[str, str]]:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            inside = f"{inside}.{node.name}".removeprefix(".")
        if isinstance(node, ast.Call) and _is_unbounded(node):
            yield inside, ast.unparse(node)
        if isinstance(node, ast.While) and _polls_for_ever(node):
            yield inside, f"while {ast.unparse(node.test)}"
        for child in ast.iter_child_nodes(node):
            yield from walk(child, inside)

    return walk(ast.parse(text), "")


def _found() -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for path in sorted(SOURCE.rglob("*.py")):
        for inside, words in waits_in(path.read_text()):
            found.setdefault(f"{path.relative_to(SOURCE)} {inside}", []).append(words)
    return found


def test_every_wait_has_a_deadline_or_stands_in_the_table_with_what_ends_it() -> None:
    found = _found()

    assert {place: found[place] for place in found.keys() - WAITS.keys()} == {}
    assert WAITS.keys() - found.keys() == set(), "these waits are gone"


@pytest.mark.parametrize(
    "planted",
    [
        "queue.get(timeout=None)",
        "event.wait()",
        "changed.wait_for(is_so)",
        "connection.recv(16)",
        "torch.cuda.synchronize()",
        "select.select([fd], [], [])",
        "os.waitpid(pid, 0)",
        "subprocess.run(['true'], check=True)",
        "while not store.check([key]):\n    clock.sleep_s(LOOK_S)",
    ],
)
def test_a_planted_wait_is_found(planted: str) -> None:
    lines = "\n".join(f"        {line}" for line in planted.splitlines())
    (found,) = waits_in(f"class Rank:\n    def hear(self):\n{lines}\n")

    assert found[0] == "Rank.hear"
    assert found[1].split("(")[0] in planted
