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
// Sums of a batch of products, and after them where X and Y begin, and the barriers of both turns.
#if WY == 96
#define ACCS(d) ACC16(d, 0), ACC16(d, 16), ACC16(d, 32)
#define SHAPE "m64n96k16"
#define SUMS "{" REGS_48 "}"
#define AT_X "%48"
#define AT_Y "%49"
#define OWN_TURN "%50"
#define OTHER_TURN "%51"
#elif WY == 128
#define ACCS(d) ACC16(d, 0), ACC16(d, 16), ACC16(d, 32), ACC16(d, 48)
#define SHAPE "m64n128k16"
#define SUMS "{" REGS_64 "}"
#define AT_X "%64"
#define AT_Y "%65"
#define OWN_TURN "%66"
#define OTHER_TURN "%67"
#else
#define ACCS(d) ACC16(d, 0), ACC16(d, 16)
#define SHAPE "m64n64k16"
#define SUMS "{" REGS_32 "}"
#define AT_X "%32"
#define AT_Y "%33"
#define OWN_TURN "%34"
#define OTHER_TURN "%35"
#endif

// Registers of each work-item of the warpgroup from here on.
#define REGISTERS_DOWN(n) asm volatile(SM90A "setmaxnreg.dec.sync.aligned.u32 " #n ";" ::: "memory")
#define REGISTERS_UP(n) asm volatile(SM90A "setmaxnreg.inc.sync.aligned.u32 " #n ";" ::: "memory")

// Where a matrix starts in local memory, the low word of a descriptor.  Adding 2 moves 16 elements (32
// bytes) along k, adding bytes / 16 moves by rows.  The high words say how rows of 64 or 32 elements are
// swizzled.
#define DESCRIPTOR(address) (((address) >> 4) & 0x3fff | 1 << 16)
#define HIGH_WORD_64 "(64 | 1 << 30) << 32"
#define HIGH_WORD_32 "(32 | 2 << 30) << 32"

// A batch of products of one slice, into tmp: one statement, since each has all sums for operands, of which
// the compiler keeps account.
#define STRING_(text) #text
#define STRING(text) STRING_(text)
#if IN_TURN
#define WAIT_TURN "bar.sync " OWN_TURN ", 256;\n"
#define PASS_TURN "bar.arrive " OTHER_TURN ", 256;\n"
#else
#define WAIT_TURN ""
#define PASS_TURN ""
#endif
#define BATCH(products)                                                                        \
    asm volatile(SM90A "{\n" SM90A ".reg .b32 low; .reg .b64 of_x, of_y;\n" WAIT_TURN SM90A      \
                       "wgmma.fence.sync.aligned;\n" products SM90A                            \
                       "wgmma.commit_group.sync.aligned;\n" SM90A                              \
                       "wgmma.wait_group.sync.aligned 0;\n" SM90A "}"                          \
                 : ACCS(tmp)                                                                   \
                 : "r"(x), "r"(y), "r"(OWN_BARRIER(group)), "r"(OTHER_BARRIER(group))          \
                 : "memory");
#define OF(operand, start, DEPTH, further)                                                     \
    SM90A "add.u32 low, " start ", " STRING(further) ";\n" SM90A                               \
          "cvt.u64.u32 " operand ", low;\n" SM90A                                              \
          "or.b64 " operand ", " operand ", " HIGH_WORD_##DEPTH ";\n"
// Number d of the products of parts px and py, DEPTH deep; add "1", or "0" to start from zero.
#define PRODUCT(type, DEPTH, px, py, d, add)                                                   \
    OF("of_x", AT_X, DEPTH, (px) * (BX * DEPTH / 8) + (d) * 2)                                 \
    OF("of_y", AT_Y, DEPTH, (py) * (BY * DEPTH / 8) + (d) * 2)                                 \
    SM90A "wgmma.mma_async.sync.aligned." SHAPE ".f32." type "." type " " SUMS                \
          ", of_x, of_y, " add ", 1, 1, 0, 0;\n"
// All of them; `turn` stands before the last one of a batch, so that the other warpgroup's first product
// is under way when that has ended.
#define PRODUCTS_64(type, px, py, add, turn)                                                   \
    PRODUCT(type, 64, px, py, 0, add)                                                          \
    PRODUCT(type, 64, px, py, 1, "1")                                                          \
    PRODUCT(type, 64, px, py, 2, "1")                                                          \
    turn PRODUCT(type, 64, px, py, 3, "1")
#define PRODUCTS_32(type, px, py, add, turn)                                                   \
    PRODUCT(type, 32, px, py, 0, add)                                                          \
    turn PRODUCT(type, 32, px, py, 1, "1")
#define CLEAR(array)                                                                           \
    UNROLL for (int q = 0; q < ACCUMULATORS; q++) array[q] = 0;
#define ADD_UP(i, factor)                                                                      \
    UNROLL for (int q = 0; q < ACCUMULATORS; q++) acc[i][q] = fma(tmp[q], factor, acc[i][q]);

// The products of fp16 parts: those with a second part, which count 2^-11 times, then the others.
#define MULTIPLY_FP16_SMALL(DEPTH)                                                             \
    BATCH(PRODUCTS_##DEPTH("f16", 1, 0, "0", "") PRODUCTS_##DEPTH("f16", 0, 1, "1", PASS_TURN))
#define MULTIPLY_FP16_LARGE(DEPTH) BATCH(PRODUCTS_##DEPTH("f16", 0, 0, "0", PASS_TURN))

// The six products of bf16 parts, small ones first.
#define MULTIPLY_BF16()                                                                        \
    BATCH(PRODUCTS_32("bf16", 2, 0, "0", "") PRODUCTS_32("bf16", 0, 2, "1", "")                \
          PRODUCTS_32("bf16", 1, 1, "1", "") PRODUCTS_32("bf16", 1, 0, "1", "")                \
          PRODUCTS_32("bf16", 0, 1, "1", "") PRODUCTS_32("bf16", 0, 0, "1", PASS_TURN))
