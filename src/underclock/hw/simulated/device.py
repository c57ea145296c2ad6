"""One virtual GPU: what its clocks, power, heat and energy do as virtual time passes.

`energy_j`, `power_w` and `temperature_c` are the hidden truth, for scoring; what a driver shows of
them is `gauges`. Locks live here, not in the process that set them.
"""

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from underclock.arrays import Floats
from underclock.gpus.models import AMPERE, Bounds, GpuModel
from underclock.hw.simulated.boards import (
    BOARDS,
    NOTED_S,
    BoardSensors,
    Drift,
    LaunchCost,
    SimulatedCosts,
    Unit,
)
from underclock.hw.simulated.clocks import CAP_TICK_S, Agenda, Locks, PowerLoop, snap
from underclock.hw.simulated.work import BEYOND_S, FaultKind, LaunchLoop, Neighbour, slowdown, turn
from underclock.physics.constants import KernelConstants
from underclock.physics.costs import boost_mhz, temperature_after
from underclock.records import Clocks, ThrottleReason
from underclock.units import Domain

_ROUNDING_S = 1e-12
_SHORT = 0.25  # of the time between ticks, from which on rounds are worth counting at once
_TOGETHER_S, _MANY = 5e-3, 32  # so many turns within that time are counted at once
_NEAR_S = 1e-6  # before a tick of the power loop, from which on it is looked for
_NEARLY_S = 1e-9  # a stride that ends so far from a tick of the power loop does not reach it
_LONGEST_STRIDE_S = 2.5  # heat moves little meanwhile
_DECIDE_C = 0.1  # look again at what heat allows when the temperature moved this far
_STEADY_C = 0.5  # and recompute a capped clock


