// nv_split, second kernel: split rows into parts of two bytes, in the layout the tensor cores read.
//
// A work-group takes 64 rows of a strip and `run` slices of 64 reals; a work-item takes chunks of 8
// reals and writes 16 bytes a part:
//
//      fp16   x = h0 + h1 * 2^-11        both rounded to nearest
//      bf16   x = b0 + b1 + b2           likewise; nothing of a float's 24 bits is lost
//
// after x was scaled by the power of two that brings its row's largest element to the target.
// A strip is written as fp16 if its spread allows it, and as bf16 if its own spread or that of any
// strip it may meet does not.

// In a strip of Y rows are stored so that a work-item's accumulators are four neighbours in C:
// stored row 0 1 2 3 4 5 6 7 | 8 9 10 11 12 13 14 15 of sixteen holds
//     row    0 1 4 5 8 9 12 13 | 2 3 6 7 10 11 14 15
INLINE int stored_row(int row)
{
    return (row & ~15) + ((row & 7) >> 1) * 4 + (row & 1) + (row >> 3 & 1) * 2;
}

#define PACK_ITEMS 256
#define CHUNKS (64 * 64 / 8)
#define TILE_REALS (64 * 65 + 32)
#define READS (8 / CE)       // elements that a work-item has under way; divides all tiles
#define WIDE_READS (4 / CE)  // the same in vectors of 16 bytes

#ifndef NVIDIA_PTX
#ifdef __NV_CL_C_VERSION
#define NVIDIA_PTX 1
#else
#define NVIDIA_PTX 0  // 1: conversions of two numbers by one instruction
#endif
#endif

// Two floats rounded to fp16, the first in the low half; and back.
INLINE uint to_half2(float x, float y)
{
    uint pair;
#if NVIDIA_PTX
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(y), "f"(x));
#else
    ushort h[2];
    vstore_half_rte(x, 0, (half *)h);
    vstore_half_rte(y, 1, (half *)h);
    pair = h[0] | (uint)h[1] << 16;
#endif
    return pair;
}

INLINE float2 from_half2(uint pair)
{
    float2 x;
#if NVIDIA_PTX
    asm("{ .reg .b16 a, b; mov.b32 {a, b}, %2; cvt.f32.f16 %0, a; cvt.f32.f16 %1, b; }"
        : "=f"(x.x), "=f"(x.y)
        : "r"(pair));
#else
    const ushort h[2] = {(ushort)pair, (ushort)(pair >> 16)};
    x.x = vload_half(0, (const half *)h);
    x.y = vload_half(1, (const half *)h);
#endif
    return x;
}

// Rounded to bf16, as a float.
INLINE float to_bf16(float x)
{
    const uint bits = as_uint(x);
    return as_float((bits + 0x7fffu + (bits >> 16 & 1)) & 0xffff0000u);
}

INLINE uint bf16_pair(float x, float y)
{
    return as_uint(x) >> 16 | as_uint(y);
}

// x * 2^e, in two factors: e alone may be beyond a float's exponents.
INLINE float times_power(float x, int e)
{
    const int half_e = e / 2;
    return x * as_float((uint)(half_e + 127) << 23) * as_float((uint)(e - half_e + 127) << 23);
}

INLINE void store_fp16(__global uchar *panel, int height, int row, int c, const float x[8], int e)
{
    uint parts[2][4];
    UNROLL
    for (int q = 0; q < 4; q++) {
        const float u = times_power(x[2 * q], e), v = times_power(x[2 * q + 1], e);
        const uint high = to_half2(u, v);
        const float2 back = from_half2(high);
        parts[0][q] = high;
        parts[1][q] = to_half2((u - back.x) * 0x1p11f, (v - back.y) * 0x1p11f);
    }
    UNROLL
    for (int part = 0; part < 2; part++)
        *(__global uint4 *)(panel + part * height * 128 + row * 128 + (c ^ (row & 7)) * 16) =
            (uint4)(parts[part][0], parts[part][1], parts[part][2], parts[part][3]);
}

