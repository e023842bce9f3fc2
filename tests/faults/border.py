"""The border to OpenCL: every call of pyopencl's that clgemm makes, and what can go wrong there.

`OPENCL` is the list; test_border.py compares it with what the package's source says.  `Faults`
wraps each of them, and whatever else may fail beside OpenCL: memory, threads, files.
"""

from __future__ import annotations

import errno
import functools
import os
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from typing import NamedTuple

import numpy as np

from clgemm.runtime import opencl
from clgemm.runtime.opencl import arrays, cl, load, tools

# Errors by their OpenCL names: what drivers report is one of a few for each kind of function.
ALLOCATES = ("MEM_OBJECT_ALLOCATION_FAILURE", "OUT_OF_HOST_MEMORY", "INVALID_BUFFER_SIZE")
ASKS = ("OUT_OF_HOST_MEMORY", "INVALID_VALUE", "DEVICE_NOT_AVAILABLE")
BUILDS = ("BUILD_PROGRAM_FAILURE", "OUT_OF_HOST_MEMORY", "INVALID_BINARY")
ENQUEUES = (
    "OUT_OF_RESOURCES", "DEVICE_NOT_AVAILABLE", "INVALID_COMMAND_QUEUE",
    "MEM_OBJECT_ALLOCATION_FAILURE",
)  # fmt: skip
LAUNCHES = ("INVALID_KERNEL_ARGS", "INVALID_WORK_GROUP_SIZE", *ENQUEUES)
OPENS = ("DEVICE_NOT_AVAILABLE", "OUT_OF_HOST_MEMORY", "OUT_OF_RESOURCES")
SETS = ("INVALID_ARG_VALUE", "OUT_OF_RESOURCES", "OUT_OF_HOST_MEMORY")
WAITS = (
    "EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST", "OUT_OF_RESOURCES", "DEVICE_NOT_AVAILABLE",
    "OUT_OF_HOST_MEMORY",
)  # fmt: skip
LOST = "DEVICE_NOT_AVAILABLE"


class Row(NamedTuple):
    """One call of pyopencl's."""

    owner: str
    """A class of pyopencl's, or "" for a function."""
    name: str
    routine: str
    """The function of OpenCL behind it."""
    errors: tuple[str, ...]
    """What it can fail with."""

    def __str__(self):
        return f"{self.owner}.{self.name}" if self.owner else self.name


def _rows(owner, routine, errors, *names):
    return tuple(Row(owner, name, routine, errors) for name in names)


OPENCL = (
    Row("", "get_platforms", "clGetPlatformIDs", ASKS),
    *_rows("Platform", "clGetPlatformInfo", ASKS, "name", "version"),
    Row("Platform", "get_devices", "clGetDeviceIDs", ASKS),
    *_rows(
        "Device", "clGetDeviceInfo", ASKS, "compute_capability_major_nv",
        "compute_capability_minor_nv", "double_fp_config", "driver_version", "extensions",
        "global_mem_size", "local_mem_size", "max_clock_frequency", "max_compute_units",
        "max_mem_alloc_size", "max_work_group_size", "name", "native_vector_width_float",
        "platform", "svm_capabilities", "type", "vendor",
    ),
    Row("Context", "__init__", "clCreateContext", OPENS),
    Row("Context", "devices", "clGetContextInfo", ASKS),
    Row("CommandQueue", "__init__", "clCreateCommandQueue", OPENS),
    Row("CommandQueue", "from_int_ptr", "clRetainCommandQueue", ASKS),
    *_rows("CommandQueue", "clGetCommandQueueInfo", ASKS, "context", "properties",
           "reference_count"),
    Row("CommandQueue", "finish", "clFinish", WAITS),
    Row("CommandQueue", "flush", "clFlush", ENQUEUES),
    Row("_Program", "__init__", "clCreateProgramWithSource", BUILDS),
    Row("_Program", "_build", "clBuildProgram", BUILDS),
    Row("Program", "__init__", "clCreateProgramWithSource", BUILDS),
    Row("Program", "build", "clBuildProgram", BUILDS),
    Row("_Program", "get_info", "clGetProgramInfo", ASKS),
    Row("Kernel", "__init__", "clCreateKernel", BUILDS),
    *_rows("Kernel", "clSetKernelArg", SETS, "set_arg", "_set_arg_multi", "_set_arg_buf_multi"),
    Row("Buffer", "__init__", "clCreateBuffer", ALLOCATES),
    Row("Buffer", "release", "clReleaseMemObject", ASKS),
    Row("Buffer", "size", "clGetMemObjectInfo", ASKS),
    Row("SVM", "__init__", "clSetKernelArgSVMPointer", ALLOCATES),
    Row("MemoryMap", "release", "clEnqueueUnmapMemObject", ENQUEUES),
    Row("MemoryPool", "__init__", "clRetainCommandQueue", OPENS),
    Row("MemoryPool", "__call__", "clCreateBuffer", ALLOCATES),
    Row("MemoryPool", "free_held", "clReleaseMemObject", ASKS),
    Row("ImmediateAllocator", "__init__", "clRetainCommandQueue", OPENS),
    Row("", "enqueue_barrier", "clEnqueueBarrierWithWaitList", ENQUEUES),
    Row("", "enqueue_copy", "clEnqueueWriteBuffer", ENQUEUES),
    Row("", "enqueue_fill_buffer", "clEnqueueFillBuffer", ENQUEUES),
    Row("", "enqueue_map_buffer", "clEnqueueMapBuffer", ENQUEUES),
    Row("", "enqueue_marker", "clEnqueueMarkerWithWaitList", ENQUEUES),
    Row("", "enqueue_nd_range_kernel", "clEnqueueNDRangeKernel", LAUNCHES),
    Row("Event", "wait", "clWaitForEvents", WAITS),
    Row("NannyEvent", "wait", "clWaitForEvents", WAITS),
    Row("Event", "command_execution_status", "clGetEventInfo", ASKS),
    Row("Event", "profile", "clGetEventProfilingInfo", ASKS),
    *_rows("Array", "clEnqueueNDRangeKernel", ENQUEUES, "copy", "fill", "__imul__"),
    Row("Array", "add_event", "clWaitForEvents", WAITS),
    Row("", "to_device", "clEnqueueWriteBuffer", ENQUEUES),
)  # fmt: skip

