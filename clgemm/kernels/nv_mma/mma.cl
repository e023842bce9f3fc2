// Products of a warp (32 work-items) on the tensor cores of compute capability 8.0 and newer:
// mma.sync, operands in registers.  Plain inline PTX.  Goes after nv_split/split.cl; defines no kernel.
//
// mma.sync computes D[16][8] += X[16][16] * Y[8][16]^T of halves (fp16 or bf16), summed in fp32.  Of D
// a work-item (lane 4 * g + q of its warp) holds rows g, g + 8 and columns 2q, 2q + 1.  Rows of 32
// halves lie in local memory as in the panels of bf16: rows of 64 bytes, whose chunks of 16 bytes are
// swizzled, chunk c of row r at c ^ (r / 2 % 4), so that eight rows' chunks lie in different banks.
//
// Eight warps share a tile, four along X and two along Y.  Warps w and w + 4 run on the same tensor
// core, so those of an empty half of X leave no core idle.

#define BLOCKS 2                  // of 16 rows of X, a warp's: MI is 1
#define ACCUMULATORS (BY / 4)     // of one block, a work-item's
#define FOURS (ACCUMULATORS / 8)  // groups of 16 rows of Y, a warp's
#define WARP_ROWS_X (BX / 4)
#define WARP_ROWS_Y (BY / 2)
#define WARP_X(item) ((item) >> 6)
#define WARP_Y(item) ((item) >> 5 & 1)

// The chunk of 64 rows that a work-item copies from a panel of fp16, and where it belongs in a slot.
// A row of the panel has 64 halves, a slot takes 32: the others are found by flipping bit 6.
INLINE uint place_in_panel(int item)
{
    const int row = item / 4, chunk = item % 4;
    return row * 128 + (chunk ^ (row & 7)) * 16;
}

INLINE uint place_in_slot(int item)
{
    const int row = item / 4, chunk = item % 4;
    return row * 64 + (chunk ^ (row >> 1 & 3)) * 16;
}

// Where the accumulators [BLOCKS][ACCUMULATORS] of a work-item lie in a tile: 2 * BLOCKS rows, from
// row_of at ROW_STEP(i), and of each the columns column_of + 16 * j + 0, 1, 2, 3 (see stored_row in
// nv_split/pack.cl) for j in FOURS.
INLINE int row_of(int item)
{
    return WARP_X(item) * WARP_ROWS_X + (item >> 2 & 7);
}

INLINE int column_of(int item)
{
    return WARP_Y(item) * WARP_ROWS_Y + (item & 3) * 4;
}
#define ROW_STEP(i) ((i) / 2 * 16 + (i) % 2 * 8)

// Where a lane of a warp looks for its rows of 16 x 16 halves, in bytes: four matrices of 8 x 8, of X
// in the order (row, k) = (0, 0) (8, 0) (0, 8) (8, 8), of Y (0, 0) (0, 8) (8, 0) (8, 8).  The second
// 16 of k are at the same place with bit 5 flipped.
INLINE uint place_x(int lane)
{
    const int row = lane & 15, chunk = lane >> 4;
    return row * 64 + (chunk ^ (row >> 1 & 3)) * 16;
}

INLINE uint place_y(int lane)
{
    const int row = (lane & 7) + (lane >> 4) * 8, chunk = lane >> 3 & 1;
    return row * 64 + (chunk ^ (row >> 1 & 3)) * 16;
}

// (Instructions are macros, so that any compiler takes this file.)
#define LOAD_MATRICES(to, address)                                                             \
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"            \
                 : "=r"((to)[0]), "=r"((to)[1]), "=r"((to)[2]), "=r"((to)[3])                  \
                 : "r"(address))

// d = X * Y^T, and d += X * Y^T; y are two of the four matrices that were loaded.
#define MMA(type, d, x, y)                                                                     \
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." type "." type ".f32 "                \
                 "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %10, %10, %10};"         \
                 : "=f"((d)[0]), "=f"((d)[1]), "=f"((d)[2]), "=f"((d)[3])                      \
                 : "r"((x)[0]), "r"((x)[1]), "r"((x)[2]), "r"((x)[3]), "r"((y)[0]),            \
                   "r"((y)[1]), "f"(0.0f))
#define MMA_ADD(type, d, x, y)                                                                 \
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." type "." type ".f32 "                \
                 "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"             \
                 : "+f"((d)[0]), "+f"((d)[1]), "+f"((d)[2]), "+f"((d)[3])                      \
                 : "r"((x)[0]), "r"((x)[1]), "r"((x)[2]), "r"((x)[3]), "r"((y)[0]),            \
                   "r"((y)[1]))
