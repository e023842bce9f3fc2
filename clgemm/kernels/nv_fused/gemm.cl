// nv_fused: fp32 products at fp32 accuracy on Hopper's tensor cores in one launch.  Needs nv_async.cl,
// nv_ticket.cl and files of nv_split.
//
// A work-group has four warpgroups.  Two produce: they read operands, split floats into two fp16 or three
// bf16 (produce.cl) and fill slots.  Two multiply, each 64 rows of X by BY of Y, as nv_split does: the
// tensor cores add up the products of a slot, and slots are summed in fp32.
//
//      slot   X part 0 [BX][32] | 1 | 2    | Y part 0 [BY][32] | 1 | 2        two bytes each, 32 deep
//
// A tile is computed anew by fp32 FMA if a float of it is too small to be split, products could be too
// small for the tensor cores, or a sum is not finite: so overflow, infinities and NaN come out as from
// any FMA product.  A part of k of which that is known leaves NaN for who adds up the parts.

#define LEAST_SPLIT -110    // exponent of a float of which three bf16 hold all bits, without scaling
#define LEAST_PRODUCT -102  // of a product of which all that is kept are normal floats

// Whether the least floats of X and Y of slots of bf16, as produce.cl keeps them, rule out the tensor cores.
INLINE int are_too_small(const volatile __local uint *least)
{
    const uint some = as_uint(SOME_SMALL);
    const int x = exponent_of(min(least[0], some - 1) + 1);
    const int y = exponent_of(min(least[1], some - 1) + 1);
    return min(x, y) < LEAST_SPLIT || x + y < LEAST_PRODUCT;
}

INLINE int is_not_finite(const float acc[ACCUMULATORS])
{
    float zero = 0;
    UNROLL
    for (int q = 0; q < ACCUMULATORS; q++)
        zero = fma(acc[q], 0.0f, zero);
    return zero != 0;
}

// A barrier of the work-groups that have parts of a tile.  The counter is zero again when all of them have
// departed.  One work-item does, between two barriers of its work-group.
INLINE void arrive_and_wait(__global uint *tickets, uint parts)
{
    uint taken;
    asm volatile("fence.acq_rel.gpu;" ::: "memory");
    asm volatile("atom.relaxed.gpu.global.inc.u32 %0, [%1], %2;"
                 : "=r"(taken)
                 : "l"((ulong)tickets), "r"(2 * parts - 1)
                 : "memory");
    do {
        asm volatile("ld.acquire.gpu.global.u32 %0, [%1];"
                     : "=r"(taken)
                     : "l"((ulong)tickets)
                     : "memory");
    } while (taken < parts);
}

INLINE void depart(__global uint *tickets, uint parts)
{
    uint before;
    asm volatile("atom.relaxed.gpu.global.inc.u32 %0, [%1], %2;"
                 : "=r"(before)
                 : "l"((ulong)tickets), "r"(2 * parts - 1)
                 : "memory");
}

// A part leaves its sums.  If no work-group has another task after it, each gets the sums of all for some
// of the columns; else who takes the last ticket of the tile gets all.  Returned are the first of them and
// how many there are, in 16s of a warp.  Sums are added in the order of the parts.
INLINE int2 join_parts(float acc[ACCUMULATORS], const Tasks *all, const Task *t,
                       __global float4 *sums, __global uint *tickets,
                       volatile __local int *is_last)
{
    const int me = work_item(), group = get_group_id(0), together = all->piece == 1;
    const int begin = groups_of_tile(all, t->shared).x, mine = group - begin;
    const int most = ACCUMULATORS / 8;
    sums += me;
    UNROLL
    for (int q = 0; q < ACCUMULATORS / 4; q++)
        sums[(long)place_of_part(all, t->shared, group) * (BX * BY / 4) + q * 256] =
            (float4)(acc[q * 4], acc[q * 4 + 1], acc[q * 4 + 2], acc[q * 4 + 3]);
    multipliers_sync();
    if (me == 0) {
        if (together)
            arrive_and_wait(tickets + t->shared, t->parts);
        else
            *is_last = is_last_ticket(tickets + t->shared, t->parts);
    }
    multipliers_sync();
    int2 columns = (int2)(0, most);
    if (together) {
        columns.x = most * mine / t->parts;
        columns.y = most * (mine + 1) / t->parts - columns.x;
    } else if (!*is_last) {
        columns.y = 0;
    }
    CLEAR(acc)
    sums += columns.x * 512;
#pragma unroll 1
    for (int g = begin; columns.y > 0 && g < begin + t->parts; g++) {
        __global const float4 *from = sums + (long)place_of_part(all, t->shared, g) * (BX * BY / 4);
        UNROLL
        for (int q = 0; q < ACCUMULATORS / 4; q++) {
            if (q < 2 * columns.y) {
                const float4 v = from[q * 256];
                acc[q * 4] += v.x;
                acc[q * 4 + 1] += v.y;
                acc[q * 4 + 2] += v.z;
                acc[q * 4 + 3] += v.w;
            }
        }
    }
    if (together) {
        multipliers_sync();
        if (me == 0)
            depart(tickets + t->shared, t->parts);
    }
    return columns;
}

