// Products of a warpgroup (128 work-items) on Hopper's tensor cores: wgmma, both operands in local
// memory.  Goes after nv_split/split.cl; defines no kernel.
//
// wgmma exists for the target sm_90a only, which NVIDIA's OpenCL compiler never chooses.  So each
// instruction that needs it stands in a PTX comment, "//@@", that the compiler carries through;
// ptx.py takes the mark away, sets the target, and the driver assembles the text.
//
// wgmma computes D[64][WY] += X[64][16] * Y[WY][16]^T.  Of D a work-item holds, at index q of WY/2,
//      row     (warp % 4) * 16 + lane / 4 + (q / 2 % 2) * 8
//      column  (q / 4) * 8 + lane % 4 * 2 + q % 2
// X and Y are K-major: rows of DEPTH elements of two bytes, their chunks of 16 bytes swizzled:
//      DEPTH 64: rows of 128 bytes, chunk c of row r lies at c ^ (r % 8)
//      DEPTH 32: rows of  64 bytes, chunk c of row r lies at c ^ (r / 2 % 4)

#ifndef IN_TURN
#define IN_TURN 0  // 1: warpgroups 0 and 1, of which each is a `group`, start products in turn (nv_async.cl)
#endif
#define ACCUMULATORS (WY / 2)
#define BLOCKS MI

// Where the accumulators [BLOCKS][ACCUMULATORS] of a work-item lie in a tile: 2 * BLOCKS rows, from
// row_of at ROW_STEP(i), and of each the columns column_of + 16 * j + 0, 1, 2, 3 (see row_of_place
// in nv_split/parts.cl) for j in ACCUMULATORS / 8.
INLINE int row_of(int item)
{
    return (GROUPS_X > 1 ? (item >> 7) * MI * 64 : 0) + (item >> 5 & 3) * 16 + (item >> 2 & 7);
}

INLINE int column_of(int item)
{
    return (GROUPS_X > 1 ? 0 : (item >> 7) * WY) + (item & 3) * 4;
}
#define ROW_STEP(i) ((i) / 2 * 64 + (i) % 2 * 8)

#define SM90A "//@@"

#define ACC4(d, i) "+f"(d[i]), "+f"(d[(i) + 1]), "+f"(d[(i) + 2]), "+f"(d[(i) + 3])
#define ACC16(d, i) ACC4(d, i), ACC4(d, (i) + 4), ACC4(d, (i) + 8), ACC4(d, (i) + 12)
#define REGS_32                                                                                \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "                   \
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define REGS_48                                                                                \
    REGS_32 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
#define REGS_64                                                                                \
    REGS_48 ", %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#if WY == 96
#define ACCS(d) ACC16(d, 0), ACC16(d, 16), ACC16(d, 32)
#define SHAPE_AND_REGS(type) "m64n96k16.f32." type "." type " {" REGS_48 "}, %48, %49, "
#elif WY == 128
#define ACCS(d) ACC16(d, 0), ACC16(d, 16), ACC16(d, 32), ACC16(d, 48)
#define SHAPE_AND_REGS(type) "m64n128k16.f32." type "." type " {" REGS_64 "}, %64, %65, "
#else
#define ACCS(d) ACC16(d, 0), ACC16(d, 16)
#define SHAPE_AND_REGS(type) "m64n64k16.f32." type "." type " {" REGS_32 "}, %32, %33, "
#endif

// d (+)= X * Y^T, both by descriptor; type "f16" or "bf16"; add "1", or "0" to start from zero.
#define WGMMA(type, d, x, y, add)                                                              \
    asm volatile(SM90A "wgmma.mma_async.sync.aligned." SHAPE_AND_REGS(type) add ", 1, 1, 0, 0;" \
                 : ACCS(d)                                                                     \
                 : "l"(x), "l"(y))

// Before the first product after d was touched; then WGMMA ..., commit, wait.
#define WGMMA_FENCE() asm volatile(SM90A "wgmma.fence.sync.aligned;" ::: "memory")
#define WGMMA_COMMIT() asm volatile(SM90A "wgmma.commit_group.sync.aligned;" ::: "memory")
#define WGMMA_WAIT(d)                                                                          \
    asm volatile(SM90A "wgmma.wait_group.sync.aligned 0;" : ACCS(d)::"memory")

