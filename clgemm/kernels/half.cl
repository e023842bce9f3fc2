// Copies of float16 operands as float32, and of the float32 result as float16.  Needs no cl_khr_fp16:
// halves are loaded and stored, never computed with.
//
// A work-item copies an element: (row, column) of the matrix as it lies, of an entry of the stack.
//   scratch, at   the copy, without gaps, from its element `at` on
//   alpha, beta   not read: what runs every plan binds them

#define HALF_ARGS                                                                              \
    const Gemm g, const ELEM alpha, const ELEM beta, __global const half *a,                   \
        __global const half *b, __global half *c, __global float *restrict scratch, const long at

#define ROW get_global_id(0)
#define COLUMN get_global_id(1)
#define ENTRY get_global_id(2)

__kernel void widen_a(HALF_ARGS)
{
    const long rows = g.trans_a ? g.k : g.m, columns = get_global_size(1);
    if (ROW < rows)
        scratch[at + (ENTRY * columns + COLUMN) * rows + ROW] =
            vload_half(g.offset_a + ENTRY * g.stride_a + COLUMN * g.lda + ROW, a);
}

__kernel void widen_b(HALF_ARGS)
{
    const long rows = g.trans_b ? g.n : g.k, columns = get_global_size(1);
    if (ROW < rows)
        scratch[at + (ENTRY * columns + COLUMN) * rows + ROW] =
            vload_half(g.offset_b + ENTRY * g.stride_b + COLUMN * g.ldb + ROW, b);
}

__kernel void round_to_half(HALF_ARGS)
{
    if (ROW < g.m)
        vstore_half_rte(scratch[at + (ENTRY * g.n + COLUMN) * g.m + ROW],
                        g.offset_c + ENTRY * g.stride_c + COLUMN * g.ldc + ROW, c);
}
