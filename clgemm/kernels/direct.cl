// direct: C := alpha * op(A) * op(B) + beta * C, one work-item an element of C.
//
// Any size (64-bit throughout), any leading dimension, any stride between the entries of a stack.
// The products are summed in order with one rounding each, which keeps |error| <= k u |A||B|.
//   trans_x  0: (row, column) at row + column * ldx;  1: at column + row * ldx
__kernel void direct(long m, long n, long k, ELEM alpha, ELEM beta,
                     __global const ELEM *restrict a, long offset_a, long lda, long stride_a,
                     int trans_a, int conj_a,
                     __global const ELEM *restrict b, long offset_b, long ldb, long stride_b,
                     int trans_b, int conj_b,
                     __global ELEM *restrict c, long offset_c, long ldc, long stride_c, long batch)
{
    const long i = get_global_id(0), j = get_global_id(1), entry = get_global_id(2);
    if (i >= m || j >= n)
        return;
    const long step_a = trans_a ? 1 : lda, step_b = trans_b ? ldb : 1;
    a += offset_a + entry * stride_a + i * (trans_a ? lda : 1);
    b += offset_b + entry * stride_b + j * (trans_b ? 1 : ldb);
    c += offset_c + entry * stride_c + i + j * ldc;

    ELEM sum = (ELEM)(0);
    for (long p = 0; p < k; p++)
        sum = elem_fma(elem_conj(a[p * step_a], conj_a), elem_conj(b[p * step_b], conj_b), sum);
    elem_store(c, elem_mul(alpha, sum), beta, beta_class(beta));
}
