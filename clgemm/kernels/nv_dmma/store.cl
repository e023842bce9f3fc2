// nv_dmma: accumulators go to C.  Needs nv_dmma/load.cl and the macros of nv_dmma/gemm.cl.

// Two neighbouring real numbers of a column of C, aligned as a pair, or one complex element; `rows`
// of them are inside.
INLINE void store_two(__global ELEM *c, int rows, double2 ab, ELEM alpha, ELEM beta, int beta_is)
{
#if IS_COMPLEX
    if (rows > 0)
        elem_store(c, PARTS == 1 ? ab : elem_mul(alpha, ab), beta, beta_is);
#else
    if (PARTS != 1)
        ab *= alpha;
    if (rows > 1) {
        __global double2 *pair = (__global double2 *)c;
        if (beta_is == BETA_ONE)
            ab += *pair;
        else if (beta_is == BETA_ANY)
            ab += beta * *pair;
        *pair = ab;
    } else if (rows > 0) {
        elem_store(c, ab.x, beta, beta_is);
    }
#endif
}

// Which of 16 columns the chunk of g has, or its second chunk or number; chunk_w says the same.
INLINE int column_of(int g, int second)
{
    return KIND_B == ALONG_P && TRANS_B ? g + 8 * second : 2 * g + second;
}

// As store_two where C is not read and both numbers lie in it.
INLINE void plain_store(__global ELEM *c, double2 ab, ELEM alpha)
{
#if IS_COMPLEX
    *c = PARTS == 1 ? ab : elem_mul(alpha, ab);
#else
    if (PARTS != 1)
        ab *= alpha;
    *(__global double2 *)c = ab;
#endif
}

// Do something with every two numbers `ab` of this work-item, in row r and column s of the warp's
// tile.  A lane has real rows 2g, 2g + 1 of four columns, or rows 4q to 4q + 3 of two.
#define STORE(action)                                                                              \
    UNROLL for (int j = 0; j < FRAGS_B; j++) UNROLL for (int e = 0; e < 4; e++)                    \
    {                                                                                              \
        const int pair = ROWS_A ? 2 * g4 : 4 * q4 + e % 2 * 2;                                     \
        const long column = ROWS_A ? column_of(2 * q4 + e / 2, e % 2) : column_of(g4, e / 2);      \
        const long s = j * 16 + column;                                                            \
        UNROLL for (int i = 0; i < FRAGS_A; i++) if ((j * FRAGS_A + i) % WK == warp_k)             \
        {                                                                                          \
            const int r = (i * 16 + pair) / CE;                                                    \
            const double2 ab =                                                                     \
                ROWS_A ? (double2)(acc[j][i][e % 2][e / 2], acc[j][i][e % 2][2 + e / 2])           \
                       : (double2)(acc[j][i][0][e], acc[j][i][1][e]);                              \
            action;                                                                                \
        }                                                                                          \
    }

// ---- columns of C that start anywhere -----------------------------------------------------------
//
// A lane's pairs of real numbers cannot be written as pairs there.  Written one by one, an
// instruction would have every other number of 16 in four columns, and the cache twice the work.  So
// 16 columns of a warp at a time go through local memory, and each instruction writes 32 neighbours.

#define RUN_STEP (WM + 2)         // from column to column of that room: eight lanes hit all banks
#define RUN_ROOM (16 * RUN_STEP)  // numbers of a warp
#if IS_COMPLEX
#define STORE_ROOM 0
#else
#define STORE_ROOM (WARPS_M * WARPS_N * RUN_ROOM / 2)  // as chunks

// Wait for the warps that share a room.
INLINE void room_sync(void)
{
    if (WK == 1)
        warp_sync();
    else
        barrier(CLK_LOCAL_MEM_FENCE);
}

// Store a warp's tile of `rows` rows and `columns` columns inside C; `whole`: all of it is.
INLINE void store_runs(double acc[FRAGS_B][FRAGS_A][2][4], __global ELEM *to, long ld, int rows,
                       int columns, ELEM alpha, ELEM beta, const int beta_is, const int whole,
                       __local double *room, uint me)
{
    const int lane = me % 32, g4 = lane / 4, q4 = lane % 4, warp_k = me / 32 / (WARPS_M * WARPS_N);
    room += me / 32 % (WARPS_M * WARPS_N) * RUN_ROOM;
    UNROLL
    for (int j = 0; j < FRAGS_B; j++) {
        if (j > 0)
            room_sync();  // the columns before were read
        UNROLL
        for (int i = 0; i < FRAGS_A; i++)
            if ((j * FRAGS_A + i) % WK == warp_k)
                UNROLL
                for (int e = 0; e < 4; e++)
                    *(__local double2 *)(room + (2 * q4 + e / 2 + e % 2 * 8) * RUN_STEP + i * 16 +
                                         2 * g4) =
                        (double2)(acc[j][i][e % 2][e / 2], acc[j][i][e % 2][2 + e / 2]);
        room_sync();
        UNROLL
        for (int x = 0; x < 16 * WM; x += 32 * WK) {
            const int at = x + warp_k * 32 + lane, row = at % WM, slot = at / WM;
            const int column = j * 16 + column_of(slot % 8, slot / 8);
            ELEM ab = room[slot * RUN_STEP + row];
            if (PARTS != 1)
                ab *= alpha;
            if (whole)
                to[row + column * ld] = ab;
            else if (row < rows && column < columns)
                elem_store(to + row + column * ld, ab, beta, beta_is);
        }
    }
}
#endif

// The number of this work-item, of which the compiler does not know that it had it before: what
// follows from it shall not take registers while products are computed.
INLINE uint item_again(void)
{
    uint item;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(item));
    return item;
}

// Store a macro-tile whose first element goes to `to`, `rows` rows and `columns` columns inside C.
INLINE void store_tile(double acc[FRAGS_B][FRAGS_A][2][4], __global ELEM *to, long ld, int rows,
                       int columns, ELEM alpha, ELEM beta, const int beta_is, __local double *room)
{
    const uint me = item_again();
    const int lane = me % 32, g4 = lane / 4, q4 = lane % 4, warp_k = me / 32 / (WARPS_M * WARPS_N);
    const int warp_m = me / 32 % WARPS_M, warp_n = me / 32 / WARPS_M % WARPS_N;
    to += warp_m * WM + warp_n * WN * ld;
    rows -= warp_m * WM;
    columns -= warp_n * WN;
    const int wide = IS_COMPLEX || (((ulong)to | (ulong)ld * 8) & 15) == 0;
    const int plain = beta_is == BETA_ZERO && rows >= WM && columns >= WN;
#if !IS_COMPLEX
    if (!wide) {
        barrier(CLK_LOCAL_MEM_FENCE);  // all warps have read their last slice
        if (plain && WK == 1)  // warps that share a room take the same way
            store_runs(acc, to, ld, rows, columns, alpha, beta, beta_is, 1, room, me);
        else
            store_runs(acc, to, ld, rows, columns, alpha, beta, beta_is, 0, room, me);
        return;
    }
#endif
    if (plain) {
        STORE(plain_store(to + r + s * ld, ab, alpha))
    } else {
        STORE(if (s < columns) store_two(to + r + s * ld, rows - r, ab, alpha, beta, beta_is))
    }
}
