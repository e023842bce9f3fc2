"""How `gpu_tiled` lays out one problem: packing, macro-tiles, parts of k, scratch memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

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
from clgemm.kernels.gpu_tiled.tiling import (
    MOST_TURNS,
    count_tiles,
    divides,
    items,
    joins,
    most_parts,
    vector_width,
)
from clgemm.kernels.mirror import mirror

if TYPE_CHECKING:
    from collections.abc import Mapping

    from clgemm.problem import Gemm
    from clgemm.traits import DeviceTraits

PACK_EDGE = 768  # m*n / (m+n) from which on packing takes less than a tenth of the time
PACK_ODD = 2  # value of PACK: pack only what is read badly where it lies
PANEL_ALIGN = 64  # elements; keeps the pieces of scratch memory on a cache line
EARLY_STEPS = 4  # of a slice, after each of which it may end where ...
SHORT_DEPTH = 128  # ... k is at most so long: elsewhere such jumps cost more than they save, as ...
SMALL_COMPLEX = 32 * 32  # ... in macro-tiles of so few complex elements: up to a fifth (an H100)
TILE_DEFINES = (
    "MC",
    "NC",
    "KC",
    "MR",
    "NR",
    "PAD",
    "SLICED_K",
    "LOCAL_A",
    "LOCAL_B",
    "TURN_A",
    "TURN_B",
)
LOOP_DEFINES = ("VW", "LANES_M", "ZORDER", "GROUP_M", "STAGES", "AHEAD")
SUM_ITEMS = 64
KERNEL_FILES: dict[str, tuple[str, ...]] = {
    "gpu_tiled": ("gpu_tiled/tile.cl", "gpu_tiled/micro_tile.cl", "gpu_tiled/gemm.cl"),
    "gpu_tile_pack": ("gpu_tiled/tile.cl", "gpu_tiled/pack.cl"),
    "gpu_tile_sum": ("gpu_tiled/sum.cl",),
}
TICKET_FILES = ("nv_ticket.cl", *KERNEL_FILES["gpu_tiled"])


@dataclass(frozen=True)
class Cut:
    """One problem, cut for one device."""

    traits: DeviceTraits
    g: Gemm
    p: Mapping[str, int]
    """The configuration's parameters, `fitted`."""

    @property
    def _slices(self) -> int:
        return -(-self.g.k // self.p["KC"])

    @property
    def _panels(self) -> tuple[int, int]:
        """Panels of A and of B: a matrix that repeats in a stack is packed once."""
        g = self.g
        return (
            -(-g.m // self.p["MC"]) * (g.batch if g.stride_a else 1),
            -(-g.n // self.p["NC"]) * (g.batch if g.stride_b else 1),
        )

    @property
    def packed_elements(self) -> tuple[int, int]:
        """Elements of packed A and packed B."""
        depth = self._slices * self.p["KC"]
        panels_a, panels_b = self._panels
        return (
            round_up(panels_a * self.p["MC"] * depth, PANEL_ALIGN),
            round_up(panels_b * self.p["NC"] * depth, PANEL_ALIGN),
        )

    @property
    def packed(self) -> bool:
        """Whether packing pays and there is memory for it."""
        g = self.g
        if not self.p["PACK"] or most_parts(self.traits, g, self.p) > 1:
            return False
        if self.p["PACK"] == PACK_ODD and not self._reads_badly:
            return False
        room = min(self.traits.max_allocation, self.traits.global_memory // 4)
        fits = sum(self.packed_elements) * precision_of(g).itemsize <= room
        return fits and g.m * g.n >= PACK_EDGE * (g.m + g.n)

    @property
    def _reads_badly(self) -> bool:
        """Whether operands cannot be read as vectors, or turning both costs work-groups.

        Both are turned in a TN product.  That takes registers, so fewer macro-tiles run at a time,
        which matters as long as there are few.
        """
        few = count_tiles(self.g, self.p) < MOST_TURNS * self.traits.compute_units
        return self._vector_width == 1 or (few and self.g.trans_a and not self.g.trans_b)

    @property
    def part(self) -> int:
        """Slices of a part of k; all of them where there are macro-tiles enough."""
        return -(-self._slices // most_parts(self.traits, self.g, self.p))

    def plan(self) -> Plan:
        """Lay out the launches."""
        g, packed = self.g, self.packed
        parts = -(-self._slices // max(1, self.part))
        at_b, elements_b = self.packed_elements if packed else (0, 0)
        at_c = at_b + elements_b
        joined = parts > 1 and joins(self.traits, g, self.p, parts)
        scratch = at_c
        if joined:
            scratch += parts * count_tiles(g, self.p) * self.p["MC"] * self.p["NC"]
        elif parts > 1:
            scratch += parts * g.m * g.n * g.batch
        steps = [self._gemm(packed, parts, at_b, at_c, joined=joined)]
        if packed:
            steps.insert(0, self._pack(at_b))
        if parts > 1 and not joined:
            steps.append(self._sum(at_c, parts))
        steps += mirror(self.traits, g)
        return Plan(tuple(steps), scratch * precision_of(g).itemsize, takes_tickets=joined)

    def _spec(self, name: str, more: str, defines: Mapping[str, int]) -> KernelSpec:
        defines = precision_defines(precision_of(self.g)) | dict(defines)
        return KernelSpec(
            KERNEL_FILES[name], name, tuple(sorted(defines.items())), GEMM_SIGNATURE + more
        )

    @property
    def _vector_width(self) -> int:
        """Width of global reads of the operands where they lie."""
        return vector_width(self.traits, self.g, self.p["VG"])

    def _read_defines(self) -> dict[str, int]:
        """Say how operands are read where they lie."""
        g, p = self.g, self.p
        largest = max(p["MC"], p["NC"], p["KC"])
        return {
            "TRANS_A": int(g.trans_a),
            "TRANS_B": int(g.trans_b),
            "VG": self._vector_width,
            "FAR": int((max(g.lda, g.ldb) + 1) * largest >= 2**31),
        }

    @property
    def _ends_early(self) -> int:
        """After how many steps the last slice may end; 0 if it is full, or one of many."""
        g, p = self.g, self.p
        if precision_of(g).is_complex and p["MC"] * p["NC"] <= SMALL_COMPLEX:
            return 0
        beyond = self._slices * p["KC"] - g.k
        return EARLY_STEPS if beyond >= EARLY_STEPS and g.k <= SHORT_DEPTH else 0

    def _pack(self, at_b: int) -> Step:
        tile = {name: self.p[name] for name in TILE_DEFINES}
        spec = self._spec("gpu_tile_pack", "pl", tile | self._read_defines())
        groups = sum(self._panels) * self._slices
        args = (*gemm_args(self.g), "scratch", at_b)
        return Step(spec, (groups * items(self.p),), (items(self.p),), args)

    def _gemm(self, packed: bool, parts: int, at_b: int, at_c: int, *, joined: bool) -> Step:
        g, p, itemsize = self.g, self.p, precision_of(self.g).itemsize
        steps_c = (g.m,) if parts > 1 and not joined else (g.ldc, g.stride_c, g.offset_c)
        defines = {name: p[name] for name in TILE_DEFINES + LOOP_DEFINES} | {
            "KU": p["KU"] or p["KC"] // p["SLICED_K"],
            "PACKED": int(packed),
            "SPLIT": int(parts > 1) + joined,
            "WIDE_C": int(not any(x % p["VW"] for x in steps_c)),
            "ENDS_EARLY": self._ends_early,
        }
        if packed:
            defines |= {"VG": p["VG"], "PAD": 0}  # panels are read and kept as they lie
        else:
            defines |= self._read_defines()
            for name, tile, steps in (
                ("WIDE_A", "LOCAL_A", (g.m, g.lda, g.stride_a, g.offset_a)),
                ("WIDE_B", "LOCAL_B", (g.n, g.ldb, g.stride_b, g.offset_b)),
            ):
                wide = g.aligned and divides(p["VW"], itemsize, self.traits, *steps)
                defines[name] = int(wide and not p[tile])
        more_args: tuple[int | str, ...] = ()
        if packed or parts > 1:
            more_args = ("scratch", at_b, at_c, self.part)
        if joined:
            more_args += ("tickets",)
        spec = self._spec("gpu_tiled", "pllip"[: len(more_args)], defines)
        if joined:
            spec = spec._replace(files=TICKET_FILES)
        size = (-(-g.m // p["MC"]) * -(-g.n // p["NC"]) * items(self.p), g.batch, parts)
        return Step(spec, size, (items(self.p), 1, 1), gemm_args(g) + more_args)

    def _sum(self, at_c: int, parts: int) -> Step:
        g = self.g
        spec = self._spec("gpu_tile_sum", "pli", {})
        items = min(SUM_ITEMS, self.traits.max_work_group_size)
        size = (round_up(g.m, items), g.n, g.batch)
        return Step(spec, size, (items, 1, 1), (*gemm_args(g), "scratch", at_c, parts))
