"""Marks in a live training step of PyTorch's, at the places that a plan names.

It looks at the first step after the optimiser's first, learns what the modules are called and in
which order their places come, and marks from then on. Without a plan it looks at two steps, and
chooses places. It changes nothing that is computed: hooks look on and return nothing, and in the
backward pass they sit on functions that autograd has made anyway. Whatever goes wrong here,
training goes on without marks. Standard library only: this is loaded into the training process,
and PyTorch is the user's.

Every mark carries the number of its step. In a CUDA graph marks are constants, so those say which
step of the graph they are of, and before each replay the stream writes how many came before it.
Replays are seen where Python asks for them; the controller sees that the rest are not counted.
"""

from __future__ import annotations

import contextlib
import gc
import math
import os
import sys
import time
import weakref
from bisect import bisect_left

from underclock.errors import DataError
from underclock.hw.cuda import WRAPPERS, paths_below, put
from underclock.learning.pieces import places_of, write_places
from underclock.runtime.trainer import instructions
from underclock.runtime.trainer import page as pages
from underclock.runtime.trainer.page import word_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from typing import Any

    from underclock.learning.pieces import Place
    from underclock.runtime.trainer.page import Page
    from underclock.runtime.trainer.streams import MarkStream

STEP, ENTER, LEAVE, BACK, BACKWARD_END = "step", "enter", "leave", "back", "backward end"
"""What can be seen of a live step: its optimiser is done, a module's forward begins or ends, its
backward begins, and a backward pass is over."""

_LEAST_SHARE = 0.5  # of the marks must be found where the plan says, or it is another step's
_LOOKED_AT = 2  # steps, before places are chosen
_MOST_TRIES = 3  # a step may be cut short once: a scaler skips it, gradients are gathered unevenly


_STDERR = pages.identity(2)  # as it was: a number that was closed may be a checkpoint's by now


def say(words: str) -> None:
    """Write to the user's stderr, where it is still what it was; there is no other way to."""
    with contextlib.suppress(Exception):
        if sys.stderr is not sys.__stderr__ or pages.identity(2) == _STDERR:
            print(f"underclock: {words}", file=sys.stderr)  # noqa: T201


def sentence_of(exc: BaseException) -> str:
    """Return what an exception says, or what it is."""
    try:
        return str(exc) or type(exc).__name__
    except Exception:  # noqa: BLE001 - it is another's code
        return type(exc).__name__


def _is_a_signals(exc: BaseException) -> bool:
    """Whether a handler of the trainer's raised it, for a signal that came while we were at work.

    Python runs handlers in the middle of whatever code is running.
    """
    import signal  # noqa: PLC0415 - hardly ever

    if isinstance(exc, KeyboardInterrupt | SystemExit):
        return True
    handlers = map(signal.getsignal, signal.valid_signals())
    codes = {getattr(each, "__code__", None) for each in handlers} - {None}
    at = exc.__traceback__
    while at is not None and at.tb_frame.f_code not in codes:
        at = at.tb_next
    return at is not None


def _harmless(hook: Callable[..., None]) -> Callable[..., None]:
    """Return a hook of a `Marker` that ends marking where it fails, and never training."""

    def harmless(self: Marker, *of: Any) -> None:
        if self._over:
            return
        try:
            hook(self, *of)
        except BaseException as exc:  # whatever a broken stream raises
            try:
                is_theirs = _is_a_signals(exc)
                if not is_theirs:
                    self._fail(exc)
            except Exception:  # noqa: BLE001 - there may be no depth left to say it at
                is_theirs, self._over = False, True
            if is_theirs:
                raise

    return harmless


class Spot:
    """One kind of event of one module, counted anew in each step."""

    def __init__(self, total: int) -> None:
        self.count = 0  # how often it came in this step
        self.marks: dict[int, int] = {}  # which mark it is the first time, the second …
        self.total = total  # how often it should come in a step


