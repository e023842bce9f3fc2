"""``python -m clgemm run``: an unmodified program, with clgemm under its BLAS calls."""

from __future__ import annotations

import argparse
import atexit
import builtins
import io
import json
import os
import runpy
import sys
import zipfile
from functools import partial
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from clgemm.cli import picture
from clgemm.interpose import hook

if TYPE_CHECKING:
    from types import TracebackType


def add_parser(commands: Any) -> None:
    """Add the command to the parser of the command line."""
    run = commands.add_parser(
        "run",
        help="run a program of NumPy's with clgemm under it",
        usage="%(prog)s [--json FILE] [--plot FILE] (script.py | -m module) [arguments]",
    )
    run.add_argument("--json", type=Path, metavar="FILE", help="write the account there as JSON")
    run.add_argument("--plot", type=Path, metavar="FILE", help="draw the account there")
    run.add_argument(
        "-m", dest="module", nargs=argparse.REMAINDER, metavar="module", help="run a module"
    )
    script = run.add_argument(
        "script", nargs=argparse.PARSER, metavar="script.py", help="and its arguments"
    )
    script.required = False


def run(arguments: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    """Run a program as Python does, and print the account at the very end.

    Returns
    -------
    int
        The exit status, if the program ends without an exception; else that goes through.
    """
    if not (arguments.module or arguments.script):
        parser.error("run: give a script or -m and a module")
    if arguments.plot is not None:
        why_not = picture.why_not()  # better missed now than after the program
        if why_not is not None:
            print(f"clgemm: error: {why_not}", file=sys.stderr)
            return 1
        arguments.plot = arguments.plot.absolute()
    atexit.register(
        _report, arguments.json, arguments.plot
    )  # before the program's own, so it is run after them
    hook.install()
    if arguments.module:
        _as_python_does(partial(_run_module, arguments.module))
    else:
        if not os.path.exists(arguments.script[0]):  # noqa: PTH110 - as Python names it
            words = f"can't open file {os.path.abspath(arguments.script[0])!r}"  # noqa: PTH100
            print(
                f"{sys.executable}: {words}: [Errno 2] No such file or directory", file=sys.stderr
            )
            return 2
        _as_python_does(partial(_run_script, arguments.script))
    return 0


def _report(path: Path | None, drawing: Path | None) -> None:
    usage = hook.usage()
    if path is not None:
        path.write_text(json.dumps(usage.as_json(), indent=1) + "\n", encoding="utf-8")
    if drawing is not None:
        picture.draw_apart(usage.as_json(), drawing)
    print(f"\nclgemm: {usage}", file=sys.stderr)


def _run_module(words: list[str]) -> None:
    sys.argv[:] = words
    if not getattr(sys.flags, "safe_path", False):
        sys.path[0] = os.getcwd()  # noqa: PTH109 - a text, as Python has it there
    _new_main()
    # What `python -m` does; the public one beside it leaves its name in the error of a bad name.
    runpy._run_module_as_main(words[0])  # type: ignore[attr-defined]  # noqa: SLF001


def _run_script(words: list[str]) -> None:
    sys.argv[:] = words
    name = words[0]
    if os.path.isdir(name) or zipfile.is_zipfile(name):  # noqa: PTH112 - a text, for runpy
        del sys.path[0]
        runpy.run_path(name, run_name="__main__")
        return
    if not getattr(sys.flags, "safe_path", False):
        sys.path[0] = os.path.dirname(os.path.realpath(name))  # noqa: PTH120
    path = os.path.join(os.getcwd(), name)  # noqa: PTH109, PTH118 - "./" stays, as Python has it
    names = _new_main()
    names.update(__file__=path, __cached__=None, __loader__=SourceFileLoader("__main__", path))
    with io.open_code(path) as file:
        code = compile(file.read(), path, "exec", dont_inherit=True)
    exec(code, names)  # noqa: S102 - that is what the command is for


def _new_main() -> dict[str, Any]:
    """Put a new main module in the place of this command's, and return its names."""
    main = sys.modules["__main__"] = ModuleType("__main__")
    main.__dict__.update(__builtins__=builtins, __annotations__={})
    return main.__dict__


def _as_python_does(program: Any) -> None:
    """Run it; show an exception without the frames of this package, and let it go through."""
    try:
        program()
    except SystemExit:
        raise
    except BaseException as error:
        error.__traceback__ = _without_ours(error.__traceback__)
        sys.excepthook(type(error), error, error.__traceback__)
        sys.excepthook = lambda *_: None  # it is shown; the interpreter sets the exit status
        raise


def _without_ours(traceback: TracebackType | None) -> TracebackType | None:
    """Return what is left of a traceback without its first frames, which run the program."""
    while traceback is not None and traceback.tb_frame.f_code.co_filename == __file__:
        traceback = traceback.tb_next
    return traceback
