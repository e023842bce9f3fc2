// cpu_integer: C := A * B of integers modulo 2^BITS, or of bool, in one launch, for CPU devices.
//
// The loops are those of cpu_packed: as many workers as compute units take tiles of C from a counter,
// and inside of a tile
//
//      for pc over K by KC                                   a slice of depth kc
//        for ic over the tile's rows by MC                   pack a block of A       (stays in L2)
//          for j over the tile's columns by NR               pack a panel of B       (once a slice)
//            for i over the block's rows by MR               micro-kernel: MR x NR of C in registers
//
// From the second slice on, C is added to: that it was cut to its width meanwhile changes no bit of the
// result, for the same reason that it may be cut at all.  A micro-tile of bool that is all true is left
// alone, and a tile of which every micro-tile is has no further slice.
//
// Scratch of a worker: a block of A, panels of B, and a micro-tile for the edges of C.

#ifndef CLANG_BUILTINS
#define CLANG_BUILTINS 0
#endif
#if CLANG_BUILTINS
// As in cpu_packed: the library's function takes Intel's runtime long to compile.
#define TAKE(counter) __sync_fetch_and_add(counter, 1u)
#else
#define TAKE(counter) atomic_inc(counter)
#endif

#if IS_BOOL
// Whether nothing can change any more: every element of the micro-tile is true.
INLINE int is_full(LANES acc[NR][MV])
{
    typedef ulong WORDS __attribute__((ext_vector_type(VW / 8)));
    LANES all = acc[0][0];
    UNROLL
    for (int j = 0; j < NR; j++)
        UNROLL
        for (int v = 0; v < MV; v++)
            all &= acc[j][v];
    const WORDS words = __builtin_astype(all, WORDS);
    ulong word = words[0];
    UNROLL
    for (int i = 1; i < VW / 8; i++)
        word &= words[i];
    return (word & 0x0101010101010101UL) == 0x0101010101010101UL;
}
#else
#define is_full(acc) 0
#endif

// acc += a panel of A, mv vectors of each column of it, times a panel of B.
#define UPDATE(mv)                                                        \
    for (int p = 0; p < depth; p++, a += MR, b += NR) {                   \
        LANES av[mv];                                                     \
        UNROLL                                                            \
        for (int v = 0; v < (mv); v++)                                    \
            av[v] = *(__global const LANES *)(a + v * VW);                \
        UNROLL                                                            \
        for (int j = 0; j < NR; j++) {                                    \
            const LANES bj = (LANES)(b[j]);                               \
            UNROLL                                                        \
            for (int v = 0; v < (mv); v++)                                \
                acc[j][v] = MULTIPLY_ADD(av[v], bj, acc[j][v]);           \
        }                                                                 \
    }

// A micro-tile of C, all of it there, := A * B, or += if `adds`.  Of its rows, the first mr count.
// Returns whether nothing can change it any more.
INLINE int micro_kernel(int depth, __global const LANE *a, __global const LANE *b,
                        __global INTEGER *c, long ldc, int mr, int adds)
{
    LANES acc[NR][MV];
    if (adds) {
        UNROLL
        for (int j = 0; j < NR; j++)
            UNROLL
            for (int v = 0; v < MV; v++)
                acc[j][v] = __builtin_convertvector(
                    *(__global const INTEGERS *)(c + v * VW + j * ldc), LANES);
        if (is_full(acc))
            return 1;
    } else {
        UNROLL
        for (int j = 0; j < NR; j++)
            UNROLL
            for (int v = 0; v < MV; v++)
                acc[j][v] = (LANES)(0);
    }
    if (MV > 1 && mr <= VW) {
        UPDATE(1)
    } else {
        UPDATE(MV)
    }
    UNROLL
    for (int j = 0; j < NR; j++)
        UNROLL
        for (int v = 0; v < MV; v++)
            *(__global INTEGERS *)(c + v * VW + j * ldc) = FROM_LANES(acc[j][v]);
    return is_full(acc);
}

