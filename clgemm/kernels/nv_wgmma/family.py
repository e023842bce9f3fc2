"""The `nv_wgmma` family: integers and float16 on Hopper's tensor cores.

The tensor cores multiply signed bytes and add up the products in 32 bits, modulo 2^32.  An integer
of w bytes is a sum of w signed digits, x = d0 + 2^8 d1 + ... modulo 2^(8w), and of the products of
two such sums those of digits i and j with i + j < w remain: 1, 3, 10 or 36 of them.  Modulo 2^32
every sum may wrap around.  Of 64 bits the products of a level l = i + j < 4 are needed exactly, to
the last carry: l + 1 products of digits, each at most 2^14, of at most 255 slices of 128, are below
2^31.  bool is 0 or 1, and true where the sum is not 0: k is less than 2^31.

Halves are multiplied exactly and added up in fp32, by the tensor cores a few steps along k, and
by fp32 adds; the sum is rounded once.

Two launches: pack the planes of digits (or the halves) in the layout that the tensor cores read,
and multiply.  Halves whose rows start on 16 bytes are not packed: tensor copies bring them into
that layout.  What describes a matrix to these, a tensor map, holds its address, which only the
device knows; so each work-group makes its own maps, in scratch.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, ClassVar, NamedTuple

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
from clgemm.problem import ELEMENTS, HALF, INTEGERS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from clgemm.kernels.family import Arg
    from clgemm.problem import Gemm, Precision
    from clgemm.traits import DeviceTraits

SIGNATURE = GEMM_SIGNATURE + "sp"  # Packed and the scratch
PACK_ITEMS, GEMM_ITEMS, PACK_ROWS = 256, 384, 64
PACK_SLICES = {1: 2, 2: 1, 4: 1, 8: 1}  # that are packed at once, by bytes of an element
LOCAL_BYTES = 226 << 10  # what a kernel may declare, whatever OpenCL says
ROW_BYTES = 128  # of a slice
SLICE_STEPS = 4  # instructions along k for a slice
CHUNK_BYTES = 16  # that are copied at once
MOST_STAGES = 4
MOST_OF_HALVES = 128  # rows of Y in a tile of halves
SCRATCH_SHARE = 4  # of the device's memory one part
MAPS_BYTES = 256  # of scratch, in which a worker has the maps of its tensor copies
SHORT_SUM, LONG_SUM = 512, 2048  # k of halves: see `steps_together`
LEAST_PRODUCTS = 2**22  # below, two launches take longer than one that packs nothing
LEAST_FILLED = 0.25  # of what is multiplied once operands are padded
BYTE = 8

FILES = ("nv_wgmma/types.cl", "nv_wgmma/pack.cl")
PRODUCERS = ("nv_wgmma/packed.cl", "nv_wgmma/tensor.cl")
GEMM_FILES = ("nv_async.cl", "nv_wgmma/types.cl", "nv_wgmma/wgmma.cl", "nv_wgmma/walk.cl",
              *PRODUCERS, "nv_wgmma/gemm.cl")  # fmt: skip

_PACKED = struct.Struct("=q6i")


class Tile(NamedTuple):
    """A macro-tile: `mi` blocks of 64 rows of X a warpgroup, `by` rows of Y."""

    mi: int
    by: int

    @property
    def bx(self) -> int:
        """Rows of X, by two warpgroups."""
        return 128 * self.mi

    @property
    def stages(self) -> int:
        """Give the slices that fit the local memory, beside barriers and maps."""
        return min(MOST_STAGES, (LOCAL_BYTES - 512) // ((self.bx + self.by) * ROW_BYTES))


# Time of a slice relative to the largest tile's, by tile: small ones move more data a product.
TIMES = {Tile(2, 192): 1.0, Tile(2, 128): 0.72, Tile(1, 128): 0.42, Tile(1, 64): 0.26}


class NvWgmma(KernelFamily):
    """Digits of integers, and halves, by wgmma."""

    name: ClassVar[str] = "nv_wgmma"
    files: ClassVar[tuple[str, ...]] = tuple(dict.fromkeys((*FILES, *GEMM_FILES)))

    def supports(self, traits: DeviceTraits, precision: Precision) -> bool:
        """Compute capability 9.x."""
        capability = traits.compute_capability or (0, 0)
        known = precision.code in INTEGERS or precision.code == HALF.code
        return known and (9, 0) <= capability < (10, 0)

    def claims(self, traits: DeviceTraits, problem: Gemm) -> bool:
        """Tell whether packing pays, and there is memory for it."""
        if not self.supports(traits, ELEMENTS[problem.precision]) or not self.accepts(problem):
            return False
        m, n, k = problem.m, problem.n, problem.k
        filled = m * n * k / (round_up(m, 64) * round_up(n, 64) * round_up(k, 64))
        pays = m * n * k * problem.batch >= LEAST_PRODUCTS and filled >= LEAST_FILLED
        scratch = self.plan(traits, problem, self.default(traits, ELEMENTS[problem.precision]))
        return pays and scratch.scratch_bytes <= traits.global_memory // SCRATCH_SHARE

    def accepts(self, problem: Gemm) -> bool:
        """Tell whether tiles and slices fit ints."""
        tiles = -(-problem.m // 64) * -(-problem.n // 128) * problem.batch
        return super().accepts(problem) and tiles * -(-problem.k // 64) <= INT32_MAX // 64

    def space(self, traits: DeviceTraits, precision: Precision) -> dict[str, tuple[int, ...]]:
        """Give the largest tile allowed, and strips of Y in a band of the raster."""
        del traits, precision
        return {"MI": (2, 1), "BY": (192, 128, 64), "GROUP": (16, 8, 32)}

    def default(self, traits: DeviceTraits, precision: Precision) -> Config:
        """Give the largest tile."""
        del traits
        by = MOST_OF_HALVES if precision.code == HALF.code else 192
        return Config.of(self.name, {"MI": 2, "BY": by, "GROUP": 16})

    def broken_rules(
        self, traits: DeviceTraits, precision: Precision, config: Config
    ) -> Iterator[str]:
        """Yield what the kernels are not written for."""
        del traits
        if Tile(config["MI"], config["BY"]) not in TIMES:
            yield "MI and BY make one of the tiles 256 x 192, 256 x 128, 128 x 128, 128 x 64"
        if precision.code == HALF.code and config["BY"] > MOST_OF_HALVES:
            yield "sums of a slice of halves fit the registers beside those of all slices"
        if config["GROUP"] < 1:
            yield "a band of the raster has at least one strip"

    def plan(self, traits: DeviceTraits, problem: Gemm, config: Config) -> Plan:
        """Pack, then multiply; or multiply what lies as tensor copies take it."""
        g, precision = problem, ELEMENTS[problem.precision]
        tile = best_tile(traits.compute_units, g, Tile(config["MI"], config["BY"]))
        is_half = precision.code == HALF.code
        steps = steps_together(g.k) if is_half else SLICE_STEPS
        slices = -(-g.k * (precision.itemsize if is_half else 1) // ROW_BYTES)
        slices = round_up(slices, max(1, steps // SLICE_STEPS))
        planes = 1 if is_half else precision.itemsize
        strips_x, strips_y = -(-g.n // tile.bx), -(-g.m // tile.by)
        copies_x, copies_y = (g.batch if stride else 1 for stride in (g.stride_b, g.stride_a))
        bytes_x, bytes_y = (
            copies * planes * strips * slices * rows * ROW_BYTES
            for copies, strips, rows in (
                (copies_x, strips_x, tile.bx),
                (copies_y, strips_y, tile.by),
            )
        )
        workers = min(traits.compute_units, strips_x * strips_y * g.batch)
        packed = _PACKED.pack(
            bytes_x, slices, strips_x, strips_y, copies_x, copies_y, workers
        )  # fmt: skip
        direct = is_half and may_read_direct(g)
        shape = precision_defines(precision) | {
            "BITS": precision.itemsize * BYTE, "IS_HALF": int(is_half),
            "IS_BOOL": int(precision.dtype == bool), "MI": tile.mi, "BY": tile.by,
        }  # fmt: skip
        product = shape | {"STAGES": tile.stages, "GROUP": config["GROUP"], "STEPS": steps}
        if direct:
            along_k = {"ALONG_K_X": int(not g.trans_b), "ALONG_K_Y": int(g.trans_a)}
            product |= {"DIRECT": 1} | along_k
        files = tuple(x for x in GEMM_FILES if x != PRODUCERS[not direct])
        gemm = kernel_spec("nv_wgmma_gemm", files, product, "sm_90a")
        args = (*gemm_args(g), packed, "scratch")
        last = Step(gemm, (workers * GEMM_ITEMS,), (GEMM_ITEMS,), args)
        if direct:
            return Plan((last,), workers * MAPS_BYTES)
        blocks = (bytes_x + bytes_y) // (planes * slices * PACK_ROWS * ROW_BYTES)
        pack = pack_step(precision, shape, blocks, slices, args)
        return Plan((pack, last), bytes_x + bytes_y)


def pack_step(
    precision: Precision, shape: dict[str, int], blocks: int, slices: int, args: tuple[Arg, ...]
) -> Step:
    """Lay out the launch that packs blocks of rows, a few slices a work-group."""
    at_once = PACK_SLICES[precision.itemsize]
    groups = blocks * -(-slices // at_once)
    pack = kernel_spec("nv_wgmma_pack", FILES, shape | {"PACK_SLICES": at_once})
    return Step(pack, (groups * PACK_ITEMS,), (PACK_ITEMS,), args)


def steps_together(k: int) -> int:
    """Choose how many steps of 16 along k of halves the tensor cores add up before fp32 adds do.

    They cut what they add up, always towards 0, so errors of the steps add up, which those of fp32
    adds do not.  With so many steps fewer elements are rounded wrongly than by NumPy's loop, which
    makes k fp32 adds: also of numbers that all have one sign.
    """
    if k < SHORT_SUM:
        return SLICE_STEPS // 2
    return SLICE_STEPS if k < LONG_SUM else 2 * SLICE_STEPS


def may_read_direct(g: Gemm) -> bool:
    """Tell whether all rows of halves start on 16 bytes: then there is nothing to pack."""
    steps = (g.lda, g.ldb, g.stride_a, g.stride_b, g.offset_a, g.offset_b)
    return g.aligned and not any(x * HALF.itemsize % CHUNK_BYTES for x in steps)


def best_tile(workers: int, problem: Gemm, largest: Tile) -> Tile:
    """Choose the tile of which whole rounds of all workers take the least time."""

    def cost(tile: Tile) -> float:
        tiles = -(-problem.n // tile.bx) * -(-problem.m // tile.by) * problem.batch
        return -(-tiles // workers) * TIMES[tile]

    fitting = [tile for tile in TIMES if tile.mi <= largest.mi and tile.by <= largest.by]
    return min(fitting, key=cost)


def kernel_spec(
    name: str, files: tuple[str, ...], defines: dict[str, int], target: str = ""
) -> KernelSpec:
    """Name one of the kernels."""
    return KernelSpec(files, name, tuple(sorted(defines.items())), SIGNATURE, target)
