// nv_split: how four neighbours of a column of C are stored, whatever C's alignment.
//
// Stores of single reals, 16 bytes apart, took half as long as the products of a tile 2048 deep.  So
// each work-item stores a whole vector, from the 16-byte boundary at or before its own four reals on:
// `late` of it (0 to 3) is what the left neighbour holds, and the right one stores its own last ones.

typedef union {
    float4 all;
    float real[4];
    ELEM elem[4 / CE];
} Four;

// The four reals that begin `late` before `own`; `left` is what lies to the left of it.
INLINE Four shifted(Four left, Four own, int late)
{
    const int two = late & 2, one = late & 1;
    const float4 by_two = two ? (float4)(left.all.zw, own.all.xy) : own.all;
    const float next = two ? left.all.y : left.all.w;
    Four result;
    result.all = one ? (float4)(next, by_two.xyz) : by_two;
    return result;
}

// alpha * ab + beta * c for four neighbours in a column of C.
INLINE Four combined(Four ab, Four c, ELEM alpha, ELEM beta, int beta_is)
{
    UNROLL
    for (int q = 0; q < 4 / CE; q++) {
        ab.elem[q] = elem_mul(alpha, ab.elem[q]);
        if (beta_is != BETA_ZERO)
            ab.elem[q] += beta_is == BETA_ANY ? elem_mul(beta, c.elem[q]) : c.elem[q];
    }
    return ab;
}

// Store those of four reals whose numbers are first ... end - 1; at 16 bytes if all of them are.
INLINE void store_four(Four ab, __global float *c, int first, int end, ELEM alpha, ELEM beta,
                       int beta_is)
{
    Four old;
    old.all = (float4)(0);
    if (first <= 0 && end >= 4) {
        if (beta_is != BETA_ZERO)
            old.all = *(__global const float4 *)c;
        *(__global float4 *)c = combined(ab, old, alpha, beta, beta_is).all;
        return;
    }
    if (beta_is != BETA_ZERO)
        UNROLL
        for (int r = 0; r < 4; r++)
            old.real[r] = first <= r && r < end ? c[r] : 0;
    ab = combined(ab, old, alpha, beta, beta_is);
    UNROLL
    for (int r = 0; r < 4; r++)
        if (first <= r && r < end)
            c[r] = ab.real[r];
}
