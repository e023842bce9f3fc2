// nv_split: how a row of floats is split into parts of two bytes, and where its parts lie.
//
//      fp16   x = h0 + h1 * 2^-11        both rounded to nearest
//      bf16   x = b0 + b1 + b2           likewise; nothing of a float's 24 bits is lost
//
// after x was scaled by the power of two that brings its row's largest element to the target.  A
// work-item splits chunks of 8 reals and writes 16 bytes a part.

// In a strip of Y rows are stored so that a work-item's accumulators are four neighbours in C:
// row 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 of sixteen is
// stored  0 1 8 9 2 3 10 11 4 5 12 13 6 7 14 15
INLINE int place_of_row(int row)
{
    return (row & ~15) + (row >> 2 & 3) * 2 + (row & 1) + (row >> 1 & 1) * 8;
}

// The other way round.
INLINE int row_of_place(int row)
{
    return (row & ~15) + ((row & 7) >> 1) * 4 + (row & 1) + (row >> 3 & 1) * 2;
}

#ifndef NVIDIA_PTX
#ifdef __NV_CL_C_VERSION
#define NVIDIA_PTX 1
#else
#define NVIDIA_PTX 0  // 1: conversions of two numbers by one instruction
#endif
#endif

// How many work-groups of this kernel a compute unit shall hold: see ptx.py.
#if NVIDIA_PTX
#define GROUPS_A_UNIT(n) asm volatile("//@@.minnctapersm " #n ::: "memory")
#else
#define GROUPS_A_UNIT(n)
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

// The larger magnitudes of two pairs of fp16, the second without signs.
INLINE uint larger_half2(uint x, uint most)
{
#if NVIDIA_PTX
    uint larger;
    asm("{ .reg .b32 a; abs.f16x2 a, %1; max.f16x2 %0, a, %2; }" : "=r"(larger) : "r"(x), "r"(most));
    return larger;
#else
    const uint a = x & 0x7fff7fffu;
    return max(a & 0xffffu, most & 0xffffu) | max(a & 0xffff0000u, most & 0xffff0000u);
#endif
}

// Rounded to bf16, as a float.
INLINE float to_bf16(float x)
{
    const uint bits = as_uint(x);
    return as_float((bits + 0x7fffu + (bits >> 16 & 1)) & 0xffff0000u);
}

// Two floats rounded to bf16, the first in the low half.
INLINE uint to_bf16_pair(float x, float y)
{
#if NVIDIA_PTX
    uint pair;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(y), "f"(x));
    return pair;
#else
    return as_uint(to_bf16(x)) >> 16 | as_uint(to_bf16(y));
#endif
}

// Eight floats in three parts each, in pairs.
INLINE void split_bf16(const float x[8], uint parts[3][4])
{
    UNROLL
    for (int q = 0; q < 4; q++) {
        float u = x[2 * q], v = x[2 * q + 1];
        UNROLL
        for (int part = 0; part < 3; part++) {
            const uint pair = parts[part][q] = to_bf16_pair(u, v);
            u -= as_float(pair << 16);
            v -= as_float(pair & 0xffff0000u);
        }
    }
}

// The same in two parts.
INLINE void split_fp16(const float x[8], uint parts[2][4])
{
    UNROLL
    for (int q = 0; q < 4; q++) {
        const uint high = parts[0][q] = to_half2(x[2 * q], x[2 * q + 1]);
        const float2 back = from_half2(high);
        parts[1][q] = to_half2((x[2 * q] - back.x) * 0x1p11f, (x[2 * q + 1] - back.y) * 0x1p11f);
    }
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
    float scaled[8];
    UNROLL
    for (int q = 0; q < 8; q++)
        scaled[q] = times_power(x[q], e);
    split_fp16(scaled, parts);
    UNROLL
    for (int part = 0; part < 2; part++)
        *(__global uint4 *)(panel + part * height * 128 + row * 128 + (c ^ (row & 7)) * 16) =
            (uint4)(parts[part][0], parts[part][1], parts[part][2], parts[part][3]);
}

INLINE void store_bf16(__global uchar *panel, int height, int row, int c, const float x[8], int e)
{
    uint parts[3][4];
    float scaled[8];
    UNROLL
    for (int q = 0; q < 8; q++)
        scaled[q] = times_power(x[q], e);
    split_bf16(scaled, parts);
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
