"""How `batched` lays out a problem of which each operand of an entry is one run of elements."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from clgemm.kernels.batched.plan import (
    LEAST_GROUPS,
    Tile,
    along_k,
    longest,
    tile_of,
    whole_lanes,
    width_of,
)
from clgemm.kernels.family import (
    GEMM_SIGNATURE,
    KernelSpec,
    Plan,
    Step,
    gemm_args,
    precision_defines,
    precision_of,
    round_up,
)
from clgemm.kernels.mirror import mirror

if TYPE_CHECKING:
    from clgemm.kernels.family import Config
    from clgemm.problem import Gemm
    from clgemm.traits import DeviceTraits

FILES = ("batched/micro.cl", "batched/runs.cl")
ASYNC_COPIES = (8, 0)  # the compute capability from which on NVIDIA's GPUs have them
MOST_MICRO_BYTES = 128  # accumulators of a work-item, where smaller ones would need more than ITEMS
BYTES_ITEM = 512
"""Of an entry's operands, for which there is a work-item at least: else few run at a time."""
BANKS, BANK_BYTES = 32, 4  # of local memory
MOST_CONFLICTS = 2  # of work-items at a bank; in double precision, none, ...
MOST_DEPTH = 64  # ... and k is no larger: tensor cores are faster then
EVEN, SMALL = 16, 2400
"""Where rows can be read by the longest vectors: what divides C's extents where macro-tiles waste
nothing, and elements of complex C of which the other kernel reads them as fast."""


@dataclass(frozen=True)
class Runs:
    """One problem, whose entries are read as runs, for one device."""

    traits: DeviceTraits
    g: Gemm
    config: Config

    @cached_property
    def _tile(self) -> Tile:
        """Cut the micro-tile, for work-items as many as an entry's bytes need; or double it."""
        g, items, mr, nr = self.g, self.config["ITEMS"], self.config["MR"], self.config["NR"]
        itemsize = precision_of(g).itemsize
        while -(-g.m // mr) * -(-g.n // nr) > items and 2 * mr * nr * itemsize <= MOST_MICRO_BYTES:
            mr, nr = (2 * mr, nr) if mr <= nr else (mr, 2 * nr)
        needed = min((g.m + g.n) * g.k * itemsize // BYTES_ITEM, items // 2)
        share = max(self.config["SHARE"], needed)
        return tile_of(g, mr, nr, share, round_up(max(g.m, g.n), mr * nr))

    @property
    def _is_async(self) -> bool:
        return (self.traits.compute_capability or (0, 0)) >= ASYNC_COPIES

    @property
    def _room(self) -> int:
        """Give what a work-group may have of the local memory.

        GPUs of NVIDIA's that copy asynchronously have several times what they report; of others
        two work-groups are to run at a time.
        """
        return self.traits.local_memory if self._is_async else self.traits.local_memory // 2

    @cached_property
    def local_bytes(self) -> int:
        """Count the local memory of an entry; micro-tiles read beyond its rows and columns."""
        count = 0
        for size, width, is_along in zip(
            (self.g.m, self.g.n), self._tile.extents, along_k(self.g), strict=True
        ):
            run = width * self.g.k if is_along else (self.g.k - 1) * size + width
            count += round_up(run + longest(self.g) + 1, longest(self.g))
        return count * precision_of(self.g).itemsize

    @property
    def _fits(self) -> bool:
        """Tell whether there are no gaps, and an entry fits a work-group and the local memory."""
        g, traits = self.g, self.traits
        dense = (g.k if g.trans_a else g.m, g.n if g.trans_b else g.k)
        return (
            g.aligned
            and (g.lda, g.ldb) == dense
            and longest(self.g) > 1
            and self._tile.items <= min(2 * self.config["ITEMS"], traits.max_work_group_size)
            and self.local_bytes <= self._room
        )

    @cached_property
    def pay(self) -> bool:
        """Tell whether an entry's rows would take longer to read, by what they do on an H100."""
        if not self.config["RUNS"] or not self._fits:
            return False
        g, precision = self.g, precision_of(self.g)
        if precision.is_double and g.k > MOST_DEPTH:
            return False
        if width_of(g) < longest(self.g):
            return self._conflicts <= (1 if precision.is_double else MOST_CONFLICTS)
        even = not (g.m % EVEN or g.n % EVEN) or (precision.is_complex and g.m * g.n <= SMALL)
        return self._conflicts == 1 and not even

    @property
    def _conflicts(self) -> int:
        """Count the work-items that wait for one bank of local memory where rows are along k."""
        words = precision_of(self.g).itemsize // BANK_BYTES
        together = BANKS // words
        rows = (min(self._tile.lanes_m, together), -(-together // self._tile.lanes_m))
        begins = BANKS // math.gcd(self.g.k * words, BANKS)
        return max(
            -(-count // begins) if is_along else 1
            for count, is_along in zip(rows, along_k(self.g), strict=True)
        )

    @property
    def _entries(self) -> int:
        """Choose the entries of a work-group."""
        room, units = self._room, self.traits.compute_units
        entries = min(whole_lanes(self._tile.items, self.config), self.g.batch)
        while entries > 1 and (
            -(-self.g.batch // entries) < LEAST_GROUPS * units or self.local_bytes * entries > room
        ):
            entries = -(-entries // 2)
        return entries

    def plan(self) -> Plan:
        """Lay out the launch."""
        g, tile, entries = self.g, self._tile, self._entries
        along_k_a, along_k_b = along_k(self.g)
        defines = precision_defines(precision_of(g)) | {
            "MR": tile.mr, "NR": tile.nr, "LANES_M": tile.lanes_m, "LANES_N": tile.lanes_n,
            "ENTRIES": entries, "M": g.m, "N": g.n, "K": g.k, "VG": longest(self.g),
            "ASYNC": int(self._is_async), "ALONG_K_A": int(along_k_a), "ALONG_K_B": int(along_k_b),
        }  # fmt: skip
        files = ("nv_async.cl", *FILES) if self._is_async else FILES
        spec = KernelSpec(files, "batched_runs", tuple(sorted(defines.items())), GEMM_SIGNATURE)
        items = tile.items * entries
        step = Step(spec, (-(-g.batch // entries) * items,), (items,), gemm_args(g))
        return Plan((step, *mirror(self.traits, g)))
