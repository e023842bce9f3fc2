// nv_fused, chunks: 8 reals of a row of X or Y, as a producer reads, splits and keeps them.
//
// Neighbouring work-items read
//      rows across k    a chunk of 32 rows, element by element
//      rows along k     4 chunks of a row, in vectors: a row of reals that starts anywhere in three of
//                       them, one of complex elements that does in four of half their size
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
INLINE int late_of(Bytes at, const int how)
{
    return CE == 1 && how == ANYWHERE ? (int)((ulong)at >> 2 & 3) : 0;
}

// Element number q of a chunk.
INLINE ELEM element_at(Bytes at, uint pitch, int q)
{
    return *(__global const ELEM *)(at + (ulong)pitch * q);
}

// Two pairs, or four reals that follow each other, if they are wanted; else v stays what it is.
#if NVIDIA_PTX
#define IF_WANTED "{ .reg .pred p; setp.ne.s32 p, %4, 0; "
#define TO_V "+f"(v->x), "+f"(v->y), "+f"(v->z), "+f"(v->w) : "r"(wanted)
INLINE void load_pairs_if(int wanted, float4 *v, Bytes xy, Bytes zw)
{
    asm volatile(IF_WANTED "@p ld.global.nc.v2.f32 {%0, %1}, [%5]; "
                           "@p ld.global.nc.v2.f32 {%2, %3}, [%6]; }"
                 : TO_V, "l"(xy), "l"(zw));
}

INLINE void load_vector_if(int wanted, float4 *v, Bytes at)
{
    asm volatile(IF_WANTED "@p ld.global.nc.v4.f32 {%0, %1, %2, %3}, [%5]; }" : TO_V, "l"(at));
}
#else
INLINE void load_pairs_if(int wanted, float4 *v, Bytes xy, Bytes zw)
{
    if (wanted)
        *v = (float4)(*(__global const float2 *)xy, *(__global const float2 *)zw);
}

INLINE void load_vector_if(int wanted, float4 *v, Bytes at)
{
    if (wanted)
        *v = *(__global const float4 *)at;
}
#endif

// Read a chunk of which all lies inside, of rows that lie `how`, if it is wanted.
//
// Of complex elements each load may leave its registers as they are.  So the compiler has to load to
// those of the chunk before.  Else it loads to others and copies, and who copies waits for the load.
// Of reals, that have more loads, it would keep some in memory instead, which takes longer.
//
// Complex elements are read in twos or one by one, never in three vectors as reals are: with those an H200
// took up to three quarters longer for tiles of 64 rows of Y, and 3 % longer for others.
INLINE void fetch(int wanted, Raw *r, Bytes at, uint pitch, const int how)
{
#if IS_COMPLEX
    if (how == ALIGNED) {
        load_vector_if(wanted, &r->a, at);
        load_vector_if(wanted, &r->b, at + 16);
    } else {
        const ulong hop = how == ACROSS ? pitch : sizeof(ELEM);
        load_pairs_if(wanted, &r->a, at, at + hop);
        load_pairs_if(wanted, &r->b, at + hop * 2, at + hop * 3);
    }
#else
    if (!wanted)
        return;
    // A vector that holds one of the chunk's reals may be read: memory ends at no other place.
    const int late = late_of(at, how), third = late ? 32 : 16;
    const Bytes from = at - late * 4;
    if (how == ACROSS) {
        r->a = (float4)(element_at(at, pitch, 0), element_at(at, pitch, 1),
                        element_at(at, pitch, 2), element_at(at, pitch, 3));
        r->b = (float4)(element_at(at, pitch, 4), element_at(at, pitch, 5),
                        element_at(at, pitch, 6), element_at(at, pitch, 7));
    } else {
        r->a = *(__global const float4 *)from;
        r->b = *(__global const float4 *)(from + 16);
        if (how == ANYWHERE)
            r->c = *(__global const float4 *)(from + third);
    }
#endif
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
    const int two = late & 2, one = late & 1;
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

// Have zeros for so many reals that were read first.
INLINE void leave_out(Raw *r, int count)
{
    r->a = count >= 4 ? (float4)(0) : (float4)(count > 0 ? 0 : r->a.x, count > 1 ? 0 : r->a.y,
                                               count > 2 ? 0 : r->a.z, r->a.w);
    r->b = count >= 8 ? (float4)(0) : (float4)(count > 4 ? 0 : r->b.x, count > 5 ? 0 : r->b.y,
                                               count > 6 ? 0 : r->b.z, r->b.w);
    r->c = count >= 12 ? (float4)(0) : (float4)(count > 8 ? 0 : r->c.x, count > 9 ? 0 : r->c.y,
                                                count > 10 ? 0 : r->c.z, r->c.w);
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

// Keep so many parts of a chunk, of `height` rows each.
INLINE void keep_parts(__local uchar *to, const uint parts[3][4], const int count, const int height,
                       const int is_y, int conj)
{
    UNROLL
    for (int part = 0; part < count; part++)
        keep_part(to + part * height * 64, parts[part], is_y, conj);
}

// Split a chunk into fp16; returned is the largest of the first parts and of `most`, as pairs.
INLINE uint split_scaled(const float x[8], float scale, uint parts[3][4], uint most)
{
    float scaled[8];
    UNROLL
    for (int q = 0; q < 8; q++)
        scaled[q] = x[q] * scale;
    split_fp16(scaled, parts);
    UNROLL
    for (int q = 0; q < 4; q++)
        most = larger_half2(parts[0][q], most);
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
