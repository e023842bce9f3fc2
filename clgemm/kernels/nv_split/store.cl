// nv_split: a computed tile is unscaled and meets C.

// x * 2^e in two factors, each a normal float; below 2^-252 nothing of x is left.  The first product
// is exact for all x that the sum of a tile can be, so this rounds once.
INLINE float unscaled(float x, int e)
{
    const int limited = max(e, -252), first = limited >> 1;
    return x * as_float((first + 127) << 23) * as_float((limited - first + 127) << 23);
}

// What work-item number `lane` of the warp gives as x; all of them ask.
INLINE float from_lane(float x, int lane)
{
    float got;
    asm volatile("shfl.sync.idx.b32 %0, %1, %2, 31, 0xffffffff;"
                 : "=f"(got)
                 : "f"(x), "r"(lane));
    return got;
}

// What a tile needs of the exponents of its strips, in local memory: those of X, then those of Y.
#define EXPONENTS (ROWS_X + ROWS_Y)

// Where a work-item's part of a tile goes, from its first element on.
typedef struct {
    __global float *c;
    __local const int *ex, *ey;  // exponents of its rows and columns
    long step;                   // reals from row to row, that is column to column of C
    int rows, columns;           // inside C; columns also of this warp
} Place;

// What a work-item holds of the next 16 columns of one of its rows.
INLINE Four four_of(const float acc[BLOCKS][ACCUMULATORS], int i)
{
    const int q = (i & 1) * 2;
    Four ab;
    ab.all = (float4)(acc[i / 2][q], acc[i / 2][q + 1], acc[i / 2][q + 4], acc[i / 2][q + 5]);
    return ab;
}

INLINE Four unscaled_four(Four ab, int e, int4 e_y)
{
    ab.real[0] = unscaled(ab.real[0], e + e_y.x);
    ab.real[1] = unscaled(ab.real[1], e + e_y.y);
    ab.real[2] = unscaled(ab.real[2], e + e_y.z);
    ab.real[3] = unscaled(ab.real[3], e + e_y.w);
    return ab;
}

// The vector that a work-item stores for its own four; `before` is what it had 16 columns to the left.
INLINE Four from_left(Four own, Four before, int late)
{
    const int lane = work_item() & 31, left_lane = lane % 4 ? lane - 1 : lane + 3;
    const Four given = lane % 4 == 3 ? before : own;
    Four left;
    left.all = (float4)(0, from_lane(given.real[1], left_lane), from_lane(given.real[2], left_lane),
                        from_lane(given.real[3], left_lane));
    return shifted(left, own, late);
}

// Have the rows of the next block in front, behind them what the first two leave for 16 columns further.
INLINE void next_block(Four own[2 * BLOCKS], Four before[2 * BLOCKS], int e[2 * BLOCKS])
{
    UNROLL
    for (int i = 0; i < 2; i++) {
        const Four left = own[i];
        const int first = e[i];
        UNROLL
        for (int r = i; r < 2 * BLOCKS - 2; r += 2) {
            own[r] = own[r + 2];
            before[r] = before[r + 2];
            e[r] = e[r + 2];
        }
        before[2 * BLOCKS - 2 + i] = left;
        e[2 * BLOCKS - 2 + i] = first;
    }
}

