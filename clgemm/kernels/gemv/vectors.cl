// gemv: how the kernels of products with vectors see a problem, and vectors of elements.
//
// A column of C is y := alpha * W * x + beta * y: W is op(A), x a column of op(B).  With ROWS_OF_C it
// is a row of C, W the turned op(B), x a row of op(A).  Where C has several columns they are computed
// one by one; that is right, and only one column is fast.

#ifndef ITEMS
#define ITEMS 64  // work-items of a group
#endif
#ifndef ROWS_OF_C
#define ROWS_OF_C 0  // 1: y is a row of C
#endif
#ifndef VW
#define VW 1  // elements of a vector of W: divides its offset, stride and leading dimension
#endif
#ifndef SPLIT
#define SPLIT 0  // 1: work-groups get parts of k, and their sums go to scratch memory
#endif

typedef VECTOR(VW) Reals;
typedef union {
    Reals whole;
    ELEM e[VW];
} Vec;

// Row i of W begins at w + i * step_row, and its elements are step_k apart.
typedef struct {
    __global const ELEM *w, *x;
    __global ELEM *y;
    long rows, step_row, step_k, step_x, step_y;
    int conj_w, conj_x;
} Gemv;

// The product number `column` of an entry of the stack.
INLINE Gemv gemv_of(const Gemm g, __global const ELEM *a, __global const ELEM *b, __global ELEM *c,
                    long column, long entry)
{
    Gemv v;
    a += g.offset_a + entry * g.stride_a;
    b += g.offset_b + entry * g.stride_b;
    c += g.offset_c + entry * g.stride_c;
#if ROWS_OF_C
    v.w = b, v.x = a + column * (g.trans_a ? g.lda : 1), v.y = c + column;
    v.rows = g.n, v.step_y = g.ldc;
    v.step_row = g.trans_b ? 1 : g.ldb, v.step_k = g.trans_b ? g.ldb : 1;
    v.step_x = g.trans_a ? 1 : g.lda;
    v.conj_w = g.conj_b, v.conj_x = g.conj_a;
#else
    v.w = a, v.x = b + column * (g.trans_b ? 1 : g.ldb), v.y = c + column * g.ldc;
    v.rows = g.m, v.step_y = 1;
    v.step_row = g.trans_a ? g.lda : 1, v.step_k = g.trans_a ? 1 : g.lda;
    v.step_x = g.trans_b ? g.ldb : 1;
    v.conj_w = g.conj_a, v.conj_x = g.conj_b;
#endif
    return v;
}

INLINE Vec read_vector(__global const ELEM *from)
{
    Vec v;
    v.whole = *(__global const Reals *)from;
    return v;
}

// Adds up pairwise what `count` work-items have, a power of two, that are `step` apart; `place` is
// this one's.  Each has `each` sums, ITEMS apart.  The first one gets the totals.
INLINE void add_up(__local ELEM *sums, int each, int place, int count, int step)
{
    for (int apart = count / 2; apart > 0; apart /= 2) {
        barrier(CLK_LOCAL_MEM_FENCE);
        if (place < apart)
            for (int i = 0; i < each; i++) {
                __local ELEM *own = sums + i * ITEMS + get_local_id(0);
                own[0] += own[apart * step];
            }
    }
}

// The sum of a row, or of a part of it: into y, or behind the sums of the parts before.
INLINE void keep_sum(const Gemm g, Gemv v, ELEM sum, long row, ELEM alpha, ELEM beta,
                     __global ELEM *scratch)
{
#if SPLIT
    // As the work-groups lie in the grid: entries within parts, columns within entries.
    const long before = get_group_id(2) * get_num_groups(1) + get_group_id(1);
    scratch[before * v.rows + row] = sum;
#else
    elem_store(v.y + row * v.step_y, elem_mul(alpha, sum), beta, beta_class(beta));
#endif
}
