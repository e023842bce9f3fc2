// direct: C := alpha * op(A) * op(B) + beta * C, one work-item an element of C.
//
// Any size (64-bit throughout), any leading dimension, any stride between the entries of a stack.
// The products are summed in order with one rounding each, which keeps |error| <= k u |A||B|.
__kernel void direct(GEMM_ARGS)
{
    const long i = get_global_id(0), j = get_global_id(1), entry = get_global_id(2);
    if (i >= g.m || j >= g.n || (g.triangle && i < j))
        return;
    const long step_a = g.trans_a ? 1 : g.lda, step_b = g.trans_b ? g.ldb : 1;
    a += g.offset_a + entry * g.stride_a + i * (g.trans_a ? g.lda : 1);
    b += g.offset_b + entry * g.stride_b + j * (g.trans_b ? 1 : g.ldb);
    c += g.offset_c + entry * g.stride_c + i + j * g.ldc;

    ELEM sum = (ELEM)(0);
    for (long p = 0; p < g.k; p++)
        sum = elem_fma(elem_conj(a[p * step_a], g.conj_a), elem_conj(b[p * step_b], g.conj_b), sum);
    elem_store(c, elem_mul(alpha, sum), beta, beta_class(beta));
}
