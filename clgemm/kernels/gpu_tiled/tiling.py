"""Which tile `gpu_tiled` takes for a problem, and into how many parts it splits k."""

from __future__ import annotations

import bisect
import math
from typing import TYPE_CHECKING, NamedTuple

from clgemm.kernels.costs import count_macro_tiles
from clgemm.kernels.family import TICKETS, has_tickets, precision_of, round_up
from clgemm.problem import ALIGNMENT

if TYPE_CHECKING:
    from collections.abc import Mapping

    from clgemm.kernels.family import Config
    from clgemm.problem import Gemm
    from clgemm.traits import DeviceTraits

HALF_MICRO = 1.15  # how much longer a product takes with a micro-tile of half the size,
HALF_GROUP = 1.06  # or with half as many work-items
MOST_TURNS = 8  # macro-tiles a compute unit from which on a cut tile shares nothing out better
PARTS_ITEMS = 256  # work-items a compute unit that k is split for: they hide each other's waits
LEAST_PART = 64  # k of a part at least
SHORT = 64  # k, and extent of C, of products that are mostly read and stored
# What parts of k cost and save, on an H200; proportions are alike elsewhere.
JOIN = 5e-6  # seconds of the launch that adds them up, and ...
MOVED = 1.5e12  # ... bytes a second of them, which are written and read
TICKET = 2.5e-6  # seconds until the last work-group of a macro-tile knows that it is, and ...
GATHERED = 1e11  # ... bytes a second of the others' parts that it reads, but ...
PART = 2e-7  # ... a part takes as long as memory takes to answer
RATED_UNITS = 132  # compute units of the H200 whose rates are known
UNIT_RATE = 1.8e11  # multiplications of floats a second, of a compute unit
BUSY_ITEMS = 256  # of a compute unit: with fewer ones products wait, by the root of what is missing
PARTS = (2, 3, 4, 6, 8, 12, 16, 24, 32, 48)  # of k, that are tried
WORTH = 0.6  # of the time without parts: cutting the macro-tile comes cheaper than small gains
LEAST_MICRO = 16  # elements of a micro-tile that is cut no further: loads would outweigh products
LEAST_ITEMS = 64  # of a work-group
USUAL_ITEMS = 128  # below, groups are too small to win by sharing out better
MOST_DEPTH = 32  # KC of a tile that was cut: fewer barriers for what little lies between them
TURNS = (2, 3, 8)  # macro-tiles a compute unit from which on `Rated` gives another rate
LEAST_RATED = 192  # extent of C, and k, from which on large tiles are neither empty nor all edges
ENDS = 2  # slices that a macro-tile takes longer, for its first one and for its store
OVERLAP = 4  # the norm that combines what a unit's work-groups have to do with what one waits for
MORE_PARTS = (1, *PARTS[:4], 5, 7, *PARTS[4:], 10, 14, 20)  # of k, for tiles of `KNOWN`
# Of what is shallow (see _is_shallow), from 144 drawn stacks and 88 drawn products on an H200.
LEAST_SHALLOW = 2**18  # elements of C of a single product
SHALLOW_LAUNCH = 4.7e-6  # seconds beside those of the busiest unit, or of memory, at ...
MEMORY_BYTES = 4.5e12  # ... so many bytes a second
SHALLOW_ENDS = 1  # what ENDS is there
BY_ELEMENT = {"s": 0.37, "c": 0.12}  # how much longer a step takes without vectors, ...
ALONG_K = {"s": 0.08, "c": 0.04}  # ... or for each operand that is read in vectors along k
KNOWN_LAUNCH = 6e-6  # seconds of other known tiles


class Rated(NamedTuple):
    """A tile, and how fast it was on an H200."""

    params: dict[str, int]
    tflops: tuple[float, ...]
    """If each compute unit has one, two, three to seven, or more of them to compute."""


def _rated(tile: str, *tflops: float, **more: int) -> Rated:
    names = ("MC", "NC", "KC", "MR", "NR", "LANES_M")
    return Rated(dict(zip(names, map(int, tile.split()), strict=True)) | more, tflops)


