// nv_split, the first two kernels in one, for rows that are short enough for local memory.
//
// A work-group takes RECORD_ROWS rows: it reads them once, finds their exponents, and splits them.
// Nothing is known of the strips they will meet, so both kinds of parts are written, unless the rows
// themselves rule out fp16.  That is twice the memory, for a launch less: what counts here.
//
// EDGE_X, EDGE_Y: as in nv_split/survey.cl, this kernel multiplies a row that is left over.

#define SHORT_ITEMS 256
#ifndef SHORT_DEPTH
#define SHORT_DEPTH 2048  // the longest row, in reals
#endif
#ifndef EDGE_X
#define EDGE_X 0
#endif
#ifndef EDGE_Y
#define EDGE_Y 0
#endif
#define EDGE (EDGE_X || EDGE_Y)
#define ROW (SHORT_DEPTH + 4)  // in local memory: neighbouring rows meet other banks
#define LANES (SHORT_ITEMS / RECORD_ROWS)
#define READS 4  // loads of a work-item under way

// Copy rows row0 ... to local memory, zero where the matrix ends, up to `depth` elements.
INLINE void load_rows(__local float *rows, const Operand *o, long row0, int k, int depth)
{
    const int item = get_local_id(0), quads = RECORD_ROWS / WIDE;
    const int wide = !((ulong)o->x & 15) && !(o->ld * CE & 3), along_k = o->along_k;
    const int row = along_k ? item / LANES : item % quads * WIDE;
    const int first = along_k ? item % LANES : item / quads;
    const int step = along_k ? LANES : SHORT_ITEMS / quads, count = along_k ? depth / WIDE : depth;
    const long stride = along_k ? WIDE : o->ld, left = o->rows - row0 - row;
    __global const ELEM *x = o->x + (along_k ? (row0 + row) * o->ld : row0 + row);
    for (int q0 = first; q0 < count; q0 += READS * step) {
        Vector v[READS];
        UNROLL
        for (int u = 0; u < READS; u++) {
            const int q = q0 + u * step;
            const long inside = along_k ? (left > 0 ? k - q * WIDE : 0) : q < k ? left : 0;
            v[u].all = (float4)(0);
            if (wide && inside >= WIDE) {
                v[u].all = *(__global const float4 *)(x + q * stride);
            } else {
                UNROLL
                for (int i = 0; i < WIDE; i++)
                    if (i < inside)
                        v[u].elem[i] = x[q * stride + i];
            }
        }
        UNROLL
        for (int u = 0; u < READS; u++) {
            const int q = q0 + u * step;
            if (q >= count)
                break;
            if (along_k) {
                *(__local float4 *)(rows + row * ROW + q * 4) = v[u].all;
            } else {
                UNROLL
                for (int i = 0; i < WIDE; i++)
                    *(__local ELEM *)(rows + (row + i) * ROW + q * CE) = v[u].elem[i];
            }
        }
    }
}

// The products of all rows with the edge, each work-item's share of k.
INLINE void meet_edge(ELEM dot[RECORD_ROWS], __local const float *rows, const Operand *o,
                      const Operand *other, int k)
{
    UNROLL
    for (int i = 0; i < RECORD_ROWS; i++)
        dot[i] = (ELEM)(0);
    for (int p = get_local_id(0); p < k; p += SHORT_ITEMS) {
        const ELEM edge = element_of(other, other->rows, p);
        UNROLL
        for (int i = 0; i < RECORD_ROWS; i++)
            dot[i] = elem_fma(elem_conj(*(__local const ELEM *)(rows + i * ROW + p * CE), o->conj),
                              edge, dot[i]);
    }
}

