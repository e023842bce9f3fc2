// nv_wgmma, last kernel: the products.  Needs nv_async.cl, nv_wgmma/wgmma.cl and walk.cl, and a producer,
// which is nv_wgmma/packed.cl or direct.cl.
//
// A worker has three warpgroups.  PRODUCERS work-items of the third copy slices of planes of both strips
// into local memory, STAGES of them ahead; the first two multiply, each MI blocks of 64 rows of X by BY
// of Y.  A tile of C is computed in passes, each of some levels, the highest first: when a level is done
// the sums are shifted by a digit, and the next lower level is added to them.  Up to 32 bits one pass
// does, since sums wrap around as C does.  Of 64 bits the four upper levels make up the upper half of
// C, as one pass; each of the lower ones is a pass of its own, cut along k such that no sum overflows,
// and what it finds is added to C.

// RUN neighbours of C: 16 bytes, or 4.
#if DIRECT
typedef uint Whole;
#else
typedef uint4 Whole;
#endif
typedef union {
    Whole whole;
    INTEGER e[RUN];
} Run;

INLINE INTEGER element_of(SUM sum, int shift)
{
#if IS_HALF
    INTEGER rounded;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(rounded) : "f"(sum));
    return rounded;
#elif IS_BOOL
    return sum != 0;
#elif BITS == 64
    return (INTEGER)(long)sum << shift;
#else
    return (INTEGER)sum;
#endif
}

// What a pass found, to C or added to it.
INLINE void store(SUM acc[MI][ACCUMULATORS], const Gemm *g, const Tile *t, __global INTEGER *c,
                  int shift, int adds)
{
    const int item = get_local_id(0);
    const long ldc = g->ldc;
    const long row = (long)t->strip_x * BX + (item >> 7) * (MI * 64) + (item >> 5 & 3) * 16 +
                     (item >> 2 & 7);
    const long column = (long)t->strip_y * BY + (item & 3) * RUN;
    c += g->offset_c + t->entry * g->stride_c + row * ldc + column;
    const int wide = ((ulong)c & (sizeof(Run) - 1)) == 0 && ldc % RUN == 0;
    UNROLL
    for (int i = 0; i < MI; i++)
        UNROLL
        for (int h = 0; h < 2; h++) {
            const int down = i * 64 + h * 8;
            if (row + down >= g->n)
                continue;
            UNROLL
            for (int u = 0; u < BY / (4 * RUN); u++) {
                __global INTEGER *to = c + down * ldc + u * (4 * RUN);
                const long left = g->m - column - u * (4 * RUN);
                Run run;
                UNROLL
                for (int r = 0; r < RUN; r++)
                    run.e[r] = element_of(acc[i][(u * RUN / 2 + r / 2) * 4 + 2 * h + r % 2], shift);
                if (wide && left >= RUN) {
                    if (adds) {
                        Run old;
                        old.whole = *(__global const Whole *)to;
                        UNROLL
                        for (int r = 0; r < RUN; r++)
                            run.e[r] += old.e[r];
                    }
                    *(__global Whole *)to = run.whole;
                } else {
                    UNROLL
                    for (int r = 0; r < RUN; r++)
                        if (r < left)
                            to[r] = adds ? to[r] + run.e[r] : run.e[r];
                }
            }
        }
}

// Wait for the next slot, and point x and y at the warpgroup's rows of it.
#define NEXT_FULL()                                                                            \
    mbarrier_wait(full + turn.stage * 8, turn.parity);                                         \
    const uint at = slots + turn.stage * SLOT;                                                 \
    const uint x = DESCRIPTOR(at + group * MI * 64 * ROW_BYTES);                               \
    const uint y = DESCRIPTOR(at + BX * ROW_BYTES);
// 32 bytes of k of block i; `adds` is 0 if what d holds is to be forgotten.
#define PRODUCT(d, i, step, adds)                                                              \
    WGMMA(d, WITH_SWIZZLE(x + (i) * (64 * ROW_BYTES / 16) + (step) * STEP_X),                  \
          WITH_SWIZZLE(y + (step) * STEP_Y), adds)
// Start the products of a slot.
#define MULTIPLY(adds)                                                                         \
    {                                                                                          \
        NEXT_FULL()                                                                            \
        WGMMA_FENCE();                                                                         \
        UNROLL for (int d = 0; d < 4; d++) UNROLL for (int i = 0; i < MI; i++)                 \
            PRODUCT(acc[i], i, d, (adds) | d);                                                 \
        WGMMA_COMMIT();                                                                        \
    }
