// nv_split, second kernel: split rows into parts, in the layout the tensor cores read.
//
// A work-group takes 64 rows of a strip and `run` slices of 64 reals; a work-item takes chunks of 8
// reals.  A strip is written as fp16 if its spread allows it, and as bf16 if its own spread or that of
// any strip it may meet does not.

#define PACK_ITEMS 256
#define CHUNKS (64 * 64 / 8)
#define TILE_REALS (64 * 65 + 32)
#define LOG2_DEPTH (IS_COMPLEX ? 5 : 6)    // of a tile, in elements
#define READS (IS_COMPLEX ? 4 : 8)        // elements a work-item has under way; divides all tiles
#define WIDE_READS (4 / CE)                // the same in vectors of 16 bytes

// Copy rows row0 ... and elements p0 ... to local memory, zero where the matrix ends.  A line of the
// tile is a line of memory; the skew lets both kinds of tile be read without bank conflicts.
#define LINE(i, along_k, width) ((i) * (width) + ((along_k) ? (i) : (i) / (8 / CE) * 4))

INLINE void load_tile(__local float *tile, const Operand *o, long row0, int rows, long p0, long k,
                      int aligned)
{
    const int depth = 64 / CE, log2_width = !o->along_k && rows == 64 ? 6 : LOG2_DEPTH;
    const int width = 1 << log2_width, lines = o->along_k ? rows : depth;
    const int rows_left = (int)min((long)rows, o->rows - row0);
    const int depth_left = (int)min((long)depth, k - p0), item = get_local_id(0);
    __global const ELEM *from =
        o->x + (o->along_k ? row0 * o->ld + p0 : row0 + p0 * o->ld);
    if (!o->along_k && aligned && rows_left == rows && depth_left == depth) {
        const int f = item % (width / WIDE) * WIDE, step = PACK_ITEMS * WIDE / width;
        from += f;
        for (int i = item / (width / WIDE); i < lines; i += WIDE_READS * step) {
            float4 v[WIDE_READS];
            UNROLL
            for (int u = 0; u < WIDE_READS; u++)
                v[u] = *(__global const float4 *)(from + (i + u * step) * o->ld);
            UNROLL
            for (int u = 0; u < WIDE_READS; u++)
                *(__local float4 *)(tile + LINE(i + u * step, 0, width * CE) + f * CE) = v[u];
        }
        return;
    }
    const int f = item % width, step = PACK_ITEMS / width;
    const int lines_left = f >= (o->along_k ? depth_left : rows_left) ? 0
                           : o->along_k                               ? rows_left
                                                                      : depth_left;
    const long hop = step * o->ld;
    from += f + item / width * o->ld;
#pragma unroll 1
    for (int i = item / width; i < lines; i += READS * step) {
        __local float *to = tile + LINE(i, o->along_k, width * CE) + f * CE;
        ELEM v[READS];
        UNROLL
        for (int u = 0; u < READS; u++) {
            v[u] = (ELEM)(0);
            if (i + u * step < lines_left)
                v[u] = *from;
            from += hop;
        }
        UNROLL
        for (int u = 0; u < READS; u++) {
#if IS_COMPLEX
            to[0] = v[u].x;
            to[1] = v[u].y;
#else
            to[0] = v[u];
#endif
            // Lines of a turn are as far apart as those of the first: `step` is at most 8 / CE, or
            // a multiple of it.
            to += LINE((u + 1) * step, o->along_k, width * CE) - LINE(u * step, o->along_k, width * CE);
        }
    }
}

// Eight reals of a row along k, from x on, whatever its alignment; 12 from the 16 bytes at or before x
// on may be read.
INLINE void read_eight(float to[8], __global const float *x, int aligned)
{
    if (aligned) {
        const float4 low = ((__global const float4 *)x)[0], high = ((__global const float4 *)x)[1];
        to[0] = low.x, to[1] = low.y, to[2] = low.z, to[3] = low.w;
        to[4] = high.x, to[5] = high.y, to[6] = high.z, to[7] = high.w;
        return;
    }
    const int late = (int)((ulong)x >> 2 & 3), one = late & 1, two = late & 2;
    __global const float4 *from = (__global const float4 *)(x - late);
    const float4 a = from[0], b = from[1], c = from[2];
    const float by_two[9] = {two ? a.z : a.x, two ? a.w : a.y, two ? b.x : a.z,
                             two ? b.y : a.w, two ? b.z : b.x, two ? b.w : b.y,
                             two ? c.x : b.z, two ? c.y : b.w, two ? c.z : c.x};
    UNROLL
    for (int q = 0; q < 8; q++)
        to[q] = one ? by_two[q + 1] : by_two[q];
}

