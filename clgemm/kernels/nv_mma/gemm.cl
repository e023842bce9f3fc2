// nv_mma, third kernel: the products, by mma.sync.  Needs nv_async.cl and nv_mma/mma.cl.
//
// A worker is eight warps, which copy 32 reals of k of both strips at a time into local memory, some
// stages ahead, and multiply them:
//
//      slot   X part 0 [BX][32] | X part 1 | Y part 0 [BY][32] | Y part 1           fp16
//             X part 0 [BX][32] | 1 | 2    | Y part 0 [BY][32] | 1 | 2              bf16
//
// A slot has two barriers (nv_async.cl), so that warps need not keep step: what one waits for another
// one uses to multiply.  The three ways to compute a tile are those of nv_split/gemm.cl.  The tensor
// cores add up the large products of a stage, and the small ones of fp16, which count 2^-11, of a
// whole segment; all else is summed in fp32.  While a tile is stored the first stages of the next
// segment are on their way.

#ifndef STAGES
#define STAGES 2
#endif

#define SLOT ((BX + BY) * 192)
#define RING 4  // segments: the next, the one that is computed, the one that a late warp stores

// What is left to copy of a segment.  A work-item copies a chunk of 16 bytes of each 64 rows.
typedef struct {
    __global const uchar *x, *y;  // the next slice
    uint from, to;                // this work-item's chunk of 64 rows, there and in a slot
    int left;                     // stages
} Copies;

// A place in the ring of slots.
typedef struct {
    int slot;
    uint parity;
} Turn;

INLINE void next_turn(Turn *turn)
{
    if (++turn->slot == STAGES) {
        turn->slot = 0;
        turn->parity ^= 1;
    }
}

// Start the copies of one stage, if one is left: a slice of bf16, or half a slice of fp16.
INLINE void copy_stage(Copies *c, Turn *turn, uint slots, uint barriers, const int parts)
{
    const int width = parts == 2 ? 128 : 64;
    if (c->left == 0)
        return;
    const uint to = slots + turn->slot * SLOT + c->to, full = barriers + turn->slot * 8;
    mbarrier_wait(full + STAGES * 8, turn->parity);
    UNROLL
    for (int i = 0; i < parts * BX / 64; i++)
        async_copy16(to + i * 4096, c->x + c->from + i * (64 * width), 16);
    UNROLL
    for (int i = 0; i < parts * BY / 64; i++)
        async_copy16(to + (parts * BX / 64 + i) * 4096, c->y + c->from + i * (64 * width), 16);
    mbarrier_arrive_after_copies(full);
    c->left--;
    if (parts == 2)
        c->from ^= 64;
    if (parts == 3 || !(c->left & 1)) {
        c->x += BX * width * parts;
        c->y += BY * width * parts;
    }
    next_turn(turn);
}

// Start the first stages of a segment.
INLINE Copies start_segment(const Split *s, __local const Segment *t, __global const uchar *scratch,
                            Turn *turn, uint slots, uint barriers)
{
    const int item = get_local_id(0);
    const long x = ((long)t->copy_x * s->strips_x + t->x) * s->slices + t->first;
    const long y = ((long)t->copy_y * s->strips_y + t->y) * s->slices + t->first;
    Copies c;
    c.left = 2 * (t->last - t->first);
    if (t->mode == MODE_FP16) {
        c.x = scratch + s->fp16_x + x * (BX * 256);
        c.y = scratch + s->fp16_y + y * (BY * 256);
        c.from = place_in_panel(item);
        c.to = place_in_slot(item);
#pragma unroll 1
        for (int i = 0; i < STAGES - 1; i++)
            copy_stage(&c, turn, slots, barriers, 2);
    } else if (t->mode == MODE_BF16) {
        c.x = scratch + s->bf16_x + x * (BX * 384);
        c.y = scratch + s->bf16_y + y * (BY * 384);
        c.from = c.to = item * 16;  // panels of bf16 are slots already
#pragma unroll 1
        for (int i = 0; i < STAGES - 1; i++)
            copy_stage(&c, turn, slots, barriers, 3);
    }
    return c;
}

