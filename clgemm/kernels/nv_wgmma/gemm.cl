// nv_wgmma, last kernel: the products.  Needs nv_async.cl, nv_wgmma/wgmma.cl and walk.cl, and a producer,
// which is nv_wgmma/packed.cl or tensor.cl.
//
// A worker has three warpgroups.  PRODUCERS work-items of the third have slices of planes of both strips
// copied into local memory, STAGES of them ahead; the first two multiply, each MI blocks of 64 rows of X by BY
// of Y.  A tile of C is computed in passes, each of some levels, the highest first: when a level is done
// the sums are shifted by a digit, and the next lower level is added to them.  Up to 32 bits one pass
// does, since sums wrap around as C does.  Of 64 bits the four upper levels make up the upper half of
// C, as one pass; each of the lower ones is a pass of its own, cut along k such that no sum overflows,
// and what it finds is added to C.

// RUN neighbours of C, 16 bytes.
typedef union {
    uint4 whole;
    uint word[4];
    INTEGER e[RUN];
} Run;
#define RUNS (BY / (4 * RUN))  // that a work-item has of a row of C in a tile

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

#if DIRECT
// Swap x of lanes with the bit, and y of their neighbours by it.
INLINE void swap_words(uint *x, uint *y, int bit)
{
    const int upper = get_local_id(0) & bit;
    const uint mine = upper ? *x : *y;
    uint other;
    asm volatile("shfl.sync.bfly.b32 %0, %1, %2, 0x1f, 0xffffffff;"
                 : "=r"(other)
                 : "r"(mine), "r"(bit));
    *x = upper ? other : *x;
    *y = upper ? *y : other;
}

// Four lanes have two columns of each of four blocks of 8: give each a whole block.
INLINE void exchange(Run *run)
{
    swap_words(&run->word[0], &run->word[1], 1);
    swap_words(&run->word[2], &run->word[3], 1);
    swap_words(&run->word[0], &run->word[2], 2);
    swap_words(&run->word[1], &run->word[3], 2);
}
#endif

// Run u of the upper or lower row that a work-item has of 16.
INLINE Run run_of(const SUM *acc, int u, int lower, int shift)
{
    Run run;
    UNROLL
    for (int r = 0; r < RUN; r++)
        run.e[r] = element_of(acc[(u * RUN / 2 + r / 2) * 4 + 2 * lower + r % 2], shift);
    return run;
}

// All of a run at once.  The compiler would cut a vector whose words lie apart.
INLINE void store_whole(Run run, __global INTEGER *to)
{
    asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"((ulong)to), "r"(run.word[0]),
                 "r"(run.word[1]), "r"(run.word[2]), "r"(run.word[3])
                 : "memory");
}

// A run, of which `left` elements are inside, to C or added to it.
INLINE void store_run(Run run, __global INTEGER *to, long left, int wide, int adds)
{
    if (wide && left >= RUN) {
        if (adds) {
            Run old;
            old.whole = *(__global const uint4 *)to;
            UNROLL
            for (int r = 0; r < RUN; r++)
                run.e[r] += old.e[r];
        }
        store_whole(run, to);
    } else {
        UNROLL
        for (int r = 0; r < RUN; r++)
            if (r < left)
                to[r] = adds ? to[r] + run.e[r] : run.e[r];
    }
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
    const long left = g->m - column;
    const int wide = ((ulong)c & (sizeof(Run) - 1)) == 0 && ldc % RUN == 0;
    const int whole = wide && !adds && left >= (4 * RUNS - 3) * RUN;
    UNROLL
    for (int i = 0; i < MI; i++)
        UNROLL
        for (int h = 0; h < 2; h++) {
            const int down = i * 64 + h * 8;
#if DIRECT
            Run runs[RUNS];  // of all lanes, also of those whose row is outside
            UNROLL
            for (int u = 0; u < RUNS; u++) {
                runs[u] = run_of(acc[i], u, h, shift);
                exchange(&runs[u]);
            }
#define RUN_AT(u) runs[u]
#else
#define RUN_AT(u) run_of(acc[i], u, h, shift)
#endif
            if (row + down >= g->n)
                continue;
            __global INTEGER *to = c + down * ldc;
            UNROLL
            for (int u = 0; u < RUNS && whole; u++)
                store_whole(RUN_AT(u), to + u * (4 * RUN));
            UNROLL
            for (int u = 0; u < RUNS && !whole; u++)
                store_run(RUN_AT(u), to + u * (4 * RUN), left - u * (4 * RUN), wide, adds);
        }
}

