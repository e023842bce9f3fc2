// gpu_tile_micro: what a work-item of gpu_tiled does: read VW elements, multiply, store VW elements.

#ifndef VW
#define VW 1  // vector width of local memory reads and of accesses to C; divides MR and NR
#endif

#if IS_COMPLEX
#define ELEM_ONE ((ELEM)(1, 0))
#else
#define ELEM_ONE 1
#endif

typedef VECTOR(VW) RealsW;
typedef union {
    RealsW whole;
    ELEM e[VW];
} VecW;

// VW elements of a tile.
INLINE VecW tile_read(__local const ELEM *tile, int ld, int turned, int w, int p)
{
    VecW v;
    if (!turned) {
        v.whole = *(__local const RealsW *)(tile + p * ld + w);
    } else {
        UNROLL
        for (int i = 0; i < VW; i++)
            v.e[i] = tile[(w + i) * ld + p];
    }
    return v;
}

// VW elements of an operand that has no tile: `extent` elements of it are there, from w = 0 on.
INLINE VecW global_read(__global const ELEM *x, long ld, int along_k, int w, int extent, int wide,
                        int conj)
{
    VecW v;
    if (wide && !along_k)
        v.whole = *(__global const RealsW *)(x + min(w, extent - VW));
    UNROLL
    for (int i = 0; i < VW; i++) {
        const long at = min(w + i, extent - 1);
        v.e[i] = elem_conj(wide && !along_k ? v.e[i] : x[along_k ? at * ld : at], conj);
    }
    return v;
}

// VW elements to C, of which `rows` are inside.
INLINE void vec_store(__global ELEM *c, VecW v, int rows, ELEM beta, int beta_is, int wide)
{
    if (wide && rows >= VW) {
        if (beta_is != BETA_ZERO) {
            VecW old;
            old.whole = *(__global const RealsW *)c;
            UNROLL
            for (int i = 0; i < VW; i++)
                v.e[i] += beta_is == BETA_ONE ? old.e[i] : elem_mul(beta, old.e[i]);
        }
        *(__global RealsW *)c = v.whole;
    } else {
        UNROLL
        for (int i = 0; i < VW; i++)
            if (i < rows)
                elem_store(c + i, v.e[i], beta, beta_is);
    }
}

// acc += a column of A times a row of B.  Complex products go in two sweeps, so that an accumulator's
// two updates are far apart: they depend on each other.
INLINE void multiply(ELEM acc[NR][MR], const VecW *va, const VecW *vb)
{
    UNROLL
    for (int j = 0; j < NR; j++)
        UNROLL
        for (int i = 0; i < MR; i++) {
            const ELEM x = va[i / VW].e[i % VW], y = vb[j / VW].e[j % VW];
#if IS_COMPLEX
            acc[j][i].x = fma(x.x, y.x, acc[j][i].x);
            acc[j][i].y = fma(x.y, y.x, acc[j][i].y);
#else
            acc[j][i] = fma(x, y, acc[j][i]);
#endif
        }
#if IS_COMPLEX
    UNROLL
    for (int j = 0; j < NR; j++)
        UNROLL
        for (int i = 0; i < MR; i++) {
            const ELEM x = va[i / VW].e[i % VW], y = vb[j / VW].e[j % VW];
            acc[j][i].x = fma(-x.y, y.y, acc[j][i].x);
            acc[j][i].y = fma(x.x, y.y, acc[j][i].y);
        }
#endif
}
