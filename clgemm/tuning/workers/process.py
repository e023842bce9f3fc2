"""Processes that try candidates: how they are started, listened to and ended."""

from __future__ import annotations

import logging
import os
import queue
import subprocess
import sys
import threading
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from clgemm.errors import TuningError

if TYPE_CHECKING:
    from collections.abc import Sequence

log = logging.getLogger(__name__)

# OpenBLAS' workers spin for tens of milliseconds after a call, on cores that are about to be timed.
# A folder named clgemm in the user's current directory must not stand in for this package.
ENVIRONMENT = {
    "CLGEMM_TUNE": "off", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1",
    "PYTHONSAFEPATH": "1",
}  # fmt: skip


def start(
    command: Sequence[str], stderr: IO[bytes]
) -> tuple[subprocess.Popen[str], queue.Queue[str]]:
    """Start a program of this package; return it and its lines, of which an empty one is the end.

    Parameters
    ----------
    command : sequence of str
        What follows the interpreter.
    stderr : file
        Takes what it prints there.
    """
    if not sys.executable:
        raise TuningError("this Python has no executable of its own to try candidates with")
    # The child must find this very package, installed or not.
    root = str(Path(__file__).parents[3])
    path = os.pathsep.join(filter(None, (os.environ.get("PYTHONPATH", ""), root)))
    child = subprocess.Popen(  # noqa: S603 - this interpreter, no words of a user
        [sys.executable, *command],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=stderr,
        env=os.environ | ENVIRONMENT | {"PYTHONPATH": path},
        text=True,
        encoding="utf-8",
    )
    lines: queue.Queue[str] = queue.Queue()
    threading.Thread(target=_listen, args=(child, lines), name="clgemm-tuning", daemon=True).start()
    return child, lines


def end(child: subprocess.Popen[str]) -> None:
    """Kill a child and close its pipes."""
    child.kill()
    child.wait()
    for pipe in (child.stdin, child.stdout):
        if pipe is not None:
            _close(pipe)


def _close(pipe: IO[Any]) -> None:
    try:
        pipe.close()
    except OSError as error:  # what was still to be written to a dead child
        log.debug("closing the pipe of a dead child: %s", error)


def _listen(child: subprocess.Popen[str], answers: queue.Queue[str]) -> None:
    """Pass the child's lines on; an empty one says that it has ended."""
    assert child.stdout is not None  # noqa: S101 - Popen was asked for a pipe
    try:
        for line in child.stdout:
            answers.put(line)
    except (OSError, ValueError) as error:  # the pipe was closed by stop()
        log.debug("reading from a stopped child: %s", error)
    answers.put("")
