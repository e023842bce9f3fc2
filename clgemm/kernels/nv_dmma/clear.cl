// nv_dmma: resets the flags of shared macro-tiles, which the workers of the next launch set.

__kernel void nv_dmma_clear(GEMM_ARGS, __global REAL *scratch, const int workers)
{
    if (get_global_id(0) < workers)
        ((__global uint *)scratch)[get_global_id(0)] = 0;
}
