// gemv_sum: y := alpha * (sum of the parts' sums) + beta * y, after a kernel with SPLIT = 1.
//
// A work-group has LANES rows.

#ifndef LANES
#define LANES 32  // rows of a work-group: a power of two that divides ITEMS
#endif

__kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1)))
void gemv_sum(GEMM_ARGS, __global const ELEM *restrict scratch, const int parts)
{
    __local ELEM sums[ITEMS];
    const Gemv v = gemv_of(g, alpha, beta, a, b, c);
    add_parts(v, get_group_id(0) * (long)LANES, LANES, parts, scratch, sums);
}
