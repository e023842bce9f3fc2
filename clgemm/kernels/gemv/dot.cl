// gemv_dot: products with a vector where rows of W are contiguous, or few: dot products.
//
// LANES work-items share ROWS rows and walk along k in vectors, DEPTH of each row at a time, so that
// many reads are under way.  What they read of x serves all their rows.  A work-group has
// ITEMS / LANES times as many rows, and all of k or a part of it.

#ifndef LANES
#define LANES 32  // work-items that share rows: a power of two that divides ITEMS
#endif
#ifndef ROWS
#define ROWS 4  // rows that they share
#endif
#ifndef DEPTH
#define DEPTH 2  // vectors of a row that a work-item reads at once
#endif
#ifndef ALONG_K
#define ALONG_K 1  // 0: elements of a row are not neighbours; vectors have one element then
#endif
#ifndef WIDE_X
#define WIDE_X 0  // 1: x may be read in vectors
#endif

#define LINES (ITEMS / LANES)  // rows of the work-group are this far apart for one work-item

INLINE Vec read_x(Gemv v, long p)
{
#if WIDE_X
    return read_vector(v.x + p);
#else
    Vec x;
    UNROLL
    for (int i = 0; i < VW; i++)
        x.e[i] = v.x[(p + i) * v.step_x];
    return x;
#endif
}

INLINE ELEM dot_vectors(Vec w, Vec x, ELEM sum, Gemv v)
{
    UNROLL
    for (int i = 0; i < VW; i++)
        sum = elem_fma(elem_conj(w.e[i], v.conj_w), elem_conj(x.e[i], v.conj_x), sum);
    return sum;
}

// Vectors along k do not cross parts: EXTENT is a multiple of VW there.
__kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1)))
void gemv_dot(GEMM_ARGS PART_ARGS)
{
#if SPLIT == 2
    __local int is_last;
#endif
    __local ELEM sums[ROWS * ITEMS];
    const Gemv v = gemv_of(g, alpha, beta, a, b, c);
    const int lane = get_local_id(0) % LANES;
    const long first = get_group_id(0) * (long)(LINES * ROWS) + get_local_id(0) / LANES;
    const long step_k = ALONG_K ? 1 : v.step_k;
    const long from = v.part * EXTENT, to = min(from + EXTENT, g.k);

    // Rows beyond the last one repeat it, and are not stored.
    __global const ELEM *row[ROWS];
    ELEM sum[ROWS];
    UNROLL
    for (int r = 0; r < ROWS; r++) {
        row[r] = v.w + min(first + r * LINES, v.rows - 1) * v.step_row;
        sum[r] = (ELEM)(0);
    }

    for (long p = from + lane * VW; p + VW <= to; p += DEPTH * LANES * VW) {
        Vec w[ROWS][DEPTH], x[DEPTH];
        UNROLL
        for (int d = 0; d < DEPTH; d++)
            if (p + d * LANES * VW + VW <= to) {
                UNROLL
                for (int r = 0; r < ROWS; r++)
                    w[r][d] = read_vector(row[r] + (p + d * LANES * VW) * step_k);
                x[d] = read_x(v, p + d * LANES * VW);
            }
        UNROLL
        for (int d = 0; d < DEPTH; d++)
            UNROLL
            for (int r = 0; r < ROWS; r++)
                if (p + d * LANES * VW + VW <= to)
                    sum[r] = dot_vectors(w[r][d], x[d], sum[r], v);
    }
#if VW > 1
    for (long p = from + (to - from) / VW * VW + lane; p < to; p += LANES) {
        const ELEM x = elem_conj(v.x[p * v.step_x], v.conj_x);
        UNROLL
        for (int r = 0; r < ROWS; r++)
            sum[r] = elem_fma(elem_conj(row[r][p], v.conj_w), x, sum[r]);
    }
#endif

    UNROLL
    for (int r = 0; r < ROWS; r++)
        sums[r * ITEMS + get_local_id(0)] = sum[r];
    add_up(sums, ROWS, lane, LANES, 1);
    if (lane == 0)
        for (int r = 0; r < ROWS; r++)
            if (first + r * LINES < v.rows)
                keep_sum(v, sums[r * ITEMS + get_local_id(0)], first + r * LINES, SCRATCH);
#if SPLIT == 2
    const long block = get_group_id(0);
    join_parts(v, block * (LINES * ROWS), LINES * ROWS, scratch, sums, tickets, &is_last);
#endif
}
