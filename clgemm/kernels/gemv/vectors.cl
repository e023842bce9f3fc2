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
#define SPLIT 0  // work-groups get parts of k: 1: another launch adds their sums, 2: the last group
#endif
#if SPLIT == 0
#define PART_ARGS
#define EXTENT g.k  // elements along k that a work-group has
#define SCRATCH 0
#else
#if SPLIT == 1
#define PART_ARGS , const long extent, __global ELEM *restrict scratch
#else
#define PART_ARGS , const long extent, __global ELEM *restrict scratch, __global uint *tickets
#endif
#define EXTENT extent
#define SCRATCH scratch
#endif

typedef VECTOR(VW) Reals;
typedef union {
    Reals whole;
    ELEM e[VW];
} Vec;

// Row i of W begins at w + i * step_row, and its elements are step_k apart.
typedef struct {
    ELEM alpha, beta;
    __global const ELEM *w, *x;
    __global ELEM *y;
    long rows, step_row, step_k, step_x, step_y;
    int conj_w, conj_x;
    uint batch, entry, part;
} Gemv;

// The work-group's column of C, of an entry of the stack, and its part of k.
INLINE Gemv gemv_of(const Gemm g, ELEM alpha, ELEM beta, __global const ELEM *a,
                    __global const ELEM *b, __global ELEM *c)
{
    Gemv v;
    v.alpha = alpha, v.beta = beta, v.batch = g.batch;
    v.part = get_group_id(2) / v.batch, v.entry = get_group_id(2) % v.batch;  // longs take long
    const long column = get_group_id(1), entry = v.entry;
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

// Where in scratch memory the sums of a part lie: entries within parts, columns within entries.
INLINE long sums_before(Gemv v, long part)
{
    return ((part * v.batch + v.entry) * get_num_groups(1) + get_group_id(1)) * v.rows;
}

INLINE void store_sum(Gemv v, ELEM sum, long row)
{
    elem_store(v.y + row * v.step_y, elem_mul(v.alpha, sum), v.beta, beta_class(v.beta));
}

// The sum of a row, or of a part of it: into y, or behind the sums of the parts before.
INLINE void keep_sum(Gemv v, ELEM sum, long row, __global ELEM *scratch)
{
#if SPLIT
    scratch[sums_before(v, v.part) + row] = sum;
#else
    store_sum(v, sum, row);
#endif
}

// y := alpha * (sum of the parts' sums) + beta * y for `lanes` rows, a power of two, from `first` on.
//
// Neighbours have a row each; the other work-items of the group add other parts of it.  Which sums
// are added to which is fixed, so that results are the same from run to run.
INLINE void add_parts(Gemv v, long first, int lanes, int parts, __global const ELEM *scratch,
                      __local ELEM *sums)
{
    const int slice = get_local_id(0) / lanes;
    const long row = first + get_local_id(0) % lanes;
    ELEM sum = (ELEM)(0);
    if (row < v.rows)
        for (int q = slice; q < parts; q += ITEMS / lanes)
            sum += scratch[sums_before(v, q) + row];
    sums[get_local_id(0)] = sum;
    add_up(sums, 1, slice, ITEMS / lanes, lanes);
    if (slice == 0 && row < v.rows)
        store_sum(v, sums[get_local_id(0)], row);
}

#if SPLIT == 2
// The last work-group that has kept sums of these rows adds them up: `rows`, a power of two.
INLINE void join_parts(Gemv v, long first, int rows, __global const ELEM *scratch,
                       __local ELEM *sums, __global uint *tickets, __local int *is_last)
{
    const int parts = get_num_groups(2) / v.batch, lanes = min(rows, ITEMS);
    const uint before = v.entry * get_num_groups(1) + get_group_id(1);
    barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE);
    if (get_local_id(0) == 0)
        *is_last = is_last_ticket(tickets + before * get_num_groups(0) + get_group_id(0), parts);
    barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE);
    if (!*is_last)
        return;
    // More rows than work-items: then each has rows of its own, and no sums of others to wait for.
    for (int done = 0; done < rows; done += lanes)
        add_parts(v, first + done, lanes, parts, scratch, sums);
}
#endif
