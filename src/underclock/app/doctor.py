"""``underclock doctor``."""

import click

from underclock.app.options import json_option
from underclock.app.output import print_json, say


@click.command(name="doctor")
@click.option("--gpu", metavar="GPU", help="Only this one: sim:rtx3080ti or nvml:0.")
@json_option
def command(gpu: str | None, *, as_json: bool) -> None:
    """Show which GPUs there are, what they can do, and whether clocks may be locked.

    Reads only; nothing is set to find out.

    Example: underclock doctor --gpu sim:rtx3080ti
    """
    from underclock.app.examining import examine

    findings = examine(gpu)
    if as_json:
        print_json(findings)
        return
    say(f"underclock {findings.version}, Python {findings.python}")
    say(f"locking clocks: {findings.permission}")
    for way in findings.ways:
        say(f"  {way.name}: {'yes' if way.works else 'no'}: {way.why}")
    for note in findings.notes:
        say(note)
    for finding in findings.gpus:
        say(f"\n{finding.spec}: {finding.gpu.name} ({finding.evidence})")
        say(f"  driver        {finding.gpu.driver or 'unknown'}")
        limit = finding.power_limit_w
        say(f"  power limit   {'unknown' if limit is None else f'{limit:g} W'}")
        for domain, mhz in (("core", finding.locked_core_mhz), ("memory", finding.locked_mem_mhz)):
            if mhz is not None:
                say(f"  {domain} locked at {mhz} MHz")
        say(f"  core clocks   {_span(finding.core_mhz)}")
        say(f"  memory clocks {', '.join(map(str, finding.mem_mhz))} MHz")
        say(f"  calibration   {finding.calibration}")


def _span(clocks: tuple[int, ...]) -> str:
    return f"{clocks[0]}-{clocks[-1]} MHz ({len(clocks)} of them)" if clocks else "none listed"
