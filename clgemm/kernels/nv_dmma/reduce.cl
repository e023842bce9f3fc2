// nv_dmma: adds up the partial products of a split K, always in the same order.  Plain OpenCL C.
//
// Part s of entry e of the stack lies, without gaps, at element (s * batch + e) * m * n.

__kernel void nv_dmma_reduce(GEMM_ARGS, __global const REAL *scratch, const long partials,
                             const int parts)
{
    const long element = get_global_id(0), entry = element / (g.m * g.n);
    const long row = element % g.m, column = element / g.m % g.n;
    if (entry >= g.batch || (g.triangle && row < column))
        return;
    __global const ELEM *part = (__global const ELEM *)(scratch + partials) + element;
    ELEM sum = (ELEM)(0);
    for (int s = 0; s < parts; s++)
        sum += part[s * g.batch * g.m * g.n];
    c += g.offset_c + entry * g.stride_c + row + column * g.ldc;
    elem_store(c, elem_mul(alpha, sum), beta, beta_class(beta));
}
