"""Found by every Python that Underclock starts: waits for PyTorch, and marks or looks at its steps.

It stands before any other file of this name, and runs that one too.
"""

import contextlib
import os
import sys


def _run_the_next() -> None:
    """Run the file of this name that Python would have found without us."""
    from importlib.machinery import PathFinder  # noqa: PLC0415 - so that nothing stays behind
    from importlib.util import module_from_spec  # noqa: PLC0415

    here = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120 - pathlib loads slowly
    folders = [folder for folder in sys.path if os.path.abspath(folder or ".") != here]  # noqa: PTH100
    spec = PathFinder.find_spec("sitecustomize", folders)
    if spec is not None and spec.loader is not None:
        module = module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


def _wait_for_torch() -> None:
    if not os.environ.get("UNDERCLOCK_RUN"):
        return
    try:
        from underclock.runtime.trainer.marking import attach_when_imported  # noqa: PLC0415
    except ImportError:
        # The training environment is another than ours. What is needed of us is in these files.
        package = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", "..", ".."))  # noqa: PTH100, PTH118, PTH120
        from importlib.util import module_from_spec, spec_from_file_location  # noqa: PLC0415

        init = os.path.join(package, "__init__.py")  # noqa: PTH118
        spec = spec_from_file_location("underclock", init, submodule_search_locations=[package])
        if spec is None or spec.loader is None:
            return
        sys.modules["underclock"] = module_from_spec(spec)
        spec.loader.exec_module(sys.modules["underclock"])
        from underclock.runtime.trainer.marking import attach_when_imported  # noqa: PLC0415
    attach_when_imported()


def _say_of_rank(**words: object) -> None:
    """Leave what `app.looking.RankStatus` has, before that can be loaded."""
    import json  # noqa: PLC0415

    rank, world = (
        int(os.environ.get(name, usual)) for name, usual in (("RANK", 0), ("WORLD_SIZE", 1))
    )
    here = min(world, int(os.environ.get("LOCAL_WORLD_SIZE", world)))
    folder = os.path.dirname(os.environ["UNDERCLOCK_LOOK"])  # noqa: PTH120
    status = {"rank": rank, "world": world, "here": here, "pid": os.getpid(), **words}
    place = f"{folder}/status.{os.getpid()}"
    with open(f"{place}.new", "w") as file:  # noqa: PTH123
        json.dump(status, file)
    os.replace(f"{place}.new", place)  # noqa: PTH105


def _look_at_steps() -> None:
    """Look at the steps of a script from inside of its process, as `app.launching` asked."""
    if not os.environ.get("UNDERCLOCK_LOOK"):
        return
    import ctypes  # noqa: PLC0415

    ctypes.CDLL(None).prctl(1, 9)  # nothing that is looked at outlives what started it
    if "RANK" in os.environ:  # from now on it is noticed where this rank is gone
        _say_of_rank()
    from underclock.runtime.trainer.kept_files import protect_files  # noqa: PLC0415
    from underclock.runtime.trainer.marking import when_imported  # noqa: PLC0415

    protect_files()

    def begin(torch: object) -> None:
        try:
            from underclock.app.looking import begin  # noqa: PLC0415 - it loads NumPy and more

            begin(torch)
        except Exception as exc:  # noqa: BLE001 - the launcher says it
            error = f"{sys.executable}, which trains, cannot look on: {exc}"
            hint = "install underclock into the environment that trains"
            _say_of_rank(error=error, hint=hint, exit_code=3)

    when_imported(begin)


with contextlib.suppress(Exception):  # training must go on
    _wait_for_torch()
    _look_at_steps()
_run_the_next()