class VirtualGpu:
    """A GPU in virtual time; unit 0 of a model is exactly what the model says."""

    def __init__(self, model: GpuModel, *, seed: int, unit: int = 0) -> None:
        self.model = model
        self.number = unit
        self.unit = Unit.of(model, unit)
        self.constants = self.unit.constants(model.constants)
        self.limit_w = model.limit_w[0]
        self.persistent = False
        self.board = BOARDS.get(model.name)  # None where nothing is written down of it
        self._rests = self.board is None or not self.board.hbm
        self.now_s = 0.0
        self.energy_j = 0.0
        self.power_w = 0.0
        self.temperature_c = model.constants.ambient_c + 8.0
        self.core_mhz = 0.0
        self.mem_mhz = 0
        self.capped = False
        self.running: LaunchLoop | None = None
        self.neighbours: tuple[Neighbour, ...] = ()
        self.faults: list[FaultKind] = []
        self._stuck_mj: int | None = None  # what the energy counter stands still at
        self.hangs_s = 0.0  # while setters hang
        self.on_follow: Callable[[Domain], None] | None = None  # called with the truth, for scoring
        self.agenda = Agenda()
        sensors = model.sensors or (self.board.sensors if self.board else AMPERE)
        self.gauges = BoardSensors(sensors, self.unit.gain, kind=self.unit.kind)
        noise, jitter, energy_calls, setter_calls = (
            np.random.default_rng([seed, unit, stream]) for stream in range(4)
        )
        # A stream each, so that asking more often changes no other noise.
        self.energy_call_s = sensors.energy_call.draws(energy_calls)
        self._locks = Locks(model, self.agenda, jitter, self._follow_locks)
        self.setter_call_s = self._locks.switching.setter.draws(setter_calls)
        self._noise = noise
        self._stalled_until_s = 0.0
        self._drift = Drift(kind=self.unit.kind, random=np.random.default_rng([seed, unit, 5]))
        of_unit = self.constants, model.core_mhz, model.peak_w
        free = SimulatedCosts(*of_unit, unit=self.unit)
        held = SimulatedCosts(*of_unit, model.memory_lock, self.unit)
        self._costs_of = {False: free, True: held if model.memory_lock != free.lock else free}
        self._costs = free  # those of a memory that is held by itself, while it is
        self._cost = self._costs.at(None, float(model.core_mhz[0]), model.mem_mhz[0])
        self._runs: LaunchLoop | None = None  # what runs, while it is its turn
        self._launch_s = 0.0  # what a launch of it takes
        self._turn_s = math.inf
        self._power_loop = PowerLoop(
            margin_w=model.cap_margin_w,
            bin_mhz=model.constants.boost_loss_mhz,
            least_mhz=float(model.core_mhz[0]),
            fading=model.cap_fading,
        )
        self._mixed = False  # the power loop never settles: different kernels take turns, mostly
        self._stale = True
        self._decided_c = self._steady_c = math.inf
        self._wanted_mhz = self._steady_mhz = 0.0
        self._decisions: dict[Clocks | None, tuple[float, int, bool]] = {}
        self._settle()

    @property
    def core_lock(self) -> Bounds | None:
        """The core lock that the driver holds; the clock may not follow it yet."""
        return self._locks.asked(Domain.CORE)

    @property
    def mem_lock(self) -> Bounds | None:
        """The memory lock that the driver holds; the clock may not follow it yet."""
        return self._locks.asked(Domain.MEMORY)

    @property
    def busy(self) -> bool:
        """Whether anything computes."""
        return self.running is not None or bool(self.neighbours)

    @property
    def lost(self) -> bool:
        """Whether it fell off the bus."""
        return FaultKind.GPU_LOST in self.faults

    @property
    def counter_mj(self) -> int:
        """The energy counter now."""
        if self._stuck_mj is not None:
            return self._stuck_mj
        return self.gauges.counter_mj(self.now_s, self.energy_j)

    @property
    def throttle_reasons(self) -> ThrottleReason:
        """Why the clocks are what they are."""
        reasons, _ = slowdown(self.faults)
        if self.capped:
            return reasons | ThrottleReason.SW_POWER_CAP
        return reasons if self.busy else reasons | ThrottleReason.GPU_IDLE

    @property
    def performance_state(self) -> int:
        """NVML's P-state: 8 at rest, 2 where computing lowers the memory clock, else 0."""
        if self._rests and not self.busy:
            return 8
        return 0 if self.model.p2_mem_mhz is None else 2

    def load(self) -> tuple[float, float]:
        """Return the parts of the time, 0 to 1, that the GPU and its memory are busy."""
        work = [(other.kernel, other.share) for other in self.neighbours]
        if self.running is not None and not self.running.idle:
            rest = 1.0 - sum(share for _, share in work)
            work.append((self.running.kernels[self.running.position], rest))
        memory = sum(
            share * self._costs.at(kernel, self.core_mhz, self.mem_mhz).dram_share
            for kernel, share in work
        )
        return sum(share for _, share in work), memory

    def begin(self, kernels: Sequence[KernelConstants]) -> None:
        """Start launching kernels in turn, over and over."""
        self.run(LaunchLoop(tuple(kernels), *self.draw_noise()))

    def draw_noise(self) -> tuple[float, float]:
        """Draw how much longer than usual a loop's launches take, and how much more they draw."""
        time_noise = 1.0 + 3e-4 * float(self._noise.standard_normal())
        power_noise = 1.0 + 3e-3 * float(self._noise.standard_normal())
        return time_noise, power_noise * self._drift.wander(self.now_s)

    def run(self, loop: LaunchLoop, *, talks: bool = False) -> None:
        """Start launching what a loop says; whether it talks to other GPUs."""
        self.running = loop
        if slow_s := self._drift.begin(talks=talks):
            self.agenda.add(self.now_s + slow_s, self._settled)
        self._look_again()

    def end(self) -> None:
        """Stop launching."""
        self.running = None
        self._power_loop.reset()
        self._look_again()

    def join(self, neighbour: Neighbour) -> None:
        """Let another process compute on the GPU."""
        if sum(other.share for other in (*self.neighbours, neighbour)) >= 1:
            raise ValueError("the neighbours leave no time to this process")
        self.neighbours = (*self.neighbours, neighbour)
        self._look_again()

    def leave(self, pid: int) -> None:
        """Let another process go."""
        self.neighbours = tuple(other for other in self.neighbours if other.pid != pid)
        self._look_again()

    def lock_core(self, bounds: Bounds | None) -> None:
        """Hold the core clock between two bounds in MHz, or let it go; it follows later."""
        self._locks.ask(self.now_s, Domain.CORE, bounds)

    def lock_mem(self, bounds: Bounds | None) -> None:
        """Hold the memory clock between two bounds in MHz, or let it go; it follows later."""
        self._locks.ask(self.now_s, Domain.MEMORY, bounds)

    def limit_power(self, limit_w: float) -> None:
        """Set the power limit."""
        self.limit_w = limit_w
        self._look_again()

    def fail(self, kind: FaultKind) -> None:
        """Let something go wrong."""
        if kind is FaultKind.COUNTER_RESTARTS:
            self.gauges.go_on_from(0, self.now_s, self.energy_j)
            return
        self.faults.append(kind)
        if kind is FaultKind.COUNTER_STUCK:
            self._stuck_mj = self.counter_mj
        if kind is FaultKind.GPU_LOST:
            self.running, self.neighbours = None, ()
        self._look_again()

    def mend(self, kind: FaultKind) -> None:
        """End what went wrong. A lost GPU comes back as from a reset: without locks."""
        self.faults.remove(kind)
        if kind is FaultKind.COUNTER_STUCK and self._stuck_mj is not None:
            stuck_mj, self._stuck_mj = self._stuck_mj, None
            self.gauges.go_on_from(stuck_mj, self.now_s, self.energy_j)
        if kind is FaultKind.GPU_LOST:
            self._locks.forget()
            self.limit_w, self.persistent = self.model.limit_w[0], False
        self._look_again()

    def advance(self, duration_s: float) -> None:
        """Let virtual time pass."""
        end_s = self.now_s + duration_s
        agenda = self.agenda
        while True:
            if agenda.next_s <= self.now_s + _ROUNDING_S:
                agenda.run(self.now_s + _ROUNDING_S)
            if self.now_s >= end_s - _ROUNDING_S:
                break
            self._settle()
            until_s = min(end_s, agenda.next_s)
            runs = self._runs
            if runs is not None and not runs.single and not self.neighbours:
                self._take_turns(runs, until_s)
            else:
                stride_s = min(self._stride_s(), until_s - self.now_s)
                self._account(stride_s)
                if runs is not None:
                    runs.progress(stride_s, self._launch_s)
                elif self.running is not None:
                    self.running.wait(stride_s)
        self.now_s = end_s  # exactly, so that several GPUs keep one time

    def _follow_locks(self, domain: Domain) -> None:
        if self.on_follow is not None:
            self.on_follow(domain)
        if domain is Domain.CORE and not self.busy:
            self._drift.locked = True
        before_mhz = self.mem_mhz
        self._look_again()
        if self.mem_mhz != before_mhz:
            self._stalled_until_s = self.now_s + self._locks.switching.mem_stall_s
            self.agenda.add(self._stalled_until_s, self._look_again)
            self._settle()

    def _settled(self) -> None:
        self._drift.slow = 1.0
        self._look_again()

    def _look_again(self) -> None:
        self._stale = True
        hunts = self.running is not None and self.running.hunts
        self._mixed = hunts or bool(self.neighbours)
        self._settle()

    def _decide(self) -> None:
        if self._stale or abs(self.temperature_c - self._decided_c) > _DECIDE_C:
            self._decisions.clear()
            self._decided_c = self.temperature_c
            if self._stale:
                self._steady_c = math.inf
            self._stale = False
        running = self.running
        own = running.clocks[running.position] if running is not None and running.clocks else None
        decision = self._decisions.get(own)
        if decision is None:
            decision = self._decisions[own] = self._decision(own)
        wanted_mhz, mem_mhz, held = decision
        if (wanted_mhz, mem_mhz) != (self._wanted_mhz, self.mem_mhz):
            self._steady_c = math.inf
        self._wanted_mhz, self.mem_mhz, self._costs = wanted_mhz, mem_mhz, self._costs_of[held]

    def _decision(self, own: Clocks | None) -> tuple[float, int, bool]:
        """Return both clocks before any power limit, and whether the memory's alone is held."""
        model = self.model
        _, left = slowdown(self.faults)
        ceiling = min(boost_mhz(self.constants, self.temperature_c), left * model.core_mhz[-1])
        core = ceiling if self.busy else model.core_mhz[0]
        mem = float(model.mem_mhz[0])
        if self.busy or not self._rests:
            mem = model.mem_mhz[-1] if model.p2_mem_mhz is None else model.p2_mem_mhz
        if own is None:
            held = False
            if FaultKind.LOCKS_IGNORED not in self.faults:
                core = self._locks.allowed(Domain.CORE, core)
                mem = self._locks.allowed(Domain.MEMORY, mem)
                follows = self._locks.follows
                held = follows(Domain.MEMORY) and not follows(Domain.CORE)
        else:
            core = own.core_mhz or core
            mem, held = own.mem_mhz or mem, own.core_mhz is None is not own.mem_mhz
        mem_mhz = snap(mem, model.mem_mhz)
        wanted = float(snap(min(core, ceiling), model.core_mhz))
        low_core = model.low_mem_core_mhz
        if low_core is not None and mem_mhz == model.mem_mhz[0] and wanted > low_core:
            mem_mhz = model.mem_mhz[1]
        return wanted, mem_mhz, held

    def _settle(self) -> None:
        self._decide()
        running = self.running
        kernel: KernelConstants | None = None
        self._runs, noise, alone = None, 1.0, False
        neighbour = None
        if self.neighbours:
            neighbour, self._turn_s = turn(self.neighbours, self.now_s)
        executes = self.now_s >= self._stalled_until_s - _ROUNDING_S
        if executes and neighbour is not None:
            kernel = neighbour.kernel
        elif executes and running is not None and not running.idle:
            kernel, self._runs = running.kernels[running.position], running
            noise, alone = running.power_noise, not self._mixed
        if alone and kernel is not None:
            # The mean clock at which one kernel repeats is remembered until heat moves it.
            if abs(self.temperature_c - self._steady_c) > _STEADY_C:
                limit_w = (self.limit_w - self.model.cap_margin_w) / self._drift.power
                self._steady_c = self.temperature_c
                self._steady_mhz = self._costs.capped_mhz(
                    kernel, self._wanted_mhz, self.mem_mhz, self.temperature_c, limit_w
                )
            self.core_mhz = self._steady_mhz
            if self.core_mhz < self._wanted_mhz:
                noise = self._drift.power  # at the cap the loop takes the rest out again
        else:
            self.core_mhz = min(self._wanted_mhz, self._power_loop.ceiling_mhz)
        self.capped = self.core_mhz < self._wanted_mhz
        self._cost = self._costs.at(kernel, self.core_mhz, self.mem_mhz)
        self.power_w = self._cost.power_w(self.temperature_c) * noise
        if self._runs is not None:
            self._launch_s = self._cost.duration_s * self._runs.time_noise * self._drift.slow
            if self.capped:
                self._launch_s *= 1.0 + self.unit.lost * (self._wanted_mhz / self.core_mhz - 1.0)

    def _stride_s(self) -> float:
        """Return how long the moment's clocks and power may be taken as constant."""
        if not self._mixed:
            return _LONGEST_STRIDE_S
        stride_s = self._power_loop.to_tick_s(self.now_s)
        if self.neighbours:
            stride_s = min(stride_s, self._turn_s)
        runs = self._runs
        if runs is not None and not runs.single:
            left_s = self._launch_s * (runs.turn.times - runs.share) + BEYOND_S
            stride_s = min(stride_s, left_s)
        return stride_s

    def _take_turns(self, runs: LaunchLoop, until_s: float) -> None:
        """Let launches pass, in turn, until heat or the agenda may change their clocks."""
        # A simulation spends most of its time here: nothing is asked twice, or called for one line.
        gpu, agenda, loop, gauges = self.constants, self.agenda, self._power_loop, self.gauges
        progress, exp = runs.progress, math.exp
        kernels, noise, own = runs.kernels, runs.power_noise, bool(runs.clocks)
        usual, lost = runs.time_noise * self._drift.slow, self.unit.lost
        coolest_c, hottest_c = self._decided_c - _DECIDE_C, self._decided_c + _DECIDE_C
        now_s, energy_j, warm_c = self.now_s, self.energy_j, self.temperature_c
        ambient_c, c_per_w, tau_s = gpu.ambient_c, gpu.c_per_w, gpu.thermal_tau_s
        tick_s, no_tick_until_s = 0.0, now_s
        known: Mapping[int, LaunchCost] = {}  # what kernels cost at these clocks
        known_mhz, known_mem_mhz, costs = math.nan, 0, self._costs
        short = not own and type(runs) is LaunchLoop
        sums: dict[tuple[float, int], Floats] = {}
        while True:
            if own:
                self._decide()
            core_mhz, ceiling_mhz, longer = self._wanted_mhz, loop.ceiling_mhz, usual
            if ceiling_mhz < core_mhz:
                longer *= 1.0 + lost * (core_mhz / ceiling_mhz - 1.0)
                core_mhz = ceiling_mhz
            mem_mhz = self.mem_mhz
            if core_mhz != known_mhz or mem_mhz != known_mem_mhz or costs is not self._costs:
                known_mhz, known_mem_mhz, costs = core_mhz, mem_mhz, self._costs
                known = costs.known(core_mhz, mem_mhz)
            if (short or runs.many) and not runs.share:
                until_tick_s = min(no_tick_until_s, until_s)
                if short and not runs.position:
                    short = self._pass_rounds(runs, core_mhz, longer, until_tick_s)
                if runs.many:
                    runs.many = self._pass_turns(runs, sums, core_mhz, longer, until_tick_s)
                now_s, energy_j, warm_c = self.now_s, self.energy_j, self.temperature_c
            kernel = kernels[runs.position]
            cost = known.get(id(kernel)) or costs.at(kernel, core_mhz, mem_mhz)
            power_w = (cost.cold_w + cost.w_per_c * warm_c) * noise
            launch_s = cost.duration_s * longer
            stride_s = launch_s * (runs.turn.times - runs.share) + BEYOND_S
            if until_s - now_s < stride_s:  # noqa: PLR1730 - as the next: `min` takes longer
                stride_s = until_s - now_s
            near = now_s + stride_s > no_tick_until_s
            if near:
                tick_s = loop.to_tick_s(now_s)
                no_tick_until_s = now_s + tick_s - _NEAR_S
                stride_s = min(stride_s, tick_s)
            if now_s - gauges.last_s >= NOTED_S or stride_s >= NOTED_S:
                gauges.note(now_s, energy_j, stride_s)
            self.now_s = now_s = now_s + stride_s
            self.energy_j = energy_j = energy_j + power_w * stride_s
            steady_c = ambient_c + c_per_w * power_w
            warm_c = steady_c + (warm_c - steady_c) * exp(-stride_s / tau_s)
            self.temperature_c = warm_c
            loop.average(stride_s, power_w, core_mhz)
            if near and (stride_s > tick_s - _NEARLY_S or tick_s == CAP_TICK_S):
                loop.act(now_s, stride_s, self.limit_w * costs.lock.power)
            progress(stride_s, launch_s)
            if agenda.next_s < until_s:  # noqa: PLR1730
                until_s = agenda.next_s  # a runtime may have set something down
            if runs.idle or not coolest_c <= warm_c <= hottest_c or now_s >= until_s - _ROUNDING_S:
                break
        self.core_mhz, self.capped = core_mhz, core_mhz < self._wanted_mhz
        self.power_w, self._cost, self._launch_s = power_w, cost, launch_s

    def _pass_rounds(
        self, runs: LaunchLoop, core_mhz: float, longer: float, until_s: float
    ) -> bool:
        """Let rounds pass at once, all alike until a tick; return whether many come before one."""
        each = [self._costs.at(kernel, core_mhz, self.mem_mhz) for kernel in runs.kernels]
        each_s = [longer * c.duration_s * t.times for c, t in zip(each, runs.turns, strict=True)]
        round_s = math.fsum(each_s)
        rounds = int((until_s - self.now_s) / round_s) - 1
        if rounds > 0:
            costs_s = zip(each, each_s, strict=True)
            round_j = math.fsum(c.power_w(self.temperature_c) * took_s for c, took_s in costs_s)
            self.core_mhz, self.power_w = core_mhz, runs.power_noise * round_j / round_s
            self._account(rounds * round_s)
            runs.pass_rounds(rounds, each_s)
        return round_s < _SHORT * CAP_TICK_S

    def _pass_turns(
        self,
        runs: LaunchLoop,
        sums: dict[tuple[float, int], Floats],
        core_mhz: float,
        longer: float,
        until_s: float,
    ) -> bool:
        """Let many short turns of a round pass at once; return whether turns are that short.

        Args:
            sums: Time in s, energy in J at 0 °C and a °C to each turn, (3, turns + 1), by clocks.
        """
        if (core_mhz, self.mem_mhz) not in sums:
            costs = [self._costs.at(kernel, core_mhz, self.mem_mhz) for kernel in runs.kernels]
            both = zip(costs, runs.turns, strict=True)
            each_s = np.array([cost.duration_s * turn.times for cost, turn in both])
            power = np.array([(1.0, cost.cold_w, cost.w_per_c) for cost in costs]).T
            sums[core_mhz, self.mem_mhz] = np.cumsum(np.pad(power * each_s, ((0, 0), (1, 0))), 1)
        some, first = sums[core_mhz, self.mem_mhz], runs.position
        within_s = min(until_s - self.now_s, _TOGETHER_S) / longer
        end = int(np.searchsorted(some[0], some[0, first] + within_s, side="right")) - 1
        if end - first >= _MANY:
            took_s, cold_j, j_per_c = (some[:, end] - some[:, first]).tolist()
            self.core_mhz = core_mhz
            self.power_w = runs.power_noise * (cold_j + j_per_c * self.temperature_c) / took_s
            self._account(longer * took_s)
            runs.pass_turns(end, longer * np.diff(some[0, first : end + 1]))
        return bool(_MANY * some[0, -1] < _TOGETHER_S * len(runs.kernels))

    def _account(self, stride_s: float) -> None:
        """Let one stride pass: energy, heat, progress, and the power loop's part."""
        self.gauges.note(self.now_s, self.energy_j, stride_s)
        self.now_s += stride_s
        self.energy_j += self.power_w * stride_s
        self.temperature_c = temperature_after(
            self.constants, self.temperature_c, self.power_w, stride_s
        )
        if self._mixed:
            self._power_loop.average(stride_s, self.power_w, self.core_mhz)
            self._power_loop.act(self.now_s, stride_s, self.limit_w * self._costs.lock.power)
