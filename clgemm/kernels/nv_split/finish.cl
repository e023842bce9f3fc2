// nv_split: what becomes of a computed segment.  Partial tiles wait in the scratch memory for the worker
// that owns the tile.

// A computed segment: leave a partial tile for its owner, or add what others left and store the tile.
INLINE void finish_segment(float acc[BLOCKS][ACCUMULATORS], const Gemm *g, const Split *s,
                           __local const Segment *t, __local const int *exponents,
                           __global uchar *scratch, __global ELEM *c, ELEM alpha, ELEM beta)
{
    const int me = work_item(), worker = get_group_id(0);
    __global float *partials = (__global float *)(scratch + s->partials) + me;
    __global uint *ready = (__global uint *)(scratch + s->ready);
    if (t->first > 0) {
        UNROLL
        for (int i = 0; i < BLOCKS; i++)
            UNROLL
            for (int q = 0; q < ACCUMULATORS; q++)
                partials[(long)worker * (BX * BY) + (i * ACCUMULATORS + q) * 256] = acc[i][q];
        multipliers_sync();
        if (me == 0)
            set_ready(ready + worker);
        return;
    }
    // Add what the next workers computed of this tile.
    int left = s->slices - t->last;
    for (int peer = worker + 1; left > 0; peer++) {
        const long piece = piece_start(g, s, peer + 1) - piece_start(g, s, peer);
        if (piece == 0)
            continue;  // more workers than slices
        wait_ready(ready + peer);
        UNROLL
        for (int i = 0; i < BLOCKS; i++)
            UNROLL
            for (int q = 0; q < ACCUMULATORS; q++)
                acc[i][q] += partials[(long)peer * (BX * BY) + (i * ACCUMULATORS + q) * 256];
        left -= (int)min(piece, (long)left);
    }

    store_in_c(acc, g, t->x, t->y, t->entry, exponents, t->mode, c, alpha, beta);
}
