// nv_split, third kernel: the products, on Hopper's tensor cores.  Needs nv_async.cl, nv_split/wgmma.cl, turns.cl.
//
// A worker has three warpgroups.  One work-item of the third copies slices of both strips into local
// memory, STAGES of them ahead; the first two multiply, each MI blocks of 64 rows of X by BY of Y:
//
//      slot   X part 0 [BX][64] | X part 1 | Y part 0 [BY][64] | Y part 1           fp16, 64 deep
//             X part 0 [BX][32] | 1 | 2    | Y part 0 [BY][32] | 1 | 2              bf16, 32 deep
//
// A tile is computed in one of three ways, as the records of its strips allow:
//      fp16   x0 y0 + 2^-11 (x0 y1 + x1 y0); the small products have an accumulation of their own
//      bf16   x0 y0 + x0 y1 + x1 y0 + x1 y1 + x0 y2 + x2 y0, small ones first
//      fma    the operands themselves, as in any other kernel: for infinities, NaN, and strips whose
//             range neither split can hold
// The tensor cores add up at most one slice; slices are summed in fp32.

#define SLOT ((BX + BY) * 256)
#define RING 8  // more than STAGES: then nobody reads what is overwritten

// Copy `count` slices of both strips, of so many parts with rows of `width` bytes.
INLINE void copy_slices(__global const uchar *x, __global const uchar *y, int count, uint rows,
                        const int parts, const int width, uint slots, uint full, uint empty,
                        Turn *turn)
{
    for (; count > 0; count--) {
        const uint slot = slots + turn->stage * SLOT, ready = full + turn->stage * 8;
        mbarrier_wait(empty + turn->stage * 8, turn->parity);
        mbarrier_expect(ready, (rows + BY) * width * parts);
        UNROLL
        for (int part = 0; part < parts; part++)
            bulk_copy(slot + part * BX * width, x + part * BX * width, rows * width, ready);
        bulk_copy(slot + parts * BX * width, y, BY * width * parts, ready);
        x += BX * width * parts;
        y += BY * width * parts;
        next_turn(turn);
    }
}

// Copy the exponents that the owner of a tile needs, which count towards the barrier of a slot.
INLINE void copy_exponents(const Split *s, const Segment *t, __global const uchar *scratch, uint to,
                           uint ready)
{
    const long x = (long)t->copy_x * s->strips_x + t->x, y = (long)t->copy_y * s->strips_y + t->y;
    mbarrier_announce(ready, EXPONENTS * 4);
    bulk_copy(to, scratch + s->exponents_x + x * (ROWS_X * 4), ROWS_X * 4, ready);
    bulk_copy(to + ROWS_X * 4, scratch + s->exponents_y + y * (ROWS_Y * 4), ROWS_Y * 4, ready);
}

// The producer, one work-item.  It also tells the others what they compute: segment number i is in
// ring[i % RING] when its first slot is full, and so are its exponents in theirs.  A segment that needs
// no slices takes an empty slot.
INLINE void produce(const Gemm *g, const Split *s, __global const uchar *scratch, uint slots,
                    uint full, uint empty, __local Segment *ring, uint exponents)
{
    Walk walk = start_walk(g, s, get_group_id(0));
    Turn turn = {0, 1};  // the first wait on a fresh barrier returns at once
    for (int number = 0;; number++) {
        const Segment t = next_segment(g, s, &walk, scratch);
        mbarrier_wait(empty + turn.stage * 8, turn.parity);
        ring[number % RING] = t;
        if (t.mode < MODE_FMA && t.first == 0)
            copy_exponents(s, &t, scratch, exponents + number % RING * (EXPONENTS * 4),
                           full + turn.stage * 8);
        // Blocks of 64 rows beyond n are not copied.  What the slot held before may be multiplied in
        // their place: it only reaches rows of the result that are never stored.
        const uint rows = (uint)min((long)BX, (g->n - (long)t.x * BX + 63) / 64 * 64);
        const long x = ((long)t.copy_x * s->strips_x + t.x) * s->slices + t.first;
        const long y = ((long)t.copy_y * s->strips_y + t.y) * s->slices + t.first;
        if (t.mode == MODE_FP16) {
            copy_slices(scratch + s->fp16_x + x * (BX * 256), scratch + s->fp16_y + y * (BY * 256),
                        t.last - t.first, rows, 2, 128, slots, full, empty, &turn);
        } else if (t.mode == MODE_BF16) {
            copy_slices(scratch + s->bf16_x + x * (BX * 384), scratch + s->bf16_y + y * (BY * 384),
                        2 * (t.last - t.first), rows, 3, 64, slots, full, empty, &turn);
        } else {
            mbarrier_arrive(full + turn.stage * 8);
            next_turn(&turn);
            if (t.mode == MODE_END)
                return;
        }
    }
}