// Registers of each work-item of the warpgroup from here on.
#define REGISTERS_DOWN(n) asm volatile(SM90A "setmaxnreg.dec.sync.aligned.u32 " #n ";" ::: "memory")
#define REGISTERS_UP(n) asm volatile(SM90A "setmaxnreg.inc.sync.aligned.u32 " #n ";" ::: "memory")

// The low words of descriptors: where a matrix starts in local memory.  Adding 2 moves 16 elements
// (32 bytes) along k, adding bytes / 16 moves by rows.  The high words say how rows of 64 or 32
// elements are swizzled.  (64-bit sums cost the compiler twice the registers.)
#define DESCRIPTOR(address) (((address) >> 4) & 0x3fff | 1 << 16)
#define SWIZZLE_64 (64u | 1u << 30)
#define SWIZZLE_32 (32u | 2u << 30)
#define WITH_SWIZZLE(low, high) ((ulong)(high) << 32 | (low))

// The products of parts px and py of one slice, DEPTH deep; FRESH: forget what tmp holds.  LAST of a batch:
// the other one's turn begins before the last of them, so that the tensor cores never wait for it.
#define MULTIPLY(type, DEPTH, px, py, FRESH, LAST)                                             \
    UNROLL for (int d = 0; d < DEPTH / 16; d++)                                                \
    {                                                                                          \
        const ulong at_x =                                                                     \
            WITH_SWIZZLE(x + (px) * (BX * DEPTH / 8) + d * 2, SWIZZLE_##DEPTH);                \
        const ulong at_y =                                                                     \
            WITH_SWIZZLE(y + (py) * (BY * DEPTH / 8) + d * 2, SWIZZLE_##DEPTH);                \
        if (IN_TURN && LAST && d == DEPTH / 16 - 1)                                            \
            pass_turn(group);                                                                  \
        if (FRESH && d == 0)                                                                   \
            WGMMA(type, tmp, at_x, at_y, "0");                                                 \
        else                                                                                   \
            WGMMA(type, tmp, at_x, at_y, "1");                                                 \
    }
#define CLEAR(array)                                                                           \
    UNROLL for (int q = 0; q < ACCUMULATORS; q++) array[q] = 0;
#define BEGIN_PRODUCTS()                                                                       \
    if (IN_TURN)                                                                               \
        wait_turn(group);                                                                      \
    WGMMA_FENCE()
#define FINISH_PRODUCTS()                                                                      \
    WGMMA_COMMIT();                                                                            \
    WGMMA_WAIT(tmp)
#define ADD_UP(i, factor)                                                                      \
    UNROLL for (int q = 0; q < ACCUMULATORS; q++) acc[i][q] = fma(tmp[q], factor, acc[i][q]);

// The products of fp16 parts, into tmp: those with a second part, which count 2^-11 times, then the others.
#define MULTIPLY_FP16_SMALL(DEPTH)                                                             \
    BEGIN_PRODUCTS();                                                                          \
    MULTIPLY("f16", DEPTH, 1, 0, 1, 0)                                                         \
    MULTIPLY("f16", DEPTH, 0, 1, 0, 1)                                                         \
    FINISH_PRODUCTS();
#define MULTIPLY_FP16_LARGE(DEPTH)                                                             \
    BEGIN_PRODUCTS();                                                                          \
    MULTIPLY("f16", DEPTH, 0, 0, 1, 1)                                                         \
    FINISH_PRODUCTS();

// The six products of bf16 parts, small ones first, into tmp.
#define MULTIPLY_BF16()                                                                        \
    BEGIN_PRODUCTS();                                                                          \
    MULTIPLY("bf16", 32, 2, 0, 1, 0)                                                           \
    MULTIPLY("bf16", 32, 0, 2, 0, 0)                                                           \
    MULTIPLY("bf16", 32, 1, 1, 0, 0)                                                           \
    MULTIPLY("bf16", 32, 1, 0, 0, 0)                                                           \
    MULTIPLY("bf16", 32, 0, 1, 0, 0)                                                           \
    MULTIPLY("bf16", 32, 0, 0, 0, 1)                                                           \
    FINISH_PRODUCTS();
