// nv_dmma: fp64 and complex128 on the fp64 tensor cores of NVIDIA's data-centre GPUs.
//
// A work-group computes an MC x NC macro-tile of C, each of its warps WM x WN of it.  Slices of
// depth KC travel through STAGES buffers in local memory; a buffer has two barriers (nv_async.cl):
//
//      packed operand    one work-item starts one bulk copy of the whole slice
//      other operand     every work-item starts a few copies of 16 bytes, 8 where it is not aligned,
//                        which put each chunk in its place, and zeros beyond the depth
//
//      slice t   | step 0 | step 1 | .. | step 2 | .. | fragments of slice t + 1 | step 3 |
//
// Fragments of the next step are loaded while this one is multiplied; at the dots the buffer of
// slice t - 1 is refilled, a few copies at a time, for a block of them would keep the tensor cores
// waiting.
//
// Where macro-tiles are few and small, WK warps share the depth of a slice.  In the end their
// accumulators are added up through local memory, always in the same order.
//
// Whether a copy crosses the end of the depth is asked only where it can: the loop exists twice.
// In the first one a copy is made or not, which costs no time: where macro-tiles are few, all wait
// for those at the edges.
//
// Macro-tiles seldom come out even with the compute units.  So of the launch's work-groups the first
// `whole` compute a macro-tile each, and the others, the workers, share what is left (SHARED).  Its
// slices, one macro-tile's after the other's, are cut into one piece for each worker:
//
//      macro-tiles    |       0       |       1       |       2       |
//      pieces         |    0    |    1    |    2    |    3    |   4   |
//
// A piece consists of segments of one macro-tile each.  Whoever has a macro-tile's first slices owns
// it: the others, for whom it is the first segment, leave their accumulators in scratch and set a
// flag; the owner, for whom it is the last one, adds them in the order of the workers and stores the
// sum.  Nobody waits before having set a flag, so one worker after the other gets done even if few of
// them run at a time.  (Stream-K: Osama, Merrill, Cecka, Garland, Owens, PPoPP 2023.)
//
// K cut in parts (PARTS = 2): each part's work-group leaves its accumulators in scratch and takes a
// ticket of its macro-tile; who gets the last one adds the parts, in their order, and stores the sum.
// Nobody waits.  Both flags and tickets are zeros again when the launch ends.
//
// Everything is exact fused multiply-add in double precision, in an order that depends on nothing
// but the configuration and the sizes: results repeat bit by bit.  A complex product is four real
// ones, as one real product of twice the rows and twice the depth.

#ifndef STAGES
#define STAGES 3  // slices in local memory
#endif
#ifndef STAGGER
#define STAGGER 0  // clocks by which one work-group of a unit begins its products after the other
#endif
#ifndef UNITS
#define UNITS 1  // compute units: so many work-groups begin before a unit gets a second one
#endif
#ifndef FIRST_TURNS
#define FIRST_TURNS 1  // work-groups that a unit has at a time
#endif
#ifndef RESIDENT
#define RESIDENT 0  // work-groups that a unit is to hold at a time, 0: as many as there are registers
#endif
#ifndef CONJ_A
#define CONJ_A 0  // 1: A is complex, not packed, and to be conjugated
#endif
#ifndef CONJ_B
#define CONJ_B 0
#endif

#define TEXT_(x) #x
#define TEXT(x) TEXT_(x)
#define UNITS_A (WIDTH_A * CE / 16)  // along the width of a slice
#define UNITS_B (WIDTH_B / 16)
#define STAGE_CHUNKS (CHUNKS(WIDTH_A) + CHUNKS(WIDTH_B))
#define SUMS ((WK - 1) * MC * NC * CE / 2)  // local memory to add up accumulators, as chunks
#define MOST(x, y) ((x) > (y) ? (x) : (y))
#if EDGE_THICK
#define TILES MOST(STAGES *STAGE_CHUNKS, MOST(STORE_ROOM, MOST(SUMS, (EDGE_ROOM * CE + 1) / 2)))
#else
#define TILES MOST(STAGES *STAGE_CHUNKS, MOST(STORE_ROOM, SUMS))
#endif
#define GATHERS (!PACK_A || !PACK_B)
// Whether a copy has two neighbours along the width, of which one may lie beyond the edge.
#define SPLITS(pack, kind, wide)                                                                   \
    (!EVEN && !(pack) && !IS_COMPLEX && (kind) == ALONG_W && (wide))
