// cpu_packed: the GotoBLAS/BLIS algorithm in one launch, for CPU devices.
//
// As many work-groups as compute units, one work-item each: a work-group is a persistent worker that
// takes tiles of C from a counter until none is left, so a core that is slow or busy takes fewer.
// Inside a tile (van Zee and van de Geijn, "BLIS", ACM TOMS 41(3), 2015):
//
//      for pc over K by KC                                   a slice of depth kc
//        for ic over the tile's rows by MC                   pack a block of A       (stays in L2)
//          for j over the tile's columns by NR               pack a panel of B       (once a slice)
//            for i over the block's rows by MR               micro-kernel: MR x NR of C in registers
//
// A Gram product has only the tiles on and below C's diagonal; each block of one is mirrored when it
// is done.  Of tiles on the diagonal, micro-tiles that lie above it are left out.
//
// Where C has too few tiles for the cores, K is cut into parts: each goes into a partial tile of its
// own, and whoever finishes the last part of a tile adds all of them, in the order of the parts, so
// that results repeat bit by bit.
//
// Scratch: for each worker a block of A and panels of B, then the partial tiles.  No barrier, no
// second launch.
//
// Elements of B are broadcast one by one, so B may also be read where it lies (PACK_B 0): each column
// of the micro-tile is a stream of its own.  That saves the packing, which small products never earn
// back and large ones do not need.
//
// Where B has few columns, panels of A are read where they lie, too (PACK_A 0): a column at a time, which
// has to be contiguous, and in whole vectors.  The two innermost loops change places, so that each panel
// comes from memory once, and the next one is fetched while it meets the panels of B.
//
// Where C is long and thin, the roles may change (TURNED 1): the transpose of C is computed, and each
// micro-tile is transposed as it is stored.  The larger operand is then read where it lies, as A or as B,
// and only the smaller one is packed.

#if CLANG_BUILTINS
// The same as atomic_inc, in one instruction: Intel's runtime takes seven times as long to compile a
// kernel that calls the library's function.
#define TAKE(counter) __sync_fetch_and_add(counter, 1u)
#else
#define TAKE(counter) atomic_inc(counter)
#endif

#if TURNED
// The problem whose result is the transpose.
INLINE Gemm seen(Gemm g)
{
    const Gemm turned = {
        g.n, g.m, g.k, g.batch, g.offset_b, g.ldb, g.stride_b, g.offset_a, g.lda, g.stride_a,
        g.offset_c, g.ldc, g.stride_c, !g.trans_b, g.conj_b, !g.trans_a, g.conj_a, g.triangle,
    };
    return turned;
}
#define LEFT b
#define RIGHT a
#else
#define seen(g) (g)
#define LEFT a
#define RIGHT b
#endif

#define AHEAD_IN_A 16  // columns of A between the one in use and the one that is fetched

// Where a tile lies in a C of which one triangle is computed.
#define ANYWHERE 0     // in a C that is computed as a whole
#define BELOW 1        // the diagonal
#define ON_DIAGONAL 2  // its own diagonal is C's; only micro-tiles that reach it or lie below it count

// Columns of B that are packed at once: where rows of B lie in one piece each, some lines of one.
#define TOGETHER (NR * max(1, 256 / (NR * (int)sizeof(ELEM))))

#define LINE (16 / CE)  // rows and columns of the squares in which C is mirrored

// Writes a block of C (rows x columns) to its mirrored place, transposed, and conjugated if C is
// Hermitian.  The block begins `below` rows below the diagonal: of one that reaches it, what lies
// above is left alone.
INLINE void mirror(int triangle, int rows, int columns, int below, __global ELEM *c,
                   __global ELEM *mirrored, long ldc)
{
    const int conj = triangle == HERMITIAN;
    for (int i = 0; i < rows; i += LINE) {
        const int high = min(LINE, rows - i), left = min(columns, below + i);
        int j = 0;
        if (high == LINE)
            for (; j + LINE <= left; j += LINE) {
#if IS_COMPLEX
                UNROLL
                for (int u = 0; u < LINE; u++)
                    UNROLL
                    for (int v = 0; v < LINE; v++)
                        mirrored[j + v + (i + u) * ldc] =
                            elem_conj(c[i + u + (j + v) * ldc], conj);
#else
                UNROLL
                for (int u = 0; u < LINE; u += 4)
                    UNROLL
                    for (int v = 0; v < LINE; v += 4)
                        turn(c + i + u + (j + v) * ldc, ldc, mirrored + j + v + (i + u) * ldc, ldc);
#endif
            }
        for (int u = i; u < i + high; u++) {
            const int diagonal = below + u;
            for (int v = j; v < min(columns, diagonal); v++)
                mirrored[v + u * ldc] = elem_conj(c[u + v * ldc], conj);
            if (diagonal < columns)
                c[u + diagonal * ldc] = elem_on_diagonal(c[u + diagonal * ldc], triangle);
        }
    }
}

INLINE Panel packed_panel(__global const ELEM *x, int depth)
{
    const Panel panel = {(__global const REAL *)x, MR * CE, 0, depth};
    return panel;
}