// Which forms the strip at `record` needs: bit 0 fp16, bit 1 bf16.
INLINE int forms_of(const Split *s, __global const uchar *scratch, int is_y, int record, int count,
                    __local int *wide)
{
    __global const int2 *own =
        (__global const int2 *)(scratch + (is_y ? s->records_y : s->records_x)) + record;
    __global const int2 *met = (__global const int2 *)(scratch + (is_y ? s->records_x : s->records_y));
    const int all = (is_y ? s->copies_x : s->copies_y) * records_of(s, !is_y);
    const int item = get_local_id(0);
    if (item < 2)
        wide[item] = 0;
    barrier(CLK_LOCAL_MEM_FENCE);
    if (item < count && own[item].y > s->spread_fp16)
        wide[0] = 1;
    for (int i = item; i < all; i += PACK_ITEMS)
        if (met[i].y > s->spread_fp16)
            wide[1] = 1;
    barrier(CLK_LOCAL_MEM_FENCE);
    return wide[0] ? 2 : wide[1] ? 3 : 1;
}

__kernel __attribute__((reqd_work_group_size(PACK_ITEMS, 1, 1)))
void nv_split_pack(GEMM_ARGS, const Split s, __global uchar *scratch)
{
    __local float tile[TILE_REALS] __attribute__((aligned(16)));
    __local int wide[2];
    GROUPS_A_UNIT(5);  // left alone, the assembler takes registers for two: a fifth slower
    const int item = get_local_id(0), runs = (s.slices + s.run - 1) / s.run;
    const int blocks_x = s.copies_x * s.strips_x * (BX / 64);
    int block = get_group_id(0) / runs;  // of 64 rows
    const int is_y = block >= blocks_x;
    block -= is_y ? blocks_x : 0;
    const int height = is_y ? BY : BX, per_strip = height / 64;
    const int strip = block / per_strip;  // counted over all copies, as everything in scratch is
    const int strips = is_y ? s.strips_y : s.strips_x, rows = is_y ? 64 / CE : 64;
    const Operand o = operand_of(&g, a, b, is_y, strip / strips);
    const int records = (is_y ? ROWS_Y : ROWS_X) / RECORD_ROWS;
    const int forms = forms_of(&s, scratch, is_y, strip * records, records, wide);
    const long row0 = (long)(strip % strips * per_strip + block % per_strip) * rows;
    __global const int *exponents =
        (__global const int *)(scratch + (is_y ? s.exponents_y : s.exponents_x)) +
        strip / strips * records_of(&s, is_y) * RECORD_ROWS + row0;
    const int aligned = !((ulong)o.x & 15) && !(o.ld * CE & 3);

    const int first = get_group_id(0) % runs * s.run, last = min(first + s.run, s.slices);
    for (int slice = first; slice < last; slice++) {
        const long p0 = (long)slice * (64 / CE);
        const int direct = o.along_k && row0 + rows <= o.rows && (aligned || p0 > 0) &&
                           p0 + 64 / CE + (aligned ? 0 : WIDE) <= g.k;
        if (!direct) {
            barrier(CLK_LOCAL_MEM_FENCE);
            load_tile(tile, &o, row0, rows, p0, g.k, aligned);
            barrier(CLK_LOCAL_MEM_FENCE);
        }
        const long place = (long)strip * s.slices + slice;
#pragma unroll 1
        for (int u = 0; u < CHUNKS / PACK_ITEMS; u++) {
            const int chunk = item + u * PACK_ITEMS, c = chunk % 8, stored = chunk / 8;
            const int row = is_y ? row_of_place(stored) : stored, i = is_y ? row / CE : row;
            float x[8];
            if (direct) {
                read_eight(x, (__global const float *)(o.x + (row0 + i) * o.ld + p0) + c * 8,
                           aligned);
            } else {
                UNROLL
                for (int q = 0; q < 8; q++) {
                    const int f = c * 8 + q;
                    x[q] = o.along_k ? tile[LINE(i, 1, 64) + f]
                                     : tile[LINE(f / CE, 0, rows * CE) + i * CE + f % CE];
                }
            }
            expand(x, is_y, o.conj, is_y && row % CE);
            const int exponent = row0 + i < o.rows ? exponents[i] : 0;
            const int placed = block % per_strip * 64 + stored;
            if (forms & 1)
                store_fp16(scratch + (is_y ? s.fp16_y : s.fp16_x) + place * (height * 256), height,
                           placed, c, x, TARGET_FP16 - exponent);
            if (forms & 2)
                store_bf16(scratch + (is_y ? s.bf16_y : s.bf16_x) + place * (height * 384), height,
                           placed, c, x, TARGET_BF16 - exponent);
        }
    }
}
