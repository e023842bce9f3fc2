// gpu_tile_sum: C := alpha * (sum of the parts' products) + beta * C, for gpu_tiled with SPLIT = 1.
//
// The parts are added in their order, so that results are the same from run to run.
__kernel void gpu_tile_sum(GEMM_ARGS, __global const ELEM *scratch, const long at_c, const int parts)
{
    const long i = get_global_id(0), j = get_global_id(1), entry = get_global_id(2);
    if (i >= g.m || (g.triangle && i < j))
        return;
    __global const ELEM *from = scratch + at_c + (entry * g.n + j) * g.m + i;
    ELEM sum = (ELEM)(0);
    for (int part = 0; part < parts; part++)
        sum += from[part * g.batch * g.m * g.n];
    c += g.offset_c + entry * g.stride_c + i + j * g.ldc;
    elem_store(c, elem_mul(alpha, sum), beta, beta_class(beta));
}