// A panel of A that is read where it lies, as it meets panel `met` of all panels of B.  Meanwhile the
// panel that `follows` is fetched, in equal parts.  The first one of a tile nobody has fetched: it is
// fetched just ahead of its first use.
INLINE Panel panel_in_place(__global const ELEM *x, long lda, int depth, int is_first, int met,
                            int panels, __global const ELEM *follows)
{
    __global const ELEM *next = x + AHEAD_IN_A * lda;
    int every = 1;
    if (met || !is_first) {
        every = max(1, panels - is_first);
        const int part = (depth + every - 1) / every;
        next = follows + (long)(met - is_first) * part * lda;
    }
    const Panel panel = {(__global const REAL *)x, lda * CE, (__global const REAL *)next, every};
    return panel;
}

// C (rows x columns) := alpha * op(A) * op(B) + beta * C over a depth of k.
//   ap, bp     scratch for a block of A and for panels of B
//   place      ANYWHERE, BELOW or ON_DIAGONAL
//   mirrored   where the transpose of C goes in the end, or null
//   cancelled  not 0 once nobody wants the result any more
INLINE void update_tile(Gemm g, int rows, int columns, int k, ELEM alpha,
                        __global const ELEM *a, __global const ELEM *b, ELEM beta,
                        __global ELEM *c, long ldc, __global ELEM *ap, __global ELEM *bp, int mc,
                        int kc_max, int place, __global ELEM *mirrored,
                        volatile __global uint *cancelled)
{
    const long lda = g.lda, ldb = g.ldb;
    const long step_b = PACK_B ? NR : g.trans_b ? ldb : 1;
    const long column_b = PACK_B || g.trans_b ? 1 : ldb;
    const int panels = (columns + NR - 1) / NR;  // of B
    for (int pc = 0; pc < k; pc += kc_max) {
        const int kc = min(kc_max, k - pc);
        const int beta_is = pc ? BETA_ONE : beta_class(beta);
        for (int ic = 0; ic < rows; ic += mc) {
            if (*cancelled)
                return;
            const int mb = min(mc, rows - ic);
            __global const ELEM *block = a + (g.trans_a ? pc + ic * lda : ic + pc * lda);
            const int lies = PACK_A ? 0 : reads_exactly(mb % MR) ? mb : mb / MR * MR;
            if (lies < mb)
                pack_block(MR, mb - lies, kc, block + lies, lda, g.trans_a, ap + (long)lies * kc);
            for (int i = 0, j = 0; i < mb && j < columns;) {
                __global const ELEM *bj = b + (g.trans_b ? j + pc * ldb : pc + j * ldb);
#if PACK_B
                __global ELEM *packed = bp + (long)j * kc;
                if (ic + i == 0 && j % TOGETHER == 0)
                    pack_block(NR, min(TOGETHER, columns - j), kc, bj, ldb, !g.trans_b, packed);
                bj = packed;
#endif
                __global const ELEM *follows =
                    ic + i + MR < rows ? block + i + MR : a + (pc + kc) * lda;
                const Panel ai = i < lies ? panel_in_place(block + i, lda, kc, pc + ic + i == 0,
                                                           j / NR, panels, follows)
                                          : packed_panel(ap + (long)i * kc, kc);
                if (place != ON_DIAGONAL || i >= (j - ic) / MR * MR)
                    micro_kernel(kc, ai, (__global const REAL *)bj, step_b * CE, column_b * CE,
                                 c + C_AT(ic + i, j, ldc), ldc, min(MR, mb - i),
                                 min(NR, columns - j), alpha, g.conj_a, g.conj_b, beta, beta_is);
#if PACK_A  // a panel of B stays in the first-level cache, the block of A in the second
                i += MR;
                if (i >= mb)
                    i = 0, j += NR;
#else  // a panel of A comes from memory once, and meets all of B
                j += NR;
                if (j >= columns)
                    j = 0, i += MR;
#endif
            }
            if (mirrored && pc + kc == k)  // while the block is in the cache
                mirror(g.triangle, mb, columns, place == ON_DIAGONAL ? ic : columns, c + ic,
                       mirrored + ic * ldc, ldc);
        }
    }
}

// C (rows x columns) := alpha * (sum of the partial tiles, size elements apart) + beta * C; where C is
// turned, so are all three.  If it is mirrored, its transpose as well; of a tile on the diagonal there is
// only what lies below.
INLINE void add_parts(int triangle, int rows, int columns, int parts,
                      __global const ELEM *partial, long ld, long size, ELEM alpha, ELEM beta,
                      __global ELEM *c, long ldc, int place, __global ELEM *mirrored)
{
    const int beta_is = beta_class(beta);
    for (int j = 0; j < columns; j++)
        for (int i = place == ON_DIAGONAL ? j : 0; i < rows; i++) {
            ELEM sum = partial[i + j * ld];
            for (int s = 1; s < parts; s++)
                sum += partial[i + j * ld + s * size];
            sum = elem_mul(alpha, sum);
            if (place == ON_DIAGONAL && i == j)
                sum = elem_on_diagonal(sum, triangle);
            else if (place != ANYWHERE)
                mirrored[j + i * ldc] = elem_conj(sum, triangle == HERMITIAN);
            elem_store(c + i + j * ldc, sum, beta, beta_is);
        }
}

