"""A fit as two tables: the GPU's constants, and how well each kernel is described."""

from rich.table import Table
from rich.text import Text

from underclock.records.fitted import GpuFit, KernelFit
from underclock.report.fitting import bare_table
from underclock.report.wording import DASH

_KEEPS = "keeps its own samples: measure it more"
_NO_ROWS = "no usable sample: measure lower clocks"


def fit_tables(fitted: GpuFit) -> tuple[Table, Table]:
    """Return the constants of the GPU, and the kernels."""
    return _constants(fitted), _kernels(fitted)


def _constants(fitted: GpuFit) -> Table:
    table = bare_table(f"{fitted.gpu.name}, fitted to {fitted.workload}: {fitted.evidence}")
    table.add_column("constant", overflow="fold")
    for header in ("value", "standard\nerror"):
        table.add_column(header, justify="right", no_wrap=True)
    table.add_column("unit", no_wrap=True)
    table.add_column("told by\nsamples", justify="right", no_wrap=True)
    for constant in fitted.constants:
        table.add_row(
            Text(constant.name),
            Text(f"{constant.value:.4g}"),
            Text(f"{constant.error:.2g}"),
            Text(constant.unit),
            Text(f"{constant.told:.0%}"),
        )
    cap = "no sample at the power cap"
    if fitted.cap_w is not None:
        cap = f"the power cap holds at {fitted.cap_w:.4g} W"
    boost = "" if fitted.boost_mhz is None else f"; boosts to {fitted.boost_mhz:.0f} MHz"
    table.caption = Text(
        f"{fitted.rows} rows at known clocks, from {fitted.samples} samples; {cap}{boost}; "
        f"noise of one sample: time {fitted.time_noise:.2%}, power {fitted.power_noise:.2%}; "
        "discrepancy: time "
        f"{fitted.time_discrepancy:.2%}, power {fitted.power_discrepancy:.2%}; residual: time "
        f"{fitted.time_rms:.2%}, power {fitted.power_rms:.2%}"
    )
    return table


def _kernels(fitted: GpuFit) -> Table:
    table = bare_table(f"kernels on {fitted.gpu.name}: {fitted.evidence}")
    table.add_column("kernel", overflow="fold")
    for header in ("rows", "core", "DRAM", "fixed", "time\noff", "power\noff"):
        table.add_column(header, justify="right", no_wrap=True)
    table.add_column("", overflow="fold")
    for kernel in fitted.kernels:
        shares = (kernel.core_share, kernel.dram_share, kernel.fixed_share)
        table.add_row(
            Text(kernel.name),
            Text(str(kernel.rows)),
            *(Text(_percent(share, 0)) for share in shares),
            Text(_percent(kernel.time_rms, 1)),
            Text(_percent(kernel.power_rms, 1)),
            Text(_note(kernel)),
        )
    table.caption = Text(
        "core, DRAM, fixed: what goes with the core clock, the memory clock or neither, of the "
        "time at the kernel's fastest sample or the baseline given; off: residual of its rows; "
        f"{fitted.common_share:.0%} of the variance of the summed energy is common to all kernels"
    )
    return table


def _note(kernel: KernelFit) -> str:
    if not kernel.rows:
        return _NO_ROWS
    if not kernel.described:
        return _KEEPS
    return "adds its parts" if kernel.serial else ""


def _percent(share: float | None, digits: int) -> str:
    return DASH if share is None else f"{share:.{digits}%}"
