// nv_split: fp32 products at fp32 accuracy from products of halves.  What its three kernels share,
// and the first of them, which surveys the operands.  Plain OpenCL C.
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
//      record of each 32 rows of elements: (top, spread), see below
// and partial tiles with their flags, see nv_split_gemm.cl.

#ifndef MI
#define MI 2  // blocks of 64 rows of X that a warpgroup multiplies
#endif
#ifndef BY
#define BY 128  // rows of Y in a strip
#endif
#define BX (128 * MI)  // rows of X in a strip: two warpgroups
#define ROWS_X (BX)    // the same in rows of elements
#define ROWS_Y (BY / CE)

#define RECORD_ROWS 32
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
} Split;

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

// Records of a matrix; its rows of elements are RECORD_ROWS times as many.
INLINE int records_of(const Split *s, int is_y)
{
    return is_y ? s->strips_y * (ROWS_Y / RECORD_ROWS) : s->strips_x * (ROWS_X / RECORD_ROWS);
}

// floor(log2(x)) of a positive float's bits, subnormal ones too.
INLINE int exponent_of(uint bits)
{
    return bits >= 0x800000u ? (int)(bits >> 23) - 127 : 31 - (int)clz(bits) - 149;
}

// ---- survey -------------------------------------------------------------------------------------
//
// A work-group reads RECORD_ROWS rows to their end and keeps each row's exponent and
//      top     the largest exponent of the rows
//      spread  the largest distance, in a row, from its exponent to that of its smallest element
//              that is not zero

#define SURVEY_ITEMS 1024
#define WIDE (4 / CE)                       // elements in 16 bytes
#define LINE_VECTORS (RECORD_ROWS / WIDE)   // across rows: work-items that read a line
#define LINES (SURVEY_ITEMS / LINE_VECTORS)  // and lines they read at a time
#define UNDER_WAY 4                         // loads of a work-item

typedef union {
    float4 all;
    float real[4];
    ELEM elem[WIDE];
} Vector;

// (largest bits, smallest bits - 1) so far; a zero's 0 - 1 is the largest of all uints.
INLINE uint2 seen_real(uint2 seen, float x)
{
    const uint bits = as_uint(x) & 0x7fffffffu;
    return (uint2)(max(seen.x, bits), min(seen.y, bits - 1));
}

INLINE uint2 seen_both(uint2 a, uint2 b)
{
    return (uint2)(max(a.x, b.x), min(a.y, b.y));
}

// Of a vector's elements number i belongs to row i of `seen` if `across` rows, else all to row 0.
INLINE void see(uint2 seen[WIDE], Vector v, int across)
{
    UNROLL
    for (int r = 0; r < 4; r++) {
        const int row = across ? r / CE : 0;
        seen[row] = seen_real(seen[row], v.real[r]);
    }
}

// Look at every `step`-th of `count` vectors, `stride` elements apart, from number `first` on.  The
// first `clean` are whole and aligned; of number p, inside - p * inside_step elements are inside.
INLINE void look_at(uint2 seen[WIDE], __global const ELEM *x, long stride, int first, int step,
                    int count, int clean, int across, long inside, long inside_step)
{
    int q = first;
    for (; q + (UNDER_WAY - 1) * step < clean; q += UNDER_WAY * step) {
        Vector v[UNDER_WAY];
        UNROLL
        for (int u = 0; u < UNDER_WAY; u++)
            v[u].all = *(__global const float4 *)(x + (q + u * step) * stride);
        UNROLL
        for (int u = 0; u < UNDER_WAY; u++)
            see(seen, v[u], across);
    }
#pragma unroll 4
    for (; q < count; q += step) {
        Vector v;
        UNROLL
        for (int i = 0; i < WIDE; i++)
            v.elem[i] = i < inside - q * inside_step ? x[q * stride + i] : (ELEM)(0);
        see(seen, v, across);
    }
}

__kernel __attribute__((reqd_work_group_size(SURVEY_ITEMS, 1, 1)))
void nv_split_survey(GEMM_ARGS, const Split s, __global uchar *scratch)
{
    __local uint2 lines[RECORD_ROWS * (LINES + 1)];  // rows of what was seen by each line or lane
    __local int2 marks[RECORD_ROWS];
    const int item = get_local_id(0);
    int record = get_group_id(0);
    const int is_y = record >= s.copies_x * records_of(&s, 0);
    record -= is_y ? s.copies_x * records_of(&s, 0) : 0;
    const int copy = record / records_of(&s, is_y);
    const int row0 = record % records_of(&s, is_y) * RECORD_ROWS;
    const Operand o = operand_of(&g, a, b, is_y, copy);
    const int wide = !((ulong)o.x & 15) && !(o.ld * CE & 3);
    const uint2 nothing = (uint2)(0, 0xffffffffu);

    if (get_group_id(0) == 0)  // no tile is ready: the product looks at these
        for (int i = item; i < s.workers; i += SURVEY_ITEMS)
            ((__global uint *)(scratch + s.ready))[i] = 0;

    const int mine = item / 32, lane = item % 32;  // a row and its share of lines or vectors
    uint2 seen[WIDE];
    UNROLL
    for (int i = 0; i < WIDE; i++)
        seen[i] = nothing;
    if (o.along_k) {
        if (row0 + mine < o.rows)
            look_at(seen, o.x + (row0 + mine) * o.ld, WIDE, lane, 32, (g.k + WIDE - 1) / WIDE,
                    wide ? g.k / WIDE : 0, 0, g.k, WIDE);
    } else {
        const int row = item % LINE_VECTORS * WIDE, line = item / LINE_VECTORS;
        const long inside = o.rows - row0 - row;
        look_at(seen, o.x + row0 + row, o.ld, line, LINES, g.k, wide && inside >= WIDE ? g.k : 0,
                1, inside, 0);
        UNROLL
        for (int i = 0; i < WIDE; i++)
            lines[(row + i) * (LINES + 1) + line] = seen[i];
        barrier(CLK_LOCAL_MEM_FENCE);
        seen[0] = nothing;
        UNROLL
        for (int i = 0; i < LINES; i += 32)
            seen[0] = seen_both(seen[0], lines[mine * (LINES + 1) + i + lane]);
        barrier(CLK_LOCAL_MEM_FENCE);
    }
    lines[mine * (LINES + 1) + lane] = seen[0];
    barrier(CLK_LOCAL_MEM_FENCE);

    if (item < RECORD_ROWS) {
        uint2 all = nothing;
        UNROLL
        for (int i = 0; i < 32; i++)
            all = seen_both(all, lines[item * (LINES + 1) + i]);
        int exponent = 0;
        int2 mark = (int2)(TOP_NONE, 0);
        if (all.x >= 0x7f800000u) {
            mark.x = TOP_NOT_FINITE;
        } else if (all.x) {
            exponent = exponent_of(all.x);
            mark = (int2)(exponent, exponent - exponent_of(all.y + 1));
        }
        ((__global int *)(scratch + (is_y ? s.exponents_y : s.exponents_x)))
            [record * RECORD_ROWS + item] = exponent;
        marks[item] = mark;
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    if (item == 0) {
        int2 all = marks[0];
        UNROLL
        for (int i = 1; i < RECORD_ROWS; i++)
            all = max(all, marks[i]);
        ((__global int2 *)(scratch + (is_y ? s.records_y : s.records_x)))[record] = all;
    }
}
