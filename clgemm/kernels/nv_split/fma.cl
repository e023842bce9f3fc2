// nv_split: the fma way to compute a tile.
//
// The operands themselves go through registers to local memory, FMA_DEPTH of k at a time, and are
// multiplied and added in order.  Accumulators are where the tensor cores leave theirs, so that what
// follows need not know how a tile was computed.

#define FMA_DEPTH 8
#define FMA_READS ((BX + BY) * FMA_DEPTH / 256)

// Wait for the 256 work-items that multiply.
INLINE void multipliers_sync(void)
{
    asm volatile("bar.sync 1, 256;" ::: "memory");
}

// The number of this work-item, computed anew: kept, it would cost a register all the time.
INLINE int work_item(void)
{
    uint item;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(item));
    return item;
}

// One real of a row of X or Y, 0 beyond the matrix.
INLINE float real_at(const Operand *o, long k, int is_y, int row, int p)
{
    const int i = is_y ? row / CE : row, e = p / CE;
    if (i >= o->rows || e >= k)
        return 0;
    const ELEM v = o->x[o->along_k ? i * o->ld + e : i + e * o->ld];
#if IS_COMPLEX
    const float im = o->conj ? -v.y : v.y;
    if (is_y && row % 2)
        return p % 2 ? v.x : im;
    return p % 2 ? (is_y ? -im : im) : v.x;
#else
    return v;
#endif
}

// Number u of what a work-item fetches.
#define FMA_PLACE(u)                                                                           \
    const int is_y = (u) >= BX * FMA_DEPTH / 256, rows = is_y ? BY : BX;                       \
    const int e = me + (u) * 256 - is_y * BX * FMA_DEPTH;                                      \
    const int along_k = is_y ? oy.along_k : ox.along_k;                                        \
    const int i = along_k ? e / FMA_DEPTH : e % rows, p = along_k ? e % FMA_DEPTH : e / rows;
#define FMA_FETCH(p0)                                                                          \
    UNROLL for (int u = 0; u < FMA_READS; u++)                                                 \
    {                                                                                          \
        FMA_PLACE(u)                                                                           \
        next[u] = real_at(is_y ? &oy : &ox, g->k, is_y, (is_y ? y0 : x0) + i, (p0) + p);        \
    }
#define FMA_KEEP()                                                                             \
    UNROLL for (int u = 0; u < FMA_READS; u++)                                                 \
    {                                                                                          \
        FMA_PLACE(u)                                                                           \
        (is_y ? fma_y : fma_x)[p * rows + i] = next[u];                                        \
    }

INLINE void fma_slice(float acc[BLOCKS][ACCUMULATORS], __local const float *fma_x,
                      __local const float *fma_y)
{
#pragma unroll 1
    for (int p = 0; p < FMA_DEPTH; p++) {
        float x[2 * BLOCKS];
        UNROLL
        for (int i = 0; i < 2 * BLOCKS; i++)
            x[i] = fma_x[p * BX + ROW_STEP(i)];
        UNROLL
        for (int j = 0; j < ACCUMULATORS / 8; j++) {
            const float4 y = *(__local const float4 *)(fma_y + p * BY + j * 16);
            UNROLL
            for (int i = 0; i < 2 * BLOCKS; i++) {
                const int q = j * 8 + (i & 1) * 2;
                acc[i / 2][q] = fma(x[i], y.x, acc[i / 2][q]);
                acc[i / 2][q + 1] = fma(x[i], y.y, acc[i / 2][q + 1]);
                acc[i / 2][q + 4] = fma(x[i], y.z, acc[i / 2][q + 4]);
                acc[i / 2][q + 5] = fma(x[i], y.w, acc[i / 2][q + 5]);
            }
        }
    }
}

// A segment in the fma way: operands go through registers to local memory, FMA_DEPTH of k at a time.
INLINE void fma_segment(float acc[BLOCKS][ACCUMULATORS], const Gemm *g, __global const ELEM *a,
                        __global const ELEM *b, __local const Segment *t, __local float *fma_x,
                        __local float *fma_y)
{
    const Operand ox = operand_of(g, a, b, 0, t->copy_x), oy = operand_of(g, a, b, 1, t->copy_y);
    const int x0 = t->x * BX, y0 = t->y * BY, me = work_item();
    const int start = t->first * 64, end = (int)min((long)t->last * 64, g->k * CE);
    float next[FMA_READS];  // read while what came before is multiplied
#pragma unroll 1
    for (int p0 = start; p0 < end + FMA_DEPTH; p0 += FMA_DEPTH) {
        if (p0 < end)
            FMA_FETCH(p0)
        if (p0 > start)
            fma_slice(acc, fma_x + row_of(me), fma_y + column_of(me));
        multipliers_sync();
        FMA_KEEP()
        multipliers_sync();
    }
}
