"""What was seen of a run under a plan: a line for each step and event, and all in few numbers."""

from underclock.records.common import Evidence, Record

LEARNED, TRIED = "learned", "tried"
"""Arms of a run that learns its clocks: steps at those that it came to, and at earlier ones."""


class RunLine(Record, frozen=True, kw_only=True, tag_field="line", tag="run"):
    """The first line of a run; a file may hold several runs."""

    evidence: Evidence
    gpus: tuple[str, ...]
    workload: str
    marks: int = 0  # in a step
    dry: bool = False  # whether nothing is set
    began_s: float  # on the machine's monotonic clock
    # what the plan promised against auto, as ``time_change``; ``None`` where it promises nothing
    energy_change: float | None = None
    time_change: float | None = None
    arms: str = ""  # that take turns, as after ``--compare``; empty for none
    seed: int = 0
    # whether the GPUs are the ranks of one job, and what they take is one iteration's
    is_job: bool = False


class StepLine(Record, frozen=True, kw_only=True, tag_field="line", tag="step"):
    """One step of one GPU, or several in a row that were not polled in between."""

    gpu: int
    step: int  # counted from 0; the first of several
    steps: int = 1
    began_s: float
    time_s: float  # how long it took; here and below, the mean of several
    state: str  # what the controller did, in words
    arm: str = ""  # what was held, where arms are compared; empty else
    planned: int  # changes of clocks in the plan's step
    asked: int  # of which were asked for
    # of which took effect within a millisecond of their launch; ``None`` where the step was seen by
    # some of its marks only
    hits: int | None
    # how long after its launch each took effect; none where that is unknown
    late_s: tuple[float, ...] = ()
    error_s: tuple[float, ...] = ()  # how far off each boundary was expected; likewise
    # from the energy counter; ``None`` where it was not read around the step
    energy_j: float | None = None
    # mean of the readings in it; ``None`` without any; so are the three that follow
    core_mhz: float | None = None
    mem_mhz: float | None = None
    power_w: float | None = None
    temperature_c: float | None = None
    overruled: tuple[str, ...] = ()  # locks that were overruled, and why


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
    """What following took."""

    cpu_s: float  # of the controller's processor time
    wall_s: float
    looks: int  # at pages
    enqueued: int = 0  # steps that trainers put on their streams, their first ones too; of all GPUs
    restarts: int = 0  # how often a trainer was started again, as launchers do after a failure
    energy_j: float | None = None  # that GPUs drew meanwhile; ``None`` where that is not known


class ArmLine(Record, frozen=True, kw_only=True, tag_field="line", tag="arm"):
    """What an arm did against auto, on the job itself."""

    gpu: int
    arm: str
    rounds: int  # that both ran whole
    steps: int  # of the arm that counted
    time_change: float  # mean, as a fraction of auto
    # its 95 % confidence interval; ``None`` of a single round
    time_interval: tuple[float, float] | None
    energy_change: float | None  # mean; ``None`` where the counter is too coarse
    energy_interval: tuple[float, float] | None
    # on the plan's promise, or why there can be none; empty where nothing was promised
    verdict: str
    # core clock of each piece of the step, where clocks were learned
    held_mhz: tuple[int, ...] = ()


Line = RunLine | StepLine | EventLine | AskLine | EndLine | ArmLine


class RunSummary(Record, frozen=True, kw_only=True):
    """A run in a few numbers; ``None`` where nothing was seen."""

    run: RunLine | None
    marks: int  # in a step, as planned
    steps: int  # that were seen whole
    # that trainers put on their streams, the first ones too; ``None`` where that is not known
    enqueued: int | None
    followed: int  # of those seen, in which the plan was followed from end to end
    step_s: float | None  # median time of those that were followed, or of all
    step_j: float | None  # mean energy of the same
    asks: float | None  # clocks asked for in a followed step, on average
    # share of changes that took effect within a millisecond of their launch, in steps that were
    # seen closely
    hits: float | None
    # how far off a boundary was expected, without sign; the median. One in a hundred exceeds
    # ``error_p99_s``
    error_p50_s: float | None
    error_p99_s: float | None
    late_p50_s: float | None  # how long after its launch a change took effect; the median
    late_p99_s: float | None
    conductor: float | None  # share of one core that the controller took
    looks_hz: float | None  # how often it looked at pages
    events: tuple[str, ...]
    arms: tuple[ArmLine, ...] = ()
    energy_j: float | None = None  # that the GPUs drew in all of the run
    restarts: int = 0  # how often a trainer was started again
    # of a job, what iterations of all ranks take under the plan against those at auto before
    since_auto: ArmLine | None = None
