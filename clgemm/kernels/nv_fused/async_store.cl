// nv_fused: a computed tile goes to C by way of local memory, from which copy engines store it.
//
// While work-items store what they hold they multiply nothing, and where k is short the store takes longer
// than the products.  There a tile is left in local memory, and stored, a column of C by one bulk copy,
// while the next one is computed.
//
// Bulk copies store whole 16 bytes.  So a column lies as far behind a multiple of 16 bytes in local memory
// as in C, and work-items store what is left at its ends.

#ifndef PITCH
#define PITCH 0  // reals from column to column of a tile in local memory; 0: there is no room for one
#endif

// Where a tile goes.
typedef struct {
    __global float *c;  // its first real
    long step;          // reals from column to column of C
    int rows, columns;  // inside C, of the tile, that is of C^T
} Target;

// How many reals lie between the last multiple of 16 bytes and where a row of the tile begins in C.
INLINE int late_by(const Target *to, int row)
{
    return ((uint)((ulong)to->c >> 2) + (uint)row * (uint)to->step) & 3;
}

INLINE Target target_of(const Gemm *g, int x, int y, long entry, __global ELEM *c)
{
    const long u = (long)x * BX, v = (long)y * BY;
    Target to;
    to.c = (__global float *)(c + g->offset_c + entry * g->stride_c + u * g->ldc) + v;
    to.step = g->ldc * CE;
    to.rows = (int)min((long)BX, g->n - u);
    to.columns = (int)min((long)BY, g->m * CE - v);
    return to;
}

// Leave alpha times the sums in local memory.
INLINE void write_local(const float acc[ACCUMULATORS], const Target *to, ELEM alpha, __local float *tile)
{
    const int me = work_item(), row = row_of(me);  // and eight further, which is as late
    const int late = late_by(to, row), aligned = !((ulong)to->c & 15) && !(to->step & 3);
    Four none;
    none.all = (float4)(0);
    tile += row * PITCH + column_of(me) + late;
    UNROLL
    for (int q = 0; q < ACCUMULATORS; q += 8) {
        UNROLL
        for (int i = 0; i < 2; i++) {
            Four ab;
            ab.all = (float4)(acc[q + i * 2], acc[q + i * 2 + 1], acc[q + i * 2 + 4],
                              acc[q + i * 2 + 5]);
            ab = combined(ab, none, alpha, alpha, BETA_ZERO);
            __local float *at = tile + i * (8 * PITCH) + q * 2;
            if (aligned) {
                *(__local float4 *)at = ab.all;
            } else {
                UNROLL
                for (int e = 0; e < 4 / CE; e++)
                    ((__local ELEM *)at)[e] = ab.elem[e];
            }
        }
    }
}

// Begin to store a tile from there; two work-items do for each of its rows.
INLINE void store_rows(const Target *to, __local const float *tile)
{
    const int me = work_item(), row = me % BX, late = late_by(to, row);
    const int end = late + to->columns, first = late ? 4 : 0, last = end & ~3;
    __global float *at = to->c + row * to->step - late;
    __local const float *from = tile + row * PITCH;
    if (row < to->rows && me < BX) {
        if (first < last)
            bulk_store(at + first, LOCAL_ADDRESS(from + first), (last - first) * 4);
        for (int q = late; q < min(first, end); q++)
            at[q] = from[q];
    } else if (row < to->rows && me < 2 * BX) {
        for (int q = max(first, last); q < end; q++)
            at[q] = from[q];
    }
    bulk_store_commit();
}

// Store a tile, without waiting for it; all 256 do.
INLINE void store_async(const float acc[ACCUMULATORS], const Gemm *g, int x, int y, long entry,
                        __global ELEM *c, ELEM alpha, __local float *tile)
{
    const Target to = target_of(g, x, y, entry, c);
    bulk_store_wait();  // the tile before is read
    multipliers_sync();
    write_local(acc, &to, alpha, tile);
    publish_to_async();
    multipliers_sync();
    store_rows(&to, tile);
}