__kernel __attribute__((reqd_work_group_size(512, 1, 1)))
void nv_fused_gemm(GEMM_ARGS, int tiles, int uncut, int piece, int pieces, int strips_x,
                   int strips_y, int slices, __global float4 *sums, __global uint *tickets)
{
    __local uchar slots[STAGES * SLOT] __attribute__((aligned(1024)));
    __local float fma_x[FMA_DEPTH * BX] __attribute__((aligned(16)));
    __local float fma_y[FMA_DEPTH * BY] __attribute__((aligned(16)));
    __local float tile[PITCH ? BX * PITCH : 4] __attribute__((aligned(16)));
    __local ulong barriers[2 * STAGES];
    __local uint least[RING * 2];
    __local Marks marks;
    __local Segment whole;
    __local int is_last;
    const Tasks all = {tiles, uncut, piece, pieces, strips_x, strips_y, slices};
    const int item = get_local_id(0), lane = item & 31, warp = item >> 5;
    const uint full = LOCAL_ADDRESS(barriers), empty = full + STAGES * 8;
    if (item == 0) {
        for (int i = 0; i < STAGES; i++) {
            mbarrier_init(full + i * 8, PRODUCERS / 32);
            mbarrier_init(empty + i * 8, 8);  // warps that multiply
        }
        mbarrier_publish();
    }
    if (item < RING * 2)
        least[item] = 0xffffffffu;
    if (item < STAGES)
        marks.left_out[item] = -1;
    if (item < 4)
        marks.extremes[item] = 0;
    if (item < 3)
        marks.misfits[item] = 0;
    barrier(CLK_LOCAL_MEM_FENCE);
    if (warp >= 8) {
        REGISTERS_DOWN(104);
        produce(&g, &all, a, b, slots, full, empty, least, &marks);
        return;
    }
    REGISTERS_UP(152);

    const uint first_slot = LOCAL_ADDRESS(slots);
    const int group = any_of_warp(warp >> 2);  // 0 or 1, which the compiler knows to be all of a warp's
    Turn turn = {0, 0};
    int taken = 0;  // slots so far
#pragma unroll 1
    for (int number = 0;; number++) {
        const Task t = task_of(&g, &all, number);
        if (t.turns == 0) {
            if (PITCH)
                bulk_store_wait();
            return;
        }
        float acc[1][ACCUMULATORS], tmp[ACCUMULATORS];
        CLEAR(acc[0])
        CLEAR(tmp)
        // All rows of X or of Y that this warpgroup multiplies may be outside.
        const int idle = GROUPS_X > 1 ? (long)t.x * BX + group * 64 >= g.n
                                      : (long)t.y * BY + group * WY >= g.m * CE;
#pragma unroll 1
        for (int turns = t.turns; turns > 0; turns--) {
            NEXT_FULL();
            const float factor = OF_FP16(marks.factor[turn.stage]);
            const int skip = OF_FP16(any_of_warp(marks.left_out[turn.stage] == taken));
            turns += skip;  // there comes another one for it
            if (idle || OF_FP16(skip)) {
                GIVE_BACK();
            } else {
                const uint at = first_slot + turn.stage * SLOT;
                const uint x = DESCRIPTOR(at + (GROUPS_X > 1 ? group * 64 * 64 : 0));
                const uint y = DESCRIPTOR(at + BX * 192 + (GROUPS_X > 1 ? 0 : group * WY * 64));
                if (TAKES_FP16 && any_of_warp(factor != 0)) {
                    MULTIPLY_FP16_SMALL(32)
                    ADD_UP(0, factor * 0x1p-11f)
                    MULTIPLY_FP16_LARGE(32)
                    GIVE_BACK();
                    ADD_UP(0, factor)
                } else {
                    MULTIPLY_BF16()
                    GIVE_BACK();
                    ADD_UP(0, 1.0f)
                }
            }
            taken++;
            next_turn(&turn);
        }
        if (are_too_small(least + number % RING * 2)) {
            UNROLL
            for (int q = 0; q < ACCUMULATORS; q += 8)
                acc[0][q] = NAN;  // for each of those that add up parts
        }
        int2 columns = (int2)(0, ACCUMULATORS / 8);
        if (t.parts > 1)
            columns = join_parts(acc[0], &all, &t, sums, tickets, &is_last);
        const uint anew = any_multiplier(is_not_finite(acc[0]));
        if (item < 2)
            least[number % RING * 2 + item] = 0xffffffffu;
        if (columns.y == 0)
            continue;
        if (anew) {
            CLEAR(acc[0])
            if (item == 0) {
                const Segment segment = {t.entry, t.entry, t.entry, t.x, t.y, 0, slices, MODE_FMA};
                whole = segment;
            }
            multipliers_sync();
            fma_segment(acc, &g, a, b, &whole, fma_x, fma_y);
#pragma unroll 1
            for (int skipped = 0; skipped < columns.x; skipped++) {
                UNROLL
                for (int q = 0; q < ACCUMULATORS - 8; q++)
                    acc[0][q] = acc[0][q + 8];
            }
        }
        if (PITCH && columns.y == ACCUMULATORS / 8 && beta_class(beta) == BETA_ZERO)
            store_async(acc[0], &g, t.x, t.y, t.entry, c, alpha, tile);
        else
            store_columns(acc, &g, t.x, t.y, t.entry, columns.x, columns.y, 0, MODE_FMA, c, alpha,
                          beta);
    }
}
