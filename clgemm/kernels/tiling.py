"""Which tile `gpu_tiled` takes for a problem, and into how many parts it splits k."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from clgemm.kernels.family import precision_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from clgemm.kernels.family import Config
    from clgemm.problem import Gemm
    from clgemm.traits import DeviceTraits

HALF_MICRO = 1.15  # how much longer a product takes with a micro-tile of half the size,
HALF_GROUP = 1.06  # or with half as many work-items
MOST_TURNS = 8  # macro-tiles a compute unit from which on a cut tile shares nothing out better
PARTS_ITEMS = 256  # work-items a compute unit that k is split for: they hide each other's waits
LEAST_PART = 1024  # k of a part at least: adding parts costs a launch and moves C twice a part
LEAST_MICRO = 16  # elements of a micro-tile that is cut no further: loads would outweigh products
LEAST_ITEMS = 64  # of a work-group
USUAL_ITEMS = 128  # below, groups are too small to win by sharing out better
MOST_DEPTH = 32  # KC of a tile that was cut: fewer barriers for what little lies between them


def local_elements(p: Mapping[str, int]) -> int:
    """Count the elements of local memory that a work-group has."""
    tile_a = p["MC"] * (p["KC"] + p["PAD"]) if p["TURN_A"] else p["KC"] * (p["MC"] + p["PAD"])
    tile_b = p["NC"] * (p["KC"] + p["PAD"]) if p["TURN_B"] else p["KC"] * (p["NC"] + p["PAD"])
    return p["STAGES"] * (p["LOCAL_A"] * tile_a + p["LOCAL_B"] * tile_b)


def fitted(traits: DeviceTraits, g: Gemm, config: Config) -> dict[str, int]:
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
    """Estimate the time of a problem from the macro-tiles of the busiest compute unit."""
    parts = most_parts(traits, g, p)
    turns = -(-count_tiles(g, p) * parts // traits.compute_units)
    micro = math.log2(config["MR"] * config["NR"] / (p["MR"] * p["NR"]))
    group = math.log2(items(dict(config.params)) / items(p))
    slower = float(HALF_MICRO**micro * HALF_GROUP**group)
    return turns * p["MC"] * p["NC"] / parts * slower


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
    return p["MC"] // p["MR"] * (p["NC"] // p["NR"])


def most_parts(traits: DeviceTraits, g: Gemm, p: Mapping[str, int]) -> int:
    """Count the parts that k is split into: as many as it takes to keep the device busy."""
    wanted = PARTS_ITEMS * traits.compute_units // (count_tiles(g, p) * items(p))
    return max(1, min(p["SPLIT"], wanted, g.k // LEAST_PART))


def count_tiles(g: Gemm, p: Mapping[str, int]) -> int:
    """Count the macro-tiles of a problem."""
    return -(-g.m // p["MC"]) * -(-g.n // p["NC"]) * g.batch