# Large tiles are quick even if each compute unit has only one, but cannot share out small products.
RATED: dict[str, tuple[Rated, ...]] = {
    "s": (
        _rated("256 128 8 8 16 4", 47.9, 48.5, 48.9, 48.9),
        _rated("128 128 16 8 8 8", 46.1, 46.5, 47, 47.4),
        _rated("128 64 16 8 8 8", 35.5, 44.5, 47, 49.6),
        _rated("64 64 16 4 8 4", 28, 37.3, 41.5, 42),
        _rated("64 32 32 8 4 8", 27, 27, 27, 27, SLICED_K=4, AHEAD=0, KU=4),
    )
}


class Known(NamedTuple):
    """A tile and how fast it was on an H200.

    In `KNOWN` as it reads element by element, in `STACKED` and `TALL` vectors that lie across k.
    """

    params: dict[str, int]
    tflops: float
    """Of all units, if each has several work-groups."""
    alone: float
    """Seconds of a step along k if a unit has one work-group."""


def _known(tile: str, tflops: float, nanoseconds: float, **more: int) -> Known:
    return Known(_rated(tile).params | {"AHEAD": 1} | more, tflops, nanoseconds * 1e-9)


def _timed(tiles: tuple[Known, ...], *rates: tuple[float, float]) -> tuple[Known, ...]:
    """Give tiles with other rates: TFLOP/s and nanoseconds of a step."""
    return tuple(
        Known(tile.params, tflops, nanoseconds * 1e-9)
        for tile, (tflops, nanoseconds) in zip(tiles, rates, strict=True)
    )


SLICED = {"SLICED_K": 4, "AHEAD": 0}
KNOWN: dict[str, tuple[Known, ...]] = {
    "s": (
        _known("128 64 16 8 8 8", 34.6, 30),
        _known("128 32 16 8 4 8", 35.6, 38),
        _known("32 128 16 4 8 8", 33.5, 38),
        _known("64 64 16 8 4 8", 36.7, 35),
        _known("64 64 16 4 4 8", 33.2, 35),
        _known("64 32 32 4 4 8", 32.0, 25),
        _known("32 64 32 4 4 8", 31.7, 25),
        _known("32 32 32 4 4 8", 28.0, 22),
        _known("32 32 32 4 4 8", 23.9, 10, **SLICED),
    ),
    "c": (
        _known("64 64 16 4 4 8", 48.8, 72, AHEAD=0),
        _known("64 64 8 4 4 8", 43.0, 64),
        _known("64 32 16 4 4 8", 48.1, 80),
        _known("32 64 16 4 4 8", 46.7, 59),
        _known("32 32 32 2 4 8", 44.0, 58),
        _known("32 32 16 4 4 8", 41.3, 69),
        _known("32 32 16 4 4 8", 34.0, 28, **SLICED),
    ),
}
"""For operands whose rows start anywhere, where C is small or thin, and thin ones of a short k."""
STACKED: dict[str, tuple[Known, ...]] = {
    "s": (
        _known("128 32 16 8 4 8", 42.7, 48),
        _known("64 64 16 8 4 8", 43.7, 60),
        _known("32 96 16 4 6 8", 38.9, 20, VW=2),
        _known("64 32 32 4 4 8", 41.6, 65),
        _known("32 64 16 4 4 8", 39.0, 10),
        _known("32 32 32 4 4 8", 36.6, 70),
    ),
    "c": (
        _known("64 32 16 4 4 8", 50.1, 58),
        _known("32 64 8 4 4 8", 46.4, 79, AHEAD=0),
        _known("32 32 16 4 4 8", 44.8, 62),
        _known("32 32 16 4 4 8", 32.9, 5, **SLICED),
    ),
}
"""For stacks of small matrices."""
TALL: dict[str, tuple[Known, ...]] = {
    "s": _timed(
        KNOWN["s"], (43.9, 63), (42.7, 48), (41.8, 58), (43.7, 60), (40, 38), (41.6, 65),
        (40.7, 55), (36.6, 70), (26.4, 5),
    ),
    "c": _timed(
        KNOWN["c"], (55.9, 79), (47, 54), (50.1, 58), (51.9, 76), (46.4, 71), (44.8, 62),
        (32.9, 5),
    ),
}  # fmt: skip
"""For products as long one way as a stack is, of which k and the other extent are as short."""
USUAL = {
    "VG": 4, "VW": 4, "PAD": 4, "ZORDER": 1, "GROUP_M": 8, "LOCAL_A": 1, "LOCAL_B": 1,
    "TURN_A": 0, "TURN_B": 0, "STAGES": 2, "AHEAD": 1, "KU": 0, "PACK": 1, "SPLIT": 64,
    "SLICED_K": 1, "AUTO": 0,
}  # fmt: skip
"""The usual design, but for its tile."""