#define BULKS (PACK_A || PACK_B)
// Whether copies of 8 bytes, some of them along the depth, leave no registers for what follows from a
// work-item's number: it is not kept from macro-tile to macro-tile then.
#define FORGETS_ITEM                                                                               \
    (SHARED && !IS_COMPLEX && !TRANS_A && !TRANS_B && !WIDE_A && !WIDE_B)

// Load the fragments of step s of the slice at `slice`.  Two sets of registers take turns.  Of
// crossed operands lanes of odd q take the second of two neighbours along the depth first: `second`.
#define SET(kind, s) ((s) / STEPS_OF(kind) % 2)
#define FRAGMENT(chunk, s, kind, h)                                                                \
    (!CROSSED ? (chunk)[((kind) == ALONG_W ? (s) % 2 : h) * 32]                                    \
     : (kind) == ALONG_W ? (chunk)[second[(s) % 2] * 32]                                           \
                         : two_of((__local const double *)(chunk) + second[(s) % 2]))
#define LOAD_OPERAND(frags, slice, s, kind, count, units, turn)                                    \
    if ((s) % STEPS_OF(kind) == 0) {                                                               \
        UNROLL for (int u = 0; u < count; u++) UNROLL for (int h = 0; h < HALVES_OF(kind); h++)    \
            frags[SET(kind, s)][u][h] = FRAGMENT(                                                  \
                (slice) + ((s) / 2 * (units) + u) * UNIT_CHUNKS(kind) + (s) / 2 % 2 * (turn), s,   \
                kind, h);                                                                          \
    }
#define LOAD(s, stage)                                                                             \
    LOAD_OPERAND(frag_a, mine_a + (stage) * STAGE_CHUNKS, s, KIND_A, FRAGS_A, UNITS_A, turn_a)     \
    LOAD_OPERAND(frag_b, mine_b + (stage) * STAGE_CHUNKS, s, KIND_B, FRAGS_B, UNITS_B, turn_b)

#if IS_COMPLEX
#define PAIR_A(i, s) complex_pair_of(frag_a[SET(KIND_A, s)][i][0], s, CONJ_A, CONJ_B)
#else
#define PAIR_A(i, s) pair_of(frag_a[SET(KIND_A, s)][i], s, KIND_A)
#endif
#define PAIR_B(j, s) pair_of(frag_b[SET(KIND_B, s)][j], s, KIND_B)
#define MULTIPLY(s)                                                                                \
    UNROLL for (int i = 0; i < FRAGS_A; i++)                                                       \
    {                                                                                              \
        const double2 pair_a = PAIR_A(i, s);                                                       \
        UNROLL for (int j = 0; j < FRAGS_B; j++)                                                   \
        {                                                                                          \
            const double2 pair_b = PAIR_B(j, s);                                                   \
            multiply_add(acc[j][i][0], ROWS_A ? pair_a : pair_b, ROWS_A ? pair_b.x : pair_a.x);    \
            multiply_add(acc[j][i][1], ROWS_A ? pair_a : pair_b, ROWS_A ? pair_b.y : pair_a.y);    \
        }                                                                                          \
    }

// Rows and columns from the macro-tile's start on that there are for its slices.
#define LEFT_A (WIDTH_A > MC ? min(m - i0, MC) : m - i0)
#define LEFT_B (WIDTH_B > NC ? min(n - j0, NC) : n - j0)

