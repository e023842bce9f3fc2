"""How `batched` lays out one problem: micro-tile, work-group and its entries, slices."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

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
from clgemm.problem import ALIGNMENT

if TYPE_CHECKING:
    from clgemm.kernels.family import Config
    from clgemm.problem import Gemm
    from clgemm.traits import DeviceTraits

MOST_EXTENT = 64  # of a macro-tile
FEW_ITEMS = 64  # of a work-group: entries that need fewer share one
LANES = 32  # work-items that run together
MOST_RESIDENT = 512  # work-items of a compute unit at a time, if its parameter says no more
LEAST_TURNS = 3  # bundles of a work-group, if not one: with two, many would wait for few
LEAST_GROUPS = 2  # work-groups a compute unit, at the least, where entries could share one

# Of single precision, fitted to 99 drawn stacks on an H100 (rms 14 %).
LAUNCH = 3.8e-6  # seconds of the launch, ...
EACH_BUNDLE = 1e-6  # ... of a work-group's bundle of entries, beside its stores, and ...
EACH_SLICE = 3e-7  # ... of a slice of it, until its elements have come
MULTIPLIED = 2.2e11  # multiplications a second, of a compute unit
READ, WRITTEN = 3.1e10, 5e11  # bytes a second, likewise


class _Tile(NamedTuple):
    """The part of C that a work-group computes of an entry."""

    mr: int
    nr: int
    lanes_m: int
    lanes_n: int

    @property
    def extents(self) -> tuple[int, int]:
        """Rows and columns."""
        return self.mr * self.lanes_m, self.nr * self.lanes_n

    @property
    def items(self) -> int:
        """Work-items that share it."""
        return self.lanes_m * self.lanes_n


@dataclass(frozen=True)
class Cut:
    """One problem, cut for one device."""

    traits: DeviceTraits
    g: Gemm
    config: Config

    @cached_property
    def _tile(self) -> _Tile:
        """Cut the micro-tile in half until an entry has work-items enough."""
        g, mr, nr = self.g, self.config["MR"], self.config["NR"]
        while mr * nr > 1 and -(-g.m // mr) * -(-g.n // nr) < self.config["SHARE"]:
            if mr >= nr:
                mr //= 2
            else:
                nr //= 2
        lanes_m = min(-(-g.m // mr), MOST_EXTENT // mr)
        lanes_n = min(-(-g.n // nr), MOST_EXTENT // nr)
        while lanes_m * lanes_n > self.config["ITEMS"]:
            if lanes_m >= lanes_n:
                lanes_m = -(-lanes_m // 2)
            else:
                lanes_n = -(-lanes_n // 2)
        return _Tile(mr, nr, lanes_m, lanes_n)

    @property
    def _along_k(self) -> tuple[bool, bool]:
        return self.g.trans_a, not self.g.trans_b

    @property
    def _longest(self) -> int:
        """Elements of the longest vector."""
        return max(1, ALIGNMENT // precision_of(self.g).itemsize)

    def _local_bytes(self, entries: int, depth: int) -> int:
        elements = (
            extent * (depth + self._longest * along_k)
            for extent, along_k in zip(self._tile.extents, self._along_k, strict=True)
        )
        return entries * sum(elements) * precision_of(self.g).itemsize

    @property
    def _depth(self) -> int:
        """Give the depth of equal slices of which a work-item reads at most FETCH bytes."""
        tile, k = self._tile, self.g.k
        row_bytes = max(tile.extents) * precision_of(self.g).itemsize
        most = max(self._longest, self.config["FETCH"] * tile.items // row_bytes)
        return round_up(-(-k // -(-k // most)), self._longest)

    def _whole_lanes(self) -> int:
        """Give the entries with which most lanes of a work-group have something to do."""
        share, most = self._tile.items, self.config["BUNDLE"]
        least = -(-min(FEW_ITEMS, most) // share)
        counts = range(least, max(least, most // share) + 1)
        return max(counts, key=lambda x: (share * x / round_up(share * x, LANES), -x))

    @cached_property
    def _entries_and_depth(self) -> tuple[int, int]:
        """Choose the entries of a work-group and the depth of its slices."""
        g, room, depth = self.g, self.config["LOCAL_KB"] << 10, self._depth
        entries = min(self._whole_lanes(), g.batch)
        while entries > 1 and (
            -(-g.batch // entries) < LEAST_GROUPS * self.traits.compute_units
            or self._local_bytes(entries, depth) > room
        ):
            entries = -(-entries // 2)
        while self._local_bytes(entries, depth) > room and depth > self._longest:
            depth = round_up(-(-depth // 2), self._longest)
        return entries, depth

    @property
    def _resident(self) -> int:
        """Work-groups of a compute unit that run at a time; more of them if micro-tiles are cut.

        No more than there are: each has the more registers.
        """
        tile, most = self._tile, self.config["RESIDENT"]
        entries, _ = self._entries_and_depth
        cut = self.config["MR"] * self.config["NR"] // (tile.mr * tile.nr)
        most = max(most, min(most * cut, MOST_RESIDENT))
        (mc, nc), bundles = tile.extents, -(-self.g.batch // entries)
        needed = bundles * -(-self.g.m // mc) * -(-self.g.n // nc)
        return max(
            1,
            min(
                most // round_up(tile.items * entries, LANES),
                -(-needed // self.traits.compute_units),
            ),
        )

    @cached_property
    def _target(self) -> str:
        """Name what NVIDIA's assembler is to limit the registers for, "" if it decides itself."""
        capability = self.traits.compute_capability
        if not capability or not self.config["LIMIT"]:
            return ""
        return f"sm_{capability[0]}{capability[1]}"

    @cached_property
    def _groups(self) -> int:
        """Count the work-groups that share the entries: all that run at a time, if they go on."""
        entries, _ = self._entries_and_depth
        bundles = -(-self.g.batch // entries)
        turns = -(-bundles // (self._resident * self.traits.compute_units))
        if not self.config["AHEAD"] or turns < LEAST_TURNS:
            return bundles
        return -(-bundles // turns)

    @property
    def _ahead(self) -> bool:
        """Tell whether work-groups have several slices, of one bundle or more."""
        entries, depth = self._entries_and_depth
        several = self.g.k > depth or self._groups * entries < self.g.batch
        return several and bool(self.config["AHEAD"])

    @property
    def _vector_width(self) -> int:
        """Width of global reads: what divides all that says where vectors begin and end."""
        g, width = self.g, self._longest if self.g.aligned else 1
        sizes = (g.k if g.trans_a else g.m, g.n if g.trans_b else g.k, g.lda, g.ldb)
        places = (g.stride_a, g.stride_b, g.offset_a, g.offset_b)
        while width > 1 and any(x % width for x in (*sizes, *places, *self._tile.extents)):
            width //= 2
        return width

    @property
    def seconds(self) -> float:
        """Estimate what the launch takes, in single precision."""
        g, precision, units = self.g, precision_of(self.g), self.traits.compute_units
        (mc, nc), (entries, depth) = self._tile.extents, self._entries_and_depth
        groups = self._groups * -(-g.m // mc) * -(-g.n // nc)
        turns = -(-g.batch // (entries * self._groups)) * -(-groups // (self._resident * units))
        together = min(self._resident, -(-groups // units))
        multiplied = mc * nc * depth * precision.multiplications / MULTIPLIED
        read, written = (mc + nc) * depth * precision.itemsize, mc * nc * precision.itemsize
        each = EACH_SLICE + together * entries * (multiplied + read / READ)
        stores = together * entries * written / WRITTEN
        return LAUNCH + turns * (EACH_BUNDLE + stores + -(-g.k // depth) * each)

    def plan(self) -> Plan:
        """Lay out the launch."""
        g, tile, (entries, depth) = self.g, self._tile, self._entries_and_depth
        (mc, nc), (along_k_a, along_k_b) = tile.extents, self._along_k
        defines = {
            "MR": tile.mr, "NR": tile.nr, "LANES_M": tile.lanes_m, "LANES_N": tile.lanes_n,
            "ENTRIES": entries, "KC": depth, "V": min(tile.mr, tile.nr, self._longest),
            "VK": self._longest, "VG": self._vector_width,
            "AHEAD": int(self._ahead),
            "GROUPS": self._resident if self._target else 0, "TILED": int(g.m > mc or g.n > nc),
            "ALONG_K_A": int(along_k_a), "ALONG_K_B": int(along_k_b),
            "GUARD_M": int(g.m % mc > 0), "GUARD_N": int(g.n % nc > 0),
            "GUARD_K": int(g.k % depth > 0),
        }  # fmt: skip
        defines |= precision_defines(precision_of(g))
        spec = KernelSpec(
            ("batched/gemm.cl",), "batched", tuple(sorted(defines.items())), GEMM_SIGNATURE,
            self._target,
        )  # fmt: skip
        items = tile.items * entries
        size = (self._groups * items, -(-g.m // mc) * -(-g.n // nc))
        step = Step(spec, size, (items, 1), gemm_args(g))
        return Plan((step, *mirror(self.traits, g)))
