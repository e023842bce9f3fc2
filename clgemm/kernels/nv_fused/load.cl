// nv_fused, the producers: they read X and Y where they lie, split floats into three bf16, and write the
// parts into slots, in the layout that the tensor cores read.
//
// A producer has chunks of 8 reals of a row, two or one of X and of Y.  While it splits one, others are
// on their way to its registers.  Rows beyond the matrix repeat the last one: of what comes of them
// nothing is stored.  Neighbouring work-items read
//      rows along k     4 chunks of a row, in vectors: a row that starts anywhere in three of them
//      rows across k    a chunk of 32 rows, element by element
//
// Nothing is scaled, so small floats are looked at more closely, and the least is kept.
//
// Registers are few.  What is on its way has to stay in them: each chunk is a variable of its own.

#define SOME_SMALL 0x1p-20f  // chunks with a float below this are looked at
#define CHUNKS_Y ((ROWS_Y * 4 + PRODUCERS - 1) / PRODUCERS)  // of X there are two
#define SLOT ((BX + BY) * 192)

typedef __global const uchar *Bytes;

// What was read of a chunk: its first real is a.x, or up to three later.
typedef struct {
    float4 a, b, c;
} Raw;

// An operand, as far as all its chunks have it in common.
typedef struct {
    uint pitch;  // bytes from line to line
    ulong step;  // and from slice to slice
    int along_k, conj;
} Lines;

INLINE Lines lines_of(const Operand *o)
{
    Lines lines;
    lines.pitch = (uint)(o->ld * sizeof(ELEM));
    lines.step = o->along_k ? DEPTH * sizeof(float) : DEPTH / CE * (ulong)lines.pitch;
    lines.along_k = o->along_k;
    lines.conj = o->conj;
    return lines;
}

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

// Read a chunk of which all lies inside.
INLINE Raw fetch_whole(Bytes at, const Lines *lines)
{
    Raw r;
    const uint pitch = lines->pitch;
    r.c = (float4)(0);
    if (lines->along_k) {
        // A vector that holds one of the chunk's reals may be read: memory ends at no other place.
        const int late = late_of(at);
        __global const float4 *from = (__global const float4 *)(at - late * 4);
        r.a = from[0];
        r.b = from[1];
        if (late)
            r.c = from[2];
    } else {
#if IS_COMPLEX
        r.a = (float4)(element_at(at, pitch, 0), element_at(at, pitch, 1));
        r.b = (float4)(element_at(at, pitch, 2), element_at(at, pitch, 3));
#else
        r.a = (float4)(element_at(at, pitch, 0), element_at(at, pitch, 1),
                       element_at(at, pitch, 2), element_at(at, pitch, 3));
        r.b = (float4)(element_at(at, pitch, 4), element_at(at, pitch, 5),
                       element_at(at, pitch, 6), element_at(at, pitch, 7));
#endif
    }
    return r;
}