INLINE void store_bf16(__global uchar *panel, int height, int row, int c, const float x[8], int e)
{
    uint parts[3][4];
    UNROLL
    for (int q = 0; q < 4; q++) {
        float u = times_power(x[2 * q], e), v = times_power(x[2 * q + 1], e);
        UNROLL
        for (int part = 0; part < 3; part++) {
            const float bu = to_bf16(u), bv = to_bf16(v);
            parts[part][q] = bf16_pair(bu, bv);
            u -= bu;
            v -= bv;
        }
    }
    panel += (c >> 2) * 3 * height * 64;  // the second 32 reals are a slice of their own
    UNROLL
    for (int part = 0; part < 3; part++)
        *(__global uint4 *)(panel + part * height * 64 + row * 64 +
                            ((c & 3) ^ (row >> 1 & 3)) * 16) =
            (uint4)(parts[part][0], parts[part][1], parts[part][2], parts[part][3]);
}

// What 8 reals of a row of elements are in a row of the real problem.
INLINE void expand(float x[8], int is_y, int conj, int imaginary)
{
#if IS_COMPLEX
    UNROLL
    for (int q = 0; q < 4; q++) {
        const float re = x[2 * q], im = conj ? -x[2 * q + 1] : x[2 * q + 1];
        x[2 * q] = imaginary ? im : re;
        x[2 * q + 1] = imaginary ? re : is_y ? -im : im;
    }
#endif
}

// Copy rows row0 ... and elements p0 ... to local memory, zero where the matrix ends.  A line of the
// tile is a line of memory; the skew lets both kinds of tile be read without bank conflicts.
#define LINE(i, along_k, width) ((i) * (width) + ((along_k) ? (i) : (i) / (8 / CE) * 4))
INLINE void load_tile(__local float *tile, const Operand *o, long row0, int rows, long p0, long k,
                      int aligned)
{
    const int depth = 64 / CE, width = o->along_k ? depth : rows;
    if (!o->along_k && aligned && row0 + rows <= o->rows && p0 + depth <= k) {
        const int vectors = width / WIDE;  // of a line
        for (int e0 = get_local_id(0); e0 < vectors * depth; e0 += PACK_ITEMS * WIDE_READS) {
            float4 v[WIDE_READS];
            UNROLL
            for (int u = 0; u < WIDE_READS; u++) {
                const int e = e0 + u * PACK_ITEMS, f = e % vectors * WIDE, i = e / vectors;
                v[u] = *(__global const float4 *)(o->x + row0 + f + (p0 + i) * o->ld);
            }
            UNROLL
            for (int u = 0; u < WIDE_READS; u++) {
                const int e = e0 + u * PACK_ITEMS, f = e % vectors * 4, i = e / vectors;
                *(__local float4 *)(tile + LINE(i, 0, width * CE) + f) = v[u];
            }
        }
        return;
    }
    for (int e0 = get_local_id(0); e0 < rows * depth; e0 += PACK_ITEMS * READS) {
        ELEM v[READS];
        UNROLL
        for (int u = 0; u < READS; u++) {
            const int e = e0 + u * PACK_ITEMS, f = e % width, i = e / width;
            const long row = row0 + (o->along_k ? i : f), p = p0 + (o->along_k ? f : i);
            v[u] = (ELEM)(0);
            if (row < o->rows && p < k)
                v[u] = o->x[o->along_k ? row * o->ld + p : row + p * o->ld];
        }
        UNROLL
        for (int u = 0; u < READS; u++) {
            const int e = e0 + u * PACK_ITEMS;
            __local float *to =
                tile + LINE(e / width, o->along_k, width * CE) + e % width * CE;
#if IS_COMPLEX
            to[0] = v[u].x;
            to[1] = v[u].y;
#else
            to[0] = v[u];
#endif
        }
    }
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
        const int direct = o.along_k && aligned && row0 + rows <= o.rows && p0 + 64 / CE <= g.k;
        if (!direct) {
            barrier(CLK_LOCAL_MEM_FENCE);
            load_tile(tile, &o, row0, rows, p0, g.k, aligned);
            barrier(CLK_LOCAL_MEM_FENCE);
        }
        const long place = (long)strip * s.slices + slice;
#pragma unroll 1
        for (int u = 0; u < CHUNKS / PACK_ITEMS; u++) {
            const int chunk = item + u * PACK_ITEMS, c = chunk % 8, stored = chunk / 8;
            const int row = is_y ? stored_row(stored) : stored, i = is_y ? row / CE : row;
            float x[8];
            if (direct) {
                __global const float4 *from =
                    (__global const float4 *)(o.x + (row0 + i) * o.ld + p0) + c * 2;
                const float4 low = from[0], high = from[1];
                x[0] = low.x, x[1] = low.y, x[2] = low.z, x[3] = low.w;
                x[4] = high.x, x[5] = high.y, x[6] = high.z, x[7] = high.w;
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
