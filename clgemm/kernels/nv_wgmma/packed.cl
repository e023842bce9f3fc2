// nv_wgmma: the producer of packed planes, one work-item, by bulk copies.

#define PRODUCERS 1
#define ARRIVALS 1
#define MAPS_BYTES 0
#define PRODUCER_REGISTERS "24"
#define MULTIPLIER_REGISTERS "240"

INLINE void produce(const Gemm *g, const Packed *s, __global const INTEGER *a,
                    __global const INTEGER *b, __global uchar *scratch, uint slots, uint full,
                    uint empty)
{
    const long plane_x = (long)s->strips_x * s->slices * (BX * ROW_BYTES);
    const long plane_y = (long)s->strips_y * s->slices * (BY * ROW_BYTES);
    const int tiles = s->strips_x * s->strips_y * (int)g->batch, passes = count_passes(s);
    Turn turn = {0, 1};  // the first wait on a fresh barrier returns at once
    for (int tile = get_group_id(0); tile < tiles; tile += s->workers) {
        const Tile t = place_tile(s, tile);
        // Blocks of 64 rows beyond n are not copied.  What the slot held before may be multiplied in
        // their place: it only reaches rows of the result that are never stored.
        const uint rows = (uint)min((long)BX, (g->n - (long)t.strip_x * BX + 63) / 64 * 64);
        for (int number = 0; number < passes; number++) {
            const Pass p = place_pass(s, number);
            for (int level = p.high; level >= p.low; level--)
                for (int i = 0; i <= level; i++) {
                    __global const uchar *x = scratch + t.x + i * plane_x;
                    __global const uchar *y = scratch + t.y + (level - i) * plane_y;
                    for (int slice = p.first; slice < p.last; slice++) {
                        const uint slot = slots + turn.stage * SLOT;
                        const uint ready = full + turn.stage * 8;
                        mbarrier_wait(empty + turn.stage * 8, turn.parity);
                        mbarrier_expect(ready, (rows + BY) * ROW_BYTES);
                        bulk_copy(slot, x + (long)slice * (BX * ROW_BYTES), rows * ROW_BYTES,
                                  ready);
                        bulk_copy(slot + BX * ROW_BYTES, y + (long)slice * (BY * ROW_BYTES),
                                  BY * ROW_BYTES, ready);
                        next_turn(&turn);
                    }
                }
        }
    }
}
