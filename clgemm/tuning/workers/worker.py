"""The parent's end of `trial`: a child process that is replaced when a candidate takes it down."""

from __future__ import annotations

import json
import queue
import tempfile
import time
from contextlib import suppress
from typing import IO, TYPE_CHECKING, Any, ClassVar, NamedTuple

from clgemm.errors import TuningError
from clgemm.tuning.outcome import TRY, Outcome, config_as_json
from clgemm.tuning.workers import process as processes

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Mapping
    from types import TracebackType

    from typing_extensions import Self

    from clgemm.kernels.family import Config
    from clgemm.tuning.shapes import Shape

    Patience = Callable[[float], float]

LOOK_SECONDS = 0.05  # between looks at whether anybody still waits for an answer
START_SECONDS = 60.0  # for a child to import what it needs and open the device
STDERR_TAIL = 400  # characters of a dead child's last words that are kept


class NoAnswer(NamedTuple):
    """What became of a child that did not answer."""

    status: str
    """crash, hang or late."""
    detail: str


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
    asked : mapping, optional
        Shapes to go by, by name: see `Course`.
    programs : str, optional
        Folder through which children share what they compiled.
    leads : bool
        Whether this child is the one that times, and had better be ready for it.
    """

    command: ClassVar[tuple[str, ...]] = ("-m", "clgemm.tuning.workers.main")
    """The child's program, after the interpreter."""

    def __init__(
        self,
        device: int,
        fingerprint: str,
        precision: str,
        asked: Mapping[str, Shape] | None = None,
        programs: str = "",
        *,
        leads: bool = True,
    ) -> None:
        self._hello = {
            "device": device,
            "fingerprint": fingerprint,
            "precision": precision,
            "asked": dict(asked or {}),
            "programs": programs,
            "leads": leads,
            "side": 0,
            "clock": "",
        }
        self.dropped = False
        """While it is set no answer is waited for: a thread that does gives up, blaming nobody."""
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
        self,
        config: Config,
        best: Mapping[str, float],
        *,
        task: str = TRY,
        patience: Patience,
        seconds: float = 0.04,
    ) -> Outcome:
        """Try one candidate; see `Trial.attempt`.

        Parameters
        ----------
        patience : callable
            Tells by the seconds that passed how many more to wait: when none are left, the child is
            taken for hung and killed.

        Returns
        -------
        Outcome
            With status crash, hang or late if the child gave no answer.

        Raises
        ------
        TuningError
            If no child can be started: that is no candidate's fault.
        """
        order = {
            "do": task,
            "config": config_as_json(config),
            "best": dict(best),
            "seconds": seconds,
            "side": self._hello["side"],
        }
        self.start()
        answer = self._exchange(order, patience)
        if isinstance(answer, NoAnswer):
            return Outcome(config, answer.status, answer.detail)
        outcome = Outcome.from_json(answer)
        if outcome.clock:  # a child after this one measures alike
            self.learn(outcome)
        if outcome.status == "run":
            self.stop()  # a context in which a launch failed may fail every later one
        return outcome

    def learn(self, outcome: Outcome) -> None:
        """Tell this child, and those after it, the sizes and the clock that another one found."""
        self._hello |= {"side": outcome.side, "clock": outcome.clock}

    def start(self) -> None:
        """Start the child if there is none and let it open the device.

        Raises
        ------
        TuningError
            If it cannot: that is no candidate's fault.
        """
        if self._child is None:
            self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 - closed by stop()
            self._child, self._answers = processes.start(self.command, self._stderr)
            refusal = self._exchange(self._hello, lambda waited: START_SECONDS - waited)
            if isinstance(refusal, NoAnswer):
                raise TuningError(f"no candidate can be tried: {refusal.detail}")

    def _exchange(self, order: Mapping[str, Any], patience: Patience) -> dict[str, Any] | NoAnswer:
        """Send an order to the child and wait for the answer."""
        assert self._child is not None  # noqa: S101 - `start` started it
        assert self._child.stdin is not None  # noqa: S101 - Popen was asked for a pipe
        try:
            self._child.stdin.write(json.dumps(order) + "\n")
            self._child.stdin.flush()
            answer = self._wait(patience)
        except OSError:
            answer = ""
        except BaseException:  # the keyboard: what the child answers later must not be mistaken
            self.stop()
            raise
        if isinstance(answer, NoAnswer):
            self.stop()
            return answer
        if not answer:
            return self._post_mortem()
        result: dict[str, Any] = json.loads(answer)
        return result

    def _wait(self, patience: Patience) -> str | NoAnswer:
        """Wait for a line; "" if the child has ended."""
        begun = time.monotonic()
        while not self.dropped:
            waited = time.monotonic() - begun
            more = patience(waited)
            if more <= 0:
                return NoAnswer("hang", f"no answer within {waited:.3g} s")
            with suppress(queue.Empty):
                return self._answers.get(timeout=min(LOOK_SECONDS, more))
        return NoAnswer("late", "the search ended before it answered")

    def _post_mortem(self) -> NoAnswer:
        """Say how the child died, and forget it."""
        assert self._child is not None  # noqa: S101 - only called while there is a child
        code = self._child.wait()
        words = ""
        if self._stderr is not None:
            self._stderr.seek(0)
            words = self._stderr.read()[-STDERR_TAIL:].decode(errors="replace").strip()
        self.stop()
        return NoAnswer("crash", f"the child process ended with {code}: {words}")

    def stop(self) -> None:
        """End the child."""
        child, self._child = self._child, None
        if child is not None:
            processes.end(child)
        if self._stderr is not None:
            self._stderr.close()
            self._stderr = None
