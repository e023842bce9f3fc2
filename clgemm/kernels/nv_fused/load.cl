// nv_fused, the producers: they read X and Y where they lie, split floats into three bf16, and write the
// parts into slots, in the layout that the tensor cores read.
//
// A producer has chunks of 8 reals of a row.  While it splits one the same chunks of the next slice
// are on their way to its registers.  Rows beyond the matrix repeat the last one: of what comes of
// them nothing is stored.  Neighbouring work-items read
//      rows along k     4 chunks of a row, in vectors: a row that starts anywhere in three of them
//      rows across k    a chunk of 32 rows, element by element
//
// Nothing is scaled, so small floats are looked at more closely, and the least is kept.

#define SOME_SMALL 0x1p-20f  // chunks with a float below this are looked at
#define CHUNKS_X (BX * 4 / PRODUCERS)
#define CHUNKS_Y ((ROWS_Y * 4 + PRODUCERS - 1) / PRODUCERS)
#define SLOT ((BX + BY) * 192)

typedef __global const ELEM *Place_k;  // of a chunk's first element in the slice that is read next

// What is the same for all chunks of an operand.
typedef struct {
    long ld;
    int along_k, conj;
} Lines;

// How many reals lie between the 16 bytes that a chunk is read from on and its first one.
INLINE int late_of(Place_k at)
{
    return (int)((ulong)at >> 2 & 3);
}

// Read a chunk.  `left`: elements of k from the slice's first one on; c: the chunk's place in a slice.
INLINE void fetch(float raw[12], Place_k at, const Lines *lines, int c, long left)
{
    if (left >= DEPTH / CE && lines->along_k) {
        // A vector that holds one of the chunk's reals may be read: memory ends at no other place.
        const int late = late_of(at);
        __global const float4 *from = (__global const float4 *)((__global const float *)at - late);
        const float4 v0 = from[0], v1 = from[1];
        float4 v2 = (float4)(0);
        if (late)
            v2 = from[2];
        raw[0] = v0.x, raw[1] = v0.y, raw[2] = v0.z, raw[3] = v0.w;
        raw[4] = v1.x, raw[5] = v1.y, raw[6] = v1.z, raw[7] = v1.w;
        raw[8] = v2.x, raw[9] = v2.y, raw[10] = v2.z, raw[11] = v2.w;
        return;
    }
    const long step = lines->along_k ? 1 : lines->ld;
    UNROLL
    for (int q = 0; q < 8 / CE; q++) {
        const ELEM v = left >= DEPTH / CE || c * (8 / CE) + q < left ? at[q * step] : (ELEM)(0);
#if IS_COMPLEX
        raw[2 * q] = v.x;
        raw[2 * q + 1] = v.y;
#else
        raw[q] = v;
#endif
    }
    UNROLL
    for (int q = 8; q < 12; q++)  // so that both ways end alike, see reals_of
        raw[q] = 0;
}

