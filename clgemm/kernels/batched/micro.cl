// batched: a work-item's micro-tile of C: its products, and how it is stored.

#ifndef MR
#define MR 1  // rows of the micro-tile
#endif
#ifndef NR
#define NR 1  // columns of the micro-tile
#endif
#ifndef LANES_M
#define LANES_M 4  // work-items along M
#endif
#ifndef LANES_N
#define LANES_N 4  // work-items along N
#endif
#ifndef V
#define V 1  // elements of a vector along M or N: divides MR and NR
#endif
#ifndef ALONG_K_B
#define ALONG_K_B 0
#endif

#define V_N (ALONG_K_B ? 1 : V)  // neighbouring columns of a work-item: rows along k would share banks

#define TEXT_(x) #x
#define TEXT(x) TEXT_(x)

typedef union {
    VECTOR(V) whole;
    ELEM e[V];
} Vec;

// Row or column number x of the work-item, in the macro-tile: `v` are neighbours.
INLINE int place(int x, int lane, int lanes, int v)
{
    return (x / v * lanes + lane) * v + x % v;
}

// acc += the product of a column and a row, of the micro-tile's size.
INLINE void add_product(ELEM *acc, const ELEM *left, const ELEM *right)
{
    UNROLL
    for (int j = 0; j < NR; j++)
        UNROLL
        for (int i = 0; i < MR; i++)
            acc[j * MR + i] = elem_fma(left[i], right[j], acc[j * MR + i]);
}

// The micro-tile into C; c: the macro-tile's first element.
INLINE void store(const ELEM *acc, const Gemm g, ELEM alpha, ELEM beta, __global ELEM *c, int rows,
                  int columns, int lane_m, int lane_n)
{
    const int beta_is = beta_class(beta);
    const int wide = beta_is == BETA_ZERO && (size_t)c % sizeof(Vec) == 0 && g.ldc % V == 0;
    UNROLL
    for (int j = 0; j < NR; j++) {
        const int column = place(j, lane_n, LANES_N, V_N);
        UNROLL
        for (int x = 0; x < MR && column < columns; x += V) {
            const int row = place(x, lane_m, LANES_M, V);
            __global ELEM *to = c + row + column * g.ldc;
            Vec v;
            UNROLL
            for (int i = 0; i < V; i++)
                v.e[i] = elem_mul(alpha, acc[j * MR + x + i]);
            if (wide && row + V <= rows) {
                *(__global VECTOR(V) *)to = v.whole;
            } else {
                UNROLL
                for (int i = 0; i < V; i++)
                    if (row + i < rows)
                        elem_store(to + i, v.e[i], beta, beta_is);
            }
        }
    }
}