class Marker:
    """Marks the steps of the optimiser that steps first in this process.

    Each place is an event, its module, its occurrence in a step and how often it comes in one; the
    first is the step's. The page is opened at the first step, if no other process has it.
    """

    def __init__(
        self,
        places: Sequence[Place],
        open_page: Callable[[], Page],
        open_stream: Callable[[Page, Any], MarkStream],
        schedule: str = "",
        *,
        discovers: bool = False,
        sites: Mapping[tuple[str, str, int], int] | None = None,
    ) -> None:
        """Mark places; of a job's pipeline schedule, which it names, all must be found.

        Args:
            discovers: Choose places instead, and note them where the page is.
            sites: Launch of each place that a simulated GPU knows; no other place is chosen.
        """
        self._schedule = schedule
        self._found: list[tuple[str, str]] | None = [] if discovers else None  # of one step
        self._sites = sites
        self._stepped_s, self._step_s = -math.inf, math.inf
        self._expect(places)
        self._open_page, self._open_stream = open_page, open_stream
        self._torch: Any = None
        self._page: Page | None = None
        self._stream: MarkStream | None = None
        self._counting: Counting | None = None
        self._optimizer: Any = None
        self._paths: dict[int, str] = {}
        self._seen: list[int] | None = None  # marks in the order they came, while learning
        self._undo: list[Callable[[], None]] = []  # take hooks away
        self._undo_modules: list[tuple[Any, list[Callable[[], None]]]] = []
        self._tries = 0
        self._backward = -1
        self._graph_task: Callable[[], int] = lambda: -1
        self._over = False

    def _expect(self, places: Sequence[Place]) -> None:
        self._spots: dict[tuple[str, str], Spot] = {}
        self._count = len(places)
        for value, (event, path, occurrence, total) in enumerate(places, start=1):
            if event != STEP:
                spot = self._spots.setdefault((event, path), Spot(total))
                spot.marks[occurrence] = value

    def attach(self, torch: Any) -> None:
        """Wait for the first step of an optimiser of PyTorch's."""
        from torch.optim.optimizer import (  # noqa: PLC0415 - the user's own
            register_optimizer_step_post_hook,
        )

        self._torch = torch
        self._graph_task = getattr(torch._C, "_current_graph_task_id", self._graph_task)
        self._undo.append(register_optimizer_step_post_hook(self._stepped).remove)
        # A worker that is forked off shares the page and our hooks, and is no part of the step.
        os.register_at_fork(after_in_child=self._fall_silent)

    def detach(self) -> None:
        """Mark no more, and take the hooks away."""
        if not self._over:
            self._end(pages.DETACHED, "")

    def _fall_silent(self) -> None:
        self._over, self._stream, self._page = True, None, None
        if self._counting is not None:
            self._counting.close()

    def _end(self, state: int, sentence: str) -> None:
        """Mark no more, say why in the page, and take the hooks away; what fails is left."""
        self._over = True
        stream, self._stream = self._stream, None
        undo = [*self._undo, *(each for _, some in self._undo_modules for each in some)]
        self._undo, self._undo_modules = [], []
        if self._page is not None:
            with contextlib.suppress(BaseException):
                self._page.tell(state, sentence)
        for close in (
            *(each.close for each in (self._counting, stream) if each is not None),
            *undo,
        ):
            with contextlib.suppress(BaseException):
                close()

    def _fail(self, exc: BaseException) -> None:
        sentence = sentence_of(exc)
        self._end(pages.REFUSED, sentence)
        say(f"training goes on without marks: {sentence}")

    @_harmless
    def _stepped(self, optimizer: Any, *_: object) -> None:
        """Begin a step, where the optimiser is the one whose steps count."""
        if self._optimizer is not None:
            if self._optimizer() is optimizer:
                self._next()
            return
        self._page = self._open_page()
        self._optimizer = weakref.ref(optimizer)
        self._counting = Counting(self._page, self._fail)
        self._counting.stepped()
        self._page.tell(pages.LEARNING)
        self._seen = []
        if self._schedule:
            self._undo += instructions.watch(self._torch, self._optimizer, self._instruction)
            return
        for module in _modules(self._torch):
            self._watch(module)

    def _next(self) -> None:
        counts = True
        if self._seen is not None and self._page is not None:
            # While a graph is captured, nothing may be set up, and a mark may be captured.
            cuda = self._torch.cuda
            counts = not (cuda.is_initialized() and cuda.is_current_stream_capturing())
            if not counts:
                self._seen.clear()
            elif self._found is not None:
                self._discovered(self._found, self._page)
            else:
                self._learned(self._seen, self._page)
        for spot in self._spots.values():
            spot.count = 0
        if counts and self._counting is not None:
            self._counting.stepped()
        self._mark(1)

    def _mark(self, value: int) -> None:
        if self._stream is not None and self._counting is not None:
            self._stream.mark(self._counting.word(value))

    def _learned(self, seen: list[int], page: Page) -> None:
        wrong = {
            value
            for spot in self._spots.values()
            if spot.count != spot.total
            for value in spot.marks.values()
        }
        good = ascending([value for value in seen if value not in wrong])
        found = 1 + len(good)  # the step's own
        least = self._count * (1.0 if self._schedule else _LEAST_SHARE)
        if found < least or (found == 1 < self._count) or (self._schedule and good != {*seen}):
            self._tries += 1
            seen.clear()
            if self._tries == _MOST_TRIES:
                if self._schedule:
                    raise DataError(
                        f"the plan is for another schedule: {self._schedule}, and "
                        f"{instructions.schedule_of()}: {found} of {self._count} marks come where "
                        "the plan says; plan the job as it runs"
                    )
                raise DataError(
                    f"the step is not the plan's: {found} of its {self._count} marks are where the "
                    "plan says; trace the step again, and plan it"
                )
            return
        for key, spot in list(self._spots.items()):
            spot.marks = {at: value for at, value in spot.marks.items() if value in good}
            if not spot.marks:
                del self._spots[key]
        self._begin(page, found)

    def _discovered(self, found: list[tuple[str, str]], page: Page) -> None:
        """Choose places once some steps were looked at, as close together as these are short."""
        now_s = time.monotonic()
        self._step_s = min(self._step_s, now_s - self._stepped_s)
        self._stepped_s = now_s
        self._tries += 1
        if self._tries < _LOOKED_AT:
            found.clear()
            return
        chosen, launches = places_of(found, self._step_s, {LEAVE}, self._sites)
        places = [(STEP, "", 0, 1), *chosen]
        if self._sites is not None:
            page.marks = 0, *launches
        self._expect(places)
        write_places(page.path, places)
        self._found = None
        self._begin(page, len(places))

    def _begin(self, page: Page, found: int) -> None:
        self._seen = None
        self._unwatch_idle()
        self._stream = self._open_stream(page, self._optimizer())
        if self._counting is not None:
            self._counting.follow(getattr(self._torch.cuda, "CUDAGraph", None), self._stream)
        page.tell(pages.MARKING, f"{found} of {self._count} marks")

    def _unwatch_idle(self) -> None:
        kept = []
        for module, undo in self._undo_modules:
            path = self._paths.get(id(module), "")
            if any((event, path) in self._spots for event in (ENTER, LEAVE, BACK)) or (
                (BACKWARD_END, "") in self._spots and path
            ):
                kept.append((module, undo))
            else:
                for each in undo:
                    each()
        self._undo_modules = kept

    def _watch(self, module: Any) -> None:
        if getattr(module, "_compiled_call_impl", None) is not None:
            # Compiled in place: hooks would be compiled as well, and then do nothing.
            compiled = module._compiled_call_impl

            def around(*args: Any, **kwargs: Any) -> Any:
                self._entered(module, ())
                output = compiled(*args, **kwargs)
                self._left(module, (), output)
                return output

            put_back = put(module, "_compiled_call_impl", around)
            self._undo_modules.append((module, [put_back]))
            return
        before = module.register_forward_pre_hook(self._entered, prepend=True)
        after = module.register_forward_hook(self._left)
        self._undo_modules.append((module, [before.remove, after.remove]))

    @_harmless
    def _instruction(self, event: str, path: str) -> None:
        self._hit(event, path)

    @_harmless
    def _entered(self, module: Any, _inputs: object) -> None:
        known = self._paths.get(id(module))
        if known is not None and not self._wants(ENTER, known):
            return
        if self._is_of_the_step(module):
            if known is None:
                for inner, path in paths_below(module).items():
                    self._paths.setdefault(inner, path)
            self._hit(ENTER, self._paths[id(module)])

    @_harmless
    def _left(self, module: Any, _inputs: object, output: Any) -> None:
        path = self._paths.get(id(module))
        if path is None:
            return
        if self._wants(LEAVE, path) and self._is_of_the_step(module):
            self._hit(LEAVE, path)
        if self._wants(BACK, path) or self._wants(BACKWARD_END, ""):
            node = _grad_fn(output)
            if node is not None:
                node.register_prehook(lambda _gradients: self._backward_of(path))

    @_harmless
    def _backward_of(self, path: str) -> None:
        task = self._graph_task()
        if self._wants(BACKWARD_END, "") and task != self._backward:
            self._backward = task
            self._torch.autograd.Variable._execution_engine.queue_callback(self._backward_over)
        self._hit(BACK, path)

    @_harmless
    def _backward_over(self) -> None:
        self._hit(BACKWARD_END, "")

    def _is_of_the_step(self, module: Any) -> bool:
        """Tell a step's forward from recomputation in its backward, and from evaluation."""
        if self._graph_task() != -1 or self._torch.compiler.is_compiling():
            return False
        return bool(module.training or self._torch.is_grad_enabled())

    def _wants(self, event: str, path: str) -> bool:
        return self._found is not None or (event, path) in self._spots

    def _hit(self, event: str, path: str) -> None:
        if self._found is not None:
            self._found.append((event, path))
            return
        spot = self._spots.get((event, path))
        if spot is None:
            return
        value = spot.marks.get(spot.count)
        spot.count += 1
        if value is None:
            return
        if self._seen is not None:
            self._seen.append(value)
        else:
            self._mark(value)


