// nv_fused: how halves of a work-group and warps agree, in PTX.

// Have the compiler think that x is another number.
#define OPAQUE(x) asm volatile("" : "+r"(x))

// Whether one of the 256 that multiply says so, at the barrier of multipliers_sync().
INLINE uint any_multiplier(uint says)
{
    uint any;
    asm volatile("{ .reg .pred p, q; setp.ne.u32 p, %1, 0; bar.red.or.pred q, 1, 256, p; "
                 "selp.u32 %0, 1, 0, q; }"
                 : "=r"(any)
                 : "r"(says)
                 : "memory");
    return any;
}

// The 256 that produce wait for each other.
INLINE void producers_sync(void)
{
    asm volatile("bar.sync 2, 256;" ::: "memory");
}

// Keep the largest of a warp's and of what is there.  The whole warp calls it.
INLINE void leave_largest(volatile __local uint *at, uint x)
{
    uint most;
    asm volatile("redux.sync.max.u32 %0, %1, 0xffffffff;" : "=r"(most) : "r"(x) : "memory");
    if ((work_item() & 31) == 0)
        atomic_max(at, most);
}

// Whether a work-item of the warp says so.  The compiler knows that all of them get the same answer, and
// leaves products that depend on it alone.
INLINE uint any_of_warp(uint says)
{
    uint any;
    asm volatile("{ .reg .pred p, q; setp.ne.u32 p, %1, 0; vote.sync.any.pred q, p, 0xffffffff; "
                 "selp.u32 %0, 1, 0, q; }"
                 : "=r"(any)
                 : "r"(says)
                 : "memory");
    return any;
}