// Unscale and store so many times 16 columns of a warp; `whole`: all of it is inside C, and C is aligned
// to 16 bytes.
//
// Registers cannot be indexed, so what is next moves to the front.  A long unrolled epilogue would run at
// the speed at which its instructions are fetched, and be most of what the compiler has to compile.
INLINE void store_tile(float acc[BLOCKS][ACCUMULATORS], const Place *to, int count, int mode,
                       ELEM alpha, ELEM beta, const int whole)
{
    const int beta_is = beta_class(beta), column = (work_item() & 3) * 4;
    const int unscale = mode == MODE_FP16 ? -2 * TARGET_FP16 : -2 * TARGET_BF16;
    // A work-item's rows are eight apart, so that all of them are as far from 16 bytes.
    const int late = whole ? 0 : (int)((ulong)to->c >> 2 & 3);
    int e[2 * BLOCKS];
    Four before[2 * BLOCKS];  // what the last of four work-items had 16 columns to the left
    UNROLL
    for (int i = 0; i < 2 * BLOCKS; i++) {
        e[i] = mode == MODE_FMA ? 0 : to->ex[ROW_STEP(i)] + unscale;
        before[i].all = (float4)(0);
    }
    // Unless `whole`, once more for what is left of the last vector of each row.
#pragma unroll 1
    for (int j = 0; j < count + !whole; j++) {
        int4 e_y = (int4)(0);
        if (mode != MODE_FMA && j < count)
#if IS_COMPLEX
            e_y = (*(__local const int2 *)(to->ey + j * 8)).xxyy;
#else
            e_y = *(__local const int4 *)(to->ey + j * 16);
#endif
        Four own[2 * BLOCKS];
        UNROLL
        for (int i = 0; i < 2 * BLOCKS; i++)
            own[i] = four_of(acc, i);
        if (whole) {
            UNROLL
            for (int i = 0; i < 2 * BLOCKS; i++)
                store_four(unscaled_four(own[i], e[i], e_y),
                           to->c + ROW_STEP(i) * to->step + j * 16, 0, 4, alpha, beta, beta_is);
        } else {
#pragma unroll 1
            for (int block = 0; block < BLOCKS; block++) {
                UNROLL
                for (int i = 0; i < 2; i++) {
                    const int row = ROW_STEP(2 * block + i);
                    const Four ab = unscaled_four(own[i], e[i], e_y);
                    const Four stored = from_left(ab, before[i], late);
                    own[i] = ab;
                    if (row < to->rows)
                        store_four(stored, to->c + row * to->step + j * 16 - late,
                                   column + j * 16 ? 0 : late, to->columns - j * 16 + late, alpha,
                                   beta, beta_is);
                }
                next_block(own, before, e);
            }
        }
        UNROLL
        for (int i = 0; i < BLOCKS; i++)
            UNROLL
            for (int q = 0; q < ACCUMULATORS - 8; q++)
                acc[i][q] = acc[i][q + 8];
    }
}

// Store the tile of strips x and y, of each warp `count` times 16 columns from 16 * first on, which are
// the first ones in acc.  The fma way has no exponents.
INLINE void store_columns(float acc[BLOCKS][ACCUMULATORS], const Gemm *g, int x, int y, long entry,
                          int first, int count, __local const int *exponents, int mode,
                          __global ELEM *c, ELEM alpha, ELEM beta)
{
    const int me = work_item(), column = column_of(me) + first * 16;
    const long u = (long)x * BX + row_of(me), v = (long)y * BY + column;
    Place to;
    to.c = (__global float *)(c + g->offset_c + entry * g->stride_c + u * g->ldc) + v;
    to.ex = exponents + row_of(me);
    to.ey = exponents + ROWS_X + column / CE;
    to.step = g->ldc * CE;
    to.rows = (int)min((long)BX, g->n - u);
    to.columns = (int)min((long)count * 16 - column % 16, g->m * CE - v);
    if ((long)(x + 1) * BX <= g->n && (long)(y + 1) * BY <= g->m * CE && !((ulong)to.c & 15) &&
        !(to.step & 3))
        store_tile(acc, &to, count, mode, alpha, beta, 1);
    else
        store_tile(acc, &to, count, mode, alpha, beta, 0);
}

INLINE void store_in_c(float acc[BLOCKS][ACCUMULATORS], const Gemm *g, int x, int y, long entry,
                       __local const int *exponents, int mode, __global ELEM *c, ELEM alpha,
                       ELEM beta)
{
    store_columns(acc, g, x, y, entry, 0, ACCUMULATORS / 8, exponents, mode, c, alpha, beta);
}
