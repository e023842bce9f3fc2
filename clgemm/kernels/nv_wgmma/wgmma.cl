// Products of a warpgroup (128 work-items) by wgmma, both operands in local memory, of digits or of
// halves.  Goes after nv_wgmma/types.cl; defines no kernel.  What needs the target sm_90a stands in PTX
// comments, "//@@": see ptx.py.
//
// wgmma computes D[64][BY] += X[64][32 bytes] * Y[BY][32 bytes]^T.  Of D a work-item holds, at index q
// of BY/2,
//      row     (warp % 4) * 16 + lane / 4 + (q / 2 % 2) * 8
//      column  (q / 4) * 8 + lane % 4 * 2 + q % 2

#define ACCUMULATORS (BY / 2)
#if IS_HALF
typedef float SUM;
#define IN_REGISTER "+f"
#define TYPES "k16.f32.f16.f16"
#if ALONG_K_X
#define TURN_X ", 0"
#else
#define TURN_X ", 1"
#endif
#if ALONG_K_Y
#define TURN_Y ", 0"
#else
#define TURN_Y ", 1"
#endif
#define SIGNS ", 1, 1" TURN_X TURN_Y
#else
typedef int SUM;
#define IN_REGISTER "+r"
#define TYPES "k32.s32.s8.s8"
#define SIGNS
#endif

#define SM90A "//@@"
#define SUM4(d, i)                                                                             \
    IN_REGISTER(d[i]), IN_REGISTER(d[(i) + 1]), IN_REGISTER(d[(i) + 2]), IN_REGISTER(d[(i) + 3])
#define SUM16(d, i) SUM4(d, i), SUM4(d, (i) + 4), SUM4(d, (i) + 8), SUM4(d, (i) + 12)
#define SUM32(d, i) SUM16(d, i), SUM16(d, (i) + 16)
#define REGS_32                                                                                \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "                   \
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define REGS_64                                                                                \
    REGS_32 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, "    \
            "%47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define REGS_96                                                                                \
    REGS_64 ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, "    \
            "%79, %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#if BY == 192
#define SUMS(d) SUM32(d, 0), SUM32(d, 32), SUM32(d, 64)
#define OPERANDS "m64n192" TYPES " {" REGS_96 "}, %96, %97"
#define ADDS "%98"
#elif BY == 128
#define SUMS(d) SUM32(d, 0), SUM32(d, 32)
#define OPERANDS "m64n128" TYPES " {" REGS_64 "}, %64, %65"
#define ADDS "%66"
#else
#define SUMS(d) SUM32(d, 0)
#define OPERANDS "m64n64" TYPES " {" REGS_32 "}, %32, %33"
#define ADDS "%34"
#endif

// d = X * Y^T, plus d unless `adds` is 0; both by descriptor.
#define WGMMA(d, x, y, adds)                                                                   \
    asm volatile("{ .reg .pred p; setp.ne.b32 p, " ADDS ", 0;\n" SM90A                         \
                 "wgmma.mma_async.sync.aligned." OPERANDS ", p" SIGNS ";\n}"                   \
                 : SUMS(d)                                                                     \
                 : "l"(x), "l"(y), "r"(adds))

// Before the first product after d was touched; then WGMMA ..., commit; wait until at most n commits
// are under way.  What reads d waits for all of them with d as an operand.
#define WGMMA_FENCE() asm volatile(SM90A "wgmma.fence.sync.aligned;" ::: "memory")
#define WGMMA_COMMIT() asm volatile(SM90A "wgmma.commit_group.sync.aligned;" ::: "memory")
#define WGMMA_PENDING(n) asm volatile(SM90A "wgmma.wait_group.sync.aligned " #n ";" ::: "memory")
#define WGMMA_WAIT(d)                                                                          \
    asm volatile(SM90A "wgmma.wait_group.sync.aligned 0;" : SUMS(d)::"memory")

// What computes d is not moved below this.
#define KEEP_HERE(d) asm volatile("" : SUMS(d))

// Registers of each work-item of the warpgroup from here on, a number as text.
#define REGISTERS_DOWN(n) asm volatile(SM90A "setmaxnreg.dec.sync.aligned.u32 " n ";" ::: "memory")
#define REGISTERS_UP(n) asm volatile(SM90A "setmaxnreg.inc.sync.aligned.u32 " n ";" ::: "memory")

// A matrix in local memory: where it starts, in 16 bytes.  Lines of 128 bytes, whose chunks of 16 are
// swizzled, are rows of X or Y with k along them, or rows of k with 64 rows of X or Y along them; then
// blocks of 64 such lines follow each other.  Adding 64 * 8 moves 64 rows either way.
#define DESCRIPTOR(address) (((address) >> 4) & 0x3fff | 64 * 8 << 16)
#define STEP_X (ALONG_K_X ? 2 : 16 * 8)  // 32 bytes along k, or 16 lines
#define STEP_Y (ALONG_K_Y ? 2 : 16 * 8)
#define WITH_SWIZZLE(low) ((ulong)(64u | 1u << 30) << 32 | (low))
