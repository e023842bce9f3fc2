// nv_split, first kernel: look at the operands, and make what is too thin for a tile.
//
// A work-group reads RECORD_ROWS rows to their end and keeps their exponents and record.
//
// Where a single row of X or Y is left after the last whole strip, as in powers of two plus one, a
// row of tiles for it would take longer than all the rest saves: one more round of all workers.  It
// is this kernel, which passes all elements of the other operand anyway, that multiplies that row
// ("edge") with them, by FMA, and stores the last column or row of C.

#define SURVEY_ITEMS 1024
#define LINE_VECTORS (RECORD_ROWS / WIDE)   // across rows: work-items that read a line
#define LINES (SURVEY_ITEMS / LINE_VECTORS)  // and lines they read at a time
#define LANES (SURVEY_ITEMS / RECORD_ROWS)  // along a row, or for what was seen of it: 32 or more
#define UNDER_WAY 4                         // loads of a work-item

#ifndef EDGE_X
#define EDGE_X 0  // 1: X has an edge; there is one matrix only
#endif
#ifndef EDGE_Y
#define EDGE_Y 0  // the same of Y
#endif
#define EDGE (EDGE_X || EDGE_Y)
#define EDGE_DEPTH (4096 / CE)  // elements of it in local memory at a time

// What a work-item has seen of its rows: each one's range, and its product with the edge.
typedef struct {
    uint2 range[WIDE];
    ELEM dot[WIDE];
} Seen;

// Of a vector's elements number i belongs to row i if `across` rows, else all to row 0; they meet
// edge[0], or edge[i].
INLINE void see(Seen *seen, Vector v, int across, int conj, __local const ELEM *edge)
{
    UNROLL
    for (int r = 0; r < 4; r++) {
        const int row = across ? r / CE : 0;
        seen->range[row] = seen_real(seen->range[row], v.real[r]);
    }
#if EDGE
    UNROLL
    for (int i = 0; i < WIDE; i++) {
        const int row = across ? i : 0;
        seen->dot[row] =
            elem_fma(elem_conj(v.elem[i], conj), edge[across ? 0 : i], seen->dot[row]);
    }
#endif
}

// Look at every `step`-th of `count` vectors, `stride` elements apart, from number `first` on.  The
// first `clean` are whole and aligned; of number p, inside - p * inside_step elements are inside.
INLINE void look_at(Seen *seen, __global const ELEM *x, long stride, int first, int step, int count,
                    int clean, int across, long inside, long inside_step, int conj,
                    __local const ELEM *edge)
{
    const int edge_step = across ? 1 : WIDE;
    int q = first;
    for (; q + (UNDER_WAY - 1) * step < clean; q += UNDER_WAY * step) {
        Vector v[UNDER_WAY];
        UNROLL
        for (int u = 0; u < UNDER_WAY; u++)
            v[u].all = *(__global const float4 *)(x + (q + u * step) * stride);
        UNROLL
        for (int u = 0; u < UNDER_WAY; u++)
            see(seen, v[u], across, conj, edge + (q + u * step) * edge_step);
    }
#pragma unroll 4
    for (; q < count; q += step) {
        Vector v;
        UNROLL
        for (int i = 0; i < WIDE; i++)
            v.elem[i] = i < inside - q * inside_step ? x[q * stride + i] : (ELEM)(0);
        see(seen, v, across, conj, edge + q * edge_step);
    }
}

