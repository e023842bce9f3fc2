// nv_fused, chunks: 8 reals of a row of X or Y, as a producer reads, splits and keeps them.
//
// Neighbouring work-items read
//      rows across k    a chunk of 32 rows, element by element
//      rows along k     4 chunks of a row, in vectors: a row that starts anywhere in three of them
// and write parts into slots, in the layout that the tensor cores read.

#define ACROSS 0    // rows lie across k
#define ANYWHERE 1  // along k, and begin anywhere
#define ALIGNED 2   // along k, on multiples of 16 bytes
#ifndef ROWS_OF_X
#define ROWS_OF_X ACROSS
#endif
#ifndef ROWS_OF_Y
#define ROWS_OF_Y ACROSS
#endif

typedef __global const uchar *Bytes;

// What was read of a chunk: its first real is a.x, or up to three later.
typedef struct {
    float4 a, b, c;
} Raw;

// How many reals lie between the 16 bytes that a chunk is read from on and its first one.
INLINE int late_of(Bytes at)
{
    return (int)((ulong)at >> 2 & 3);
}

// Element number q of a chunk.
INLINE ELEM element_at(Bytes at, uint pitch, int q)
{
    return *(__global const ELEM *)(at + (ulong)pitch * q);
}

// Read a chunk of which all lies inside, of rows that lie `how`.
INLINE Raw fetch(Bytes at, uint pitch, const int how)
{
    Raw r;
    r.c = (float4)(0);
    if (how == ACROSS) {
#if IS_COMPLEX
        r.a = (float4)(element_at(at, pitch, 0), element_at(at, pitch, 1));
        r.b = (float4)(element_at(at, pitch, 2), element_at(at, pitch, 3));
#else
        r.a = (float4)(element_at(at, pitch, 0), element_at(at, pitch, 1),
                       element_at(at, pitch, 2), element_at(at, pitch, 3));
        r.b = (float4)(element_at(at, pitch, 4), element_at(at, pitch, 5),
                       element_at(at, pitch, 6), element_at(at, pitch, 7));
#endif
    } else {
        // A vector that holds one of the chunk's reals may be read: memory ends at no other place.
        const int late = how == ALIGNED ? 0 : late_of(at);
        __global const float4 *from = (__global const float4 *)(at - late * 4);
        r.a = from[0];
        r.b = from[1];
        if (how == ANYWHERE)
            r.c = from[late ? 2 : 1];
    }
    return r;
}

// The same if only so many elements of the slice are left; c: the chunk's place in it.
INLINE Raw fetch_rest(Bytes at, uint pitch, int c, int left)
{
    Raw r;
    left -= c * (8 / CE);
#define REST(q) (q < left ? element_at(at, pitch, q) : (ELEM)(0))
#if IS_COMPLEX
    r.a = (float4)(REST(0), REST(1));
    r.b = (float4)(REST(2), REST(3));
#else
    r.a = (float4)(REST(0), REST(1), REST(2), REST(3));
    r.b = (float4)(REST(4), REST(5), REST(6), REST(7));
#endif
    r.c = (float4)(0);
    return r;
}

// The chunk's reals, the first of which comes `late`.
INLINE void reals_of(float x[8], Raw r, int late)
{
    const int two = late & 2, one = CE == 1 ? late & 1 : 0;
    const float4 a = two ? (float4)(r.a.zw, r.b.xy) : r.a, b = two ? (float4)(r.b.zw, r.c.xy) : r.b;
    const float last = two ? r.c.z : r.c.x;
    x[0] = one ? a.y : a.x;
    x[1] = one ? a.z : a.y;
    x[2] = one ? a.w : a.z;
    x[3] = one ? b.x : a.w;
    x[4] = one ? b.y : b.x;
    x[5] = one ? b.z : b.y;
    x[6] = one ? b.w : b.z;
    x[7] = one ? last : b.w;
}

// The least of what is not zero, as bits less 1.
INLINE uint least_of(const float x[8], uint least)
{
    UNROLL
    for (int q = 0; q < 8; q++)
        least = min(least, (as_uint(x[q]) & 0x7fffffffu) - 1);
    return least;
}

// Where chunk c of a stored row lies in a part.
INLINE int place_in_part(int row, int c)
{
    return row * 64 + (c ^ (row >> 1 & 3)) * 16;
}

// Keep a part of a chunk.  A complex one of Y makes two rows.
INLINE void keep_part(__local uchar *to, const uint part[4], const int is_y, int conj)
{
    __local uint4 *at = (__local uint4 *)to;
    const uint4 v = (uint4)(part[0], part[1], part[2], part[3]);
#if IS_COMPLEX
    const uint im = conj ? 0x80000000u : 0;
    if (is_y) {
        at[0] = v ^ (im ^ 0x80000000u);
        at[4] = rotate(v, (uint4)(16)) ^ (im >> 16);
    } else {
        at[0] = v ^ im;
    }
#else
    at[0] = v;
#endif
}

// Split a chunk and keep its parts, of `height` rows each.
INLINE void keep_bf16(__local uchar *to, const float x[8], const int height, const int is_y, int conj)
{
    uint parts[3][4];
    split_bf16(x, parts);
    UNROLL
    for (int part = 0; part < 3; part++)
        keep_part(to + part * height * 64, parts[part], is_y, conj);
}

// The same of a scaled chunk in fp16; returned is the largest of the first parts and of `most`, as pairs.
INLINE uint keep_fp16(__local uchar *to, const float x[8], float scale, const int height,
                      const int is_y, int conj, uint most)
{
    uint parts[2][4];
    float scaled[8];
    UNROLL
    for (int q = 0; q < 8; q++)
        scaled[q] = x[q] * scale;
    split_fp16(scaled, parts);
    UNROLL
    for (int q = 0; q < 4; q++)
        most = larger_half2(parts[0][q], most);
    UNROLL
    for (int part = 0; part < 2; part++)
        keep_part(to + part * height * 64, parts[part], is_y, conj);
    return most;
}

// Where a row's chunk begins, in the slice from element p of k on.
INLINE Bytes start_of(const Operand *o, long row, int c, long p)
{
    const long inside = min(row, o->rows - 1);
    p += c * (8 / CE);
    return (Bytes)(o->x + (o->along_k ? inside * o->ld + p : inside + p * o->ld));
}

// Rows of Y lie in the order that place_of_row says.  Those of reals are taken in that order, so that
// they are written without bank conflicts.
INLINE int row_of_y(int stored)
{
    return CE == 1 ? row_of_place(stored) : stored;
}

INLINE int place_in_x(int row, int c)
{
    return place_in_part(row, c);
}

INLINE int place_in_y(int stored, int c)
{
    return BX * 192 + place_in_part(CE == 1 ? stored : place_of_row(2 * stored), c);
}
