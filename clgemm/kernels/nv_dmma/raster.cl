// nv_dmma: which macro-tile a work-group computes, and which slices a worker.  Plain OpenCL C.

#ifndef GROUP_M
#define GROUP_M 8  // macro-tiles in a band of the raster
#endif

// A macro-tile: its place among those of an entry of the stack, and the entry.
typedef struct {
    int m, n;
    long entry;
} Place;

// Raster: bands of GROUP_M macro-tiles along M, walked along N.  Unsigned numbers divide faster.
INLINE Place place_of(uint group, uint tiles_m, uint tiles_n)
{
    const uint entry = group / (tiles_m * tiles_n), tile = group - entry * (tiles_m * tiles_n);
    const uint band = tile / (GROUP_M * tiles_n), rest = tile - band * (GROUP_M * tiles_n);
    const uint height = min(tiles_m - band * GROUP_M, (uint)GROUP_M), column = rest / height;
    const Place place = {band * GROUP_M + rest - column * height, column, entry};
    return place;
}

// The same of those that do not lie above the diagonal, counted down the columns.
INLINE Place place_below(uint group, uint tiles_m, uint tiles_n)
{
    uint each = 0, count = 0, column = 0;
    for (uint j = 0; j < tiles_n; j++)
        each += tiles_m - min(tiles_m, j * NC / MC);
    const uint entry = group / each;
    uint rest = group - entry * each;
    for (; column < tiles_n; column++) {
        count = tiles_m - min(tiles_m, column * NC / MC);
        if (rest < count)
            break;
        rest -= count;
    }
    const Place place = {tiles_m - count + rest, column, entry};
    return place;
}

// The first of the slices that a worker's piece has.
INLINE int piece_start(int slices, int workers, int worker)
{
    return slices / workers * worker + min(worker, slices % workers);
}
