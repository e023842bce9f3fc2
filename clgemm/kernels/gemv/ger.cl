// gemv_ger: C := alpha * op(A) * op(B) + beta * C where k is 1: an outer product.
//
// A work-item writes DEPTH vectors of VW rows, LANES neighbours write LANES * VW elements of a column.
// Everything that is read is on its way before the first vector is written.

#ifndef LANES
#define LANES 32  // work-items along a column: divides ITEMS
#endif
#ifndef DEPTH
#define DEPTH 4  // columns of a work-item
#endif

__kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1)))
void gemv_ger(GEMM_ARGS)
{
    const long entry = get_group_id(2), step_a = g.trans_a ? g.lda : 1, step_b = g.trans_b ? 1 : g.ldb;
    const long i = (get_group_id(0) * (long)LANES + get_local_id(0) % LANES) * VW;
    const long first = get_group_id(1) * (long)(ITEMS / LANES * DEPTH) + get_local_id(0) / LANES;
    if (i >= g.m)
        return;
    a += g.offset_a + entry * g.stride_a;
    b += g.offset_b + entry * g.stride_b;
    c += g.offset_c + entry * g.stride_c + i;

    // Beyond the last row and column are the last ones again, which are not stored.
    ELEM left[VW], right[DEPTH];
    UNROLL
    for (int e = 0; e < VW; e++)
        left[e] = elem_conj(a[min(i + e, g.m - 1) * step_a], g.conj_a);
    UNROLL
    for (int d = 0; d < DEPTH; d++)
        right[d] = elem_conj(b[min(first + d * (ITEMS / LANES), g.n - 1) * step_b], g.conj_b);

    const int beta_is = beta_class(beta);
    // Columns that start on vectors: the plan knows the steps, only here the address is known.
    if (beta_is == BETA_ZERO && i + VW <= g.m && (size_t)c % sizeof(Vec) == 0 && g.ldc % VW == 0) {
        UNROLL
        for (int d = 0; d < DEPTH; d++) {
            const long j = first + d * (ITEMS / LANES);
            Vec ab;
            UNROLL
            for (int e = 0; e < VW; e++)
                ab.e[e] = elem_mul(alpha, elem_mul(left[e], right[d]));
            if (j < g.n)
                *(__global Reals *)(c + j * g.ldc) = ab.whole;
        }
        return;
    }
    UNROLL
    for (int d = 0; d < DEPTH; d++) {
        const long j = first + d * (ITEMS / LANES);
        UNROLL
        for (int e = 0; e < VW; e++)  // no loop to where C ends: `left` would lie in memory
            if (j < g.n && i + e < g.m)
                elem_store(c + j * g.ldc + e, elem_mul(alpha, elem_mul(left[e], right[d])), beta,
                           beta_is);
    }
}
