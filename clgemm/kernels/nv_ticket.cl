// Tickets of work-groups that compute parts of one thing, for NVIDIA GPUs, as inline PTX: who takes
// the last one finds what all others have written before.  OpenCL C 1.2 has no fence for that.

// Take a ticket of `all`, and tell whether it was the last one.  The counter then is zero again.  One
// work-item does, between two barriers of its work-group.
INLINE int is_last_ticket(__global uint *tickets, uint all)
{
    uint before;
    asm volatile("fence.acq_rel.gpu;" ::: "memory");
    asm volatile("atom.relaxed.gpu.global.inc.u32 %0, [%1], %2;"
                 : "=r"(before)
                 : "l"((ulong)tickets), "r"(all - 1)
                 : "memory");
    asm volatile("fence.acq_rel.gpu;" ::: "memory");
    return before == all - 1;
}
