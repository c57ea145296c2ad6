"""What was seen of a run under a plan: a line for each step and event, and all in few numbers."""

from underclock.records.common import Evidence, Record

LEARNED, TRIED = "learned", "tried"
"""Arms of a run that learns its clocks: steps at those that it came to, and at earlier ones."""


class RunLine(Record, frozen=True, kw_only=True, tag_field="line", tag="run"):
    """The first line of a run; a file may hold several runs.

    Attributes:
        marks: In a step.
        dry: Whether nothing is set.
        is_job: Whether the GPUs are the ranks of one job, and what they take is one iteration's.
        began_s: On the machine's monotonic clock.
        energy_change: What the plan promised against auto, as ``time_change``; ``None`` where it
            promises nothing.
        arms: That take turns, as after ``--arms``; empty for none.
    """

    evidence: Evidence
    gpus: tuple[str, ...]
    workload: str
    marks: int = 0
    dry: bool = False
    began_s: float
    energy_change: float | None = None
    time_change: float | None = None
    arms: str = ""
    seed: int = 0
    is_job: bool = False


class StepLine(Record, frozen=True, kw_only=True, tag_field="line", tag="step"):
    """One step of one GPU, or several in a row that were not polled in between.

    Attributes:
        step: Counted from 0; the first of several.
        time_s: How long it took; here and below, the mean of several.
        state: What the controller did, in words.
        arm: What was held, where arms are compared; empty else.
        planned: Changes of clocks in the plan's step.
        asked: Of which were asked for.
        hits: Of which took effect within a millisecond of their launch; ``None`` where the step was
            seen by some of its marks only.
        late_s: How long after its launch each took effect; none where that is unknown.
        error_s: How far off each boundary was expected; likewise.
        energy_j: From the energy counter; ``None`` where it was not read around the step.
        core_mhz: Mean of the readings in it; ``None`` without any; so are the three that follow.
        overruled: Locks that were overruled, and why.
    """

    gpu: int
    step: int
    steps: int = 1
    began_s: float
    time_s: float
    state: str
    arm: str = ""
    planned: int
    asked: int
    hits: int | None
    late_s: tuple[float, ...] = ()
    error_s: tuple[float, ...] = ()
    energy_j: float | None = None
    core_mhz: float | None = None
    mem_mhz: float | None = None
    power_w: float | None = None
    temperature_c: float | None = None
    overruled: tuple[str, ...] = ()


class EventLine(Record, frozen=True, kw_only=True, tag_field="line", tag="event"):
    """Something that a reader of the log should know; ``at_s`` is of the machine's own clock."""

    gpu: int
    at_s: float
    text: str


class AskLine(Record, frozen=True, kw_only=True, tag_field="line", tag="ask"):
    """A clock that was asked for, or would have been; ``to_mhz`` of ``None`` gives it back."""

    gpu: int
    at_s: float
    domain: str
    to_mhz: int | None
    call_s: float


class EndLine(Record, frozen=True, kw_only=True, tag_field="line", tag="end"):
    """What following took.

    Attributes:
        cpu_s: Of the controller's processor time.
        looks: At pages.
        enqueued: Steps that trainers put on their streams, their first ones too; of all GPUs.
        restarts: How often a trainer was started again, as launchers do after a failure.
        energy_j: That GPUs drew meanwhile; ``None`` where that is not known.
    """

    cpu_s: float
    wall_s: float
    looks: int
    enqueued: int = 0
    restarts: int = 0
    energy_j: float | None = None


class ArmLine(Record, frozen=True, kw_only=True, tag_field="line", tag="arm"):
    """What an arm did against auto, on the job itself.

    Attributes:
        rounds: That both ran whole.
        steps: Of the arm that counted.
        time_change: Mean, as a fraction of auto.
        time_interval: Its 95 % confidence interval; ``None`` of a single round.
        energy_change: Mean; ``None`` where the counter is too coarse.
        verdict: On the plan's promise, or why there can be none; empty where nothing was promised.
        held_mhz: Core clock of each piece of the step, where clocks were learned.
    """

    gpu: int
    arm: str
    rounds: int
    steps: int
    time_change: float
    time_interval: tuple[float, float] | None
    energy_change: float | None
    energy_interval: tuple[float, float] | None
    verdict: str
    held_mhz: tuple[int, ...] = ()


Line = RunLine | StepLine | EventLine | AskLine | EndLine | ArmLine


class RunSummary(Record, frozen=True, kw_only=True):
    """A run in a few numbers; ``None`` where nothing was seen.

    Attributes:
        marks: In a step, as planned.
        steps: That were seen whole.
        enqueued: That trainers put on their streams, the first ones too; ``None`` where that is
            not known.
        followed: Of those seen, in which the plan was followed from end to end.
        step_s: Median time of those that were followed, or of all.
        step_j: Mean energy of the same.
        asks: Clocks asked for in a followed step, on average.
        hits: Share of changes that took effect within a millisecond of their launch, in steps that
            were seen closely.
        error_p50_s: How far off a boundary was expected, without sign; the median. One in a hundred
            exceeds ``error_p99_s``.
        late_p50_s: How long after its launch a change took effect; the median.
        conductor: Share of one core that the controller took.
        looks_hz: How often it looked at pages.
        energy_j: That the GPUs drew in all of the run.
        restarts: How often a trainer was started again.
        since_auto: Of a job, what its iterations take under the plan against those at auto before,
            all ranks together.
    """

    run: RunLine | None
    marks: int
    steps: int
    enqueued: int | None
    followed: int
    step_s: float | None
    step_j: float | None
    asks: float | None
    hits: float | None
    error_p50_s: float | None
    error_p99_s: float | None
    late_p50_s: float | None
    late_p99_s: float | None
    conductor: float | None
    looks_hz: float | None
    events: tuple[str, ...]
    arms: tuple[ArmLine, ...] = ()
    energy_j: float | None = None
    restarts: int = 0
    since_auto: ArmLine | None = None
