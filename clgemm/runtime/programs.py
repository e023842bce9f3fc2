"""From a KernelSpec to a kernel object, built once a device."""

from __future__ import annotations

import logging
import os
import time
from collections import deque
from contextlib import contextmanager
from typing import TYPE_CHECKING

from clgemm.errors import BuildError
from clgemm.kernels import ptx, source
from clgemm.runtime import ending, opencl
from clgemm.runtime.opencl import cl
from clgemm.runtime.parts import Parts
from clgemm.runtime.reentry import entry

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from clgemm.kernels.family import KernelSpec
    from clgemm.runtime.binaries import Binaries
    from clgemm.traits import DeviceTraits

log = logging.getLogger(__name__)

LOG_LINES = 20
MOST_BUILDS = 8  # at a time
MOST_KERNELS = 1024
"""Kernels kept for other plans: those of stacks of small matrices are made for one size each."""


class BoundKernel:
    """A kernel's object, of which whoever holds the device's lock sets the arguments."""

    def __init__(self, program: cl.Program, name: str) -> None:
        self.handle = opencl.make_kernel(program, name)
        self.owner: object = None
        """Whose constants are set."""
        self.repeats: object = None
        """What has set all arguments, to launch it again with another C."""
        self.set_numbers, self.set_memory = opencl.argument_setters(self.handle)


class Programs:
    """The kernels of one context.

    Parameters
    ----------
    context : cl.Context
        Of one device.
    traits : DeviceTraits
        Its facts.
    binaries : Binaries, optional
        Where compiled programs are kept between processes.
    """

    def __init__(
        self, context: cl.Context, traits: DeviceTraits, binaries: Binaries | None = None
    ) -> None:
        self._context = context
        self._traits = traits
        self._binaries = binaries
        self._programs: dict[KernelSpec, cl.Program] = {}
        self._kernels: dict[KernelSpec, BoundKernel] = {}

    def kernel(self, spec: KernelSpec) -> BoundKernel:
        """Return the kernel for a spec, building it at the first call.

        Raises
        ------
        BuildError
            If the device's compiler refuses the source; the message ends with its log.
        """
        kernel = self._kernels.get(spec)
        if kernel is None:
            kernel = self._build(spec)
            if len(self._kernels) >= MOST_KERNELS:  # plans keep their own: start over
                self._kernels, self._programs = {}, {}
            self._kernels[spec] = kernel
        return kernel

    def is_built(self, spec: KernelSpec) -> bool:
        """Tell whether a kernel is built, here or on disk; of what a driver keeps nobody knows."""
        if spec in self._programs or self._binaries is None:
            return True
        return self._binaries.has(_key(source.text(spec), spec.target))

    def _build(self, spec: KernelSpec) -> BoundKernel:
        start = time.perf_counter()
        ending.leave()
        try:
            program = self._programs.get(spec)
            if program is None:
                program = self._programs[spec] = self._program(spec)
            kernel = BoundKernel(program, spec.name)
        except (cl.Error, RuntimeError, ptx.PtxError) as error:
            lines = str(error).strip().splitlines()
            raise BuildError(
                f"the compiler of {self._traits.describe()}, driver {self._traits.driver_version}, "
                f"refused kernel {spec.name!r}; set CLGEMM_DEVICE to use another device. Its log:\n"
                + "\n".join(lines[:LOG_LINES])
            ) from error
        log.debug("built %s in %.3f s", spec, time.perf_counter() - start)
        return kernel

    def build_ahead(self, specs: Iterable[KernelSpec]) -> None:
        """Build what is not built yet, several programs at a time, as far as the driver can.

        What does not build is left for `kernel` to report.
        """
        with self.building(specs):
            pass

    @contextmanager
    def building(self, specs: Iterable[KernelSpec]) -> Iterator[None]:
        """Do the same beside what is in a with block, which waits at its end."""
        missing = [spec for spec in dict.fromkeys(specs) if spec not in self._programs]
        if not missing:
            yield
            return
        workers = min(len(missing), os.cpu_count() or 1, MOST_BUILDS)
        waiting, built = deque(missing), {}
        with Parts("clgemm build") as parts:

            def work() -> None:
                while waiting and not parts.is_over:
                    try:
                        spec = waiting.popleft()
                    except IndexError:  # another thread took the last one
                        return
                    built[spec] = self._program_or_none(spec)

            for _ in range(workers):
                parts.start(work)
            yield
            parts.wait()
        for error in parts.errors():
            raise error
        self._programs |= {spec: program for spec, program in built.items() if program}

    @entry()
    def _program_or_none(self, spec: KernelSpec) -> cl.Program | None:
        try:
            return self._program(spec)
        except (cl.Error, RuntimeError, ptx.PtxError) as error:
            log.debug("not built ahead: %s: %s", spec, error)
            return None

    def keep(self, spec: KernelSpec, binaries: Binaries) -> None:
        """Keep a kernel that was built here on disk, for other processes."""
        if spec in self._programs:
            binaries.save(
                _key(source.text(spec), spec.target), opencl.to_binary(self._programs[spec])
            )

    def _program(self, spec: KernelSpec) -> cl.Program:
        return compiled(self._context, source.text(spec), self._binaries, spec.target)


def compiled(
    context: cl.Context, text: str, binaries: Binaries | None, target: str = ""
) -> cl.Program:
    """Return a program that is ready to run: from disk, or built and then kept there.

    Parameters
    ----------
    context : cl.Context
        Of one device.
    text : str
        OpenCL C.
    binaries : Binaries or None
        Where compiled programs are kept, if they are.
    target : str
        What `ptx.retarget` is to compile for, "" for what the driver chooses.
    """
    key = _key(text, target)
    binary = binaries.load(key) if binaries else None
    if binary is not None:
        try:
            return opencl.from_binary(context, binary)
        except (cl.Error, RuntimeError) as error:
            log.info("a stored program was refused and is built again: %s", error)
    program = opencl.build(context, ptx.unassembled(text) if target else text)
    if target:
        assembly = ptx.retarget(opencl.to_binary(program), target)
        program = opencl.from_binary(context, assembly)
    if binaries:
        binaries.save(key, opencl.to_binary(program))
    return program


def _key(text: str, target: str) -> str:
    """Name a program on disk."""
    return f"// target {target}\n{text}" if target else text