__kernel __attribute__((reqd_work_group_size(SURVEY_ITEMS, 1, 1)))
void nv_split_survey(GEMM_ARGS, const Split s, __global uchar *scratch)
{
    // By row, what each line or lane has seen: ranges, then dots.
    __local uint2 lines[RECORD_ROWS * (LINES + 1)];
    __local int2 marks[RECORD_ROWS];
    __local ELEM edge[EDGE ? EDGE_DEPTH : 1] __attribute__((aligned(16)));
    const int item = get_local_id(0), mine = item / LANES, lane = item % LANES;
    int record = get_group_id(0);
    const int is_y = record >= s.copies_x * records_of(&s, 0);
    record -= is_y ? s.copies_x * records_of(&s, 0) : 0;
    // One more work-group than there are records multiplies the edges of both operands.
    const int both_edges = EDGE_X && EDGE_Y && is_y && record == s.copies_y * records_of(&s, 1);
    const int copy = both_edges ? 0 : record / records_of(&s, is_y);
    Operand o = operand_of(&g, a, b, is_y, copy);
    const long row0 = both_edges ? o.rows : record % records_of(&s, is_y) * RECORD_ROWS;
    const int wide = !((ulong)o.x & 15) && !(o.ld * CE & 3);
    o.rows += both_edges;

    if (get_group_id(0) == 0)  // no tile is ready: the product looks at these
        for (int i = item; i < s.workers; i += SURVEY_ITEMS)
            ((__global uint *)(scratch + s.ready))[i] = 0;

    Seen seen;
    UNROLL
    for (int i = 0; i < WIDE; i++) {
        seen.range[i] = NOTHING;
        seen.dot[i] = (ELEM)(0);
    }
    const int row = item % LINE_VECTORS * WIDE, line = item / LINE_VECTORS;  // unless along_k
#if EDGE
    const int meets_edge = is_y ? EDGE_X : EDGE_Y;
    const Operand other = operand_of(&g, a, b, !is_y, 0);
    for (long p0 = 0; p0 < g.k; p0 += EDGE_DEPTH) {
        const int depth = (int)min((long)EDGE_DEPTH, g.k - p0);
        barrier(CLK_LOCAL_MEM_FENCE);
        for (int p = item; p < depth + WIDE - 1; p += SURVEY_ITEMS)
            if (p < EDGE_DEPTH)
                edge[p] = meets_edge && p < depth ? element_of(&other, other.rows, p0 + p)
                                                  : (ELEM)(0);
        barrier(CLK_LOCAL_MEM_FENCE);
#else
    {
        const long p0 = 0;
        const int depth = (int)g.k;
#endif
        if (!o.along_k)
            look_at(&seen, o.x + row0 + row + p0 * o.ld, o.ld, line, LINES, depth,
                    wide && o.rows - row0 - row >= WIDE ? depth : 0, 1, o.rows - row0 - row, 0,
                    o.conj, edge);
        else if (row0 + mine < o.rows)
            look_at(&seen, o.x + (row0 + mine) * o.ld + p0, WIDE, lane, LANES,
                    (depth + WIDE - 1) / WIDE, wide ? depth / WIDE : 0, 0, depth, WIDE, o.conj,
                    edge);
    }
    if (!o.along_k) {
        UNROLL
        for (int i = 0; i < WIDE; i++)
            lines[(row + i) * (LINES + 1) + line] = seen.range[i];
        barrier(CLK_LOCAL_MEM_FENCE);
        seen.range[0] = NOTHING;
        UNROLL
        for (int i = 0; i < LINES; i += LANES)
            seen.range[0] = seen_both(seen.range[0], lines[mine * (LINES + 1) + i + lane]);
        barrier(CLK_LOCAL_MEM_FENCE);
    }
    lines[mine * (LINES + 1) + lane] = seen.range[0];
    barrier(CLK_LOCAL_MEM_FENCE);
    if (LANES > 32) {  // 32 of them take in the others
        if (lane < 32) {
            UNROLL
            for (int i = 32; i < LANES; i += 32)
                seen.range[0] = seen_both(seen.range[0], lines[mine * (LINES + 1) + i + lane]);
            lines[mine * (LINES + 1) + lane] = seen.range[0];
        }
        barrier(CLK_LOCAL_MEM_FENCE);
    }

    if (!both_edges && item < RECORD_ROWS) {
        uint2 all = NOTHING;
        UNROLL
        for (int i = 0; i < 32; i++)
            all = seen_both(all, lines[item * (LINES + 1) + i]);
        const int2 mark = marks[item] = mark_of(all);
        ((__global int *)(scratch + (is_y ? s.exponents_y : s.exponents_x)))
            [record * RECORD_ROWS + item] = exponent_in(mark);
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    if (!both_edges && item == 0) {
        int2 all = marks[0];
        UNROLL
        for (int i = 1; i < RECORD_ROWS; i++)
            all = max(all, marks[i]);
        ((__global int2 *)(scratch + (is_y ? s.records_y : s.records_x)))[record] = all;
    }
#if EDGE
    // Not left early by work-groups without an edge: PoCL then runs some work-items ahead.
    __local ELEM *dots = (__local ELEM *)lines;
    if (!o.along_k) {
        UNROLL
        for (int i = 0; i < WIDE; i++)
            dots[(row + i) * (LINES + 1) + line] = seen.dot[i];
        barrier(CLK_LOCAL_MEM_FENCE);
        seen.dot[0] = (ELEM)(0);
        UNROLL
        for (int i = 0; i < LINES; i += LANES)
            seen.dot[0] += dots[mine * (LINES + 1) + i + lane];
        barrier(CLK_LOCAL_MEM_FENCE);
    }
    dots[mine * (LINES + 1) + lane] = seen.dot[0];
    barrier(CLK_LOCAL_MEM_FENCE);
    if (LANES > 32) {
        if (lane < 32) {
            UNROLL
            for (int i = 32; i < LANES; i += 32)
                seen.dot[0] += dots[mine * (LINES + 1) + i + lane];
            dots[mine * (LINES + 1) + lane] = seen.dot[0];
        }
        barrier(CLK_LOCAL_MEM_FENCE);
    }
    if (meets_edge && item < RECORD_ROWS && row0 + item < o.rows) {
        ELEM sum = (ELEM)(0);
        UNROLL
        for (int i = 0; i < 32; i++)
            sum += dots[item * (LINES + 1) + i];
        const long i = is_y ? row0 + item : other.rows, j = is_y ? other.rows : row0 + item;
        elem_store(c + g.offset_c + i + j * g.ldc, elem_mul(alpha, sum), beta, beta_class(beta));
    }
#endif
}