def divides(width: int, itemsize: int, traits: DeviceTraits, *numbers: int) -> bool:
    """Tell whether all addresses of vectors are multiples of their width."""
    aligned = ALIGNMENT if traits.unified_memory else width * itemsize
    return width * itemsize <= aligned and not any(number % width for number in numbers)


def vector_width(traits: DeviceTraits, g: Gemm, width: int) -> int:
    """Return `width` if operands can be read where they lie in vectors of that many, or 1."""
    steps_a = (g.k if g.trans_a else g.m, g.lda, g.stride_a, g.offset_a)
    steps_b = (g.n if g.trans_b else g.k, g.ldb, g.stride_b, g.offset_b)
    itemsize = precision_of(g).itemsize
    return width if g.aligned and divides(width, itemsize, traits, *steps_a, *steps_b) else 1


def local_elements(p: Mapping[str, int]) -> int:
    """Count the elements of local memory that a work-group has."""
    tile_a = p["MC"] * (p["KC"] + p["PAD"]) if p["TURN_A"] else p["KC"] * (p["MC"] + p["PAD"])
    tile_b = p["NC"] * (p["KC"] + p["PAD"]) if p["TURN_B"] else p["KC"] * (p["NC"] + p["PAD"])
    at_b = round_up(p["STAGES"] * p["LOCAL_A"] * tile_a, 16)
    stages = at_b + p["STAGES"] * p["LOCAL_B"] * tile_b
    sums = p["SLICED_K"] * p["MC"] * p["NC"] // 2 if p["SLICED_K"] > 1 else 0
    return max(stages, sums)


def fitted(traits: DeviceTraits, g: Gemm, config: Config) -> dict[str, int]:
    """Give the parameters that a problem runs with: of a tile that suits its size."""
    if config["AUTO"] and _is_known(traits, g, config["VG"]):
        known, _ = _best_known(traits, g, dict(config.params))
        if known is not None:
            return known
    p = _cut(traits, g, config)
    spread = most_parts(traits, g, p) == 1 and min(g.m, g.n, g.k) >= LEAST_RATED
    return _best_rated(traits, g, p) if config["AUTO"] and spread else p


def known_seconds(traits: DeviceTraits, g: Gemm) -> float:
    """Estimate what a problem takes with a known tile; infinite if it gets another one.

    Half of 1400 times of what is shallow were within 5 % of it, nine tenths within 15 %.
    """
    if not _is_known(traits, g, USUAL["VG"]):
        return math.inf
    seconds = _best_known(traits, g, USUAL)[1]
    if _is_shallow(g):
        return SHALLOW_LAUNCH + math.hypot(seconds, g.operand_bytes / MEMORY_BYTES)
    return KNOWN_LAUNCH + seconds


def _is_known(traits: DeviceTraits, g: Gemm, widest: int) -> bool:
    """Tell whether a problem gets a tile of `KNOWN`, `STACKED` or `TALL`."""
    if g.precision not in KNOWN or not _is_small(g):
        return False
    if _is_shallow(g):
        return True
    reads_most = g.k <= SHORT and min(g.m, g.n) * g.k <= SHORT**2
    return reads_most or precision_of(g).is_complex or vector_width(traits, g, widest) == 1


def _is_shallow(g: Gemm) -> bool:
    """Tell whether a problem is a stack of small matrices, or as long one way as they all are."""
    if g.k >= LEAST_RATED:
        return False
    if g.batch > 1:
        return max(g.m, g.n) < LEAST_RATED
    return min(g.m, g.n) < LEAST_RATED and g.m * g.n >= LEAST_SHALLOW


