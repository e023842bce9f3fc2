"""``python -m clgemm run``: an unmodified program, with clgemm under its BLAS calls."""

from __future__ import annotations

import argparse
import atexit
import builtins
import io
import json
import os
import pkgutil
import runpy
import sys
import zipfile
from functools import partial
from importlib.machinery import SourceFileLoader, SourcelessFileLoader
from types import ModuleType
from typing import TYPE_CHECKING, Any

from clgemm.cli import picture, values
from clgemm.interpose import hook

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path
    from types import TracebackType


def add_parser(commands: Any) -> None:
    """Add the command to the parser of the command line."""
    run = commands.add_parser(
        "run",
        help="run a program of NumPy's with clgemm under it",
        usage="%(prog)s [--json FILE] [--plot FILE] (script.py | -m module) [arguments]",
    )
    run.add_argument(
        "--json", type=values.new_file, metavar="FILE", help="write the account there as JSON"
    )
    run.add_argument("--plot", type=values.new_file, metavar="FILE", help="draw the account there")
    run.add_argument("-m", dest="is_module", action="store_true", help="run a module")
    words = run.add_argument(  # all that follows, "--" too, is the program's
        "words", nargs=argparse.PARSER, metavar="script.py", help="and its arguments"
    )
    words.required = False


def run(arguments: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    """Run a program as Python does, and print the account at the very end.

    Returns
    -------
    int
        The exit status, if the program ends without an exception; else that goes through.
    """
    if not arguments.words:
        parser.error("run: give a script or -m and a module")
    if arguments.plot is not None:
        why_not = picture.why_not()  # better missed now than after the program
        if why_not is not None:
            print(f"clgemm: error: {why_not}", file=sys.stderr)
            return 1
    # Before the program's own, so it is run after them.
    atexit.register(_report, arguments.json, arguments.plot)
    hook.install()
    if arguments.is_module:
        _as_python_does(partial(_run_module, arguments.words))
    else:
        if not os.path.exists(arguments.words[0]):  # noqa: PTH110 - as Python names it
            words = f"can't open file {os.path.abspath(arguments.words[0])!r}"  # noqa: PTH100
            print(
                f"{sys.executable}: {words}: [Errno 2] No such file or directory", file=sys.stderr
            )
            return 2
        _as_python_does(partial(_run_script, arguments.words))
    return 0


def _report(path: Path | None, drawing: Path | None) -> None:
    """Write, draw and print the account; whatever fails, the rest is done."""
    usage = hook.usage()
    for file, make in ((path, _write), (drawing, picture.draw_apart)):
        if file is not None:
            try:
                why_not = make(usage.as_json(), file)
            except OSError as error:
                why_not = error.strerror or str(error)
            if why_not is not None:
                _say(f"clgemm: {file} was not written: {why_not}")
    _say(f"\nclgemm: {usage}")


def _say(text: str) -> None:
    if sys.stderr is not None:  # to None, `print` prints to standard output
        print(text, file=sys.stderr)


def _write(account: Mapping[str, Any], file: Path) -> str | None:
    file.write_text(json.dumps(account, indent=1) + "\n", encoding="utf-8")
    return None


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
    path = name
    if not os.path.isabs(name):  # noqa: PTH117
        path = os.path.join(os.getcwd(), name)  # noqa: PTH109, PTH118 - "./" stays, as in Python
    is_safe = getattr(sys.flags, "safe_path", False)
    names = _new_main()
    if os.path.isdir(path) or zipfile.is_zipfile(path):  # noqa: PTH112 - a text, for sys.path
        sys.path[: not is_safe] = [path]
        # What `python folder` does; the public one beside it forgets the main module at its end.
        runpy._run_module_as_main("__main__", alter_argv=False)  # type: ignore[attr-defined]  # noqa: SLF001
        return
    if not is_safe:
        sys.path[0] = os.path.dirname(os.path.realpath(name))  # noqa: PTH120
    with io.open_code(path) as file:
        data = file.read()  # once: it may be a pipe
    compiled = pkgutil.read_code(io.BytesIO(data))
    loader = SourceFileLoader if compiled is None else SourcelessFileLoader
    names.update(__file__=path, __cached__=None, __loader__=loader("__main__", path))
    exec(compiled or compile(data, path, "exec", dont_inherit=True), names)  # noqa: S102 - its task


def _new_main() -> dict[str, Any]:
    """Put a new main module in the place of this command's, and return its names."""
    main = sys.modules["__main__"] = ModuleType("__main__")
    main.__dict__.update(__builtins__=builtins, __annotations__={})
    return main.__dict__


def _as_python_does(program: Any) -> None:
    """Run it; let an exception go through, and have it shown without the frames of this package."""
    try:
        program()
    except SystemExit:
        raise
    except BaseException as error:
        sys.excepthook = partial(_show, sys.excepthook, _without_ours(error.__traceback__))
        raise


def _show(
    excepthook: Any, traceback: TracebackType | None, kind: Any, error: BaseException, _: object
) -> None:
    """Show an exception as the program has it, for the interpreter, which has noted it already."""
    sys.excepthook = excepthook
    sys.last_traceback = error.__traceback__ = traceback
    excepthook(kind, error, traceback)


def _without_ours(traceback: TracebackType | None) -> TracebackType | None:
    """Return what is left of a traceback without its first frames, which run the program."""
    while traceback is not None and traceback.tb_frame.f_code.co_filename == __file__:
        traceback = traceback.tb_next
    return traceback
