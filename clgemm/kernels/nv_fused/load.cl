// nv_fused, the producers: they read X and Y where they lie, split floats into three bf16, and write the
// parts into slots, in the layout that the tensor cores read.
//
// A producer has chunks of 8 reals of a row, one or two of X, one to four of Y, some one of them less.
// While it splits one, others are on their way to its registers.  Rows beyond the matrix repeat the last
// one: of what comes of them nothing is stored.  Neighbouring work-items read
//      rows across k    a chunk of 32 rows, element by element
//      rows along k     4 chunks of a row, in vectors: a row that starts anywhere in three of them
//
// Nothing is scaled, so the least float that is not 0 is kept, for who multiplies to look at.
//
// Registers are few, and so are the warps that hide each other's waits.  So chunks are variables of their
// own, and a slice is one sequence of instructions without branches: how rows lie is known to the
// compiler, and a last slice of less depth is read in another way.

#define ACROSS 0    // rows lie across k
#define ANYWHERE 1  // along k, and begin anywhere
#define ALIGNED 2   // along k, on multiples of 16 bytes
#ifndef ROWS_OF_X
#define ROWS_OF_X ACROSS
#endif
#ifndef ROWS_OF_Y
#define ROWS_OF_Y ACROSS
#endif

#define SOME_SMALL 0x1p-20f  // a float of which two are not too small for each other
#define CHUNKS_X (ROWS_X * 4 / PRODUCERS)
#define CHUNKS_Y ((ROWS_Y * 4 + PRODUCERS - 1) / PRODUCERS)

// Do something for each chunk of X, of Y, of both.
#if CHUNKS_X > 1
#define EACH_X(DO) DO(x, 0) DO(x, 1)
#else
#define EACH_X(DO) DO(x, 0)
#endif
#if CHUNKS_Y > 3
#define EACH_OTHER_Y(DO) DO(y, 0) DO(y, 1) DO(y, 2)
#define LAST_Y(DO) DO(y, 3)
#elif CHUNKS_Y > 2
#define EACH_OTHER_Y(DO) DO(y, 0) DO(y, 1)
#define LAST_Y(DO) DO(y, 2)
#elif CHUNKS_Y > 1
#define EACH_OTHER_Y(DO) DO(y, 0)
#define LAST_Y(DO) DO(y, 1)
#else
#define EACH_OTHER_Y(DO)
#define LAST_Y(DO) DO(y, 0)
#endif
#define EACH(DO) EACH_X(DO) EACH_OTHER_Y(DO) LAST_Y(DO)
// The same of chunks that this producer has.
#define EACH_OWN(DO)                                                                           \
    EACH_X(DO)                                                                                 \
    EACH_OTHER_Y(DO)                                                                           \
    if (has_last) {                                                                            \
        LAST_Y(DO)                                                                             \
    }

#define SLOT ((BX + BY) * 192)

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
#define ROW_OF(u, rows, how)                                                                   \
    ((how) == ACROSS ? (item + (u) * PRODUCERS) % (rows) : (item + (u) * PRODUCERS) / 4)
#define CHUNK_OF(u, rows, how)                                                                 \
    ((how) == ACROSS ? (item + (u) * PRODUCERS) / (rows) : (item + (u) * PRODUCERS) % 4)

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

// Where chunk u of operand s, x or y, is kept: a row of the strip, its place there and in a slot.
#define PLACE(s, u)                                                                            \
    const int row_##s##u = ROW_OF(u, rows_##s, how_##s);                                       \
    const int c_##s##u = CHUNK_OF(u, rows_##s, how_##s);                                       \
    const int to_##s##u = place_in_##s(row_##s##u, c_##s##u);
// Where it is read from, in the first slice, and in the last one if that has less depth.
#define START(s, u) Bytes at_##s##u = start_of_##s(u, before);
#define START_REST(s, u) at_##s##u = start_of_##s(u, rest);
#define start_of_x(u, p) start_of(&ox, (long)t.x * BX + row_x##u, c_x##u, p)
#define start_of_y(u, p) start_of(&oy, (long)t.y * ROWS_Y + row_of_y(row_y##u), c_y##u, p)
// Read it, and go on by step_s.
#define UNREAD(s, u) Raw raw_##s##u = nothing;
#define FETCH(s, u)                                                                            \
    raw_##s##u = fetch(at_##s##u, pitch_##s, how_##s);                                         \
    at_##s##u += step_##s;
