// nv_split: which worker computes which slices of which tile, and how a tile is computed.
//
// The product has one work-group ("worker") a compute unit.  The first `whole` tiles are dealt out
// one by one; the slices of all others, put in a row, are cut into equal pieces, one a worker
// (stream-K), so that no worker idles for long while others finish a last round:
//
//      tile 0            tile 1            tile 2
//      [ . . . . . . . ][ . . . . . . . ][ . . . . . . . ]      slices
//      |- worker 0 -|- worker 1 -|- worker 2 -|- worker 3 |     3/4 of a tile
//
// Pieces are simple fractions of a tile, so that many workers are at the same place of k at a time and
// find in the second-level cache what one of them has read.  A few workers may have no piece.
//
// Who computes a tile's first slice owns the tile: it adds what the next workers leave as partial
// tiles, in their order, so that results repeat bit by bit.  A worker's partial tile is always the
// first thing it does after its whole ones, hence waiting for it cannot end in a circle.
//
// Tiles of a strip of X that is at most half full ("thin") skip the products of the empty half; they
// come last and count two thirds.
//
// A Gram product has no tiles above the diagonal of C: from strip to strip of X the first strip of Y
// lies STAIR strips lower.

#ifndef GROUP
#define GROUP 8  // strips of X in a band of the raster: what the second-level cache holds
#endif

#define THICK 3  // what a slice costs, ...
#define THIN 2   // ... and of a thin tile

typedef struct {
    int tile;      // next whole one
    long at, end;  // slices left to this worker beyond the whole tiles
} Walk;

#ifndef TRIANGLE
#define TRIANGLE 0  // 1: a Gram product; known to the compiler, since complex ones lose 9 % otherwise
#endif
#define STAIR (TRIANGLE * (BX / ROWS_Y))

// Tiles of one C in the first `strips` strips of X.
INLINE int tiles_before(const Gemm *g, const Split *s, int strips)
{
    return strips * s->strips_y - STAIR * (strips * (strips - 1) / 2);
}

INLINE int thick_tiles(const Gemm *g, const Split *s)
{
    return (int)g->batch * tiles_before(g, s, s->strips_x - s->thin);
}

// Tiles of one C in its last strip of X.
INLINE int last_tiles(const Gemm *g, const Split *s)
{
    return s->strips_y - STAIR * (s->strips_x - 1);
}

// The first slice of a worker's piece, counted over all tiles.
INLINE long piece_start(const Gemm *g, const Split *s, int worker)
{
    const long thick = (long)thick_tiles(g, s) * s->slices;
    const long thin = s->thin * g->batch * last_tiles(g, s) * s->slices;
    const long whole = (long)s->whole * s->slices;
    if (whole >= thick + thin)
        return whole;
    const long shared = THICK * (thick - whole);
    const long cost =
        min(shared + THIN * thin, (long)worker * s->piece * THICK * s->slices / s->pieces);
    return cost < shared ? whole + cost / THICK : thick + (cost - shared) / THIN;
}

INLINE Walk start_walk(const Gemm *g, const Split *s, int worker)
{
    Walk w;
    w.tile = worker;
    w.at = piece_start(g, s, worker);
    w.end = piece_start(g, s, worker + 1);
    return w;
}

INLINE void place_tile(const Gemm *g, const Split *s, int tile, Segment *segment)
{
    const int thick = thick_tiles(g, s), strips_x = s->strips_x - s->thin;
    if (tile < thick) {
        const int tiles = tiles_before(g, s, strips_x);
        int t = tile % tiles, x0 = t / (GROUP * s->strips_y) * GROUP;
        while (TRIANGLE && x0 + GROUP < strips_x && t >= tiles_before(g, s, x0 + GROUP))
            x0 += GROUP;
        t -= tiles_before(g, s, x0);
        const int most = min(strips_x - x0, GROUP);
        // The first strips of Y in the band meet fewer strips of X.
        int width = TRIANGLE ? 1 : most, y0 = STAIR * x0;
        for (; TRIANGLE && width < most && t >= STAIR * width; width++) {
            t -= STAIR * width;
            y0 += STAIR;
        }
        segment->entry = tile / tiles;
        segment->x = x0 + t % width;
        segment->y = y0 + t / width;
    } else {
        const int tiles = last_tiles(g, s);
        segment->entry = (tile - thick) / tiles;
        segment->x = strips_x;
        segment->y = s->strips_y - tiles + (tile - thick) % tiles;
    }
    segment->copy_x = s->copies_x > 1 ? segment->entry : 0;
    segment->copy_y = s->copies_y > 1 ? segment->entry : 0;
}

// What the records of a tile's two strips allow.
INLINE int tile_mode(const Split *s, __global const uchar *scratch, const Segment *t)
{
    __global const int2 *x = (__global const int2 *)(scratch + s->records_x) +
                             (t->copy_x * s->strips_x + t->x) * (ROWS_X / RECORD_ROWS);
    __global const int2 *y = (__global const int2 *)(scratch + s->records_y) +
                             (t->copy_y * s->strips_y + t->y) * (ROWS_Y / RECORD_ROWS);
    int2 of_x = x[0], of_y = y[0];
    UNROLL
    for (int i = 1; i < ROWS_X / RECORD_ROWS; i++)
        of_x = max(of_x, x[i]);
    UNROLL
    for (int i = 1; i < ROWS_Y / RECORD_ROWS; i++)
        of_y = max(of_y, y[i]);
    const int spread = max(of_x.y, of_y.y);
    if (of_x.x + of_y.x >= s->top_limit)
        return MODE_FMA;
    if (spread <= s->spread_fp16)
        return MODE_FP16;
    return spread <= SPREAD_BF16 && of_x.y + of_y.y <= SPREADS_BF16 ? MODE_BF16 : MODE_FMA;
}

INLINE Segment next_segment(const Gemm *g, const Split *s, Walk *w, __global const uchar *scratch)
{
    Segment next;
    int tile;
    if (w->tile < s->whole) {
        tile = w->tile;
        w->tile += s->workers;
        next.first = 0;
        next.last = s->slices;
    } else if (w->at < w->end) {
        tile = (int)(w->at / s->slices);
        next.first = (int)(w->at % s->slices);
        next.last = (int)min((long)s->slices, next.first + w->end - w->at);
        w->at += next.last - next.first;
    } else {
        next.mode = MODE_END;
        return next;
    }
    place_tile(g, s, tile, &next);
    next.mode = tile_mode(s, scratch, &next);
    return next;
}