// Copy the exponents that the owner of a tile needs; a barrier follows before they are read.
INLINE void copy_exponents(const Split *s, __local const Segment *t, __global const uchar *scratch,
                           __local int *to)
{
    const long x = (long)t->copy_x * s->strips_x + t->x, y = (long)t->copy_y * s->strips_y + t->y;
    __global const int *ex = (__global const int *)(scratch + s->exponents_x) + x * ROWS_X;
    __global const int *ey = (__global const int *)(scratch + s->exponents_y) + y * ROWS_Y;
    for (int i = get_local_id(0); i < EXPONENTS; i += 256)
        to[i] = i < ROWS_X ? ex[i] : ey[i - ROWS_X];
}

// Load what a warp multiplies of a slot: its rows of X, a group of its rows of Y.
#define LOAD_X(parts)                                                                          \
    UNROLL for (int d = 0; d < 2; d++) UNROLL for (int part = 0; part < parts; part++)         \
        UNROLL for (int i = 0; i < BLOCKS; i++)                                                \
            LOAD_MATRICES(x[d][part][i], (x_at ^ d * 32) + part * (BX * 64) + i * 1024);
#define LOAD_Y(parts)                                                                          \
    UNROLL for (int d = 0; d < 2; d++) UNROLL for (int part = 0; part < parts; part++)         \
        LOAD_MATRICES(y[d][part], (y_at ^ d * 32) + part * (BY * 64) + j * 1024);

// Four independent products, of both blocks of X with both halves of a group of Y.
#define FOUR_TIMES UNROLL for (int u = 0; u < 4; u++)
#define X(part) x[d][part][u / 2]
#define Y(part) (y[d][part] + u % 2 * 2)
#define OF(array) (array[u / 2] + j * 8 + u % 2 * 4)
#define FIRST_OR_ADD(type, px, py)                                                             \
    if (d == 0)                                                                                \
        FOUR_TIMES MMA(type, sum[u], X(px), Y(py));                                            \
    else                                                                                       \
        FOUR_TIMES MMA_ADD(type, sum[u], X(px), Y(py));
#define ADD_UP() FOUR_TIMES UNROLL for (int q = 0; q < 4; q++) OF(acc)[q] += sum[u][q];

// One stage; halfway through the copies of another one are started.
#define MULTIPLY_FP16                                                                          \
    {                                                                                          \
        uint x[2][2][BLOCKS][4], y[2][2][4];                                                   \
        LOAD_X(2)                                                                              \
        UNROLL for (int j = 0; j < FOURS; j++)                                                 \
        {                                                                                      \
            float sum[4][4];                                                                   \
            LOAD_Y(2)                                                                          \
            if (j == FOURS / 2)                                                                \
                copy_stage(&copies, &fills, slots, barriers, 2);                               \
            UNROLL for (int d = 0; d < 2; d++)                                                 \
            {                                                                                  \
                FOUR_TIMES MMA_ADD("f16", OF(small), X(1), Y(0));                              \
                FIRST_OR_ADD("f16", 0, 0)                                                      \
                FOUR_TIMES MMA_ADD("f16", OF(small), X(0), Y(1));                              \
            }                                                                                  \
            ADD_UP()                                                                           \
        }                                                                                      \
    }
#define MULTIPLY_BF16                                                                          \
    {                                                                                          \
        uint x[2][3][BLOCKS][4], y[2][3][4];                                                   \
        LOAD_X(3)                                                                              \
        UNROLL for (int j = 0; j < FOURS; j++)                                                 \
        {                                                                                      \
            float sum[4][4];                                                                   \
            LOAD_Y(3)                                                                          \
            if (j == FOURS / 2)                                                                \
                copy_stage(&copies, &fills, slots, barriers, 3);                               \
            UNROLL for (int d = 0; d < 2; d++)                                                 \
            {                                                                                  \
                FIRST_OR_ADD("bf16", 2, 0)                                                     \
                FOUR_TIMES MMA_ADD("bf16", sum[u], X(0), Y(2));                                \
                FOUR_TIMES MMA_ADD("bf16", sum[u], X(1), Y(1));                                \
                FOUR_TIMES MMA_ADD("bf16", sum[u], X(1), Y(0));                                \
                FOUR_TIMES MMA_ADD("bf16", sum[u], X(0), Y(1));                                \
                FOUR_TIMES MMA_ADD("bf16", sum[u], X(0), Y(0));                                \
            }                                                                                  \
            ADD_UP()                                                                           \
        }                                                                                      \
    }

