// gemv_sum: y := alpha * (sum of the parts' sums) + beta * y, after a kernel with SPLIT = 1.
//
// LANES neighbours have a row each; the other work-items of the group add other parts of it.  Which
// sums are added to which is fixed, so that results are the same from run to run.

#ifndef LANES
#define LANES 32  // rows of a work-group: a power of two that divides ITEMS
#endif

__kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1)))
void gemv_sum(GEMM_ARGS, __global const ELEM *restrict scratch, const int parts)
{
    __local ELEM sums[ITEMS];
    const long entry = get_group_id(2), column = get_group_id(1);
    const Gemv v = gemv_of(g, a, b, c, column, entry);
    const int slice = get_local_id(0) / LANES;
    const long row = get_group_id(0) * (long)LANES + get_local_id(0) % LANES;
    const long columns = get_num_groups(1);

    ELEM sum = (ELEM)(0);
    if (row < v.rows)
        for (int q = slice; q < parts; q += ITEMS / LANES)
            sum += scratch[((q * g.batch + entry) * columns + column) * v.rows + row];
    sums[get_local_id(0)] = sum;
    add_up(sums, 1, slice, ITEMS / LANES, LANES);
    if (slice == 0 && row < v.rows)
        elem_store(v.y + row * v.step_y, elem_mul(alpha, sums[get_local_id(0)]), beta,
                   beta_class(beta));
}