def _reading(traits: DeviceTraits, g: Gemm) -> float:
    """Say how much longer a step takes than with operands read in vectors that lie across k."""
    if vector_width(traits, g, ALIGNMENT // precision_of(g).itemsize) == 1:
        return 1 + BY_ELEMENT[g.precision]
    return 1 + (g.trans_a + (not g.trans_b)) * ALONG_K[g.precision]


def _is_small(g: Gemm) -> bool:
    """Tell whether large tiles would be few, or panels of operands read too seldom."""
    return g.k < LEAST_RATED or g.m * g.n < LEAST_RATED * (g.m + g.n)


def _best_known(
    traits: DeviceTraits, g: Gemm, p: dict[str, int]
) -> tuple[dict[str, int] | None, float]:
    """Take the known tile, and the parts of k, with which a problem is done first, and when.

    Such products are not packed: too few macro-tiles would read a panel.
    """
    itemsize, multiplications = precision_of(g).itemsize, precision_of(g).multiplications
    known, ends, reading = KNOWN, ENDS, 1.0
    if _is_shallow(g):
        known, ends = STACKED if g.batch > 1 else TALL, SHALLOW_ENDS
        reading = _reading(traits, g)
    best: dict[str, int] | None = None
    least = math.inf
    for tile in known[g.precision]:
        q = p | tile.params
        if (
            local_elements(q) * itemsize > traits.local_memory
            or items(q) > traits.max_work_group_size
        ):
            continue
        tiles, area = count_tiles(g, q), q["MC"] * q["NC"]
        step = reading * area * multiplications * 2 * RATED_UNITS / (tile.tflops * 1e12)
        for parts in MORE_PARTS:
            if parts > min(q["SPLIT"], max(1, g.k // LEAST_PART)):
                continue
            groups = -(-tiles * parts // traits.compute_units)
            pace = ((groups * step) ** OVERLAP + tile.alone**OVERLAP) ** (1 / OVERLAP)
            seconds = (g.k / parts + ends * q["KC"]) * pace
            if parts > 1:
                seconds += _join_seconds(traits, g, q, parts)[1]
            if seconds < least:
                best, least = q | {"PARTS": parts, "PACK": 0}, seconds
    return best, least


def _join_seconds(
    traits: DeviceTraits, g: Gemm, p: Mapping[str, int], parts: int
) -> tuple[bool, float]:
    """Tell whether the last work-group of a macro-tile adds up its parts, and what adding takes."""
    launched = max(_launch_seconds(g, parts), JOIN + parts * PART)
    part = p["MC"] * p["NC"] * precision_of(g).itemsize / GATHERED
    gathered = TICKET + parts * max(part, PART)
    able = has_tickets(traits) and not g.triangle and count_tiles(g, p) <= TICKETS
    return (True, gathered) if able and gathered < launched else (False, launched)


def _launch_seconds(g: Gemm, parts: int) -> float:
    return JOIN + parts * g.m * g.n * g.batch * precision_of(g).itemsize / MOVED


def joins(traits: DeviceTraits, g: Gemm, p: Mapping[str, int], parts: int) -> bool:
    """Tell whether the last work-group of a macro-tile adds up its parts, without a launch."""
    return _join_seconds(traits, g, p, parts)[0]


def _best_rated(traits: DeviceTraits, g: Gemm, p: dict[str, int]) -> dict[str, int]:
    """Take the tile of `RATED` with which the busiest compute unit is done first."""

    def seconds(rated: Rated) -> float:
        turns = -(-count_tiles(g, rated.params) // traits.compute_units)
        rate = rated.tflops[bisect.bisect_right(TURNS, turns)]
        return turns * rated.params["MC"] * rated.params["NC"] / rate

    room, most = traits.local_memory, traits.max_work_group_size
    fitting = [
        r
        for r in RATED.get(g.precision, ())
        if items(p | r.params) <= most
        and local_elements(p | r.params) * precision_of(g).itemsize <= room
    ]
    return p | min(fitting, key=seconds).params if fitting else p


def _cut(traits: DeviceTraits, g: Gemm, config: Config) -> dict[str, int]:
    """Cut the macro-tile in half as often as it takes to share the work out evenly.

    Where the tile is twice as large as C the work-group gets smaller, elsewhere each work-item does
    half as much while that is worth its loads.
    """
    p = dict(config.params)
    for macro, extent in (("MC", g.m), ("NC", g.n)):
        while 2 * extent <= p[macro] and (half := _cut_group(p, macro, LEAST_ITEMS)):
            p = half
    chain = [p]
    while count_tiles(g, p) < MOST_TURNS * traits.compute_units:
        halves = [
            half
            for macro, micro in (("NC", "NR"), ("MC", "MR"))
            if (half := _cut_micro(traits, g, p, macro, micro) or _cut_group(p, macro, USUAL_ITEMS))
        ]
        if not halves:
            break
        # What leaves the tile nearer a square, then what wastes less at the edges.
        p = min(
            halves, key=lambda q: (abs(q["MC"] - q["NC"]), count_tiles(g, q) * q["MC"] * q["NC"])
        )
        chain.append(p)
    return min(chain, key=lambda q: _cost(traits, g, q, config))  # of equals the largest


def _cost(traits: DeviceTraits, g: Gemm, p: Mapping[str, int], config: Config) -> float:
    """Estimate the seconds of a problem with a cut tile."""
    micro = math.log2(config["MR"] * config["NR"] / (p["MR"] * p["NR"]))
    group = math.log2(items(dict(config.params)) / items(p))
    slower = float(HALF_MICRO**micro * HALF_GROUP**group)
    return _seconds(traits, g, p, most_parts(traits, g, p), slower)


def _seconds(
    traits: DeviceTraits, g: Gemm, p: Mapping[str, int], parts: int, slower: float = 1.0
) -> float:
    """Estimate the seconds of a problem from the macro-tiles of the busiest compute unit."""
    precision = precision_of(g)
    reals = precision.multiplications * (2 if precision.is_double else 1)
    turns = -(-count_tiles(g, p) * parts // traits.compute_units)
    seconds = turns * g.k * p["MC"] * p["NC"] * reals / parts / UNIT_RATE * slower
    if parts > 1:
        seconds += _launch_seconds(g, parts)
    return seconds


def _cut_group(p: dict[str, int], macro: str, least: int) -> dict[str, int] | None:
    """Halve a side of the macro-tile and with it the work-group."""
    half = p | {macro: p[macro] // 2}
    whole = half["MC"] % (p["MR"] * p["LANES_M"]) or half["NC"] % (p["NR"] * (32 // p["LANES_M"]))
    return half if not whole and items(half) >= least and _moves_evenly(half) else None


def _cut_micro(
    traits: DeviceTraits, g: Gemm, p: dict[str, int], macro: str, micro: str
) -> dict[str, int] | None:
    """Halve a side of the macro-tile and of the micro-tile; the slice may get deeper instead."""
    if p[micro] % (2 * p["VW"]) or p["MR"] * p["NR"] < 2 * LEAST_MICRO:
        return None
    half = p | {macro: p[macro] // 2, micro: p[micro] // 2}
    deeper = half | {"KC": min(MOST_DEPTH, 2 * p["KC"])}
    if local_elements(deeper) * precision_of(g).itemsize <= traits.local_memory:
        half = deeper
    return half if _moves_evenly(half) else None


def _moves_evenly(p: Mapping[str, int]) -> bool:
    vectors = p["VG"] * items(p)
    return not (p["MC"] % p["VG"] or p["NC"] % p["VG"]) and not (
        p["MC"] * p["KC"] % vectors or p["NC"] * p["KC"] % vectors
    )


def items(p: Mapping[str, int]) -> int:
    """Count the work-items of a group."""
    return p["MC"] // p["MR"] * (p["NC"] // p["NR"]) * p["SLICED_K"]


def most_parts(traits: DeviceTraits, g: Gemm, p: Mapping[str, int]) -> int:
    """Count the parts that k is split into: as many as keep the device busy, and pay.

    Each part more shortens a work-group's way along k, and moves C once more.
    """
    if "PARTS" in p:
        return p["PARTS"]
    wanted = PARTS_ITEMS * traits.compute_units // (count_tiles(g, p) * items(p))
    most = min(p["SPLIT"], wanted, g.k // LEAST_PART)
    if most <= 1:
        return 1

    def seconds(parts: int) -> float:
        turns = -(-count_tiles(g, p) * parts // traits.compute_units)
        idle = max(1.0, BUSY_ITEMS / (turns * items(p)))
        return _seconds(traits, g, p, parts, math.sqrt(idle))

    best = min((*(x for x in PARTS if x < most), most), key=seconds)
    return best if seconds(best) < WORTH * seconds(1) else 1


def count_tiles(g: Gemm, p: Mapping[str, int]) -> int:
    """Count the macro-tiles that are computed."""
    return count_macro_tiles(g, p["MC"], p["NC"])
