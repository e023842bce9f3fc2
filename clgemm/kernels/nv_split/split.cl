// nv_split: fp32 products at fp32 accuracy from products of halves.  What its three kernels share.
// Plain OpenCL C.
//
// C is column-major and the tensor cores store rows, so the kernels compute the transposed product
//
//      C^T (n x m) = X * Y^T      X = op(B)^T: n rows of length k,  Y = op(A): m rows of length k
//
// in real numbers: a complex row of X is (re, im, re, im, ...), and one of Y becomes two,
//
//      row 2i      re -im  re -im ...       gives the real parts of row i of C
//      row 2i + 1  im  re  im  re ...       gives the imaginary parts
//
// so that rows of C^T are (re, im) pairs, as they lie in memory.  From here on k, m and rows count
// reals, "elements" are what the caller has.
//
// Scratch memory, by operand (x, y) and matrix of the stack (one only if its stride is 0):
//      panels of fp16  [strip][slice of 64 deep][part 0, 1]   [row of the strip][64]   swizzled
//      panels of bf16  [strip][slice of 32 deep][part 0, 1, 2][row of the strip][32]   swizzled
//      exponent of each row of elements: floor(log2(its largest magnitude)), 0 for a row of zeros
//      record of each RECORD_ROWS rows of elements: (top, spread)
//          top     the largest exponent of the rows
//          spread  the largest distance, in a row, from its exponent to that of its smallest element
//                  that is not zero
// and partial tiles with their flags, see nv_split/gemm.cl.

#ifndef MI
#define MI 2  // blocks of 64 rows of X that a warpgroup multiplies
#endif
#ifndef BY
#define BY 128  // rows of Y in a strip
#endif
#ifndef GROUPS_X
#define GROUPS_X 2  // warpgroups that share the rows of X; 1: the two share those of Y
#endif
#define BX (64 * MI * GROUPS_X)  // rows of X in a strip
#define WY (BY * GROUPS_X / 2)   // rows of Y that a warpgroup multiplies
#define ROWS_X (BX)    // the same in rows of elements
#define ROWS_Y (BY / CE)

#define WIDE (4 / CE)  // elements in 16 bytes

#ifndef RECORD_ROWS
#define RECORD_ROWS 32  // of elements; 8 if rows are short, or few
#endif
#define TOP_NONE (-1000)      // no element differs from zero
#define TOP_NOT_FINITE 4000   // greater than any limit, whatever is added
#define TARGET_FP16 14        // the largest of a row is scaled into [2^14, 2^15) for fp16,
#define TARGET_BF16 50        // into [2^50, 2^51) for bf16
#define SPREAD_BF16 159       // within it all 24 bits of a scaled float fit three bf16
#define SPREADS_BF16 202      // within it products of the last parts stay normal numbers

typedef struct {
    long fp16_x, fp16_y, bf16_x, bf16_y;                 // bytes from the start of the scratch
    long exponents_x, exponents_y, records_x, records_y;  // the same
    long partials, ready;                                 // the same
    int slices;              // of 64 reals of k, the last one padded with zeros
    int strips_x, strips_y;  // of one matrix, the last one padded with zeros
    int copies_x, copies_y;  // matrices of the stack that differ
    int spread_fp16;         // within it fp16 keeps the error bound
    int top_limit;           // tops of this sum could overflow
    int run;                 // slices that a work-group packs
    int workers;             // work-groups of the product
    int whole;               // tiles that are not shared between workers
    int thin;                // 1: the last strip of X is at most half full
    ushort piece, pieces;    // piece / pieces tiles beyond those are a worker's
} Split;  // 128 bytes: with 136 the compiler arranged nv_split/gemm.cl otherwise, a tenth slower

// How a tile is computed.
#define MODE_FP16 0
#define MODE_BF16 1
#define MODE_FMA 2
#define MODE_END 3  // no segment: the worker is done

// What a work-group computes of a tile at a time.
typedef struct {
    int copy_x, copy_y, entry;  // matrices of the stack: packed X and Y, C
    int x, y;                   // strips
    int first, last;            // slices
    int mode;
} Segment;

// One operand of a stack as rows of elements: (row, p) lies at x[row * ld + p] if along_k, else at
// x[row + p * ld].
typedef struct {
    __global const ELEM *x;
    long ld, rows;
    int along_k, conj;
} Operand;

INLINE Operand operand_of(const Gemm *g, __global const ELEM *a, __global const ELEM *b, int is_y,
                          long copy)
{
    Operand o;
    o.x = is_y ? a + g->offset_a + copy * g->stride_a : b + g->offset_b + copy * g->stride_b;
    o.ld = is_y ? g->lda : g->ldb;
    o.rows = is_y ? g->m : g->n;
    o.along_k = is_y ? g->trans_a : !g->trans_b;
    o.conj = is_y ? g->conj_a : g->conj_b;
    return o;
}

INLINE ELEM element_of(const Operand *o, long row, long p)
{
    return elem_conj(o->x[o->along_k ? row * o->ld + p : row + p * o->ld], o->conj);
}

// Records of a matrix; its rows of elements are RECORD_ROWS times as many.
INLINE int records_of(const Split *s, int is_y)
{
    return is_y ? s->strips_y * (ROWS_Y / RECORD_ROWS) : s->strips_x * (ROWS_X / RECORD_ROWS);
}

typedef union {
    float4 all;
    float real[4];
    ELEM elem[WIDE];
} Vector;

// ---- ranges -------------------------------------------------------------------------------------

// floor(log2(x)) of a positive float's bits, subnormal ones too.
INLINE int exponent_of(uint bits)
{
    return bits >= 0x800000u ? (int)(bits >> 23) - 127 : 31 - (int)clz(bits) - 149;
}

// The range of numbers: (largest bits, smallest bits - 1); a zero's 0 - 1 is the largest of all uints.
#define NOTHING (uint2)(0, 0xffffffffu)

INLINE uint2 seen_real(uint2 seen, float x)
{
    const uint bits = as_uint(x) & 0x7fffffffu;
    return (uint2)(max(seen.x, bits), min(seen.y, bits - 1));
}

INLINE uint2 seen_both(uint2 a, uint2 b)
{
    return (uint2)(max(a.x, b.x), min(a.y, b.y));
}

// (top, spread) of a row with that range.
INLINE int2 mark_of(uint2 range)
{
    if (range.x >= 0x7f800000u)
        return (int2)(TOP_NOT_FINITE, 0);
    if (!range.x)
        return (int2)(TOP_NONE, 0);
    const int exponent = exponent_of(range.x);
    return (int2)(exponent, exponent - exponent_of(range.y + 1));
}

INLINE int exponent_in(int2 mark)
{
    return mark.x == TOP_NONE || mark.x == TOP_NOT_FINITE ? 0 : mark.x;
}