__kernel __attribute__((reqd_work_group_size(SHORT_ITEMS, 1, 1)))
void nv_split_short(GEMM_ARGS, const Split s, __global uchar *scratch)
{
    __local float rows[RECORD_ROWS * ROW] __attribute__((aligned(16)));
    __local uint2 ranges[RECORD_ROWS * (LANES + 1)];
    __local int2 marks[RECORD_ROWS];
    const int item = get_local_id(0), depth = s.slices * 64;
    int record = get_group_id(0);
    const int is_y = record >= s.copies_x * records_of(&s, 0);
    record -= is_y ? s.copies_x * records_of(&s, 0) : 0;
    // One more work-group than there are records multiplies the edges of both operands.
    const int both_edges = EDGE_X && EDGE_Y && is_y && record == s.copies_y * records_of(&s, 1);
    const int copy = both_edges ? 0 : record / records_of(&s, is_y);
    Operand o = operand_of(&g, a, b, is_y, copy);
    const int row0 = both_edges ? (int)o.rows : record % records_of(&s, is_y) * RECORD_ROWS;
    o.rows += both_edges;

    if (get_group_id(0) == 0)  // no tile is ready: the product looks at these
        for (int i = item; i < s.workers; i += SHORT_ITEMS)
            ((__global uint *)(scratch + s.ready))[i] = 0;

    load_rows(rows, &o, row0, (int)g.k, depth / CE);
    barrier(CLK_LOCAL_MEM_FENCE);
    const int mine = item / LANES, lane = item % LANES;
    uint2 range = NOTHING;
    for (int p = lane * 4; p < depth; p += LANES * 4) {
        const float4 x = *(__local const float4 *)(rows + mine * ROW + p);
        range = seen_real(seen_real(seen_real(seen_real(range, x.x), x.y), x.z), x.w);
    }
    ranges[mine * (LANES + 1) + lane] = range;
    barrier(CLK_LOCAL_MEM_FENCE);
    if (item < RECORD_ROWS) {
        range = NOTHING;
#pragma unroll 16
        for (int i = 0; i < LANES; i++)
            range = seen_both(range, ranges[item * (LANES + 1) + i]);
        const int2 mark = marks[item] = mark_of(range);
        if (!both_edges)
            ((__global int *)(scratch + (is_y ? s.exponents_y : s.exponents_x)))
                [record * RECORD_ROWS + item] = exponent_in(mark);
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    int2 all = marks[0];
    UNROLL
    for (int i = 1; i < RECORD_ROWS; i++)
        all = max(all, marks[i]);
    if (!both_edges && item == 0)
        ((__global int2 *)(scratch + (is_y ? s.records_y : s.records_x)))[record] = all;

    const int height = is_y ? BY : BX, per_row = is_y ? CE : 1, count = RECORD_ROWS * per_row;
    const int first = row0 * per_row % height;  // in the strip
    const long strip = copy * (is_y ? s.strips_y : s.strips_x) + row0 * per_row / height;
    const int chunks = both_edges ? 0 : count * s.slices * 8;
    for (int e = item; e < chunks; e += SHORT_ITEMS) {
        const int c = e % 8, row = e / 8 % count, slice = e / 8 / count, i = row / per_row;
        const int placed = is_y ? place_of_row(first + row) : first + row;
        __local const float4 *from = (__local const float4 *)(rows + i * ROW + slice * 64 + c * 8);
        const float4 low = from[0], high = from[1];
        float x[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
        expand(x, is_y, o.conj, row % per_row);
        const int exponent = exponent_in(marks[i]);
        const long place = strip * s.slices + slice;
        if (all.y <= s.spread_fp16)
            store_fp16(scratch + (is_y ? s.fp16_y : s.fp16_x) + place * (height * 256), height,
                       placed, c, x, TARGET_FP16 - exponent);
        store_bf16(scratch + (is_y ? s.bf16_y : s.bf16_x) + place * (height * 384), height, placed,
                   c, x, TARGET_BF16 - exponent);
    }
#if EDGE
    // Not left early by work-groups without an edge: PoCL then runs some work-items ahead.
    const int meets_edge = is_y ? EDGE_X : EDGE_Y;
    const Operand other = operand_of(&g, a, b, !is_y, 0);
    ELEM dot[RECORD_ROWS];
    meet_edge(dot, rows, &o, &other, meets_edge ? (int)g.k : 0);
    __local ELEM *dots = (__local ELEM *)rows;
    barrier(CLK_LOCAL_MEM_FENCE);
    UNROLL
    for (int i = 0; i < RECORD_ROWS; i++)
        dots[i * SHORT_ITEMS + item] = dot[i];
    barrier(CLK_LOCAL_MEM_FENCE);
    dot[0] = (ELEM)(0);
    for (int i = lane; i < SHORT_ITEMS; i += LANES)
        dot[0] += dots[mine * SHORT_ITEMS + i];
    barrier(CLK_LOCAL_MEM_FENCE);
    dots[item] = dot[0];
    for (int half_lanes = LANES / 2; half_lanes > 0; half_lanes /= 2) {
        barrier(CLK_LOCAL_MEM_FENCE);
        if (lane < half_lanes)
            dots[item] += dots[item + half_lanes];
    }
    if (meets_edge && lane == 0 && row0 + mine < o.rows) {
        const long i = is_y ? row0 + mine : other.rows, j = is_y ? other.rows : row0 + mine;
        elem_store(c + g.offset_c + i + j * g.ldc, elem_mul(alpha, dots[item]), beta,
                   beta_class(beta));
    }
#endif
}