// The warpgroup's rows of a slot.
#define POINT_AT(stage)                                                                        \
    const uint at = slots + (stage) * SLOT;                                                    \
    const uint x = DESCRIPTOR(at + group * MI * 64 * ROW_BYTES);                               \
    const uint y = DESCRIPTOR(at + BX * ROW_BYTES);
// 32 bytes of k of block i; `adds` is 0 if what d holds is to be forgotten.
#define PRODUCT(d, i, step, adds)                                                              \
    WGMMA(d, WITH_SWIZZLE(x + (i) * (64 * ROW_BYTES / 16) + (step) * STEP_X),                  \
          WITH_SWIZZLE(y + (step) * STEP_Y), adds)
// Start the products of the next slot.
#define MULTIPLY(adds)                                                                         \
    {                                                                                          \
        mbarrier_wait(full + turn.stage * 8, turn.parity);                                     \
        POINT_AT(turn.stage)                                                                   \
        WGMMA_FENCE();                                                                         \
        UNROLL for (int d = 0; d < 4; d++) UNROLL for (int i = 0; i < MI; i++)                 \
            PRODUCT(acc[i], i, d, (adds) | d);                                                 \
        WGMMA_COMMIT();                                                                        \
    }
#define GIVE_BACK(stage)                                                                       \
    if (lane == 0)                                                                             \
    mbarrier_arrive(empty + (stage) * 8)

__kernel __attribute__((reqd_work_group_size(384, 1, 1)))
void nv_wgmma_gemm(WGMMA_ARGS)
{
    __local uchar slot_bytes[STAGES * SLOT + MAPS_BYTES] __attribute__((aligned(1024)));
    __local ulong barriers[2 * STAGES];
    const int item = get_local_id(0), lane = item & 31, warp = item >> 5;
    const uint slots = LOCAL_ADDRESS(slot_bytes);
    const uint full = LOCAL_ADDRESS(barriers), empty = full + STAGES * 8;
    if (item == 0) {
        for (int i = 0; i < STAGES; i++) {
            mbarrier_init(full + i * 8, ARRIVALS);
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

    // Lane 0's number: so the compiler knows that it is uniform, and descriptors with it.
    int group;
    asm("shfl.sync.idx.b32 %0, %1, 0, 0x1f, 0xffffffff;" : "=r"(group) : "r"(warp >> 2));
    const int tiles = s.strips_x * s.strips_y * (int)g.batch, passes = count_passes(&s);
    Turn turn = {0, 0};
    if (IS_HALF)
        first_turn(group);
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
            // The tensor cores cut what they add to a sum; those of a few steps are rounded, as any fp32
            // sum.
            SUM sum[ACCUMULATORS];
            UNROLL
            for (int q = 0; q < ACCUMULATORS; q++)
                sum[q] = 0;
            for (int left = p.last; left > 0; left -= TOGETHER) {
                Turn next = turn;
                UNROLL
                for (int j = 0; j < TOGETHER; j++, next_turn(&next))
                    mbarrier_wait(full + next.stage * 8, next.parity);
                UNROLL
                for (int u = 0; u < MI * PARTS; u++) {
                    const int i = u / PARTS, first = u % PARTS * STEPS;
                    next = turn;
                    wait_turn(group);
                    WGMMA_FENCE();
                    UNROLL
                    for (int j = 0; j < TOGETHER; j++, next_turn(&next)) {
                        POINT_AT(next.stage)
                        UNROLL
                        for (int d = first; d < first + 4 / PARTS; d++)
                            PRODUCT(sum, i, d, d - first | j);
                    }
                    WGMMA_COMMIT();
                    pass_turn(group);
                    WGMMA_WAIT(sum);
                    UNROLL
                    for (int j = 0; u == MI * PARTS - 1 && j < TOGETHER; j++, next_turn(&turn))
                        GIVE_BACK(turn.stage);
                    UNROLL
                    for (int q = 0; q < ACCUMULATORS; q++)
                        acc[i][q] += sum[q];
                    KEEP_HERE(acc[i]);
                }
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
}