// Where a tile lies: its entry of the stack, its row and column among the tiles.
typedef struct {
    long entry, row, column;
} Tile;

// The tiles of whole Cs, one after another.
INLINE Tile tile_anywhere(long tile, long rows, long columns)
{
    const Tile found = {tile / (rows * columns), tile % rows, tile / rows % columns};
    return found;
}

// Tiles below the diagonals come first, then those on them, which are half the work: with them the
// workers come out even.
INLINE Tile tile_of_triangle(long tile, long rows, long batch)
{
    const long below = rows * (rows - 1) / 2;
    Tile found = {0, 0, 0};
    if (tile >= below * batch) {
        tile -= below * batch;
        found.entry = tile / rows;
        found.row = found.column = tile % rows;
        return found;
    }
    found.entry = tile / below;
    found.row = 1;
    for (tile %= below; tile >= found.row; found.row++)
        tile -= found.row;
    found.column = tile;
    return found;
}

// C := alpha * op(A) * op(B) + beta * C
//   counters, cell  zeros: how many parts were taken; what the host sets to end the launch early;
//                   then, how many parts of each tile are done
//   scratch_stride  reals between the scratch of two workers
//   mt, nt, kt      rows, columns and depth of a part; kt < k only if there are few tiles
//   mc              rows of a block of A
//   kc_max          depth of a slice
//   turn            parts that are taken at once, one after another
__kernel __attribute__((reqd_work_group_size(1, 1, 1)))
void cpu_packed(GEMM_ARGS, volatile __global uint *counters, int cell,
                __global REAL *restrict scratch, long scratch_stride, int mt, int nt, int kt,
                int mc, int kc_max, int turn)
{
    const Gemm p = seen(g);
    const long tiles_m = (p.m + mt - 1) / mt, tiles_n = (p.n + nt - 1) / nt;
    const long tiles = p.triangle ? tiles_m * (tiles_m + 1) / 2 : tiles_m * tiles_n;
    const long parts = (p.k + kt - 1) / kt, count = tiles * parts * p.batch;
    const long size = (long)mt * nt, ld = TURNED ? nt : mt;  // of a partial tile, stored as C is
    __global ELEM *ap = (__global ELEM *)(scratch + get_group_id(0) * scratch_stride);
    __global ELEM *bp = ap + (long)(mc + MR) * kc_max;
    __global ELEM *partials = (__global ELEM *)(scratch + get_num_groups(0) * scratch_stride);

    long t = 0;
    for (int left = 0;; left--, t++) {
        if (left == 0) {
            left = turn;
            t = (long)TAKE(counters + cell) * turn;
        }
        if (t >= count)
            return;
        const long part = t % parts, tile = t / parts;
        const Tile at = p.triangle ? tile_of_triangle(tile, tiles_m, p.batch)
                                   : tile_anywhere(tile, tiles_m, tiles_n);
        const int place = !p.triangle ? ANYWHERE : at.row == at.column ? ON_DIAGONAL : BELOW;
        const long i0 = at.row * mt, j0 = at.column * nt, k0 = part * kt;
        const int rows = min((long)mt, p.m - i0), columns = min((long)nt, p.n - j0);
        __global const ELEM *a0 = LEFT + p.offset_a + at.entry * p.stride_a +
                                  (p.trans_a ? k0 + i0 * p.lda : i0 + k0 * p.lda);
        __global const ELEM *b0 = RIGHT + p.offset_b + at.entry * p.stride_b +
                                  (p.trans_b ? j0 + k0 * p.ldb : k0 + j0 * p.ldb);
        __global ELEM *c0 = c + p.offset_c + at.entry * p.stride_c;
        __global ELEM *ct = c0 + C_AT(i0, j0, p.ldc), *mirrored = c0 + j0 + i0 * p.ldc;
        __global ELEM *partial = partials + tile * parts * size;
        const int whole = parts == 1;
        update_tile(p, rows, columns, min((long)kt, p.k - k0), whole ? alpha : (ELEM)(ONE), a0, b0,
                    whole ? beta : (ELEM)(0), whole ? ct : partial + part * size,
                    whole ? p.ldc : ld, ap, bp, mc, kc_max, place,
                    whole && place != ANYWHERE ? mirrored : 0, counters + cell + 1);
        if (whole)
            continue;
        mem_fence(CLK_GLOBAL_MEM_FENCE);  // what was added here is seen by who counts to the end
        if (TAKE(counters + cell + 2 + tile) == parts - 1) {
            mem_fence(CLK_GLOBAL_MEM_FENCE);
            add_parts(p.triangle, TURNED ? columns : rows, TURNED ? rows : columns, parts, partial, ld,
                      size, alpha, beta, ct, p.ldc, place, mirrored);
        }
    }
}
