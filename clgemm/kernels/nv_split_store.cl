// nv_split: what becomes of a computed tile.  Partial tiles wait in the scratch memory for the worker
// that owns the tile; complete ones are unscaled and meet C.

// Publish what this work-group wrote to global memory before its last multipliers_sync().
INLINE void set_ready(__global uint *flag)
{
    asm volatile("fence.acq_rel.gpu;" ::: "memory");
    asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"((ulong)flag), "r"(1) : "memory");
}

INLINE void wait_ready(__global const uint *flag)
{
    uint set;
    do {
        asm volatile("ld.acquire.gpu.global.u32 %0, [%1];"
                     : "=r"(set)
                     : "l"((ulong)flag)
                     : "memory");
    } while (!set);
}

// x * 2^e in two factors, each a normal float; below 2^-252 nothing of x is left.  The first product
// is exact for all x that the sum of a tile can be, so this rounds once.
INLINE float unscaled(float x, int e)
{
    const int limited = max(e, -252), first = limited >> 1;
    return x * as_float((first + 127) << 23) * as_float((limited - first + 127) << 23);
}

// alpha * ab + beta * c for four neighbours in a column of C.
INLINE Four combined(Four ab, Four c, ELEM alpha, ELEM beta, int beta_is)
{
    UNROLL
    for (int q = 0; q < 4 / CE; q++) {
        ab.elem[q] = elem_mul(alpha, ab.elem[q]);
        if (beta_is != BETA_ZERO)
            ab.elem[q] += beta_is == BETA_ANY ? elem_mul(beta, c.elem[q]) : c.elem[q];
    }
    return ab;
}

// Where a work-item's part of a tile goes, from its first element on; its warp's part if STAGED.
typedef struct {
    __global float *c;
    __global const int *ex, *ey;  // exponents of its rows and columns
    long step;                    // reals from row to row, that is column to column of C
    int rows, columns;            // inside C
} Place;

// Unscale and store; `whole`: all of it is inside C, and C is aligned to 16 bytes.
INLINE void store_tile(float acc[BLOCKS][ACCUMULATORS], const Place *to, __local float *stage,
                       int mode, ELEM alpha, ELEM beta, const int whole)
{
    const int beta_is = beta_class(beta);
    const int unscale = mode == MODE_FP16 ? -2 * TARGET_FP16 : -2 * TARGET_BF16;
    int e[2 * BLOCKS];
    UNROLL
    for (int i = 0; i < 2 * BLOCKS; i++)
        e[i] = mode == MODE_FMA ? 0 : to->ex[ROW_STEP(i)] + unscale;
#pragma unroll 1
    for (int j = 0; j < ACCUMULATORS / 8; j++) {
#if IS_COMPLEX
        int4 e_y = (*(__global const int2 *)(to->ey + j * 8)).xxyy;
#else
        int4 e_y = *(__global const int4 *)(to->ey + j * 16);
#endif
        if (mode == MODE_FMA)
            e_y = (int4)(0);
        UNROLL
        for (int i = 0; i < 2 * BLOCKS; i++) {
            const float *ab4 = acc[i / 2] + (i & 1) * 2;
            __global float *at = to->c + ROW_STEP(i) * to->step + j * 16;
            Four ab, old;
            ab.real[0] = unscaled(ab4[0], e[i] + e_y.x);
            ab.real[1] = unscaled(ab4[1], e[i] + e_y.y);
            ab.real[2] = unscaled(ab4[4], e[i] + e_y.z);
            ab.real[3] = unscaled(ab4[5], e[i] + e_y.w);
            old.all = (float4)(0);
            if (whole) {
                if (beta_is != BETA_ZERO)
                    old.all = *(__global float4 *)at;
                *(__global float4 *)at = combined(ab, old, alpha, beta, beta_is).all;
            } else if (STAGED) {
                store_elements(ab, stage, work_item() & 31, (__global ELEM *)at, to->step / CE,
                               to->rows - ROW_STEP(i), to->columns - j * 16, alpha, beta, beta_is);
            } else if (ROW_STEP(i) < to->rows) {
                if (beta_is != BETA_ZERO)
                    UNROLL
                    for (int r = 0; r < 4; r++)
                        old.real[r] = j * 16 + r < to->columns ? at[r] : 0;
                ab = combined(ab, old, alpha, beta, beta_is);
                UNROLL
                for (int r = 0; r < 4; r++)
                    if (j * 16 + r < to->columns)
                        at[r] = ab.real[r];
            }
        }
        // Registers cannot be indexed, so the next eight of each row move to the front: a long
        // unrolled epilogue would run at the speed at which its instructions are fetched.
        UNROLL
        for (int i = 0; i < BLOCKS; i++)
            UNROLL
            for (int q = 0; q < ACCUMULATORS - 8; q++)
                acc[i][q] = acc[i][q + 8];
    }
}

