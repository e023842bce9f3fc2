// nv_fused, the producers: they read X and Y where they lie, split floats into two fp16 or three bf16, and
// write the parts into slots.
//
// A producer has chunks of 8 reals of a row, one or two of X, one to four of Y, some one of them less.
// While it splits one, others are on their way to its registers.  Rows beyond the matrix repeat the last
// one: of what comes of them nothing is stored.
//
// With a short k, of bf16 alone, all would wait for memory once a task.  So the first slot of the next task
// is read behind the last one of this task; and that, if less of k is left, begins earlier, with zeros for
// what X has in the slot before.  Where fp16 is tried registers do not suffice for it.
//
// Floats that are split into bf16 are not scaled, so the least one that is not 0 is kept, for who
// multiplies to look at.
//
// Registers are few, and so are the warps that hide each other's waits.  So chunks are variables of their
// own, and a slot is one sequence of instructions without branches: how rows lie is known to the compiler,
// and slots that begin where vectors cannot be read, or once more, are filled in another way.

#define SLOT ((BX + BY) * 192)
#define SOME_SMALL 0x1p-20f  // a float of which two are not too small for each other
#define SLOT_ELEMENTS (DEPTH / CE)
#define SLICE_ELEMENTS (2 * DEPTH / CE)
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
// Whether this producer has a chunk: known to the compiler but for the last one.
#define HAS(s, u) (!is_##s || (u) < CHUNKS_Y - 1 || has_last)

// Number u of this producer's chunks of an operand with so many rows of elements: row and place in it.
#define ROW_OF(u, rows, how)                                                                   \
    ((how) == ACROSS ? (item + (u) * PRODUCERS) % (rows) : (item + (u) * PRODUCERS) / 4)
#define CHUNK_OF(u, rows, how)                                                                 \
    ((how) == ACROSS ? (item + (u) * PRODUCERS) / (rows) : (item + (u) * PRODUCERS) % 4)

// Where chunk u of operand s, x or y, is kept: a row of the strip, its place there and in a slot.
#define PLACE(s, u)                                                                            \
    const int row_##s##u = ROW_OF(u, rows_##s, how_##s);                                       \
    const int c_##s##u = CHUNK_OF(u, rows_##s, how_##s);                                       \
    const int to_##s##u = place_in_##s(row_##s##u, c_##s##u);
enum { how_x = ROWS_OF_X, rows_x = ROWS_X, height_x = BX, is_x = 0 };
enum { how_y = ROWS_OF_Y, rows_y = ROWS_Y, height_y = BY, is_y = 1 };
#define conj_x (g->conj_b)
#define conj_y (g->conj_a)
#define pitch_x ((uint)(g->ldb * sizeof(ELEM)))
#define pitch_y ((uint)(g->lda * sizeof(ELEM)))
#define hop_x (how_x == ACROSS ? pitch_x : (uint)sizeof(ELEM))  // from element to element of a row
#define hop_y (how_y == ACROSS ? pitch_y : (uint)sizeof(ELEM))
#define row_hop_x (how_x == ACROSS ? (uint)sizeof(ELEM) : pitch_x)  // from row to row
#define row_hop_y (how_y == ACROSS ? (uint)sizeof(ELEM) : pitch_y)
#define copy_hop_x (g->stride_b * (long)sizeof(ELEM))  // from matrix to matrix
#define copy_hop_y (g->stride_a * (long)sizeof(ELEM))
#define end_x (g->n)
#define end_y (g->m)