def ascending(values: Sequence[int]) -> set[int]:
    """Return the most values that come in ascending order."""
    ends: list[int] = []  # the least value that ends a run of each length, and where it stands
    places: list[int] = []
    before: list[int] = []
    for at, value in enumerate(values):
        length = bisect_left(ends, value)
        ends[length : length + 1] = [value]
        places[length : length + 1] = [at]
        before.append(places[length - 1] if length else -1)
    kept: set[int] = set()
    at = places[-1] if places else -1
    while at >= 0:
        kept.add(values[at])
        at = before[at]
    return kept


def _modules(torch: Any) -> Iterable[Any]:
    """Return the modules there are, but for those inside of what is compiled and those wrapped.

    A wrapper and what it wraps have one path, and are marked once. They are looked for rather than
    met: a hook on all modules would be compiled into a step, and taking it away would have the step
    compiled anew.
    """
    kind = torch.nn.Module
    # By `type`, for asking some objects for their class runs code of theirs.
    found = [each for each in gc.get_objects() if issubclass(type(each), kind)]
    inside: set[int] = set()
    for module in found:
        wrapped = module.__dict__.get("_modules", {})  # it may not be made yet
        inside.update(id(wrapped[name]) for name in WRAPPERS if name in wrapped)
        whole = getattr(module, "_orig_mod", None)
        if whole is not None:
            inside.update(id(each) for each in whole.modules())
        elif getattr(module, "_compiled_call_impl", None) is not None:
            inside.update(id(each) for each in module.modules() if each is not module)
    scripted = torch.jit.ScriptModule
    return [
        each for each in found if id(each) not in inside and not issubclass(type(each), scripted)
    ]


