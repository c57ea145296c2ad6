"""Events of a profiler's trace in the Chrome format, for tests that make up their own."""

from typing import Any

from underclock.records.work import MODULE_MARK


def host(name: str, start: float, end: float, *, tid: int = 1, **args: Any) -> dict[str, Any]:
    cat = "user_annotation" if name.startswith((MODULE_MARK, "Optimizer")) else "cpu_op"
    return {"ph": "X", "cat": cat, "name": name, "tid": tid, "ts": start, "dur": end - start} | {
        "args": {key.replace("_", " "): value for key, value in args.items()}
    }


def launch(
    at: float, correlation: int, *, tid: int = 1, name: str = "cudaLaunchKernel"
) -> dict[str, Any]:
    return {
        "ph": "X",
        "cat": "cuda_runtime",
        "name": name,
        "tid": tid,
        "ts": at,
        "dur": 0.5,
        "args": {"correlation": correlation},
    }


def kernel(at: float, correlation: int, name: str = "k", cat: str = "kernel") -> dict[str, Any]:
    args = {"correlation": correlation}
    if cat == "kernel":
        args |= {"grid": [2, 1, 1], "block": [64, 1, 1]}  # type: ignore[dict-item]
    return {"ph": "X", "cat": cat, "name": name, "tid": 7, "ts": at, "dur": 2.0, "args": args}