// The same for a micro-tile that hangs over the edge of C: by way of a copy.
INLINE int micro_kernel_at_edge(int depth, __global const LANE *a, __global const LANE *b,
                                __global INTEGER *c, long ldc, int mr, int nr, int adds,
                                __global INTEGER *copy)
{
    int full = IS_BOOL;
    if (adds)
        for (int j = 0; j < nr; j++)
            for (int i = 0; i < mr; i++) {
                copy[i + j * MR] = c[i + j * ldc];
                full &= (int)c[i + j * ldc];
            }
    if (adds && full)
        return 1;
    micro_kernel(depth, a, b, copy, MR, mr, adds);
    full = IS_BOOL;
    for (int j = 0; j < nr; j++)
        for (int i = 0; i < mr; i++) {
            c[i + j * ldc] = copy[i + j * MR];
            full &= (int)copy[i + j * MR];
        }
    return full;
}

// A tile of C (rows x columns) := op(A) * op(B).
//   ap, bp, copy  scratch for a block of A, for panels of B, and for a micro-tile
//   cancelled     not 0 once nobody wants the result any more
INLINE void compute_tile(Gemm g, int rows, int columns, __global const INTEGER *a,
                         __global const INTEGER *b, __global INTEGER *c, __global LANE *ap,
                         __global LANE *bp, __global INTEGER *copy, int mc, int kc_max,
                         volatile __global uint *cancelled)
{
    const long lda = g.lda, ldb = g.ldb, ldc = g.ldc;
    for (long pc = 0; pc < g.k; pc += kc_max) {
        const int kc = min((long)kc_max, g.k - pc);
        int unfinished = 0;  // micro-tiles
        for (int ic = 0; ic < rows; ic += mc) {
            if (*cancelled)
                return;
            const int mb = min(mc, rows - ic);
            pack_block(MR, mb, kc, a + (g.trans_a ? pc + ic * lda : ic + pc * lda), lda,
                       g.trans_a, ap);
            for (int j = 0; j < columns; j += NR) {
                const int nr = min(NR, columns - j);
                __global LANE *bj = bp + (long)j * kc;
                if (ic == 0)
                    pack_block(NR, nr, kc, b + (g.trans_b ? j + pc * ldb : pc + j * ldb), ldb,
                               !g.trans_b, bj);
                for (int i = 0; i < mb; i += MR) {
                    const int mr = min(MR, mb - i);
                    __global INTEGER *cij = c + ic + i + j * ldc;
                    __global const LANE *ai = ap + (long)i * kc;
                    if (mr == MR && nr == NR)
                        unfinished += !micro_kernel(kc, ai, bj, cij, ldc, MR, pc > 0);
                    else
                        unfinished += !micro_kernel_at_edge(kc, ai, bj, cij, ldc, mr, nr, pc > 0,
                                                            copy);
                }
            }
        }
        if (IS_BOOL && !unfinished)
            return;
    }
}

// C := op(A) * op(B)
//   alpha, beta     not read: what runs every plan binds them
//   counters, cell  zeros: how many tiles were taken; what the host sets to end the launch early
//   scratch_stride  lanes between the scratch of two workers
//   mt, nt          rows and columns of a tile
//   mc              rows of a block of A
//   kc_max          depth of a slice
__kernel __attribute__((reqd_work_group_size(1, 1, 1)))
void cpu_integer(const Gemm g, const ELEM alpha, const ELEM beta,
                 __global const INTEGER *restrict a, __global const INTEGER *restrict b,
                 __global INTEGER *restrict c, volatile __global uint *counters, int cell,
                 __global LANE *restrict scratch, long scratch_stride, int mt, int nt, int mc,
                 int kc_max)
{
    const long tiles_m = (g.m + mt - 1) / mt, tiles_n = (g.n + nt - 1) / nt;
    const long tiles = tiles_m * tiles_n, count = tiles * g.batch;
    __global LANE *ap = scratch + get_group_id(0) * scratch_stride;
    __global LANE *bp = ap + (long)(mc + MR) * kc_max;
    __global INTEGER *copy = (__global INTEGER *)(bp + (long)(nt + NR) * kc_max);

    for (long t; (t = TAKE(counters + cell)) < count;) {
        const long entry = t / tiles, i0 = t % tiles_m * mt, j0 = t / tiles_m % tiles_n * nt;
        const int rows = min((long)mt, g.m - i0), columns = min((long)nt, g.n - j0);
        compute_tile(g, rows, columns,
                     a + g.offset_a + entry * g.stride_a + (g.trans_a ? i0 * g.lda : i0),
                     b + g.offset_b + entry * g.stride_b + (g.trans_b ? j0 : j0 * g.ldb),
                     c + g.offset_c + entry * g.stride_c + i0 + j0 * g.ldc, ap, bp, copy, mc,
                     kc_max, counters + cell + 1);
    }
}