MEMORY = tuple((np, name) for name in ("array", "asfortranarray", "conj", "empty", "empty_like",
                                       "full", "zeros"))  # fmt: skip
THREADS = ((threading.Thread, "start"),)
FILES = tuple(
    (os, name)
    for name in ("close", "dup", "fdopen", "fstat", "ftruncate", "listdir", "lseek",
                 "mkdir", "open", "read", "replace", "stat", "unlink", "urandom", "utime", "write")
)  # fmt: skip
PROCESSES = ((subprocess, "Popen"), (tempfile, "TemporaryFile"))
BESIDE = (*MEMORY, *THREADS, *FILES, *PROCESSES)
"""What may fail beside OpenCL: a module or a class, and a name."""


def owner_of(row):
    """Return the class or module in which a call has to be replaced."""
    if not row.owner:
        return load() if hasattr(load(), row.name) else arrays()
    kind = next(getattr(x, row.owner) for x in (load(), tools(), arrays()) if hasattr(x, row.owner))
    return next(x for x in kind.__mro__ if row.name in x.__dict__)


def opencl_error(name, routine):
    """Make the error that pyopencl raises for a status."""
    module, code = load(), getattr(cl.status_code, name)
    kind = module.MemoryError if name == "MEM_OBJECT_ALLOCATION_FAILURE" else module.RuntimeError
    if code <= cl.status_code.INVALID_VALUE:
        kind = module.LogicError
    return kind(module._cl._ErrorRecord(routine, code, ""))


def host_errors(name, owner):
    """List what a call beside OpenCL can fail with."""
    if owner is np:
        return [MemoryError("Unable to allocate 1. GiB for an array")]
    if owner is threading.Thread:
        return [RuntimeError("can't start new thread")]
    return [OSError(code, os.strerror(code), name) for code in (errno.ENOSPC, errno.EACCES)]


class Faults:
    """Counts the calls that cross the border, and lets one of them fail, or all from one on."""

    def __init__(self, set_attribute):
        self.calls = Counter()
        """Of each function while `armed`; those that failed too."""
        self.armed = False
        self.fired = 0
        self._lock = threading.Lock()
        self._target, self._turn, self._make, self._for_ever = "", 0, None, False
        set_attribute(opencl, "bare_launch", lambda: None)  # launches are seen at pyopencl's own
        for row in OPENCL:
            owner = owner_of(row)
            set_attribute(owner, row.name, self._wrapped(str(row), owner.__dict__[row.name]))
        for owner, name in BESIDE:
            if hasattr(owner, name):
                set_attribute(owner, name, self._of_package(name, getattr(owner, name)))

    def arm(self, target="", turn=0, make=None, *, for_ever=False):
        """Count from here on; the call `turn` of `target` raises what `make` returns.

        With `for_ever` each later call of OpenCL's does, too, as when a device is lost.
        """
        self.calls.clear()
        self.fired = 0
        self._target, self._turn, self._make, self._for_ever = target, turn, make, for_ever
        self.armed = True

    def disarm(self):
        """Let every call through."""
        self.armed = False

    def _meet(self, name, *, lost_with_device=True):
        if not self.armed:
            return
        with self._lock:
            self.calls[name] += 1
            hit = name == self._target and self.calls[name] == self._turn
            hit |= self._for_ever and self.fired > 0 and lost_with_device
            self.fired += hit
        if hit:
            raise self._make()

    def _wrapped(self, name, function):
        if isinstance(function, property):
            return property(self._wrapped(name, function.fget))
        is_static = isinstance(function, staticmethod) or name.endswith("from_int_ptr")

        @functools.wraps(getattr(function, "__func__", function))
        def call(*arguments, **more):
            self._meet(name)
            return getattr(function, "__func__", function)(*arguments, **more)

        return staticmethod(call) if is_static else call

    def _of_package(self, name, function):
        """Wrap what everybody calls: only calls from within the package count."""

        @functools.wraps(function)
        def call(*arguments, **more):
            frame, depth = (
                sys._getframe(1),
                6 if name == "start" else 1,
            )  # executors start threads, too
            for _ in range(depth):
                if frame is not None and frame.f_globals.get("__name__", "").startswith("clgemm"):
                    self._meet(name, lost_with_device=False)
                    break
                frame = frame and frame.f_back
            return function(*arguments, **more)

        return call