def _grad_fn(output: Any) -> Any:
    """Return the function that made the first output that has one."""
    node = getattr(output, "grad_fn", None)
    if node is not None or not isinstance(output, tuple | list | dict):
        return node
    for each in output.values() if isinstance(output, dict) else output:
        node = _grad_fn(each)
        if node is not None:
            return node
    return None


class Counting:
    """Counts the steps of one optimiser, and puts their numbers into marks."""

    def __init__(self, page: Page, fail: Callable[[Exception], None]) -> None:
        self._page, self._fail = page, fail
        self._steps = page.enqueued  # of a process before this one, which a launcher replaced
        self._last = 1  # mark that was put on the stream
        self._captured: list[int] | None = None  # steps and the last mark of a graph, meanwhile
        self._graphs: weakref.WeakKeyDictionary[Any, list[int]] = weakref.WeakKeyDictionary()
        self._put_back: list[Callable[[], None]] = []

    def stepped(self, steps: int = 1) -> None:
        """Count steps that were put on the stream, or into the graph that is captured."""
        if self._captured is not None:
            self._captured[0] += steps
            return
        self._steps += steps
        self._page.enqueued = self._steps

    def word(self, mark: int) -> int:
        """Return what a mark writes."""
        if self._captured is not None:
            self._captured[1] = mark
            return word_of(mark, self._captured[0], captured=True)
        self._last = mark
        return word_of(mark, self._steps)

    def follow(self, graphs: Any, stream: MarkStream) -> None:
        """Hook into graphs being captured and replayed."""
        if graphs is None:
            return

        def before_replay(graph: Any) -> None:
            if self._captured is None and graph in self._graphs:
                # A mark of the replay before would count from the new number: write it plainly.
                stream.mark(word_of(self._last, self._steps))
                stream.count(self._steps)

        self._around(graphs, "capture_begin", lambda _graph: None, self._begins)
        self._around(graphs, "capture_end", self._ends, lambda _graph: None)
        self._around(graphs, "replay", before_replay, self._replayed)

    def _begins(self, _graph: Any) -> None:
        self._captured = [0, 0]

    def _ends(self, graph: Any) -> None:
        captured, self._captured = self._captured, None
        if captured is not None and captured[1]:
            self._graphs[graph] = captured

    def _replayed(self, graph: Any) -> None:
        if self._captured is None and graph in self._graphs:
            steps, self._last = self._graphs[graph]
            self.stepped(steps)

    def _around(
        self, graphs: Any, name: str, before: Callable[[Any], None], after: Callable[[Any], None]
    ) -> None:
        """Have something done around a method of a class, until `close`."""
        inner = getattr(graphs, name)

        def around(graph: Any, *args: Any, **kwargs: Any) -> Any:
            self._try(before, graph)
            result = inner(graph, *args, **kwargs)
            self._try(after, graph)
            return result

        self._put_back.append(put(graphs, name, around))

    def _try(self, what: Callable[[Any], None], graph: Any) -> None:
        try:
            what(graph)
        except Exception as exc:  # noqa: BLE001 - training must go on
            self._fail(exc)

    def close(self) -> None:
        """Take the hooks of graphs away."""
        for put_back in self._put_back:
            put_back()
        self._put_back.clear()
