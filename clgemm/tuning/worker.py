"""The parent's end of `trial`: a child process that is replaced when a candidate takes it down."""

from __future__ import annotations

import json
import logging
import os
import queue
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from clgemm.errors import TuningError
from clgemm.tuning.outcome import Outcome

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType

    from typing_extensions import Self

    from clgemm.kernels.family import Config

log = logging.getLogger(__name__)

# OpenBLAS' workers spin for tens of milliseconds after a call, on cores that are about to be timed.
ENVIRONMENT = {"CLGEMM_TUNE": "off", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
STDERR_TAIL = 400  # characters of a dead child's last words that are kept


class Worker:
    """Tries candidates in a child process.

    Parameters
    ----------
    device : int
        Place of the device in `devices.find()`.
    fingerprint : str
        Its fingerprint, so that the child works on the same one.
    precision : str
        BLAS letter.
    """

    def __init__(self, device: int, fingerprint: str, precision: str) -> None:
        self._order = {"device": device, "fingerprint": fingerprint, "precision": precision}
        self._child: subprocess.Popen[str] | None = None
        self._answers: queue.Queue[str] = queue.Queue()
        self._stderr: IO[bytes] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.stop()

    def attempt(
        self, config: Config, best: Mapping[str, float], *, every: bool, limit: float
    ) -> Outcome:
        """Try one candidate; see `Trial.attempt`.

        Parameters
        ----------
        limit : float
            Seconds after which the child is taken for hung and killed.

        Returns
        -------
        Outcome
            With status crash or hang if the child gave no answer.
        """
        child = self._started()
        order = self._order | {
            "config": {"family": config.family, "params": dict(config.params)},
            "best": dict(best),
            "every": every,
        }
        try:
            assert child.stdin is not None  # noqa: S101 - Popen was asked for a pipe
            child.stdin.write(json.dumps(order) + "\n")
            child.stdin.flush()
            answer = self._answers.get(timeout=limit)
        except queue.Empty:
            self.stop()
            return Outcome(config, "hang", f"no answer within {limit:.0f} s")
        except OSError:
            answer = ""
        if not answer:
            return self._post_mortem(config)
        outcome = Outcome.from_json(json.loads(answer))
        if outcome.status == "run":
            self.stop()  # a context in which a launch failed may fail every later one
        return outcome

    def _started(self) -> subprocess.Popen[str]:
        if self._child is not None:
            return self._child
        if not sys.executable:
            raise TuningError("this Python has no executable of its own to try candidates with")
        # The child must find this very package, installed or not.
        root = str(Path(__file__).parents[2])
        path = os.pathsep.join(filter(None, (os.environ.get("PYTHONPATH", ""), root)))
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 - closed by stop()
        self._child = subprocess.Popen(
            [sys.executable, "-m", "clgemm.tuning.trial"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            env=os.environ | ENVIRONMENT | {"PYTHONPATH": path},
            text=True,
            encoding="utf-8",
        )
        self._answers = queue.Queue()
        threading.Thread(
            target=_listen, args=(self._child, self._answers), name="clgemm-tuning", daemon=True
        ).start()
        return self._child

    def _post_mortem(self, config: Config) -> Outcome:
        """Say how the child died, and forget it."""
        assert self._child is not None  # noqa: S101 - only called while there is a child
        code = self._child.wait()
        words = ""
        if self._stderr is not None:
            self._stderr.seek(0)
            words = self._stderr.read()[-STDERR_TAIL:].decode(errors="replace").strip()
        self.stop()
        return Outcome(config, "crash", f"the child process ended with {code}: {words}")

    def stop(self) -> None:
        """End the child."""
        child, self._child = self._child, None
        if child is not None:
            child.kill()
            child.wait()
            for pipe in (child.stdin, child.stdout):
                if pipe is not None:
                    _close(pipe)
        if self._stderr is not None:
            self._stderr.close()
            self._stderr = None


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
