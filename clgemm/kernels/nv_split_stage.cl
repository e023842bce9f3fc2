// nv_split: how tiles are stored if C's columns do not start at 16 bytes.  Needs warp_sync().

// 1: C's columns do not start at 16 bytes, so all tiles are stored this way.
#ifndef STAGED
#define STAGED 0
#endif

typedef union {
    float4 all;
    float real[4];
    ELEM elem[4 / CE];
} Four;

// What a warp holds of a tile at a time, WARP_ROWS x WARP_COLUMNS reals, goes through local memory if
// STAGED, so that neighbours in a warp are neighbours in C, whatever C's alignment.  Stores of single
// reals, 16 bytes apart, took half as long as the products of a tile 2048 deep.
#define WARP_ROWS 8
#define WARP_COLUMNS 16
#define WARP_REALS (WARP_ROWS * WARP_COLUMNS)
#define TURN_ROWS (32 * CE / WARP_COLUMNS)  // rows that 32 elements fill
#define TURNS (WARP_ROWS / TURN_ROWS)

// Store what a warp holds; `c`: its first element, of which rows x columns reals are inside C.
INLINE void store_elements(Four ab, __local float *stage, int lane, __global ELEM *c, long ldc,
                           int rows, int columns, ELEM alpha, ELEM beta, int beta_is)
{
    const int row = lane / (WARP_COLUMNS / CE), column = lane % (WARP_COLUMNS / CE);
    ELEM old[TURNS];
    c += row * ldc + column;
    rows = column * CE < columns ? rows - row : 0;
    UNROLL
    for (int turn = 0; turn < TURNS; turn++) {
        old[turn] = (ELEM)(0);
        if (beta_is != BETA_ZERO && turn * TURN_ROWS < rows)
            old[turn] = c[turn * TURN_ROWS * ldc];
    }
    *(__local float4 *)(stage + lane * 4) = ab.all;
    warp_sync();
    UNROLL
    for (int turn = 0; turn < TURNS; turn++)
        if (turn * TURN_ROWS < rows) {
            ELEM sum = elem_mul(alpha, ((__local const ELEM *)stage)[turn * 32 + lane]);
            if (beta_is != BETA_ZERO)
                sum += beta_is == BETA_ANY ? elem_mul(beta, old[turn]) : old[turn];
            c[turn * TURN_ROWS * ldc] = sum;
        }
    warp_sync();
}