// A computed segment: leave a partial tile for its owner, or add what others left and store the tile.
// `stage`: WARP_REALS of local memory for each warp, if STAGED.
INLINE void finish_segment(float acc[BLOCKS][ACCUMULATORS], const Gemm *g, const Split *s,
                           __local const Segment *t, __local float *stage, __global uchar *scratch,
                           __global ELEM *c, ELEM alpha, ELEM beta)
{
    const int me = work_item(), worker = get_group_id(0);
    __global float *partials = (__global float *)(scratch + s->partials) + me;
    __global uint *ready = (__global uint *)(scratch + s->ready);
    if (t->first > 0) {
        UNROLL
        for (int i = 0; i < BLOCKS; i++)
            UNROLL
            for (int q = 0; q < ACCUMULATORS; q++)
                partials[(long)worker * (BX * BY) + (i * ACCUMULATORS + q) * 256] = acc[i][q];
        multipliers_sync();
        if (me == 0)
            set_ready(ready + worker);
        return;
    }
    // Add what the next workers computed of this tile.
    int left = s->slices - t->last;
    for (int peer = worker + 1; left > 0; peer++) {
        const long piece = piece_start(g, s, peer + 1) - piece_start(g, s, peer);
        if (piece == 0)
            continue;  // more workers than slices
        wait_ready(ready + peer);
        UNROLL
        for (int i = 0; i < BLOCKS; i++)
            UNROLL
            for (int q = 0; q < ACCUMULATORS; q++)
                acc[i][q] += partials[(long)peer * (BX * BY) + (i * ACCUMULATORS + q) * 256];
        left -= (int)min(piece, (long)left);
    }

    const int strip_x = t->copy_x * s->strips_x + t->x, strip_y = t->copy_y * s->strips_y + t->y;
    const int first = STAGED ? me & ~31 : me;
    const long u = (long)t->x * BX + row_of(first), v = (long)t->y * BY + column_of(first);
    Place to;
    to.c = (__global float *)(c + g->offset_c + t->entry * g->stride_c + u * g->ldc) + v;
    to.ex = (__global const int *)(scratch + s->exponents_x) + strip_x * ROWS_X + row_of(me);
    to.ey = (__global const int *)(scratch + s->exponents_y) + strip_y * ROWS_Y + column_of(me) / CE;
    to.step = g->ldc * CE;
    to.rows = (int)min((long)BX, g->n - u);
    to.columns = (int)min((long)BY, g->m * CE - v);
    stage += STAGED ? (me >> 5) * WARP_REALS : 0;
    if (!STAGED && (long)(t->x + 1) * BX <= g->n && (long)(t->y + 1) * BY <= g->m * CE &&
        !((ulong)to.c & 15) && !(to.step & 3))
        store_tile(acc, &to, stage, t->mode, alpha, beta, 1);
    else
        store_tile(acc, &to, stage, t->mode, alpha, beta, 0);
}
