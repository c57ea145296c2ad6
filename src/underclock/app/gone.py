"""Commands, options and kinds of file that went, each with what does their work now.

`app.main` refuses them with these sentences.
"""

from typing import Final

COMMANDS: Final[dict[str, str]] = {
    "breakdown": "`underclock plan` shows where a step's energy goes at auto",
    "fit": "`underclock plan` fits its samples by itself, and warns of kernels it cannot describe",
    "serve": "zeusd sets clocks for users without root, whom its group or a token lets in "
    "(docs/operators.md)",
    "fleet": "boards differ by a few per cent: `underclock measure --near PLAN` and `plan` make a "
    "plan each board's own, and `merge` pools samples of several",
    "refine": "`underclock measure --near PLAN` measures near its clocks here, and `plan` plans",
    "predict": "`underclock measure` takes samples at other clocks, and `underclock plan` says "
    "what they save",
    "calibrate": "`python studies/calibrate.py` in a clone makes a simulated GPU of a sweep",
    "check": "`python studies/check.py` in a clone says what promises are worth",
    "score": "`python studies/score.py` in a clone says what a plan costs on a full table",
    "compare": "`python studies/compare.py` in a clone compares policies",
    "export": (
        "`underclock report plan.json -o plan.trace.json` writes a Chrome trace, `to_pandas()` of "
        "samples and plans a table"
    ),
    "watch": "`nvidia-smi --query-gpu=clocks.sm,power.draw --format=csv --loop-ms=20` logs clocks",
}
"""By the command's name."""

OPTIONS: Final[dict[str, str]] = {
    "underclock measure --clocks": "`--grid steer` steers clocks; they are held where that is "
    "allowed",
    "underclock measure --objective": "samples for a time budget serve plans of other objectives",
    "underclock measure --repeats": "`Campaign(repeats=3)` in Python repeats a grid",
    "underclock measure --seed": "`underclock.measure(..., seed=1)` in Python takes one",
    "underclock measure --warmup": "`--window 0.5s,1s` warms each kernel for 0.5 s, and measures "
    "for 1 s",
    "underclock plan --accounting": "`underclock.plan(..., isolated=True)` in Python adds up "
    "kernels measured alone",
    "underclock plan --board-spread": "`underclock.plan_job(..., board_spread=0.01)` in Python "
    "takes one",
    "underclock plan --min-dwell": "`--latency` with the duration keeps clocks for as long",
    "underclock plan --power-limit": "set the limit with `nvidia-smi -pl`, then measure and plan",
    "underclock plan --raw": "`underclock.plan(..., raw=True)` in Python takes samples for the "
    "truth",
    "underclock run --node-power": "ranks keep the power limits they have; nvidia-smi -pl sets any",
    "underclock tune --arms": "tune ends with the `underclock run --arms auto,plan` that compares",
    "underclock --install-completion": (
        'eval "$(_UNDERCLOCK_COMPLETE=bash_source underclock)" lets a shell complete; zsh_source '
        "and fish_source too"
    ),
}
"""By the command that had the option, as it was typed, and the option."""
