// mirror: the lower triangle of a symmetric or Hermitian C over the upper one.  The last launch of
// a Gram product on GPUs, whose work-groups mostly leave out the macro-tiles above the diagonal.
//
// A work-group turns a square of SIDE x SIDE through local memory, so that reads and writes both run
// along columns.  Squares above the diagonal are nobody's, and the rows of all others are folded, so
// that they fill a rectangle of groups, e.g. 5 rows of squares as 3 of 5:
//
//      row 4    0 1 2 3 4        - -> row 4
//      row 3    0 1 2 3 | 0      row 3 | row 0
//      row 2    0 1 2 | 0 1      row 2 | row 1

#ifndef SIDE
#define SIDE 32  // rows and columns of a square
#endif
#ifndef HIGH
#define HIGH 8  // columns that a work-group reads or writes at a time, a divisor of SIDE
#endif

__kernel __attribute__((reqd_work_group_size(SIDE * HIGH, 1, 1)))
void mirror(GEMM_ARGS)
{
    __local ELEM square[SIDE][SIDE + 1];  // +1: columns of it lie in different banks
    const long squares = (g.n + SIDE - 1) / SIDE, width = squares | 1;
    const long all = squares * (squares + 1) / 2, group = get_group_id(0) % all;
    const long from_end = group / width, at = group % width;
    // The squares of a short row stand in front of those of a long one.
    const long shorter = from_end + (squares < width);
    const long i0 = (at < shorter ? shorter - 1 : squares - 1 - from_end) * SIDE;
    const long j0 = (at < shorter ? at : at - shorter) * SIDE;
    const int x = get_local_id(0) % SIDE, y = get_local_id(0) / SIDE;
    c += g.offset_c + get_group_id(0) / all * g.stride_c;
    for (int v = y; v < SIDE; v += HIGH)
        if (i0 + x < g.n && j0 + v <= i0 + x)
            square[v][x] = c[i0 + x + (j0 + v) * g.ldc];
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int u = y; u < SIDE; u += HIGH) {
        const long i = i0 + u, j = j0 + x;
        if (i < g.n && j < i)
            c[j + i * g.ldc] = elem_conj(square[x][u], g.triangle == HERMITIAN);
        else if (i < g.n && j == i)
            c[i + i * g.ldc] = elem_on_diagonal(square[x][u], g.triangle);
    }
}
