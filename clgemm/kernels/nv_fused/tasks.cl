// nv_fused: what its work-groups compute.  Goes after nv_split/split.cl and wgmma.cl.
//
// A task is a part of k of a tile; parts of a tile follow each other, and tiles lie in bands of GROUP
// strips of X, so that what runs at a time shares what the cache holds.  There are no more work-groups
// than compute units, and each goes on from task to task.

#define GROUP 8
#define DEPTH 32       // reals of k in a slot; parts of k are whole slices of twice as many
#define RING 8         // of tasks: more than are under way
#define PRODUCERS 256  // work-items that split, after 256 that multiply

typedef struct {
    int tasks, parts;        // of all, and of a tile
    int strips_x, strips_y;  // of one matrix
    int slices;              // of k
} Tasks;

typedef struct {
    int tile, x, y, entry;  // entry: of the stack
    int first, last;        // slices
    int turns;              // slots
} Task;

INLINE Task task_of(const Gemm *g, const Tasks *all, int number)
{
    Task t;
    const int tiles = all->strips_x * all->strips_y, part = number % all->parts;
    t.tile = number / all->parts;
    t.entry = t.tile / tiles;
    int within = t.tile % tiles;
    const int x0 = within / (GROUP * all->strips_y) * GROUP;
    const int width = min(all->strips_x - x0, GROUP);
    within -= x0 * all->strips_y;
    t.x = x0 + within % width;
    t.y = within / width;
    t.first = all->slices * part / all->parts;  // at most 2^24 slices and 32 parts
    t.last = all->slices * (part + 1) / all->parts;
    const int end = (int)min((long)t.last * (2 * DEPTH), g->k * CE);
    t.turns = (end - t.first * (2 * DEPTH) + DEPTH - 1) / DEPTH;
    return t;
}
