// nv_wgmma: C := A * B of integers modulo 2^BITS, of bool, or of float16, on Hopper's tensor cores.
//
// An integer is a sum of signed digits of 8 bits, x = d0 + 2^8 d1 + 2^16 d2 + ... modulo 2^BITS, and a
// product is one of digits for each pair of planes i, j with i + j < PLANES: those of level i + j count
// 2^(8 (i + j)), and higher levels count nothing modulo 2^BITS.  Halves have one plane, themselves.
//
// C is column-major, so the kernels compute C^T = X Y^T with X = op(B)^T and Y = op(A).  Planes are
// packed in the order in which the tensor cores read:
//
//      X: [copy][plane][strip][slice][BX rows][128 bytes of k]         Y: the same with BY rows
//
// Chunk c of 16 bytes of row r lies at c ^ (r % 8).  Rows and k beyond the matrix are zero.
//
// Rows of Y lie such that what a work-item accumulates are RUN neighbours of C, 16 bytes: of each
// 4 * RUN rows, row t * RUN + r (t = lane % 4) lies where the accumulators of t are, at
// r / 2 * 8 + t * 2 + r % 2.
//
// Halves whose rows start on 16 bytes are not packed but read where they lie, rows of Y in their own
// order: see nv_wgmma/tensor.cl.

#ifndef BITS
#define BITS 32  // of an element
#endif
#ifndef IS_BOOL
#define IS_BOOL 0  // 1: elements are true unless 0, of 8 bits
#endif
#ifndef IS_HALF
#define IS_HALF 0  // 1: float16, of 16 bits
#endif
#ifndef MI
#define MI 2  // blocks of 64 rows of X that a warpgroup multiplies
#endif
#ifndef BY
#define BY 192  // rows of Y in a tile: 64, 128 or 192
#endif

#ifndef DIRECT
#define DIRECT 0  // 1: operands are read where they lie; halves only
#endif
#ifndef ALONG_K_X
#define ALONG_K_X 1  // DIRECT: k of X is contiguous; else rows are
#endif
#ifndef ALONG_K_Y
#define ALONG_K_Y 1
#endif

#define BX (128 * MI)
#define ROW_BYTES 128  // of a slice
#define PLANES (IS_HALF ? 1 : BITS / 8)
#define WORD (IS_HALF ? 2 : 4)    // elements of k in 4 bytes of a plane
#define DEPTH (ROW_BYTES / 4 * WORD)  // elements of k in a slice
#define RUN (128 / BITS)

#define UINT_8 uchar
#define UINT_16 ushort
#define UINT_32 uint
#define UINT_64 ulong
typedef CAT(UINT_, BITS) INTEGER;


// Where things lie and how many there are; nv_wgmma/family.py packs it.
typedef struct {
    long at_y;               // bytes from packed X to packed Y
    int slices;              // of k
    int strips_x, strips_y;  // of a matrix
    int copies_x, copies_y;  // matrices of the stack: 1 if all entries share one
    int workers;
} Packed;

// Elements of float16 and integers alike; alpha and beta are not read: what runs every plan binds them.
#define WGMMA_ARGS                                                                             \
    const Gemm g, const ELEM alpha, const ELEM beta, __global const INTEGER *restrict a,       \
        __global const INTEGER *restrict b, __global INTEGER *restrict c, const Packed s,      \
        __global uchar *restrict scratch