#define GIVE_BACK(stage)                                                                       \
    if (lane == 0)                                                                             \
    mbarrier_arrive(empty + (stage) * 8)

// The two warpgroups start products in turn: while one adds its sums up the other's are computed.  Left
// alone they would keep step, and add up at the same time.
#define TAKE_TURN() asm volatile("bar.sync %0, 256;" ::"r"(1 + group) : "memory")
#define PASS_TURN() asm volatile("bar.arrive %0, 256;" ::"r"(2 - group) : "memory")

__kernel __attribute__((reqd_work_group_size(384, 1, 1)))
void nv_wgmma_gemm(WGMMA_ARGS)
{
    __local uchar slot_bytes[STAGES * SLOT] __attribute__((aligned(1024)));
    __local ulong barriers[2 * STAGES];
    const int item = get_local_id(0), lane = item & 31, warp = item >> 5;
    const uint slots = LOCAL_ADDRESS(slot_bytes);
    const uint full = LOCAL_ADDRESS(barriers), empty = full + STAGES * 8;
    if (item == 0) {
        for (int i = 0; i < STAGES; i++) {
            mbarrier_init(full + i * 8, PRODUCERS);
            mbarrier_init(empty + i * 8, 8);  // warps that multiply
        }
        mbarrier_publish();
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    if (warp >= 8) {
        REGISTERS_DOWN(PRODUCER_REGISTERS);
        if (item < 256 + PRODUCERS)
            produce(&g, &s, a, b, scratch, slots, full, empty);
        return;
    }
    REGISTERS_UP(MULTIPLIER_REGISTERS);

    const int group = warp >> 2;
    const int tiles = s.strips_x * s.strips_y * (int)g.batch, passes = count_passes(&s);
    Turn turn = {0, 0};
#if IS_HALF
    if (group == 1)
        PASS_TURN();
#endif
    for (int tile = get_group_id(0); tile < tiles; tile += s.workers) {
        const Tile t = place_tile(&s, tile);
        for (int number = 0; number < passes; number++) {
            const Pass p = place_pass(&s, number);
            SUM acc[MI][ACCUMULATORS];
            UNROLL
            for (int i = 0; i < MI; i++)
                UNROLL
                for (int q = 0; q < ACCUMULATORS; q++)
                    acc[i][q] = 0;
#if IS_HALF
            // The tensor cores cut what they add to a sum; a slice's is rounded, as any fp32 sum.
            SUM sum[ACCUMULATORS];
            UNROLL
            for (int q = 0; q < ACCUMULATORS; q++)
                sum[q] = 0;
            for (int left = p.last; left > 0; left--) {
                NEXT_FULL()
                UNROLL
                for (int i = 0; i < MI; i++) {
                    TAKE_TURN();
                    WGMMA_FENCE();
                    UNROLL
                    for (int d = 0; d < 4; d++)
                        PRODUCT(sum, i, d, d);
                    WGMMA_COMMIT();
                    PASS_TURN();
                    WGMMA_WAIT(sum);
                    if (i == MI - 1)
                        GIVE_BACK(turn.stage);
                    UNROLL
                    for (int q = 0; q < ACCUMULATORS; q++)
                        acc[i][q] += sum[q];
                }
                next_turn(&turn);
            }
#else
            for (int level = p.high; level >= p.low; level--) {
                UNROLL
                for (int i = 0; i < MI; i++)
                    UNROLL
                    for (int q = 0; q < ACCUMULATORS; q++)
                        acc[i][q] = (int)((uint)acc[i][q] << 8);
                MULTIPLY(level < p.high)
                int before = turn.stage;
                next_turn(&turn);
                // The products of one slot are under way while those of the next are started.
                for (int left = (level + 1) * (p.last - p.first); left > 1; left--) {
                    MULTIPLY(1)
                    WGMMA_PENDING(1);
                    GIVE_BACK(before);
                    before = turn.stage;
                    next_turn(&turn);
                }
                UNROLL
                for (int i = 0; i < MI; i++)
                    WGMMA_WAIT(acc[i]);
                GIVE_BACK(before);
            }
#endif
            store(acc, &g, &t, c, p.shift, number > 0);
        }
    }
#if IS_HALF
    if (group == 0)
        TAKE_TURN();
#endif
}