// Refill a buffer in parts: wait until it is free, start copies, and in the last part count them
// in.  Beyond the end of K nothing is copied.  `whole` says that no copy of the slice crosses an
// edge.
#define FILL(stage, parity, part, whole)                                                           \
    if (whole || left > 0) {                                                                       \
        const uint to_a = tiles_at + (stage) * STAGE_CHUNKS * 16;                                  \
        const uint to_b = to_a + CHUNKS(WIDTH_A) * 16;                                             \
        const uint full = barriers_at + (stage) * 8, empty = full + STAGES * 8;                    \
        if ((part) == 0 && !is_empty && (GATHERS || item == 0))                                    \
            mbarrier_wait(empty, parity);                                                          \
        if ((part) == 0 && BULKS && item == 0) {                                                   \
            mbarrier_expect(full, (PACK_A * CHUNKS(MC) + PACK_B * CHUNKS(NC)) * 16);               \
            if (PACK_A)                                                                            \
                bulk_copy(to_a, next_a, CHUNKS(MC) * 16, full);                                    \
            if (PACK_B)                                                                            \
                bulk_copy(to_b, next_b, CHUNKS(NC) * 16, full);                                    \
        }                                                                                          \
        if (!PACK_A)                                                                               \
            copy_part(to_a + first_a, next_a, g.lda, WIDTH_A, KIND_A, TRANS_A, WIDE_A,             \
                      LEFT_A - first_wa, left - first_pa, part, whole);                            \
        if (!PACK_B)                                                                               \
            copy_part(to_b + first_b, next_b, g.ldb, WIDTH_B, KIND_B, !TRANS_B, WIDE_B,            \
                      LEFT_B - first_wb, left - first_pb, part, whole);                            \
        if ((part) == PARTS_OF_FILL - 1) {                                                         \
            if (GATHERS)                                                                           \
                mbarrier_arrive_after_copies(full);                                                \
            next_a += PACK_A ? MC * KC : KC * (TRANS_A ? 1 : g.lda);                               \
            next_b += PACK_B ? NC * KC : KC * (TRANS_B ? g.ldb : 1);                               \
            left -= KC;                                                                            \
        }                                                                                          \
    }

// Fill a buffer for the first time.
#define FILL_ALL(stage)                                                                            \
    UNROLL for (int part = 0; part < PARTS_OF_FILL; part++) FILL(stage, 1, part, 0)

// Multiply slices t, t + 1, ... until `end`.  Of both barriers it is asked ahead whether they have
// passed (ASKS): while a warp waits for that answer alone it has no products.
#define MULTIPLY_SLICES(end, whole)                                                                \
    for (; t < end; t++) {                                                                         \
        const uint next = reads + 1 == STAGES ? 0 : reads + 1, next_parity = reads_parity ^ !next; \
        const uint next_full = barriers_at + next * 8;                                             \
        uint is_full = 0;                                                                          \
        UNROLL for (int s = 0; s < STEPS - 1; s++)                                                 \
        {                                                                                          \
            if (ASKS && s == FIRST_FILL)                                                           \
                is_empty = mbarrier_passed(barriers_at + (STAGES + fills) * 8, fills_parity);      \
            if (ASKS && s == STEPS - 2)                                                            \
                is_full = mbarrier_passed(next_full, next_parity);                                 \
            LOAD(s + 1, reads)                                                                     \
            MULTIPLY(s)                                                                            \
            if (s >= FIRST_FILL)                                                                   \
                FILL(fills, fills_parity, s - FIRST_FILL, whole)                                   \
        }                                                                                          \
        fills = reads; /* the next slice's copies go where this one was */                         \
        fills_parity = reads_parity;                                                               \
        const uint emptied = barriers_at + (STAGES + reads) * 8;                                   \
        reads = next;                                                                              \
        reads_parity = next_parity;                                                                \
        if (whole || t + 1 < slices) {                                                             \
            if (!is_full)                                                                          \
                mbarrier_wait(next_full, next_parity);                                             \
            LOAD(0, reads)                                                                         \
        }                                                                                          \
        MULTIPLY(STEPS - 1)                                                                        \
        warp_sync();                                                                               \
        if (lane == 0)                                                                             \
            mbarrier_arrive(emptied);                                                              \
    }

// Do something with fragment f and each number e of it that this work-item keeps at `at`.
#define EACH(action)                                                                               \
    UNROLL for (int f = 0; f < FRAGS_A * FRAGS_B; f++) if (f % WK == warp_k)                       \
        UNROLL for (int e = 0; e < 8; e++)                                                         \
    {                                                                                              \
        const int at = (f * 8 + e) * ITEMS;                                                        \
        action;                                                                                    \
    }
