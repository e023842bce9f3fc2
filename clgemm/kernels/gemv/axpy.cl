// gemv_axpy: products with a vector where columns of W are contiguous: columns scaled and added.
//
// A work-item owns the VW rows of a vector and adds every SLICES-th column of its part of k, DEPTH of
// them at a time, so that many reads are under way.  LANES neighbours read LANES * VW elements of a
// column.  The sums of the SLICES are added through local memory.

#ifndef LANES
#define LANES 32  // work-items along a column: a power of two that divides ITEMS
#endif
#ifndef DEPTH
#define DEPTH 8  // columns that a work-item reads at once
#endif

#define SLICES (ITEMS / LANES)

__kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1)))
void gemv_axpy(GEMM_ARGS PART_ARGS)
{
#if SPLIT == 2
    __local int is_last;
#endif
    __local ELEM sums[VW * ITEMS];
    const Gemv v = gemv_of(g, alpha, beta, a, b, c);
    const int slice = get_local_id(0) / LANES;
    const long row = (get_group_id(0) * (long)LANES + get_local_id(0) % LANES) * VW;
    const long from = v.part * EXTENT, to = min(from + EXTENT, g.k);

    // VW divides the number of rows.  A vector beyond the last one repeats it, and is not stored.
    __global const ELEM *column = v.w + min(row, v.rows - VW);
    ELEM sum[VW];
    UNROLL
    for (int i = 0; i < VW; i++)
        sum[i] = (ELEM)(0);

    for (long p = from + slice; p < to; p += DEPTH * SLICES) {
        Vec w[DEPTH];
        ELEM x[DEPTH];
        UNROLL
        for (int d = 0; d < DEPTH; d++)
            if (p + d * SLICES < to) {
                w[d] = read_vector(column + (p + d * SLICES) * v.step_k);
                x[d] = elem_conj(v.x[(p + d * SLICES) * v.step_x], v.conj_x);
            }
        UNROLL
        for (int d = 0; d < DEPTH; d++)
            UNROLL
            for (int i = 0; i < VW; i++)
                if (p + d * SLICES < to)
                    sum[i] = elem_fma(elem_conj(w[d].e[i], v.conj_w), x[d], sum[i]);
    }

    UNROLL
    for (int i = 0; i < VW; i++)
        sums[i * ITEMS + get_local_id(0)] = sum[i];
    add_up(sums, VW, slice, SLICES, LANES);
    if (slice == 0 && row < v.rows)
        for (int i = 0; i < VW; i++)
            keep_sum(v, sums[i * ITEMS + get_local_id(0)], row + i, SCRATCH);
#if SPLIT == 2
    const long block = get_group_id(0);
    join_parts(v, block * (LANES * VW), LANES * VW, scratch, sums, tickets, &is_last);
#endif
}