// The chunk's reals, the first of which is raw[late].
INLINE void reals_of(float x[8], const float raw[12], int late)
{
    const int two = late & 2, one = late & 1;
    float by_two[9];
    // Values are read before one is chosen: a chosen address would keep the arrays in memory.
    UNROLL
    for (int q = 0; q < 9; q++) {
        const float here = raw[q], there = raw[q + 2];
        by_two[q] = two ? there : here;
    }
    UNROLL
    for (int q = 0; q < 8; q++) {
        const float here = by_two[q], there = by_two[q + 1];
        x[q] = one ? there : here;
    }
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

INLINE void keep_part(__local uchar *to, const uint pairs[4], uint flip, int swap)
{
    uint4 v = (uint4)(pairs[0], pairs[1], pairs[2], pairs[3]);
    if (swap)
        v = rotate(v, (uint4)(16));
    *(__local uint4 *)to = v ^ flip;
}

// Split a chunk and keep its parts.  row: of X, as it is stored; of Y's elements, where the first of
// their rows is stored.
INLINE void keep(__local uchar *to, const float x[8], int is_y, int conj, int row, int c)
{
    uint parts[3][4];
    split_bf16(x, parts);
    const int height = is_y ? BY : BX;
    UNROLL
    for (int part = 0; part < 3; part++) {
        __local uchar *at = to + part * height * 64;
#if IS_COMPLEX
        const uint im = conj ? 0x80000000u : 0;
        if (is_y) {
            keep_part(at + place_in_part(row, c), parts[part], im ^ 0x80000000u, 0);
            keep_part(at + place_in_part(row + 1, c), parts[part], im >> 16, 1);
        } else {
            keep_part(at + place_in_part(row, c), parts[part], im, 0);
        }
#else
        keep_part(at + place_in_part(row, c), parts[part], 0, 0);
#endif
    }
}

// Number u of this producer's chunks: which row of elements and place in it.
#define PLACE(u, rows, along_k)                                                                \
    const int number = item + (u) * PRODUCERS;                                                 \
    const int stored = along_k ? number / 4 : number % (rows);                                 \
    const int c = along_k ? number % 4 : number / (rows);
#define PLACE_X(u) PLACE(u, BX, lines_x.along_k)
// Elements are taken in an order in which their rows are written without bank conflicts.
#define PLACE_Y(u)                                                                             \
    PLACE(u, ROWS_Y, lines_y.along_k)                                                          \
    const int first = stored * CE, row = CE == 1 ? row_of_place(first) : stored;               \
    const int kept = CE == 1 ? first : place_of_row(first);

// Where chunk c of a row begins in the slice from element p of k on.
INLINE Place_k start_of(const Operand *o, long row, int c, long p)
{
    const long inside = min(row, o->rows - 1);
    p += c * (8 / CE);
    return o->x + (o->along_k ? inside * o->ld + p : inside + p * o->ld);
}

// Make visible to the tensor cores what this work-item wrote to local memory.
INLINE void publish_to_wgmma(void)
{
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

INLINE void produce(const Gemm *g, const Tasks *all, __global const ELEM *a,
                    __global const ELEM *b, __local uchar *slots, uint full, uint empty,
                    __local uint *least)
{
    const int item = work_item() - 256, lane = item & 31;
    // A constant where each producer has chunks of Y.
    const int has_y = CHUNKS_Y * PRODUCERS == ROWS_Y * 4 || item < ROWS_Y * 4;
    Turn turn = {0, 1};  // the first wait on a fresh barrier returns at once
    int number = 0;
#pragma unroll 1
    for (int task = get_group_id(0); task < all->tasks; task += get_num_groups(0), number++) {
        const Task t = task_of(g, all, task);
        const Operand ox = operand_of(g, a, b, 0, t.entry), oy = operand_of(g, a, b, 1, t.entry);
        const Lines lines_x = {ox.ld, ox.along_k, ox.conj}, lines_y = {oy.ld, oy.along_k, oy.conj};
        __local uint *small = least + number % RING * 2;
        Place_k at_x[CHUNKS_X], at_y[CHUNKS_Y];
        float raw_x[CHUNKS_X][12], raw_y[CHUNKS_Y][12];
        const long before = (long)t.first * (2 * DEPTH / CE);
        long left = g->k - before;
        UNROLL
        for (int u = 0; u < CHUNKS_X; u++) {
            PLACE_X(u)
            at_x[u] = start_of(&ox, (long)t.x * BX + stored, c, before);
            fetch(raw_x[u], at_x[u], &lines_x, c, left);
        }
        if (has_y) {
            UNROLL
            for (int u = 0; u < CHUNKS_Y; u++) {
                PLACE_Y(u)
                at_y[u] = start_of(&oy, (long)t.y * ROWS_Y + row, c, before);
                fetch(raw_y[u], at_y[u], &lines_y, c, left);
            }
        }
#pragma unroll 1
        for (int turns = t.turns; turns > 0; turns--) {
            const int whole = left >= DEPTH / CE;
            left -= DEPTH / CE;
            mbarrier_wait(empty + turn.stage * 8, turn.parity);
            __local uchar *to = slots + turn.stage * SLOT;
            UNROLL
            for (int u = 0; u < CHUNKS_X; u++) {
                PLACE_X(u)
                float v[8];
                reals_of(v, raw_x[u], lines_x.along_k && whole ? late_of(at_x[u]) : 0);
                at_x[u] += lines_x.along_k ? DEPTH / CE : DEPTH / CE * lines_x.ld;
                if (turns > 1)
                    fetch(raw_x[u], at_x[u], &lines_x, c, left);
                look(v, small);
                keep(to, v, 0, lines_x.conj, stored, c);
            }
            if (has_y) {
                UNROLL
                for (int u = 0; u < CHUNKS_Y; u++) {
                    PLACE_Y(u)
                    float v[8];
                    reals_of(v, raw_y[u], lines_y.along_k && whole ? late_of(at_y[u]) : 0);
                    at_y[u] += lines_y.along_k ? DEPTH / CE : DEPTH / CE * lines_y.ld;
                    if (turns > 1)
                        fetch(raw_y[u], at_y[u], &lines_y, c, left);
                    look(v, small + 1);
                    keep(to + BX * 192, v, 1, lines_y.conj, kept, c);
                }
            }
            publish_to_wgmma();
            warp_sync();
            if (lane == 0)
                mbarrier_arrive(full + turn.stage * 8);
            next_turn(&turn);
        }
    }
}
