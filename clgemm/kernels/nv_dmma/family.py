"""The `nv_dmma` family: fp64 and complex128 on the fp64 tensor cores of NVIDIA's data-centre GPUs.

The instruction (``mma.sync`` .f64, "DMMA") is an IEEE fused multiply-add, so results are those of
any FMA product, NaN and infinities included.  Each operand reaches local memory in one of two ways:

- directly: every work-item copies a few chunks of 16 bytes (``cp.async``);
- packed: a first launch writes panels, of which one instruction then copies a whole slice
  (``cp.async.bulk``, compute capability 9.0).  Packing A costs about 120/n of the time of the
  product on an H200, so it pays from some n on: ``PACK_A``; the same for B and m: ``PACK_B``.

A problem gets the macro-tile that is estimated to take the least time (``FIT``).  Where they do not
come out even with the compute units they are shared (``SHARE``), in one of two ways: few of them
are cut along K, partial products go to scratch, and another launch adds them up; many are dealt to
work-groups by slices, of which one owns a macro-tile and adds what others left in scratch.  Sums
have a fixed order.  Further work-groups of the launch do thin edges, where that takes less time.
`partition` decides, by what `estimate` says.  The layout of slices and panels is drawn in
nv_dmma/tiles.cl.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, ClassVar

from clgemm.kernels.family import (
    GEMM_SIGNATURE,
    INT32_MAX,
    Config,
    KernelFamily,
    KernelSpec,
    Plan,
    Step,
    gemm_args,
    precision_defines,
    round_up,
)
from clgemm.kernels.mirror import mirror
from clgemm.kernels.nv_dmma import estimate, partition
from clgemm.problem import PRECISIONS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from clgemm.kernels.nv_dmma.partition import Cut
    from clgemm.problem import Gemm, Precision
    from clgemm.traits import DeviceTraits

NEWEST_SHAPES = (9, 0)  # compute capability with 16x8x4 products and bulk copies
MAX_ACCUMULATORS = 64  # doubles a work-item; more would spill
PACK_ITEMS = 128  # of nv_dmma/pack.cl
LIMITED = range(48 * 64, 64 * 64 + 1)  # elements of a macro-tile whose registers are limited ...
PLENTY = 256  # ... where a unit holds more work-items: so many may have all that they can name
PLANNED = frozenset(
    {"FIT", "PACK_A", "PACK_B", "SHARE"}
)  # parameters of the plan, not of the kernel

TILES = ("nv_dmma/tiles.cl",)
PACK_FILES = (*TILES, "nv_dmma/pack.cl")
GEMM_FILES = (
    "nv_async.cl",
    *TILES,
    "nv_dmma/copies.cl",
    "nv_dmma/load.cl",
    "nv_dmma/edges.cl",
    "nv_ticket.cl",
    "nv_dmma/raster.cl",
    "nv_dmma/store.cl",
    "nv_dmma/gemm.cl",
)
REDUCE_FILES = ("nv_dmma/reduce.cl",)


class NvDmma(KernelFamily):
    """Tensor-core products from a pipeline of slices in local memory."""

    name: ClassVar[str] = "nv_dmma"
    files: ClassVar[tuple[str, ...]] = tuple(
        dict.fromkeys((*GEMM_FILES, *PACK_FILES, *REDUCE_FILES, "mirror.cl"))
    )

    reals: ClassVar[tuple[str, ...]] = ("double",)

    def supports(self, traits: DeviceTraits, precision: Precision) -> bool:
        """Double precision where the chip has full-rate fp64 tensor cores."""
        return (
            self.computes_in(traits, precision)
            and traits.compute_capability in estimate.LOCAL_BYTES
        )

    def space(self, traits: DeviceTraits, precision: Precision) -> dict[str, tuple[int, ...]]:
        """Give tiles of the work-group and of a warp, depth, stages, and where to pack and share.

        Sizes are in elements: complex rows and depths are half the real ones, for the same space.
        """
        ce = 2 if precision.is_complex else 1
        bulk = self._has_bulk_copies(traits)
        return {
            "MC": (128 // ce, 64 // ce, 32 // ce),
            "NC": (128, 64, 32),
            "KC": (32 // ce, 16 // ce),
            "WM": (64 // ce, 32 // ce),
            "WN": (32, 16),
            "WK": (1,),
            "STAGES": (3, 4),
            "GROUP_M": (8,),
            "PACK_A": (16384 // ce, 0) if bulk else (0,),
            "PACK_B": (8192 // ce, 0) if bulk else (0,),
            "SHARE": (1,),
            "FIT": (1,),
        }

    def default(self, traits: DeviceTraits, precision: Precision) -> Config:
        """Give the tile of large problems; smaller ones fit theirs."""
        ce = 2 if precision.is_complex else 1
        bulk = self._has_bulk_copies(traits)
        deep = bulk or precision.is_complex  # as local memory allows
        return Config.of(
            self.name,
            {
                "MC": 128 // ce, "NC": 128, "WM": 64 // ce, "WN": 32, "WK": 1,
                "KC": (32 if deep else 16) // ce, "STAGES": 3 if deep else 4, "GROUP_M": 8,
                "PACK_A": 16384 // ce * bulk, "PACK_B": 8192 // ce * bulk, "SHARE": 1, "FIT": 1,
            },
        )  # fmt: skip

    @staticmethod
    def _has_bulk_copies(traits: DeviceTraits) -> bool:
        return traits.compute_capability is not None and traits.compute_capability >= NEWEST_SHAPES

    def broken_rules(
        self, traits: DeviceTraits, precision: Precision, config: Config
    ) -> Iterator[str]:
        """Yield what the kernel or the device cannot do, then what cannot be fast."""
        ce = 2 if precision.is_complex else 1
        mc, nc, kc, wm, wn = (config[name] for name in ("MC", "NC", "KC", "WM", "WN"))
        if mc % wm or nc % wn:
            yield "whole warps cover the macro-tile"
        if wm * ce % 16 or wn % 16 or kc * ce % 16:
            yield "a warp's tile and a slice's depth are whole units of 16"
            return
        if kc * ce % (16 * config["WK"]):
            yield "a warp's share of a slice's depth is 16 at least: fragments are loaded ahead"
        items = self.items(config)
        if not 64 <= items <= min(256, traits.max_work_group_size):
            yield "a work-group has 2 to 8 warps"
        if any(width * kc * ce // 2 % items for width in map(estimate.slice_width, (mc, nc))):
            yield "every work-item copies the same number of chunks"
        if wm * ce * wn > 32 * MAX_ACCUMULATORS:
            yield "the accumulators fit the registers"
        yield from self._broken_stages(traits, precision, config)
        packs = config["PACK_A"] or config["PACK_B"]
        if packs and not self._has_bulk_copies(traits):
            yield "bulk copies need compute capability 9.0"
        if packs and mc * ce * nc < partition.LEAST_AREA:
            yield "panels of small tiles are read too often to be worth writing"

    @staticmethod
    def _broken_stages(traits: DeviceTraits, precision: Precision, config: Config) -> Iterator[str]:
        """Yield what is wrong with the slices in local memory."""
        kc = config["KC"]
        if config["STAGES"] < 2:
            yield "a stage is filled while another one is read"
        depth = kc * (2 if precision.is_complex else 1)
        if config["WK"] > 1 and config["SHARE"]:
            yield "scratch has no room for sums of each warp along the depth"
        if config["STAGES"] > 3 and config["WK"] == 1 and depth >= 32:
            yield "three stages of deep slices are enough"
        tile = sum(estimate.slice_width(config[x]) for x in ("MC", "NC")) * kc * precision.itemsize
        sums = (config["WK"] - 1) * config["MC"] * config["NC"] * precision.itemsize
        local = max(config["STAGES"] * tile, sums) + config["STAGES"] * 16
        if local > estimate.LOCAL_BYTES.get(traits.compute_capability or (0, 0), 0):
            yield "all stages fit the local memory"

    @staticmethod
    def items(config: Config) -> int:
        """Count the work-items of a work-group."""
        warps = (config["MC"] // config["WM"]) * (config["NC"] // config["WN"]) * config["WK"]
        return 32 * warps

    def accepts(self, problem: Gemm) -> bool:
        """Tell whether the number of macro-tiles fits an int, of the whole stack."""
        tiles = -(-problem.m // 32) * -(-problem.n // 32) * problem.batch
        return super().accepts(problem) and tiles < INT32_MAX // 2

    def plan(self, traits: DeviceTraits, problem: Gemm, config: Config) -> Plan:
        """Pack if that pays, and multiply, thin edges included."""
        main, fitted = partition.chosen(traits, problem, config)
        cut = partition.cut(traits, main, fitted, partition.strips(problem, main))
        steps = [self._gemm(traits, problem, main, fitted, cut)]
        if cut.pack_a or cut.pack_b:
            steps.insert(0, self._pack(main, fitted, cut))
        if cut.parts > 1 and not cut.joins:
            steps.append(self._reduce(main, cut))
        steps += mirror(traits, problem)
        return Plan(tuple(steps), cut.reals * 8, takes_tickets=cut.takes_tickets)

    @staticmethod
    def _pack(g: Gemm, config: Config, cut: Cut) -> Step:
        slices_a = cut.pack_a * cut.entries_a * cut.tiles_m * cut.slices
        slices_b = cut.pack_b * cut.entries_b * cut.tiles_n * cut.slices
        args = (*gemm_args(g), "scratch", cut.packed_a, cut.packed_b, slices_a)
        spec = _pack_spec(g.precision, config, _layout(g, cut))
        return Step(spec, ((slices_a + slices_b) * PACK_ITEMS,), (PACK_ITEMS,), args)

    def _gemm(self, traits: DeviceTraits, whole: Gemm, g: Gemm, config: Config, cut: Cut) -> Step:
        """Multiply: macro-tiles of `g`, then strips of what `whole` has beyond it."""
        strips, thick = partition.strips(whole, g)
        tile = partition.tile(config, estimate.real_parts(g))
        limit = _target(traits) if _is_limited(tile) else ""
        choices: tuple[tuple[str, int], ...] = (
            ("CONJ_A", int(g.conj_a and not cut.pack_a)),
            ("CONJ_B", int(g.conj_b and not cut.pack_b)),
            ("EDGE_THICK", thick),
            ("EVEN", int(_is_even(g, config, cut))),
            ("PARTS", (cut.parts > 1) + cut.joins),
            ("RESIDENT", tile.resident if limit else 0),
            ("SHARED", int(cut.workers > 0)),
        )
        if cut.stagger:
            choices += (
                ("FIRST_TURNS", tile.resident),
                ("STAGGER", cut.stagger),
                ("UNITS", traits.compute_units),
            )
        newest = self._has_bulk_copies(traits)
        spec = _gemm_spec(g.precision, config, _layout(g, cut), choices, newest, limit)
        args = (
            *gemm_args(whole), "scratch" if cut.reals else 0, cut.packed_a, cut.packed_b,
            cut.tiles_m * (cut.entries_a > 1), cut.tiles_n * (cut.entries_b > 1),
            cut.partials, cut.whole, cut.shared, cut.workers, cut.span, g.m, g.n,
            "tickets" if cut.takes_tickets else 0,
        )  # fmt: skip
        items = self.items(config)
        groups = cut.whole + cut.workers + strips * g.batch
        return Step(spec, (groups * items, cut.parts), (items, 1), args)

    @staticmethod
    def _reduce(g: Gemm, cut: Cut) -> Step:
        spec = _spec("nv_dmma_reduce", REDUCE_FILES, g.precision, {}, "pli")
        args = (*gemm_args(g), "scratch", cut.partials, cut.parts)
        size = round_up(g.m * g.n * g.batch, PACK_ITEMS)
        return Step(spec, (size,), (PACK_ITEMS,), args)


def _spec(
    name: str, files: tuple[str, ...], precision: str, defines: dict[str, int], signature: str
) -> KernelSpec:
    defines = defines | precision_defines(PRECISIONS[precision])
    return KernelSpec(files, name, tuple(sorted(defines.items())), GEMM_SIGNATURE + signature)


Layout = tuple[bool, bool, bool, bool, bool, bool]
"""Whether A and B are transposed, can be read by pairs, and are packed."""


def _is_even(g: Gemm, config: Config, cut: Cut) -> bool:
    """Tell whether what is copied without packing ends where macro-tiles and slices do."""
    widths = ((g.m, config["MC"], cut.pack_a), (g.n, config["NC"], cut.pack_b))
    return all(
        packed or (size % width == 0 and width == estimate.slice_width(width))
        for size, width, packed in widths
    )


def _is_limited(tile: estimate.Tile) -> bool:
    """Tell whether the assembler is told how many work-groups a unit is to hold.

    Of these tiles it sometimes gives work-items more registers than that leaves them.  It has to
    assemble twice for it, so others are left alone.
    """
    return tile.resident * tile.items > PLENTY and tile.area in LIMITED


def _target(traits: DeviceTraits) -> str:
    """Name what the assembler makes code for, "" for devices on which fewer work-groups fit."""
    capability = traits.compute_capability
    if capability is None or capability < NEWEST_SHAPES:
        return ""
    return f"sm_{capability[0]}{capability[1]}"


def _layout(g: Gemm, cut: Cut) -> Layout:
    return (g.trans_a, g.trans_b, *estimate.wide(g), cut.pack_a, cut.pack_b)


def _layout_defines(layout: Layout) -> dict[str, int]:
    names = ("TRANS_A", "TRANS_B", "WIDE_A", "WIDE_B", "PACK_A", "PACK_B")
    return dict(zip(names, map(int, layout), strict=True))


@lru_cache(maxsize=256)
def _pack_spec(precision: str, config: Config, layout: Layout) -> KernelSpec:
    defines = {name: config[name] for name in ("MC", "NC", "KC")} | _layout_defines(layout)
    return _spec("nv_dmma_pack", PACK_FILES, precision, defines, "plll")


@lru_cache(maxsize=256)
def _gemm_spec(
    precision: str, config: Config, layout: Layout, choices: tuple[tuple[str, int], ...],
    newest: bool, target: str,
) -> KernelSpec:  # fmt: skip
    defines = {name: value for name, value in config.params if name not in PLANNED}
    defines |= _layout_defines(layout) | dict(choices)
    defines |= {"MMA_ROWS": 16 if newest else 8, "TRY_WAIT": int(newest)}
    spec = _spec("nv_dmma", GEMM_FILES, precision, defines, "plliiliiiiiip")
    return spec._replace(target=target)
