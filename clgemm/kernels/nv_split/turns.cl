// nv_split: a ring of STAGES slots in local memory, that producers fill and warpgroups read.  Each slot
// has two barriers, see nv_async.cl.

#ifndef STAGES
#define STAGES 2
#endif

// Wait for the next slot; give one back, once all products that read it are done.
#define NEXT_FULL() mbarrier_wait(full + turn.stage * 8, turn.parity)
#define GIVE_BACK()                                                                            \
    if (lane == 0)                                                                             \
    mbarrier_arrive(empty + turn.stage * 8)

// Where the producer or a multiplier stands in the ring of slots.
typedef struct {
    int stage;
    uint parity;
} Turn;

INLINE void next_turn(Turn *turn)
{
    if (++turn->stage == STAGES) {
        turn->stage = 0;
        turn->parity ^= 1;
    }
}
