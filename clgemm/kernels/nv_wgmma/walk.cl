// nv_wgmma: which worker computes which tiles, in which passes, and the ring of slots.

#ifndef STAGES
#define STAGES 3
#endif
#ifndef GROUP
#define GROUP 16  // strips of Y in a band of the raster: what the second-level cache holds
#endif

#ifndef STEPS
#define STEPS 4  // of 16 along k of halves, that the tensor cores add up: 2, 4, or a multiple of 4
#endif
#define TOGETHER (STEPS < 4 ? 1 : STEPS / 4)  // slices that they make up; divides a strip's
#define PARTS (STEPS < 4 ? 4 / STEPS : 1)     // of a slice, that they make up one by one

#define SLOT ((BX + BY) * ROW_BYTES)
#define EXACT 255  // slices of four digit products whose sum is below 2^31

// Where the producer or a multiplier stands in the ring of slots.
typedef struct {
    int stage;
    uint parity;
} Turn;

INLINE void next_turn(Turn *turn)
{
    if (++turn->stage == STAGES) {
        turn->stage = 0;
        turn->parity ^= 1;
    }
}

typedef struct {
    long x, y;  // bytes from scratch to plane 0, slice 0 of both strips
    int entry, strip_x, strip_y;
} Tile;

INLINE Tile place_tile(const Packed *s, int tile)
{
    const int tiles = s->strips_x * s->strips_y, band = GROUP * s->strips_x;
    Tile t;
    t.entry = tile / tiles;
    tile %= tiles;
    const int first = tile / band * GROUP, width = min(s->strips_y - first, GROUP);
    tile %= band;
    t.strip_x = tile / width;  // neighbours share X, whose strips are the larger ones
    t.strip_y = first + tile % width;
    const long copy_x = s->copies_x > 1 ? t.entry : 0, copy_y = s->copies_y > 1 ? t.entry : 0;
    t.x = (copy_x * PLANES * s->strips_x + t.strip_x) * s->slices * (BX * ROW_BYTES);
    t.y = s->at_y + (copy_y * PLANES * s->strips_y + t.strip_y) * s->slices * (BY * ROW_BYTES);
    return t;
}

// Some levels and slices of a tile, and by how many bits their sum is shifted.
typedef struct {
    int high, low;
    int first, last;
    int shift;
} Pass;

INLINE int count_passes(const Packed *s)
{
    return PLANES <= 4 ? 1 : 1 + (PLANES - 4) * ((s->slices + EXACT - 1) / EXACT);
}

INLINE Pass place_pass(const Packed *s, int number)
{
    Pass p = {PLANES - 1, PLANES <= 4 ? 0 : 4, 0, s->slices, PLANES <= 4 ? 0 : 32};
    if (number > 0) {
        const int cuts = (s->slices + EXACT - 1) / EXACT;
        p.high = p.low = 3 - (number - 1) / cuts;
        p.first = (number - 1) % cuts * EXACT;
        p.last = min(s->slices, p.first + EXACT);
        p.shift = 8 * p.low;
    }
    return p;
}
