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
FILES = ("batched/micro.cl", "batched/gemm.cl")

# Of single precision, fitted to 35 drawn stacks on an H200 (rms 10 %).
LAUNCH = 6.3e-6  # seconds of the launch, ...
EACH_BUNDLE = 3e-7  # ... of a work-group's bundle of entries, beside its stores, and ...
EACH_SLICE = 1.15e-7  # ... of a slice of it, until its elements have come
MULTIPLIED = 1.43e11  # multiplications a second, of a compute unit
READ, WRITTEN = 6.9e10, 6.3e11  # bytes a second, likewise


class Tile(NamedTuple):
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


def tile_of(g: Gemm, mr: int, nr: int, share: int, most: int) -> Tile:
    """Cut a micro-tile in half until `share` work-items compute an entry; extents up to `most`."""
    while mr * nr > 1 and -(-g.m // mr) * -(-g.n // nr) < share:
        if mr >= nr:
            mr //= 2
        else:
            nr //= 2
    return Tile(mr, nr, min(-(-g.m // mr), most // mr), min(-(-g.n // nr), most // nr))


def whole_lanes(items: int, config: Config) -> int:
    """Give the entries with which most lanes of a work-group have something to do."""
    most = config["BUNDLE"]
    least = -(-min(FEW_ITEMS, most) // items)
    counts = range(least, max(least, most // items) + 1)
    return max(counts, key=lambda x: (items * x / round_up(items * x, LANES), -x))


def along_k(g: Gemm) -> tuple[bool, bool]:
    """Tell of A and B whether elements that are neighbours in memory are so along k."""
    return g.trans_a, not g.trans_b


def longest(g: Gemm) -> int:
    """Elements of the longest vector."""
    return max(1, ALIGNMENT // precision_of(g).itemsize)


def width_of(g: Gemm, *more: int) -> int:
    """Give the width of vectors that divides all that says where they begin and end, and `more`."""
    width = longest(g) if g.aligned else 1
    sizes = (g.k if g.trans_a else g.m, g.n if g.trans_b else g.k, g.lda, g.ldb)
    places = (g.stride_a, g.stride_b, g.offset_a, g.offset_b)
    while width > 1 and any(x % width for x in (*sizes, *places, *more)):
        width //= 2
    return width


@dataclass(frozen=True)
class Cut:
    """One problem, cut for one device."""

    traits: DeviceTraits
    g: Gemm
    config: Config

    @cached_property
    def _tile(self) -> Tile:
        config, most = self.config, MOST_EXTENT
        mr, nr, lanes_m, lanes_n = tile_of(
            self.g, config["MR"], config["NR"], config["SHARE"], most
        )
        while lanes_m * lanes_n > self.config["ITEMS"]:
            if lanes_m >= lanes_n:
                lanes_m = -(-lanes_m // 2)
            else:
                lanes_n = -(-lanes_n // 2)
        return Tile(mr, nr, lanes_m, lanes_n)

    def _local_bytes(self, entries: int, depth: int) -> int:
        pad = longest(self.g) * (1 + depth // longest(self.g) % 2)  # see gemm.cl
        elements = (
            extent * (depth + pad * is_along)
            for extent, is_along in zip(self._tile.extents, along_k(self.g), strict=True)
        )
        return entries * sum(elements) * precision_of(self.g).itemsize

    @property
    def _depth(self) -> int:
        """Give the depth of equal slices of which a work-item reads at most FETCH bytes."""
        tile, k = self._tile, self.g.k
        row_bytes = max(tile.extents) * precision_of(self.g).itemsize
        most = max(longest(self.g), self.config["FETCH"] * tile.items // row_bytes)
        return round_up(-(-k // -(-k // most)), longest(self.g))

    @cached_property
    def _entries_and_depth(self) -> tuple[int, int]:
        """Choose the entries of a work-group and the depth of its slices."""
        g, room, depth = self.g, self.config["LOCAL_KB"] << 10, self._depth
        entries = min(whole_lanes(self._tile.items, self.config), g.batch)
        while entries > 1 and (
            -(-g.batch // entries) < LEAST_GROUPS * self.traits.compute_units
            or self._local_bytes(entries, depth) > room
        ):
            entries = -(-entries // 2)
        while self._local_bytes(entries, depth) > room and depth > longest(self.g):
            depth = round_up(-(-depth // 2), longest(self.g))
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
        (mc, nc), (along_k_a, along_k_b) = tile.extents, along_k(self.g)
        defines = {
            "MR": tile.mr, "NR": tile.nr, "LANES_M": tile.lanes_m, "LANES_N": tile.lanes_n,
            "ENTRIES": entries, "KC": depth, "V": min(tile.mr, tile.nr, longest(self.g)),
            "VK": longest(self.g), "VG": width_of(g, *tile.extents),
            "AHEAD": int(self._ahead),
            "GROUPS": self._resident if self._target else 0, "TILED": int(g.m > mc or g.n > nc),
            "ALONG_K_A": int(along_k_a), "ALONG_K_B": int(along_k_b),
            "GUARD_M": int(g.m % mc > 0), "GUARD_N": int(g.n % nc > 0),
            "GUARD_K": int(g.k % depth > 0),
        }  # fmt: skip
        defines |= precision_defines(precision_of(g))
        spec = KernelSpec(
            FILES, "batched", tuple(sorted(defines.items())), GEMM_SIGNATURE,
            self._target,
        )  # fmt: skip
        items = tile.items * entries
        size = (self._groups * items, -(-g.m // mc) * -(-g.n // nc))
        step = Step(spec, size, (items, 1), gemm_args(g))
        return Plan((step, *mirror(self.traits, g)))
