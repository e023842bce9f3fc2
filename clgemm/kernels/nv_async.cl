// Asynchronous copies into local memory and the barriers they report to, for NVIDIA GPUs, as inline
// PTX that plain clBuildProgram takes.  Goes after common.cl (INLINE); defines no kernel.
//
// A stage of a pipeline has two mbarriers (64-bit objects in local memory, 8-byte aligned):
//
//      producer   wait EMPTY (all readers are done) -> copy -> copies arrive at FULL by themselves
//      readers    wait FULL -> load fragments, multiply -> arrive at EMPTY
//
// A barrier completes a phase when its count of arrivals is met (and, after mbarrier_expect, the
// announced bytes have landed); phases alternate in parity 0, 1, 0, ...  mbarrier_wait(x, parity)
// returns once the phase of that parity has completed, so a reader's first wait is for parity 0.
//
// Who needs which compute capability: cp.async, mbarrier 8.0; cp.async.bulk, mbarrier_expect 9.0.
//
// A trap that was seen: a warp that arrives at EMPTY right after loading its last fragment, before
// the products that use it, sometimes corrupts results.  Arrive after the products.

#ifndef TRY_WAIT
#define TRY_WAIT 1  // 1: compute capability 9.0, whose waiting sleeps in the hardware
#endif

// The address of local memory as PTX counts it in the .shared window.
#define LOCAL_ADDRESS(p) ((uint)(size_t)(p))

// ---- barriers ----------------------------------------------------------------------------------

// Set up a barrier for `count` arrivals a phase.  One work-item does; then mbarrier_publish() by it
// and barrier(CLK_LOCAL_MEM_FENCE) by all.
INLINE void mbarrier_init(uint address, uint count)
{
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(address), "r"(count) : "memory");
}

// Give a barrier's memory back, so that it may be set up anew.  One work-item does, when no other one
// waits for it any more.
INLINE void mbarrier_invalidate(uint address)
{
    asm volatile("mbarrier.inval.shared.b64 [%0];" ::"r"(address) : "memory");
}

// Make initialised barriers visible to the bulk copy engine (9.0).
INLINE void mbarrier_publish(void)
{
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

INLINE void mbarrier_arrive(uint address)
{
    asm volatile("{ .reg .b64 s; mbarrier.arrive.shared.b64 s, [%0]; }" ::"r"(address) : "memory");
}

// Arrive, and announce `bytes` of bulk copies that the phase waits for as well (9.0).
INLINE void mbarrier_expect(uint address, uint bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(address),
                 "r"(bytes)
                 : "memory");
}

// Arrive when all copies that this work-item has started with async_copy* so far have landed.  It
// counts as one of the barrier's arrivals.
INLINE void mbarrier_arrive_after_copies(uint address)
{
    asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(address) : "memory");
}

// Announce bytes of bulk copies, and do not arrive (9.0).
INLINE void mbarrier_announce(uint address, uint bytes)
{
    asm volatile("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], %1;" ::"r"(address),
                 "r"(bytes)
                 : "memory");
}

// Tell whether mbarrier_wait would return at once.  Asked some products ahead, the answer is there when
// it is needed, and a warp that waits for nobody loses no time.
INLINE uint mbarrier_passed(uint address, uint parity)
{
    uint done;
    asm volatile("{ .reg .pred p; mbarrier.test_wait.parity.shared.b64 p, [%1], %2; "
                 "selp.u32 %0, 1, 0, p; }"
                 : "=r"(done)
                 : "r"(address), "r"(parity)
                 : "memory");
    return done;
}

INLINE void mbarrier_wait(uint address, uint parity)
{
    uint done;
    do {
#if TRY_WAIT
        asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; "
                     "selp.u32 %0, 1, 0, p; }"
                     : "=r"(done)
                     : "r"(address), "r"(parity)
                     : "memory");
#else
        done = mbarrier_passed(address, parity);
#endif
    } while (!done);
}

// Wait for the other 31 work-items of the warp, and see what they wrote.
INLINE void warp_sync(void)
{
    asm volatile("bar.warp.sync 0xffffffff;" ::: "memory");
}

// ---- two warpgroups that start products in turn --------------------------------------------------
//
// While one adds its sums up, the products of the other are computed.  Left alone both may keep step: then
// the tensor cores idle while both add up, a fifth of the time.  Whether they did hung on how the compiler
// happened to place a few instructions that are no part of the loop.
//
// Both call first_turn once, then wait_turn and pass_turn equally often, or the same within a batch of
// products (nv_split/wgmma.cl).

#define OWN_BARRIER(group) (3 + (group))
#define OTHER_BARRIER(group) (4 - (group))

INLINE void wait_turn(int group)
{
    asm volatile("bar.sync %0, 256;" ::"r"(OWN_BARRIER(group)) : "memory");
}

INLINE void pass_turn(int group)
{
    asm volatile("bar.arrive %0, 256;" ::"r"(OTHER_BARRIER(group)) : "memory");
}

INLINE void first_turn(int group)
{
    if (group == 1)
        pass_turn(group);
}

// ---- copies from global to local memory ---------------------------------------------------------

// 16 bytes, both addresses aligned to 16; past L1.  Of them only the first `valid` (0 to 16) are
// read, the others become zero: with 0 the global address is not followed.
INLINE void async_copy16(uint to, __global const void *from, uint valid)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"((ulong)from),
                 "r"(valid)
                 : "memory");
}

// 8 bytes, aligned to 8; the same rule for `valid` (0 or 8).
INLINE void async_copy8(uint to, __global const void *from, uint valid)
{
    asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;" ::"r"(to), "l"((ulong)from),
                 "r"(valid)
                 : "memory");
}

// Close a group of this work-item's copies, and wait until at most `n` (a constant) groups are under
// way: the way to follow copies without a barrier object.
INLINE void async_copy_commit(void)
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}
#define ASYNC_COPY_WAIT(n) asm volatile("cp.async.wait_group %0;" ::"n"(n) : "memory")

// Any multiple of 16 bytes by one instruction of one work-item, both addresses aligned to 16; the
// bytes count towards what mbarrier_expect announced at `mbarrier` (9.0).
INLINE void bulk_copy(uint to, __global const void *from, uint bytes, uint mbarrier)
{
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1], %2, [%3];" ::"r"(to),
                 "l"((ulong)from), "r"(bytes), "r"(mbarrier)
                 : "memory");
}

// The same from local to global memory (9.0).  A work-item closes a group of its copies, and may wait until
// they have read what they store, before that is written anew.
INLINE void bulk_store(__global void *to, uint from, uint bytes)
{
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"((ulong)to),
                 "r"(from), "r"(bytes)
                 : "memory");
}

INLINE void bulk_store_commit(void)
{
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

INLINE void bulk_store_wait(void)
{
    asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
}

// What this work-item wrote to local memory by plain stores becomes visible to bulk copies and tensor
// cores (9.0).
INLINE void publish_to_async(void)
{
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// ---- flags between work-groups ------------------------------------------------------------------

// Publish what this work-group wrote to global memory before its last barrier.  One work-item does.
INLINE void set_ready(__global uint *flag)
{
    asm volatile("fence.acq_rel.gpu;" ::: "memory");
    asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"((ulong)flag), "r"(1) : "memory");
}

INLINE void wait_ready(__global const uint *flag)
{
    uint set;
    do {
        asm volatile("ld.acquire.gpu.global.u32 %0, [%1];"
                     : "=r"(set)
                     : "l"((ulong)flag)
                     : "memory");
    } while (!set);
}
