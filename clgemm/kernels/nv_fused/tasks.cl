// nv_fused: what its work-groups compute.  Goes after nv_split/split.cl and wgmma.cl.
//
// There are no more work-groups than compute units.  The first `whole` tiles are dealt out one by one; the
// slices of the others, put in a row, are cut into equal pieces, one a work-group, as nv_split does
// (nv_split/walk.cl).  A task is a tile, or what of one lies in a piece: a piece has one or two.  Tiles lie
// in bands of GROUP strips of X, so that what runs at a time shares what the cache holds.

#define GROUP 8
#define DEPTH 32       // reals of k in a slot; tasks are of whole slices of twice as many
#define RING 8         // of tasks: more than are under way
#define PRODUCERS 256  // work-items that split, after 256 that multiply

typedef struct {
    int tiles, whole;        // of all, and those that are not cut
    int piece, pieces;       // piece / pieces of a tile are a work-group's
    int strips_x, strips_y;  // of one matrix
    int slices;              // of k
} Tasks;

typedef struct {
    int shared;       // the tile's number among those that are cut
    int x, y, entry;  // entry: of the stack
    int first, last;  // slices
    int turns;        // slots; 0: there is no such task
    int parts;        // of the tile
} Task;

// Where a work-group's piece begins: the tile, counted among those that are cut, and the slice.  There are
// at least as many slices as `pieces`, of which there are few, so no number here passes an int.
INLINE int2 piece_start(const Tasks *all, int group)
{
    const uint at = group * all->piece, pieces = all->pieces;
    return (int2)(at / pieces, at % pieces * all->slices / pieces);
}

// The work-group that computes a tile's first slices, and the number of all of the tile.
INLINE int2 groups_of_tile(const Tasks *all, int tile)
{
    const uint at = tile * all->pieces, piece = all->piece;
    const int first = at / piece;
    return (int2)(first, (at + all->pieces - 1) / piece - first + 1);
}

// Where a tile's part is kept that a work-group computes: it has room for two.
INLINE int place_of_part(const Tasks *all, int tile, int group)
{
    return 2 * group + (group * all->piece < tile * all->pieces);
}

INLINE void place_tile(const Tasks *all, int tile, Task *t)
{
    const int tiles = all->strips_x * all->strips_y;
    t->entry = tile / tiles;
    int within = tile % tiles;
    const int x0 = within / (GROUP * all->strips_y) * GROUP;
    const int width = min(all->strips_x - x0, GROUP);
    within -= x0 * all->strips_y;
    t->x = x0 + within % width;
    t->y = within / width;
}

// Task number so and so of this work-group.
INLINE Task task_of(const Gemm *g, const Tasks *all, int number)
{
    Task t = {0, 0, 0, 0, 0, all->slices, 0, 1};
    const int group = get_group_id(0), groups = get_num_groups(0);
    const int rounds = (all->whole + groups - 1 - group) / groups;
    if (number < rounds) {
        place_tile(all, group + number * groups, &t);
    } else {
        const int2 start = piece_start(all, group), end = piece_start(all, group + 1);
        t.shared = start.x + number - rounds;
        t.first = number == rounds ? start.y : 0;
        t.last = t.shared < end.x ? all->slices : t.shared == end.x ? end.y : 0;
        if (t.first >= t.last || t.shared >= all->tiles - all->whole)
            return t;
        t.parts = groups_of_tile(all, t.shared).y;
        place_tile(all, all->whole + t.shared, &t);
    }
    const int end = (int)min((long)t.last * (2 * DEPTH), g->k * CE);
    t.turns = (end - t.first * (2 * DEPTH) + DEPTH - 1) / DEPTH;
    return t;
}