// Where it is read: nowhere yet, or in the slot from element p of k on.
#define NOWHERE(s, u) Bytes at_##s##u = 0;
#define START(s, u) at_##s##u = start_of_##s(u, p);
#define start_of_x(u, p) start_of(&ox, (long)t.x * BX + row_x##u, c_x##u, p)
#define start_of_y(u, p) start_of(&oy, (long)t.y * ROWS_Y + row_of_y(row_y##u), c_y##u, p)
// What was read of it: nothing yet, nothing any more (it would take registers where slots are filled anew).
#define UNREAD(s, u) Raw raw_##s##u = nothing;
#define FORGET(s, u) raw_##s##u = nothing, at_##s##u = 0;
// Go on by step_s, and read it, if there is more.
#define FETCH(s, u)                                                                            \
    at_##s##u += step_##s;                                                                     \
    fetch(HAS(s, u) && (!IS_COMPLEX || more), &raw_##s##u, at_##s##u, pitch_##s, how_##s);
#define LATE(s, u) late_of(at_##s##u, how_##s)
// Take a chunk from where it was read to, split it, start to read the next one to there, and keep parts.
#define TAKE(s, u, raw, late, SPLIT, next, count)                                              \
    {                                                                                          \
        float v[8];                                                                            \
        uint parts[3][4];                                                                      \
        reals_of(v, raw, late);                                                                \
        SPLIT(s, u)                                                                            \
        next                                                                                   \
        if (HAS(s, u))                                                                         \
            keep_parts(slot + to_##s##u, parts, count, height_##s, is_##s, conj_##s);          \
    }
#define INTO_BF16(s, u)                                                                        \
    least.s = least_of(v, least.s);                                                            \
    split_bf16(v, parts);
#define INTO_FP16(s, u)                                                                        \
    seen.least.s = least_doubled(v, seen.least.s);                                             \
    seen.most = split_scaled(v, scales.s, parts, seen.most);
// One that was fetched, while the next one is.
#define FETCHED(s, u) raw_##s##u, LATE(s, u)
#define TAKE_FETCHED(s, u, raw_and_late, SPLIT, count)                                         \
    TAKE(s, u, raw_and_late, SPLIT, FETCH(s, u), count)
#define TAKE_BF16(s, u) TAKE_FETCHED(s, u, FETCHED(s, u), INTO_BF16, 3)
#define TAKE_FP16(s, u) TAKE_FETCHED(s, u, FETCHED(s, u), INTO_FP16, 2)
// One of a slot that nothing was fetched of.
#define FETCH_REST(s, u)                                                                       \
    const Raw rest_##s##u = fetch_rest(start_of_##s(u, p), hop_##s, c_##s##u, inside);
#define TAKE_REST_BF16(s, u) TAKE(s, u, rest_##s##u, 0, INTO_BF16, , 3)
#define TAKE_REST_FP16(s, u) TAKE(s, u, rest_##s##u, 0, INTO_FP16, , 2)
// Have zeros for the first elements of the slot.
#define LEAVE_OUT(s, u) leave_out(&raw_##s##u, repeated * CE - c_##s##u * 8 + LATE(s, u));
// See one that stays fetched.
#define SEE(s, u)                                                                              \
    {                                                                                          \
        float v[8];                                                                            \
        reals_of(v, raw_##s##u, LATE(s, u));                                                   \
        largest.s = largest_of(v, largest.s);                                                  \
        seen.least.s = least_doubled(v, seen.least.s);                                         \
    }

// Whether a producer has the last of its chunks of Y: known to the compiler where all have.
INLINE int has_last_chunk(int item)
{
    return CHUNKS_Y * PRODUCERS == ROWS_Y * 4 || item + (CHUNKS_Y - 1) * PRODUCERS < ROWS_Y * 4;
}

INLINE void leave_least(volatile __local uint *leasts, uint2 least)
{
    const uint some = as_uint(SOME_SMALL);
    if (least.x < some)
        atomic_min(leasts, least.x);
    if (least.y < some)
        atomic_min(leasts + 1, least.y);
}

// What was seen of floats that were read.
typedef struct {
    Seen seen;    // of fp16
    uint2 least;  // of X and Y, of bf16
} Found;

// A slot of task t from element p of k on, of which so many are inside, read element by element.
INLINE Found fill_anew(const Gemm *g, Task t, __global const ELEM *a, __global const ELEM *b,
                       __local uchar *slot, int p, int inside, int is_fp16, Scales scales)
{
    int item = work_item() - 256;
    OPAQUE(item);  // or what follows from it would keep registers while other slots are filled
    const int has_last = has_last_chunk(item);
    const Operand ox = operand_of(g, a, b, 0, t.entry), oy = operand_of(g, a, b, 1, t.entry);
    Seen seen = {0, (uint2)(0xffffffffu)};
    uint2 least = (uint2)(0xffffffffu);
    EACH(PLACE)
    EACH(FETCH_REST)
    if (is_fp16) {
        EACH(TAKE_REST_FP16)
    } else {
        EACH(TAKE_REST_BF16)
    }
    const Found found = {seen, least};
    return found;
}

// How the next task's first slot lies to element p of this one, and whether all rows do.
#define JUMP(s)                                                                                \
    step_##s = (ulong)((next.s - t.s) * (long)(rows_##s * (ulong)row_hop_##s) +                \
                       (min(next.first * SLICE_ELEMENTS, deepest) - p) * (long)hop_##s +       \
                       (next.entry - t.entry) * copy_hop_##s);
#define ALL_ROWS_DO(s)                                                                         \
    (next.s == t.s || max(next.s, t.s) * (long)rows_##s + rows_##s <= end_##s)
// What is read next: the slot that follows, or the next task's first one.  If there is none, or it is not
// known how it lies, the last one is read once more instead.
#define FIND_NEXT()                                                                            \
    int more = 1;                                                                              \
    ulong step_x = whole_x, step_y = whole_y;                                                  \
    if (wholes == 2) {                                                                         \
        step_x -= repeated * (ulong)hop_x;                                                     \
        step_y -= repeated * (ulong)hop_y;                                                     \
    } else if (wholes == 1) {                                                                  \
        if (repeated) {                                                                        \
            EACH_X(LEAVE_OUT)                                                                  \
        }                                                                                      \
        const Task next = task_of(g, all, number + 1);                                         \
        is_fetched = more = has_vectors && next.turns && ALL_ROWS_DO(x) && ALL_ROWS_DO(y);     \
        step_x = step_y = 0;                                                                   \
        if (more) {                                                                            \
            const int p = min(before + done * SLOT_ELEMENTS, deepest);                         \
            JUMP(x)                                                                            \
            JUMP(y)                                                                            \
            t = next;                                                                          \
            is_next = 1;                                                                       \
        }                                                                                      \
    }
#define NEXT_SLOT()                                                                            \
    mbarrier_wait(empty + turn.stage * 8, turn.parity);                                        \
    __local uchar *slot = slots + turn.stage * SLOT;
// With the last slot go the least floats.
#define FILLED(multiplied_by, is_last)                                                         \
    if (TAKES_FP16 && item == 0)                                                               \
        marks->factor[turn.stage] = multiplied_by;                                             \
    if (is_last)                                                                               \
        leave_least(leasts + number % RING * 2, least);                                        \
    publish_to_async();                                                                        \
    warp_sync();                                                                               \
    if ((item & 31) == 0)                                                                      \
        mbarrier_arrive(full + turn.stage * 8);                                                \
    next_turn(&turn);                                                                          \
    filled++;
// Have a slot with floats that do not fit left out, and filled anew.
#define LEAVE_OUT_MISFITS(seen, bit)                                                           \
    if (is_beyond_fp16(seen, scales)) {                                                        \
        marks->left_out[turn.stage] = filled;                                                  \
        atomic_or(marks->misfits + batches % 3, 1u << (bit));                                  \
    }

// Whether all bits of so many from the first one on are set.
INLINE int are_all_from_one_on(uint bits, int count)
{
    return bits && (ulong)bits + (bits & -bits) == (ulong)1 << count;
}

INLINE void produce(const Gemm *g, const Tasks *all, __global const ELEM *a,
                    __global const ELEM *b, __local uchar *slots, uint full, uint empty,
                    __local uint *leasts, volatile __local Marks *marks)
{
    const int item = work_item() - 256, has_last = has_last_chunk(item);
    const ulong whole_x = (ulong)hop_x * SLOT_ELEMENTS, whole_y = (ulong)hop_y * SLOT_ELEMENTS;
    const Raw nothing = {(float4)(0), (float4)(0), (float4)(0)};
    // Where a last slot begins of which all is inside; may vectors be read from there on?
    const int deepest = (int)g->k - SLOT_ELEMENTS;
    const int is_aligned = (how_x == ALIGNED) | (how_y == ALIGNED);
    const int bytes = is_aligned ? 16 : (int)sizeof(ELEM);  // at whose multiples vectors begin
    const int has_vectors = !TAKES_FP16 && deepest >= 0 && deepest * (int)sizeof(ELEM) % bytes == 0;
    EACH(PLACE)
    EACH(UNREAD)
    EACH(NOWHERE)
    Scales scales = {1, 1};
    int filled = 0, batches = 0, left_out = 0;
    int is_known = !TAKES_FP16, fits = 0;  // whether fp16 holds the floats
    int is_fetched = 0;                    // the slot that is filled next
    Turn turn = {0, 1};  // the first wait on a fresh barrier returns at once
    Task t = task_of(g, all, 0);
#pragma unroll 1
    for (int number = 0; t.turns; number++) {
        const int turns = t.turns, before = t.first * SLICE_ELEMENTS;
        // Of the last turn there may be less than a slot of k.
        const int within = min((int)g->k - before, turns * SLOT_ELEMENTS);
        const int repeated = has_vectors ? turns * SLOT_ELEMENTS - within : 0;
        int wholes = has_vectors ? turns : within / SLOT_ELEMENTS;  // that are read in vectors
        int is_next = 0;                                            // whether t is the next task
        uint2 least = (uint2)(0xffffffffu);
#pragma unroll 1
        for (int done = 0; done < turns;) {
            if (!is_fetched && wholes > 0) {
                const Operand ox = operand_of(g, a, b, 0, t.entry);
                const Operand oy = operand_of(g, a, b, 1, t.entry);
                const int p = min(before + done * SLOT_ELEMENTS, deepest), more = 1;
                const ulong step_x = 0, step_y = 0;
                EACH(START)
                EACH(FETCH)
                is_fetched = 1;
            }
            if (!is_known && wholes > 0) {
                Seen seen = {0, (uint2)(0xffffffffu)};
                uint2 largest = (uint2)(0);
                EACH(SEE)
                is_known = choose_scales(&scales, &fits, largest, seen.least, marks);
            }
            const int is_fp16 = TAKES_FP16 && fits, begin = done;
            const int batch = min(max(filled, LEAST_BATCH), MOST_BATCH);
            const int end = min(done + (is_fp16 ? batch : is_known ? turns : 1), turns);
            if (is_fp16) {
#pragma unroll 1
                for (; done < end && wholes > 0; done++, wholes--) {
                    Seen seen = {0, (uint2)(0xffffffffu)};
                    NEXT_SLOT()
                    FIND_NEXT()
                    EACH(TAKE_FP16)
                    LEAVE_OUT_MISFITS(seen, done - begin)
                    FILLED(factor_of(scales), done + 1 == turns)
                }
            } else {
#pragma unroll 1
                for (; done < end && wholes > 0; done++, wholes--) {
                    NEXT_SLOT()
                    FIND_NEXT()
                    EACH(TAKE_BF16)
                    FILLED(0, done + 1 == turns)
                }
            }
            // Less than a slot of k may be left; then what did not fit is filled anew, in bf16.
            uint left = done < end;
            int first = done;
            done = end;
#pragma unroll 1
            for (int in_fp16 = is_fp16;; in_fp16 = 0) {
#pragma unroll 1
                for (; left; left &= left - 1) {
                    const int at = first + 31 - (int)clz(left & -left);
                    const int p = before + at * SLOT_ELEMENTS;
                    NEXT_SLOT()
                    const Found found = fill_anew(g, t, a, b, slot, p,
                                                  min(before + within - p, SLOT_ELEMENTS), in_fp16, scales);
                    least = min(least, found.least);
                    if (in_fp16)
                        LEAVE_OUT_MISFITS(found.seen, at - begin)
                    FILLED(in_fp16 ? factor_of(scales) : 0, end == turns)
                    EACH(FORGET)
                    is_fetched = 0;
                }
                if (!in_fp16)
                    break;
                producers_sync();
                left = marks->misfits[batches % 3];
                if (item == 0)
                    marks->misfits[(batches + 2) % 3] = 0;  // all have read those of the batch before
                batches++;
                first = begin;
                left_out += popcount(left);
                fits = !ARE_MANY(left_out, filled);
                if (!fits && are_all_from_one_on(left, end - begin)) {
                    done = begin + 31 - (int)clz(left & -left);  // so the others are filled from there on
                    wholes = within / SLOT_ELEMENTS - done;
                    left = is_fetched = 0;
                }
            }
        }
        if (!is_next)
            t = task_of(g, all, number + 1);
    }
}