__kernel __attribute__((reqd_work_group_size(384, 1, 1)))
void nv_split_gemm(GEMM_ARGS, const Split s, __global uchar *scratch)
{
    __local uchar slot_bytes[STAGES * SLOT] __attribute__((aligned(1024)));
    __local float fma_x[FMA_DEPTH * BX] __attribute__((aligned(16)));
    __local float fma_y[FMA_DEPTH * BY] __attribute__((aligned(16)));
    __local ulong barriers[2 * STAGES];
    __local Segment ring[RING];
    __local int exponents[RING * EXPONENTS] __attribute__((aligned(16)));
    const int item = get_local_id(0), lane = item & 31, warp = item >> 5;
    const uint slots = LOCAL_ADDRESS(slot_bytes);
    const uint full = LOCAL_ADDRESS(barriers), empty = full + STAGES * 8;
    if (item == 0) {
        for (int i = 0; i < STAGES; i++) {
            mbarrier_init(full + i * 8, 1);
            mbarrier_init(empty + i * 8, 8);  // warps that multiply
        }
        mbarrier_publish();
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    if (warp >= 8) {
        REGISTERS_DOWN(40);
        if (item == 256)
            produce(&g, &s, scratch, slots, full, empty, ring, LOCAL_ADDRESS(exponents));
        return;
    }
    REGISTERS_UP(232);

    const int group = warp >> 2;
    if (IN_TURN)
        first_turn(group);
    Turn turn = {0, 0};
    for (int number = 0;; number++) {
        NEXT_FULL();
        __local const Segment *t = ring + number % RING;
        const int mode = t->mode;
        if (mode == MODE_END)
            break;
        const int slices = t->last - t->first;
        const long rows = g.n - (long)t->x * BX;  // of X inside, at least
        float acc[MI][ACCUMULATORS];
        UNROLL
        for (int i = 0; i < MI; i++)
            CLEAR(acc[i])

        // All rows of this warpgroup may be beyond n.  (A test of each block, inside the loops below,
        // made the whole kernel an eighth slower.)
        const int idle = group * MI * 64 >= rows;
        if (idle && mode != MODE_FMA) {
            for (int left = mode == MODE_FP16 ? slices : 2 * slices; left > 0; left--) {
                NEXT_FULL();
                // The other one goes on when it has been given as many turns as it takes.
                for (int i = 0; IN_TURN && i < (mode == MODE_FP16 ? 2 * MI : MI); i++) {
                    wait_turn(group);
                    pass_turn(group);
                }
                GIVE_BACK();
                next_turn(&turn);
            }
        } else if (mode == MODE_FP16) {
            float tmp[ACCUMULATORS];
            CLEAR(tmp)
            for (int left = slices; left > 0; left--) {
                NEXT_FULL();
                const uint at = slots + turn.stage * SLOT, y = DESCRIPTOR(at + BX * 256);
                UNROLL
                for (int i = 0; i < MI; i++) {
                    const uint x = DESCRIPTOR(at + (group * MI + i) * 64 * 128);
                    MULTIPLY_FP16_SMALL(64)
                    ADD_UP(i, 0x1p-11f)
                    MULTIPLY_FP16_LARGE(64)
                    if (i == MI - 1)
                        GIVE_BACK();
                    ADD_UP(i, 1.0f)
                }
                next_turn(&turn);
            }
        } else if (mode == MODE_BF16) {
            float tmp[ACCUMULATORS];
            CLEAR(tmp)
            for (int left = 2 * slices; left > 0; left--) {
                NEXT_FULL();
                const uint at = slots + turn.stage * SLOT, y = DESCRIPTOR(at + BX * 192);
                UNROLL
                for (int i = 0; i < MI; i++) {
                    const uint x = DESCRIPTOR(at + (group * MI + i) * 64 * 64);
                    MULTIPLY_BF16()
                    if (i == MI - 1)
                        GIVE_BACK();
                    ADD_UP(i, 1.0f)
                }
                next_turn(&turn);
            }
        } else {
            GIVE_BACK();
            next_turn(&turn);
            fma_segment(acc, &g, a, b, t, fma_x, fma_y);
        }
        finish_segment(acc, &g, &s, t, exponents + number % RING * EXPONENTS, scratch, c, alpha,
                       beta);
    }
}