#define ACC acc[f / FRAGS_A][f % FRAGS_A][e / 4][e % 4]

#if STAGGER
// Wait as the work-group of this number on its unit, if it is among the first: work-groups that begin
// together stay together, and the tensor cores would wait while all of them store and load.  One that
// begins later by what these take keeps them busy then, and the distance stays, tile after tile.
INLINE void begin_later(uint turn)
{
    uint from, now;
    asm volatile("mov.u32 %0, %%clock;" : "=r"(from));
    if (turn > 0 && turn < FIRST_TURNS)
        do {
            asm volatile("nanosleep.u32 40;" ::: "memory");
            asm volatile("mov.u32 %0, %%clock;" : "=r"(now));
        } while (now - from < turn * STAGGER);
}
#endif

// packed_a, packed_b and partials count real numbers from the start of scratch;
// per_a and per_b are how many panels an entry of the stack has (0: all entries share them).
// The second dimension of the launch are the parts of K, `span` slices each, of which
// nv_dmma/reduce.cl makes C.  Macro-tiles cover main_m rows and main_n columns; if that is not all,
// work-groups beyond theirs do the strips of nv_dmma/edges.cl.
__kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1)))
void nv_dmma(GEMM_ARGS, __global REAL *scratch, const long packed_a, const long packed_b,
             const int per_a, const int per_b, const long partials, const int whole_tiles,
             const int shared_tiles, const int workers, const int span, const int main_m, const int main_n,
             __global uint *tickets)
{
    __local double2 tiles[TILES] __attribute__((aligned(128)));
    __local ulong barriers[2 * STAGES];  // full ones, then empty ones
#if PARTS == 2
    __local int is_last;
#endif
#if RESIDENT
    asm volatile("//@@.minnctapersm " TEXT(RESIDENT) ::: "memory");
#endif
    const uint tiles_at = LOCAL_ADDRESS(tiles), barriers_at = LOCAL_ADDRESS(barriers);

    const int m = main_m, n = main_n, k = g.k;
    const int tiles_m = (m + MC - 1) / MC, tiles_n = (n + NC - 1) / NC;
    const int group = get_group_id(0), total = (k + KC - 1) / KC;
#if EDGE_THICK
    const int strip = group - whole_tiles - workers;
    if (strip >= 0) {
        if (get_group_id(1) == 0)  // K stays whole
            edge_strip_of(strip, g, m, n, (__local ELEM *)tiles, a, b, c, alpha, beta);
        return;
    }
#endif

#if SHARED
    // What is needed again after the products is computed again, from a place in local memory: the
    // products leave no register for it.
    const int shared = shared_tiles * total;
    __local int next;
    if (get_local_id(0) == 0)
        next = group < whole_tiles ? 0 : piece_start(shared, workers, group - whole_tiles);
    barrier(CLK_LOCAL_MEM_FENCE);
#define WORKER (group - whole_tiles)
#define PIECE_END (WORKER < 0 ? total : piece_start(shared, workers, WORKER + 1))
#define START (next % total)
#define SLICES min(PIECE_END - next, total - START)
    while (next < PIECE_END) {
    const int number = WORKER < 0 ? group : whole_tiles + next / total;
    const int start = START, slices = SLICES;
#else
    {
    const int number = group, start = PARTS ? get_group_id(1) * span : 0;
    const int slices = PARTS ? min(span, total - start) : total;
#endif
    const uint item = FORGETS_ITEM ? item_again() : get_local_id(0);
    const int lane = item % 32;
    const int warp_m = item / 32 % WARPS_M, warp_n = item / 32 / WARPS_M % WARPS_N;
    const int warp_k = item / 32 / (WARPS_M * WARPS_N);
    const Place tile = SHARED && g.triangle ? place_below(number, tiles_m, tiles_n)
                                            : place_of(number, tiles_m, tiles_n);
    const int i0 = tile.m * MC, j0 = tile.n * NC;
    if (!SHARED && g.triangle && i0 + MC <= j0)
        return;  // above the diagonal: what lies below it is mirrored

    if (item == 0) {
        for (int stage = 0; stage < STAGES; stage++) {
            mbarrier_init(barriers_at + stage * 8, GATHERS * ITEMS + BULKS);
            mbarrier_init(barriers_at + (STAGES + stage) * 8, WARPS);
        }
#if MMA_ROWS == 16
        mbarrier_publish();
#endif
    }

    int left = min(k - start * KC, slices * KC);  // depth from the next slice on

    // Where this work-item's copies begin in a slice, in local memory and in the matrix.
#define FIRST_A item, WIDTH_A, KIND_A, TRANS_A, WIDE_A
#define FIRST_B item, WIDTH_B, KIND_B, !TRANS_B, WIDE_B
    const int first_a = copy_at(FIRST_A), first_wa = copy_w(FIRST_A), first_pa = copy_p(FIRST_A);
    const int first_b = copy_at(FIRST_B), first_wb = copy_w(FIRST_B), first_pb = copy_p(FIRST_B);
    __global const ELEM *next_a, *next_b;
    if (PACK_A) {
        next_a = (__global const ELEM *)(scratch + packed_a) +
                 ((tile.entry * per_a + tile.m) * total + start) * (MC * KC);
    } else {
        const long w = i0 + first_wa, p = (long)start * KC + first_pa;
        next_a = a + g.offset_a + tile.entry * g.stride_a;
        next_a += TRANS_A ? p + w * g.lda : w + p * g.lda;
    }
    if (PACK_B) {
        next_b = (__global const ELEM *)(scratch + packed_b) +
                 ((tile.entry * per_b + tile.n) * total + start) * (NC * KC);
    } else {
        const long w = j0 + first_wb, p = (long)start * KC + first_pb;
        next_b = b + g.offset_b + tile.entry * g.stride_b;
        next_b += TRANS_B ? w + p * g.ldb : p + w * g.ldb;
    }

    barrier(CLK_LOCAL_MEM_FENCE);

    // Where this lane's chunks lie in a half unit, and what changes for every other 8 of the depth.
    const int g4 = lane / 4, q4 = lane % 4, across = 8 * q4 + (g4 ^ 2 * q4);
    const int turn_a = TRANS_A ? (lane ^ 4) - lane : 0, turn_b = TRANS_B ? 0 : (lane ^ 4) - lane;
    const int unit_k = warp_k * (STEPS / 2);  // the first unit along the depth of this warp
    const int along = CROSSED ? lane ^ lane / 8 % 2 : lane;
    const int second[2] = {lane % 2, !(lane % 2)};
    __local const double2 *mine_a = tiles +
                                    (unit_k * UNITS_A + warp_m * FRAGS_A) * UNIT_CHUNKS(KIND_A) +
                                    (TRANS_A ? along : across) + unit_k % 2 * turn_a;
    __local const double2 *mine_b = tiles + CHUNKS(WIDTH_A) +
                                    (unit_k * UNITS_B + warp_n * FRAGS_B) * 64 +
                                    (TRANS_B ? across : KIND_B == ALONG_P ? along : lane) +
                                    unit_k % 2 * turn_b;
    double2 frag_a[2][FRAGS_A][HALVES_OF(KIND_A)], frag_b[2][FRAGS_B][HALVES_OF(KIND_B)];
    double acc[FRAGS_B][FRAGS_A][2][4] = {{{{0}}}};

    // Slices of which each copy lies inside or outside as a whole, as all of packed panels do.
#define SPLIT_A (SPLITS(PACK_A, KIND_A, WIDE_A) && i0 + MC > m && (m - i0) % 2)
#define SPLIT_B (SPLITS(PACK_B, KIND_B, WIDE_B) && j0 + NC > n && (n - j0) % 2)
    const int split = SPLIT_A || SPLIT_B;
    const int whole = !GATHERS ? slices : split ? 0 : left / KC;
    uint is_empty = 1;  // no buffer was filled before
    _Pragma("unroll 1")
    for (int stage = 0; stage < STAGES - 1; stage++)
        FILL_ALL(stage)
    int t = 0;
    uint reads = 0, fills = STAGES - 1;  // the buffers that are read and refilled
    uint reads_parity = 0, fills_parity = 1;
    is_empty = 0;
#if STAGGER
    begin_later(get_group_id(0) / UNITS);
#endif
    if (slices > 0) {
        mbarrier_wait(barriers_at, 0);
        LOAD(0, 0)
    }
    MULTIPLY_SLICES(whole - (STAGES - 1), 1)
    MULTIPLY_SLICES(slices, 0)
    if (GATHERS)
        ASYNC_COPY_WAIT(0);

    const uint me = item_again();
#if WK > 1
    // Fragment f becomes the sum of those of all warps along the depth in warp f % WK of them, from
    // that one's own onwards.
    __local double *sums = (__local double *)tiles + item % (ITEMS / WK);
    barrier(CLK_LOCAL_MEM_FENCE);
    UNROLL
    for (int f = 0; f < FRAGS_A * FRAGS_B; f++)
        if (f % WK != warp_k) {
            const int place = f * (WK - 1) + (warp_k - f % WK + WK - 1) % WK;
            UNROLL
            for (int e = 0; e < 8; e++)
                sums[(place * 8 + e) * (ITEMS / WK)] = acc[f / FRAGS_A][f % FRAGS_A][e / 4][e % 4];
        }
    barrier(CLK_LOCAL_MEM_FENCE);
    UNROLL
    for (int f = 0; f < FRAGS_A * FRAGS_B; f++)
        if (f % WK == warp_k)
            UNROLL
            for (int e = 0; e < 8 * (WK - 1); e++)
                acc[f / FRAGS_A][f % FRAGS_A][e % 8 / 4][e % 4] +=
                    sums[(f * (WK - 1) * 8 + e) * (ITEMS / WK)];
#endif

#if SHARED
    __global double *partial = (__global double *)scratch + partials + me;
    if (START > 0) {
        partial += (long)WORKER * (MC * NC * CE);
        EACH(partial[at] = ACC)
        barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE);
        if (item == 0)
            set_ready(tickets + WORKER);
    } else {
    for (int peer = WORKER + 1, missing = total - SLICES; missing > 0; peer++) {
        wait_ready(tickets + peer);
        __global const double *part = partial + (long)peer * (MC * NC * CE);
        EACH(ACC += part[at])
        barrier(CLK_LOCAL_MEM_FENCE);
        if (item == 0)
            tickets[peer] = 0;  // nobody else looks at it
        missing -= piece_start(shared, workers, peer + 1) - piece_start(shared, workers, peer);
    }
#else
    {
#endif
#if PARTS == 2
    __global double *partial = (__global double *)scratch + partials + me;
    partial += (long)number * get_num_groups(1) * (MC * NC * CE);
    __global double *mine = partial + get_group_id(1) * (MC * NC * CE);
    EACH(mine[at] = ACC)
    barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE);
    if (item == 0)
        is_last = is_last_ticket(tickets + number, get_num_groups(1));
    barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE);
    if (!is_last)
        return;
    EACH(ACC = partial[at])
    for (int part = 1; part < get_num_groups(1); part++) {
        partial += MC * NC * CE;
        EACH(ACC += partial[at])
    }
#endif
#if PARTS == 1
    const long ld = m;
    const int beta_is = BETA_ZERO;
    __global ELEM *to = (__global ELEM *)(scratch + partials);
    to += (get_group_id(1) * g.batch + tile.entry) * m * n;
#else
    const long ld = g.ldc;
    const int beta_is = beta_class(beta);
    __global ELEM *to = c + g.offset_c + tile.entry * g.stride_c;
#endif
    to += i0 + j0 * ld;
    store_tile(acc, to, ld, m - i0, n - j0, alpha, beta, beta_is, (__local double *)tiles);
    }
#if SHARED
#if BULKS
    // store_tile may have written where the next bulk copies go, which another engine makes.
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
    barrier(CLK_LOCAL_MEM_FENCE);
    if (item == 0) {
        next += SLICES;
        for (int i = 0; i < 2 * STAGES; i++)
            mbarrier_invalidate(barriers_at + i * 8);
    }
    barrier(CLK_LOCAL_MEM_FENCE);
#endif
    }
}