// All stages of a segment.  A warp whose rows of X are all beyond n only copies.
#define MULTIPLY_SEGMENT(parts, multiply)                                                      \
    for (int left = 2 * (t->last - t->first); left > 0; left--) {                              \
        const uint full = barriers + reads.slot * 8;                                           \
        const uint x_at = at_x + reads.slot * SLOT;                                            \
        const uint y_at = at_y + reads.slot * SLOT + parts * (BX * 64);                        \
        mbarrier_wait(full, reads.parity);                                                     \
        if (idle)                                                                              \
            copy_stage(&copies, &fills, slots, barriers, parts);                               \
        else                                                                                   \
            multiply                                                                           \
        warp_sync();                                                                           \
        if (lane == 0)                                                                         \
            mbarrier_arrive(full + STAGES * 8);                                                \
        next_turn(&reads);                                                                     \
    }
#define FOR_ALL                                                                                \
    UNROLL for (int i = 0; i < BLOCKS; i++) UNROLL for (int q = 0; q < ACCUMULATORS; q++)

__kernel __attribute__((reqd_work_group_size(256, 1, 1)))
void nv_mma_gemm(GEMM_ARGS, const Split s, __global uchar *scratch)
{
    __local uchar slot_bytes[STAGES * SLOT] __attribute__((aligned(128)));
    __local ulong barrier_words[2 * STAGES];  // full ones, then empty ones
    __local Segment ring[RING];
    __local int exponents[2 * EXPONENTS] __attribute__((aligned(16)));  // a late warp stores still
    __local Walk walk;
    const int item = get_local_id(0), lane = item & 31;
    const uint slots = LOCAL_ADDRESS(slot_bytes), barriers = LOCAL_ADDRESS(barrier_words);
    const uint at_x = slots + WARP_X(item) * WARP_ROWS_X * 64 + place_x(lane);
    const uint at_y = slots + WARP_Y(item) * WARP_ROWS_Y * 64 + place_y(lane);
    if (item == 0) {
        for (int i = 0; i < STAGES; i++) {
            mbarrier_init(barriers + i * 8, 256);
            mbarrier_init(barriers + (STAGES + i) * 8, 8);
        }
        Walk w = start_walk(&g, &s, get_group_id(0));
        ring[0] = next_segment(&g, &s, &w, scratch);
        walk = w;
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    Turn reads = {0, 0}, fills = {0, 1};  // the first wait on a fresh barrier returns at once
    Copies copies = start_segment(&s, ring, scratch, &fills, slots, barriers);
    for (int number = 0;; number++) {
        __local const Segment *t = ring + number % RING, *next = ring + (number + 1) % RING;
        const int mode = t->mode;
        if (mode == MODE_END)
            break;
        if (item == 0) {
            Walk w = walk;
            ring[(number + 1) % RING] = next_segment(&g, &s, &w, scratch);
            walk = w;
        }
        __local int *own = exponents + number % 2 * EXPONENTS;
        if (mode < MODE_FMA && t->first == 0)
            copy_exponents(&s, t, scratch, own);
        const int idle = (long)t->x * BX + WARP_X(item) * WARP_ROWS_X >= g.n;
        float acc[BLOCKS][ACCUMULATORS];
        FOR_ALL acc[i][q] = 0;
        if (mode == MODE_FP16) {
            float small[BLOCKS][ACCUMULATORS];
            FOR_ALL small[i][q] = 0;
            MULTIPLY_SEGMENT(2, MULTIPLY_FP16)
            FOR_ALL acc[i][q] = fma(small[i][q], 0x1p-11f, acc[i][q]);
        } else if (mode == MODE_BF16) {
            MULTIPLY_SEGMENT(3, MULTIPLY_BF16)
        } else {
            __local float *fma_x = (__local float *)slot_bytes;
            fma_segment(acc, &g, a, b, t, fma_x, fma_x + FMA_DEPTH * BX);
        }
        barrier(CLK_LOCAL_MEM_FENCE);  // the slots are free, the next segment is known
        copies = start_segment(&s, next, scratch, &fills, slots, barriers);
        finish_segment(acc, &g, &s, t, own, scratch, c, alpha, beta);
    }
}