// The same of the last slice; c: the chunk's place in it, left: elements of k in it.
INLINE Raw fetch_rest(Bytes at, const Lines *lines, int c, int left)
{
    Raw r;
    const uint pitch = lines->along_k ? sizeof(ELEM) : lines->pitch;
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

// Keep the least of what is not zero, as bits less 1.
INLINE void look(const float x[8], volatile __local uint *least)
{
    float all = fabs(x[0]);
    UNROLL
    for (int q = 1; q < 8; q++)
        all = fmin(all, fabs(x[q]));
    if (all < SOME_SMALL) {
        uint low = 0xffffffffu;
        UNROLL
        for (int q = 0; q < 8; q++)
            low = min(low, (as_uint(x[q]) & 0x7fffffffu) - 1);
        if (low < *least)
            atomic_min(least, low);
    }
}

// Where chunk c of a stored row lies in a part.
INLINE int place_in_part(int row, int c)
{
    return row * 64 + (c ^ (row >> 1 & 3)) * 16;
}

// Split a chunk and keep its parts, `height` rows each.  A complex one of Y makes two rows.
INLINE void keep(__local uchar *to, const float x[8], const int height, const int is_y, int conj)
{
    uint parts[3][4];
    split_bf16(x, parts);
    UNROLL
    for (int part = 0; part < 3; part++) {
        __local uint4 *at = (__local uint4 *)(to + part * height * 64);
        const uint4 v = (uint4)(parts[part][0], parts[part][1], parts[part][2], parts[part][3]);
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
}

// Number u of this producer's chunks of an operand with so many rows of elements: row and place in it.
#define ROW_OF(u, rows, along_k)                                                               \
    ((along_k) ? (item + (u) * PRODUCERS) / 4 : (item + (u) * PRODUCERS) % (rows))
#define CHUNK_OF(u, rows, along_k)                                                             \
    ((along_k) ? (item + (u) * PRODUCERS) % 4 : (item + (u) * PRODUCERS) / (rows))

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

INLINE int place_in_y(int stored, int c)
{
    return place_in_part(CE == 1 ? stored : place_of_row(2 * stored), c);
}

// Make visible to the tensor cores what this work-item wrote to local memory.
INLINE void publish_to_wgmma(void)
{
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// Read the next chunk u of operand s, x or y, of which so many elements of k are left.
#define FETCH(raw, s, u, left)                                                                 \
    if ((left) >= DEPTH / CE)                                                                  \
        raw = fetch_whole(at_##s##u, &of_##s);                                                 \
    else                                                                                       \
        raw = fetch_rest(at_##s##u, &of_##s, CHUNK_OF(u, rows_##s, of_##s.along_k), left);     \
    at_##s##u += of_##s.step;
#define FETCH_NEXT(raw, s, u)                                                                  \
    if (turns > 1) {                                                                           \
        FETCH(raw, s, u, left - DEPTH / CE)                                                    \
    }
// Take a chunk from where it was read to, start to read what `next` says, and keep the first one.
#define TAKE(raw, s, u, next)                                                                  \
    {                                                                                          \
        float v[8];                                                                            \
        reals_of(v, raw, of_##s.along_k && left >= DEPTH / CE ? late_of(at_##s##u) : 0);       \
        next                                                                                   \
        look(v, small_##s);                                                                    \
        keep(slot + to_##s##u, v, height_##s, is_##s, of_##s.conj);                            \
    }

INLINE void produce(const Gemm *g, const Tasks *all, __global const ELEM *a,
                    __global const ELEM *b, __local uchar *slots, uint full, uint empty,
                    __local uint *least)
{
    enum { rows_x = BX, rows_y = ROWS_Y, height_x = BX, height_y = BY, is_x = 0, is_y = 1 };
    const int item = work_item() - 256;
    // A constant where each producer has chunks of Y.
    const int has_y = CHUNKS_Y * PRODUCERS == ROWS_Y * 4 || item < ROWS_Y * 4;
    const Operand x = operand_of(g, a, b, 0, 0), y = operand_of(g, a, b, 1, 0);
    const Lines of_x = lines_of(&x), of_y = lines_of(&y);
#define PLACE_X(u)                                                                             \
    const int row_x##u = ROW_OF(u, BX, x.along_k), c_x##u = CHUNK_OF(u, BX, x.along_k);        \
    const int to_x##u = place_in_part(row_x##u, c_x##u);
#define PLACE_Y(u)                                                                             \
    const int row_y##u = ROW_OF(u, ROWS_Y, y.along_k), c_y##u = CHUNK_OF(u, ROWS_Y, y.along_k); \
    const int to_y##u = BX * 192 + place_in_y(row_y##u, c_y##u);
    PLACE_X(0)
    PLACE_X(1)
    PLACE_Y(0)
#if CHUNKS_Y > 1
    PLACE_Y(1)
#endif
    Turn turn = {0, 1};  // the first wait on a fresh barrier returns at once
    int number = 0;
#pragma unroll 1
    for (int task = get_group_id(0); task < all->tasks; task += get_num_groups(0), number++) {
        const Task t = task_of(g, all, task);
        const int before = t.first * (2 * DEPTH / CE);
        int left = (int)g->k - before;
        __local uint *small_x = least + number % RING * 2, *small_y = small_x + 1;
        const Operand ox = operand_of(g, a, b, 0, t.entry), oy = operand_of(g, a, b, 1, t.entry);
#define START_X(u) Bytes at_x##u = start_of(&ox, (long)t.x * BX + row_x##u, c_x##u, before);
#define START_Y(u)                                                                             \
    Bytes at_y##u = start_of(&oy, (long)t.y * ROWS_Y + row_of_y(row_y##u), c_y##u, before);
        START_X(0)
        START_X(1)
        START_Y(0)
        Raw raw0, raw1;
        FETCH(raw0, x, 0, left)
        FETCH(raw1, x, 1, left)
#if CHUNKS_Y > 1
        START_Y(1)
#else
        Raw raw2 = raw0;
        if (has_y) {
            FETCH(raw2, y, 0, left)
        }
#endif
#pragma unroll 1
        for (int turns = t.turns; turns > 0; turns--, left -= DEPTH / CE) {
            mbarrier_wait(empty + turn.stage * 8, turn.parity);
            __local uchar *slot = slots + turn.stage * SLOT;
#if CHUNKS_Y > 1
            TAKE(raw0, x, 0, FETCH(raw0, y, 0, left))
            TAKE(raw1, x, 1, FETCH(raw1, y, 1, left))
            TAKE(raw0, y, 0, FETCH_NEXT(raw0, x, 0))
            TAKE(raw1, y, 1, FETCH_NEXT(raw1, x, 1))
#else
            TAKE(raw0, x, 0, FETCH_NEXT(raw0, x, 0))
            TAKE(raw1, x, 1, FETCH_NEXT(raw1, x, 1))
            if (has_y)
                TAKE(raw2, y, 0, FETCH_NEXT(raw2, y, 0))
#endif
            publish_to_wgmma();
            warp_sync();
            if ((item & 31) == 0)
                mbarrier_arrive(full + turn.stage * 8);
            next_turn(&turn);
        }
    }
}