// Take a chunk from where it was read to, start to read what `next` says, and keep the first one.
#define TAKE(s, u, raw, late, next)                                                            \
    {                                                                                          \
        float v[8];                                                                            \
        reals_of(v, raw, late);                                                                \
        next                                                                                   \
        least_##s = least_of(v, least_##s);                                                    \
        keep(slot + to_##s##u, v, height_##s, is_##s, conj_##s);                               \
    }
#define LATE(s, u) (how_##s == ANYWHERE ? late_of(at_##s##u) : 0)
#define TAKE_AND_FETCH(s, u) TAKE(s, u, raw_##s##u, LATE(s, u), FETCH(s, u))
#define TAKE_REST(s, u) TAKE(s, u, fetch_rest(at_##s##u, hop_##s, c_##s##u, left), 0, )
// The last slice is read once more instead of one beyond.
#define STEP(s, more) step_##s = (more) ? whole_##s : 0;
#define NEXT_SLOT()                                                                            \
    mbarrier_wait(empty + turn.stage * 8, turn.parity);                                        \
    __local uchar *slot = slots + turn.stage * SLOT;
// With the last slot go the least floats.
#define FILLED(is_last)                                                                        \
    if (is_last)                                                                               \
        leave_least(least + number % RING * 2, least_x, least_y);                              \
    publish_to_async();                                                                        \
    warp_sync();                                                                               \
    if ((item & 31) == 0)                                                                      \
        mbarrier_arrive(full + turn.stage * 8);                                                \
    next_turn(&turn);

INLINE void leave_least(volatile __local uint *least, uint x, uint y)
{
    const uint some = as_uint(SOME_SMALL);
    if (x < some)
        atomic_min(least, x);
    if (y < some)
        atomic_min(least + 1, y);
}

INLINE void produce(const Gemm *g, const Tasks *all, __global const ELEM *a,
                    __global const ELEM *b, __local uchar *slots, uint full, uint empty,
                    __local uint *least)
{
    enum { how_x = ROWS_OF_X, how_y = ROWS_OF_Y, rows_x = ROWS_X, rows_y = ROWS_Y };
    enum { height_x = BX, height_y = BY, is_x = 0, is_y = 1 };
    const int item = work_item() - 256;
    // A constant where each producer has as many chunks of Y.
    const int has_last =
        CHUNKS_Y * PRODUCERS == ROWS_Y * 4 || item + (CHUNKS_Y - 1) * PRODUCERS < ROWS_Y * 4;
    const int conj_x = g->conj_b, conj_y = g->conj_a;
    const uint pitch_x = (uint)(g->ldb * sizeof(ELEM)), pitch_y = (uint)(g->lda * sizeof(ELEM));
    const uint hop_x = how_x == ACROSS ? pitch_x : sizeof(ELEM);
    const uint hop_y = how_y == ACROSS ? pitch_y : sizeof(ELEM);
    const ulong whole_x = (ulong)hop_x * (DEPTH / CE), whole_y = (ulong)hop_y * (DEPTH / CE);
    const Raw nothing = {(float4)(0), (float4)(0), (float4)(0)};
    EACH(PLACE)
    Turn turn = {0, 1};  // the first wait on a fresh barrier returns at once
#pragma unroll 1
    for (int number = 0;; number++) {
        const Task t = task_of(g, all, number);
        if (t.turns == 0)
            return;
        const int before = t.first * (2 * DEPTH / CE);
        const Operand ox = operand_of(g, a, b, 0, t.entry), oy = operand_of(g, a, b, 1, t.entry);
        // Of the last turn there may be less than a slot of k.
        const int within = min((int)g->k - before, t.turns * (DEPTH / CE));
        const int left = within % (DEPTH / CE);
        int turns = within / (DEPTH / CE);
        uint least_x = 0xffffffffu, least_y = 0xffffffffu;
        EACH(START)
        const int rest = before + within - left;
        if (turns > 0) {
            ulong STEP(x, turns > 1)
            ulong STEP(y, turns > 1)
            EACH(UNREAD)
            EACH_OWN(FETCH)
#pragma unroll 1
            for (; turns > 0; turns--) {
                NEXT_SLOT()
                STEP(x, turns > 2)
                STEP(y, turns > 2)
                EACH_OWN(TAKE_AND_FETCH)
                FILLED(turns == 1 && left == 0)
            }
        }
        if (left > 0) {
            EACH(START_REST)
            NEXT_SLOT()
            EACH_OWN(TAKE_REST)
            FILLED(1)
        }
    }
}
