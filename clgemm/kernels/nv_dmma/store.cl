// nv_dmma: accumulators go to C.  Needs nv_dmma/load.cl and the macros of nv_dmma/gemm.cl.

// Which of 16 columns the chunk of g has, or its second chunk or number; chunk_w says the same.
INLINE int column_of(int g, int second)
{
    return KIND_B == ALONG_P && TRANS_B ? g + 8 * second : 2 * g + second;
}

// Write two neighbouring real numbers of a column of C, aligned as a pair, or one complex element.
INLINE void store_pair(__global ELEM *c, double2 ab, ELEM alpha)
{
#if IS_COMPLEX
    *c = PARTS == 1 ? ab : elem_mul(alpha, ab);
#else
    if (PARTS != 1)
        ab *= alpha;
    *(__global double2 *)c = ab;
#endif
}

// Do something with every two numbers `ab` of fragments (i, j) of this work-item: they are of real
// rows `pair` and pair + 1 of the warp's 16, and of column_of(slot % 8, slot / 8).  A lane has real
// rows 2g, 2g + 1 of four columns, or rows 4q to 4q + 3 of two.
#define PAIRS(action)                                                                              \
    UNROLL for (int i = 0; i < FRAGS_A; i++) if ((j * FRAGS_A + i) % WK == warp_k)                 \
        UNROLL for (int e = 0; e < 4; e++)                                                         \
    {                                                                                              \
        const int pair = ROWS_A ? 2 * g4 : 4 * q4 + e % 2 * 2;                                     \
        const int slot = ROWS_A ? 2 * q4 + e / 2 + e % 2 * 8 : g4 + e / 2 * 8;                     \
        const double2 ab =                                                                         \
            ROWS_A ? (double2)(acc[j][i][e % 2][e / 2], acc[j][i][e % 2][2 + e / 2])               \
                   : (double2)(acc[j][i][0][e], acc[j][i][1][e]);                                  \
        action;                                                                                    \
    }

// ---- through local memory ------------------------------------------------------------------------
//
// Where C is read, ends within the tile, or has columns that start anywhere: a lane's pairs of real
// numbers cannot be written as pairs there, and one by one an instruction would have every other
// number of 16 in four columns, and the cache twice the work.  So 16 columns of a warp at a time go
// through local memory, and each instruction writes 32 neighbours.  Unrolled as the rest, this would
// be half of what the driver compiles.

#define RUN_STEP (WM * CE + 2)    // from column to column of that room: eight lanes hit all banks
#define RUN_ROOM (16 * RUN_STEP)  // numbers of a warp
#define STORE_ROOM (WARPS_M * WARPS_N * RUN_ROOM / 2)  // as chunks
#define RUN_ITEMS (32 * WK)                            // work-items that share it
#define RUN_TURNS ((16 * WM + RUN_ITEMS - 1) / RUN_ITEMS)
#define RUN_BATCH (RUN_TURNS < 8 ? RUN_TURNS : 8)  // elements that a work-item has at a time

// Wait for the warps that share a room.
INLINE void room_sync(void)
{
    if (WK == 1)
        warp_sync();
    else
        barrier(CLK_LOCAL_MEM_FENCE);
}

// Store 16 columns of a warp from `room`; `rows` and `columns` of them are inside C.
INLINE void store_columns(__local const double *room, __global ELEM *to, long ld, int rows,
                          int columns, ELEM alpha, ELEM beta, int beta_is, int lane)
{
    _Pragma("unroll 1")
    for (int x = 0; x < 16 * WM; x += RUN_BATCH * RUN_ITEMS) {
        ELEM ab[RUN_BATCH], old[RUN_BATCH];
        __global ELEM *place[RUN_BATCH];
        int inside[RUN_BATCH];
        UNROLL
        for (int y = 0; y < RUN_BATCH; y++) {
            const int at = x + y * RUN_ITEMS + lane, row = at % WM, slot = at / WM;
            const int column = column_of(slot % 8, slot / 8);
            inside[y] = row < rows && column < columns && slot < 16;
            place[y] = to + row + column * ld;
            ab[y] = *(__local const ELEM *)(room + min(slot, 15) * RUN_STEP + row * CE);
            if (PARTS != 1)
                ab[y] = elem_mul(alpha, ab[y]);
        }
        if (beta_is != BETA_ZERO) {
            UNROLL
            for (int y = 0; y < RUN_BATCH; y++)
                if (inside[y])
                    old[y] = *place[y];
            UNROLL
            for (int y = 0; y < RUN_BATCH; y++)
                ab[y] += beta_is == BETA_ONE ? old[y] : elem_mul(beta, old[y]);
        }
        UNROLL
        for (int y = 0; y < RUN_BATCH; y++)
            if (inside[y])
                *place[y] = ab[y];
    }
}

// The number of this work-item, of which the compiler does not know that it had it before: what
// follows from it shall not take registers while products are computed.
INLINE uint item_again(void)
{
    uint item;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(item));
    return item;
}

// Whether two neighbours in each column can be stored as one.
#define IS_ALIGNED(to, ld) (IS_COMPLEX || (((ulong)(to) | (ulong)(ld) * 8) & 15) == 0)

// Store a macro-tile whose first element goes to `to`, `rows` rows and `columns` columns inside C.
INLINE void store_tile(double acc[FRAGS_B][FRAGS_A][2][4], __global ELEM *to, long ld, int rows,
                       int columns, ELEM alpha, ELEM beta, const int beta_is, __local double *room)
{
    const uint me = item_again(), warp = me / 32 % (WARPS_M * WARPS_N);
    const int lane = me % 32, g4 = lane / 4, q4 = lane % 4, warp_k = me / 32 / (WARPS_M * WARPS_N);
    const int warp_m = warp % WARPS_M, warp_n = warp / WARPS_M;
    const int as_pairs =
        beta_is == BETA_ZERO && rows >= MC && columns >= NC && IS_ALIGNED(to, ld);
    to += warp_m * WM + warp_n * WN * ld;
    if (as_pairs) {
        UNROLL
        for (int j = 0; j < FRAGS_B; j++)
            PAIRS(store_pair(to + (i * 16 + pair) / CE +
                                 (j * 16 + column_of(slot % 8, slot / 8)) * ld,
                             ab, alpha))
        return;
    }
    barrier(CLK_LOCAL_MEM_FENCE);  // all warps have read their last slice
    room += warp * RUN_ROOM;
    UNROLL
    for (int j = 0; j < FRAGS_B; j++) {
        if (j > 0)
            room_sync();  // the columns before were read
        PAIRS(*(__local double2 *)(room + slot * RUN_STEP + i * 16 + pair) = ab)
        room_sync();
        store_columns(room, to + j * 16 * ld, ld, rows - warp_m * WM, columns - warp_n * WN - j * 16,
                      alpha, beta, beta_is, warp_k * 32 + lane);
    }
}
