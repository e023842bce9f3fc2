// nv_wgmma: the producer of halves that are read where they lie, a warpgroup, by copies of 16 bytes.
//
// A slot has the place of packed rows, 128 bytes each: rows of X or Y with 64 of k along them where k is
// contiguous.  Otherwise blocks of 64 such rows are 64 rows of k with 64 rows of X or Y along them.

#define PRODUCERS 128
#define PRODUCER_REGISTERS "40"
#define MULTIPLIER_REGISTERS "232"
#ifndef LAG
#define LAG 1  // slots that are under way while another one is asked for
#endif

// What a work-item copies of a strip.
typedef struct {
    __global const INTEGER *from;  // its first chunk of the slice to come
    long ld;
    int rows, depth;  // inside, beyond that chunk's first
} Copies;

INLINE Copies start_copies(__global const INTEGER *x, long ld, const int along_k, long row, long rows,
                           long k)
{
    const int line = (get_local_id(0) & 127) / 8, chunk = get_local_id(0) % 8;
    const long down = row + (along_k ? line : chunk * 8), deep = along_k ? chunk * 8 : line;
    Copies c;
    c.from = x + (along_k ? down * ld + deep : down + deep * ld);
    c.ld = ld;
    c.rows = (int)(rows - down);
    c.depth = (int)(k - deep);
    return c;
}

INLINE uint bytes_of(int elements)
{
    return (uint)clamp(elements, 0, 8) * 2;
}

// A slice of `tall` rows into local memory.
INLINE void copy_slice(Copies *c, const int tall, const int along_k, uint to)
{
    const int line = (get_local_id(0) & 127) / 8, chunk = get_local_id(0) % 8;
    to += line * ROW_BYTES + (chunk ^ line % 8) * 16;
    if (along_k) {
        const uint valid = bytes_of(c->depth);
        UNROLL
        for (int u = 0; u < tall / 16; u++)
            async_copy16(to + u * (16 * ROW_BYTES), c->from + u * 16 * c->ld,
                         u * 16 < c->rows ? valid : 0);
        c->from += DEPTH;
    } else {
        UNROLL
        for (int u = 0; u < tall / 16; u++)
            async_copy16(to + u * (16 * ROW_BYTES), c->from + u / 4 * 64 + u % 4 * 16 * c->ld,
                         u % 4 * 16 < c->depth ? bytes_of(c->rows - u / 4 * 64) : 0);
        c->from += DEPTH * c->ld;
    }
    c->depth -= DEPTH;
}

// The copies of a slot have landed: let the tensor cores see them, and tell.
INLINE void deliver(uint ready)
{
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    mbarrier_arrive(ready);
}

INLINE void produce(const Gemm *g, const Packed *s, __global const INTEGER *a,
                    __global const INTEGER *b, __global const uchar *scratch, uint slots, uint full,
                    uint empty)
{
    const int tiles = s->strips_x * s->strips_y * (int)g->batch;
    Turn turn = {0, 1}, landed = {0, 0};  // the first wait on a fresh barrier returns at once
    int ahead = 0;
    for (int tile = get_group_id(0); tile < tiles; tile += s->workers) {
        const Tile t = place_tile(s, tile);
        Copies x = start_copies(b + g->offset_b + t.entry * g->stride_b, g->ldb, ALONG_K_X,
                                (long)t.strip_x * BX, g->n, g->k);
        Copies y = start_copies(a + g->offset_a + t.entry * g->stride_a, g->lda, ALONG_K_Y,
                                (long)t.strip_y * BY, g->m, g->k);
        for (int slice = 0; slice < s->slices; slice++) {
            const uint slot = slots + turn.stage * SLOT;
            mbarrier_wait(empty + turn.stage * 8, turn.parity);
            copy_slice(&x, BX, ALONG_K_X, slot);
            copy_slice(&y, BY, ALONG_K_Y, slot + BX * ROW_BYTES);
            async_copy_commit();
            next_turn(&turn);
            if (ahead++ >= LAG) {
                ASYNC_COPY_WAIT(LAG);
                deliver(full + landed.stage * 8);
                next_turn(&landed);
            }
        }
    }
    ASYNC_COPY_WAIT(0);
    for (int left = min(ahead, LAG); left > 0; left--) {
        deliver(full + landed.stage * 8);
        next_turn(&landed);
    }
}
