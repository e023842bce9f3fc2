/* A callable in front of a function of Python's, which it does without for the plainest arguments.

A small product takes NumPy a microsecond, of which Python's code that tells that it is small takes
a third if it was just run, and as much as the product where other data has taken its place in the
caches: each attribute of an array and each function is another line of memory to wait for.  C reads
all that it has to know from the two arrays themselves.

What is told here is what `api.matmul`, `api.small` and `api.repeated` tell in Python, from the same
figures, and for fewer cases: plain arrays of one BLAS type.  All else, mistakes included, is
Python's.  Where this file was not compiled nothing else changes.

NumPy's headers are not needed to compile this: of its arrays it takes the first fields, whose places
are part of NumPy's ABI (`PyArrayObject_fields` since 1.7, before it `PyArrayObject`).  `seen` shows
what it finds there, so that Python can compare it. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <structmember.h>

typedef struct {
    PyObject_HEAD
    char *data;
    int ndim;
    Py_ssize_t *shape;
    Py_ssize_t *strides;
    PyObject *base;
    PyObject *dtype;
    int flags;
} Array;

/* A BLAS type, and the products up to which NumPy computes: numbers of multiplications. */
typedef struct {
    PyObject *dtype;
    double deep, shallow; /* of matrices with a long and a short inner extent */
    double line;          /* of one row or column */
    double outer;         /* elements of an outer product that `dot` computes at once */
    double stack;         /* of stacks, and of products with vectors */
    double elements;      /* of a result that SciPy's gemm is not given memory for */
} Limits;

/* Of what Python calls here, see `api.shortcut`: another number with each change. */
enum { INTERFACE = 2 };

enum { TYPES = 4, MATRIX = 2, STACK = 3 };
enum { WORDS = 8, STACK_WORDS = 16 }; /* of a kind: one line of a cache, or two */
enum { BITS = 9, WAYS = 4 };

typedef struct {
    PyObject_HEAD /* zeros where there is no kind */
    Py_ssize_t matrices[((1 << BITS) + WAYS) * WORDS];
    Py_ssize_t stacks[((1 << BITS) + WAYS) * STACK_WORDS];
} Kinds;

/* What tells whether Python's function is to choose. */
typedef struct {
    PyObject *variables, *route; /* the environment, and what must not be in it */
    uint64_t without_route;      /* the version of the environment in which it was not */
    const char *was_overridden;  /* one byte, 0 while what follows never was anything else: */
    PyObject *overridden;        /* a context variable that must be None */
    Py_buffer buffer;            /* with that byte */
} Modes;

/* What computes a product: Python's function, or one of NumPy's or SciPy's; or there is an error. */
typedef enum { ERROR = -1, PYTHON, MATMUL, DOT, GEMM = MATMUL } Side;

/* In the order in which they are read. */
typedef struct Shortcut {
    PyObject_HEAD
    vectorcallfunc call;
    Side (*side)(struct Shortcut *, PyObject *const *, Py_ssize_t, PyObject *); /* NULL: no rules */
    PyObject *targets[DOT + 1];
    PyTypeObject *array;
    Py_ssize_t inner;    /* from this inner extent on it is a long one */
    double dot_elements; /* of a result that `dot` computes sooner than `matmul` */
    double least;        /* elements of two operands, one a vector, that are few */
    Limits limits[TYPES];
    Modes modes;
    Kinds *hosted; /* those that NumPy computes beyond the limits */
    PyObject *logger, *root;
} Shortcut;

static PyObject *name_level, *name_out, *name_trans_a, *name_trans_b;
static PyTypeObject *shortcut_type, *kinds_type;

/* Return a number that changes with a dictionary, so that it need not be read again: that is a
   dozen lines of memory.  0 says nothing. */
#if PY_VERSION_HEX < 0x030C0000
static uint64_t
version_of(PyObject *dictionary)
{
    return PyDict_CheckExact(dictionary) ? ((PyDictObject *)dictionary)->ma_version_tag : 0;
}

static int
watch(PyObject *dictionary)
{
    return 0;
}
#else
static uint64_t version; /* of all dictionaries that are watched */

static uint64_t
version_of(PyObject *dictionary)
{
    return PyDict_CheckExact(dictionary) ? version : 0;
}

static int
changes(PyDict_WatchEvent event, PyObject *dictionary, PyObject *key, PyObject *value)
{
    version += version != 0;
    return 0;
}

static int
watch(PyObject *dictionary)
{
    static int watcher = -1; /* there are eight in a process */
    if (!PyDict_CheckExact(dictionary))
        return 0;
    if (watcher < 0 && (watcher = PyDict_AddWatcher(changes)) < 0) {
        PyErr_Clear(); /* others have them all: it is read each time */
        return 0;
    }
    version += version == 0;
    return PyDict_Watch(watcher, dictionary);
}
#endif

/* Return whether no mode is set, neither in the environment nor by a with block; -1 for an error. */
static int
is_auto(Modes *self)
{
    PyObject *modes;
    const uint64_t now = version_of(self->variables);
    int found = 0;
    if (now == 0 || now != self->without_route) {
        found = PySequence_Contains(self->variables, self->route);
        if (found != 0)
            return found < 0 ? -1 : 0;
        self->without_route = now;
    }
    if (*self->was_overridden == 0)
        return 1;
    if (PyContextVar_Get(self->overridden, NULL, &modes) < 0)
        return -1;
    found = modes == Py_None;
    Py_XDECREF(modes);
    return found;
}

/* Return whether a line is wanted of each call: by the first logger with a level. */
static int
is_logged(const Shortcut *self)
{
    const long debug = 10;
    PyObject *of[] = {self->logger, self->root};
    for (int place = 0; place < 2; place++) {
        PyObject *found = PyObject_GetAttr(of[place], name_level);
        if (found == NULL)
            return -1;
        long level = PyLong_AsLong(found);
        Py_DECREF(found);
        if (level == -1 && PyErr_Occurred())
            return -1;
        if (level != 0)
            return level <= debug;
    }
    return 1;
}

/* What a decision depends on: of vectors the missing extent is -1.  An address of a type leaves room for
   two bits: whether the result is stored into an array that lies as a fresh one does, and whether both
   operands are one, of which half may be computed. */
static void
describe(Py_ssize_t words[WORDS], const Array *a, const Array *b, int is_stored)
{
    const int rows = a->ndim == MATRIX, columns = b->ndim == MATRIX;
    words[0] = (Py_ssize_t)a->dtype + is_stored + 2 * (a->data == b->data);
    words[1] = rows ? a->shape[0] : -1;
    words[2] = b->shape[0];
    words[3] = columns ? b->shape[1] : -1;
    words[4] = rows ? a->strides[0] : 0;
    words[5] = a->strides[a->ndim - 1];
    words[6] = b->strides[0];
    words[7] = columns ? b->strides[1] : 0;
}

/* The same where one or both are stacks of matrices along one axis. */
static void
describe_stacks(Py_ssize_t words[STACK_WORDS], const Array *a, const Array *b)
{
    const Array *of[] = {a, b};
    Py_ssize_t *word = words;
    *word++ = (Py_ssize_t)a->dtype + 2 * (a->data == b->data);
    for (int operand = 0; operand < 2; operand++) {
        const Array *x = of[operand];
        for (int axis = 0; axis < STACK; axis++) {
            const int there = axis < x->ndim;
            *word++ = there ? x->shape[axis] : -1;
            *word++ = there ? x->strides[axis] : 0;
        }
    }
    while (word < words + STACK_WORDS)
        *word++ = 0;
}

/* Return where in a table a kind is, or may be put: one of `WAYS` places that follow each other. */
static inline Py_ssize_t *
place_of(Py_ssize_t *table, const Py_ssize_t *words, int count)
{
    uint64_t hash = 0;
    for (int word = 0; word < count; word++)
        hash = (hash ^ (uint64_t)words[word]) * UINT64_C(0x9E3779B97F4A7C15);
    Py_ssize_t *first = table + (hash >> (64 - BITS)) * count, *found = first;
    for (int way = 0; way < WAYS; way++, found += count)
        if (memcmp(found, words, count * sizeof *words) == 0 || *found == 0)
            return found;
    return first;
}

/* Return an object as an array, NULL with an error if it is none that may be read. */
static const Array *
array_of(PyObject *object)
{
    const Array *x = (const Array *)object;
    const char *type = Py_TYPE(object)->tp_name;
    if (strcmp(type, "numpy.ndarray") != 0 || Py_TYPE(object)->tp_basicsize < (Py_ssize_t)sizeof *x) {
        PyErr_Format(PyExc_TypeError, "an ndarray is needed, and this is of type %s", type);
        return NULL;
    }
    return x;
}

PyDoc_STRVAR(kinds_add_doc,
"add(a, b, is_stored, is_gram, /)\n--\n\nKeep the kind of a product of matrices or vectors, stored into an array "
"that `numpy.dot` could store it into, or fresh, or of fresh stacks; too many replace each other.  Nothing is kept "
"where it is not seen here whether both are one matrix.");

static PyObject *
kinds_add(PyObject *object, PyObject *args)
{
    Kinds *self = (Kinds *)object;
    PyObject *x, *y;
    const Array *a, *b;
    int is_stored, is_gram;
    if (!PyArg_ParseTuple(args, "OOpp:add", &x, &y, &is_stored, &is_gram) || !(a = array_of(x)) ||
        !(b = array_of(y)))
        return NULL;
    const int least = a->ndim < b->ndim ? a->ndim : b->ndim, most = a->ndim + b->ndim - least;
    if (least < 1 || most > STACK || (most == STACK && (least < MATRIX || is_stored)))
        return PyErr_Format(PyExc_ValueError, "add: of %d and %d axes", a->ndim, b->ndim);
    if ((a->data == b->data) != is_gram)
        Py_RETURN_NONE;
    if (most == STACK) {
        Py_ssize_t words[STACK_WORDS];
        describe_stacks(words, a, b);
        memcpy(place_of(self->stacks, words, STACK_WORDS), words, sizeof words);
    } else {
        Py_ssize_t words[WORDS];
        describe(words, a, b, is_stored);
        memcpy(place_of(self->matrices, words, WORDS), words, sizeof words);
    }
    Py_RETURN_NONE;
}

static PyObject *
kinds_clear(PyObject *object, PyObject *unused)
{
    Kinds *self = (Kinds *)object;
    memset(self->matrices, 0, sizeof self->matrices);
    memset(self->stacks, 0, sizeof self->stacks);
    Py_RETURN_NONE;
}

static void
kinds_dealloc(PyObject *object)
{
    PyTypeObject *type = Py_TYPE(object);
    type->tp_free(object);
    Py_DECREF(type);
}

static PyMethodDef kinds_methods[] = {
    {"add", kinds_add, METH_VARARGS, kinds_add_doc},
    {"clear", kinds_clear, METH_NOARGS, "clear()\n--\n\nForget all."},
    {NULL},
};

static PyType_Slot kinds_slots[] = {
    {Py_tp_doc, "Kinds()\n--\n\nKinds of products that NumPy computes, whatever their size."},
    {Py_tp_new, PyType_GenericNew},
    {Py_tp_dealloc, kinds_dealloc},
    {Py_tp_methods, kinds_methods},
    {0, NULL},
};

static PyType_Spec kinds_spec = {
    .name = "clgemm.api._shortcut.Kinds",
    .basicsize = sizeof(Kinds),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = kinds_slots,
};

/* NumPy computes a kind that was met, unless a line is wanted of the call. */
static Side
side_of_met(const Shortcut *self)
{
    const int logged = is_logged(self);
    return logged < 0 ? ERROR : logged ? PYTHON : MATMUL;
}

static Side
met(const Shortcut *self, const Array *a, const Array *b, int is_stored)
{
    Py_ssize_t words[WORDS];
    describe(words, a, b, is_stored);
    const Py_ssize_t *found = place_of(self->hosted->matrices, words, WORDS);
    return memcmp(found, words, sizeof words) == 0 ? side_of_met(self) : PYTHON;
}

static Side
met_stacks(const Shortcut *self, const Array *a, const Array *b)
{
    Py_ssize_t words[STACK_WORDS];
    describe_stacks(words, a, b);
    const Py_ssize_t *found = place_of(self->hosted->stacks, words, STACK_WORDS);
    return memcmp(found, words, sizeof words) == 0 ? side_of_met(self) : PYTHON;
}

static double
size_of(const Array *x)
{
    double size = 1;
    for (int axis = 0; axis < x->ndim; axis++)
        size *= (double)x->shape[axis];
    return size;
}

/* Return whether `dot` can store a matrix into an array. */
static int
takes_dot(const Array *out, PyObject *dtype, Py_ssize_t m, Py_ssize_t n)
{
    const int carray = 0x1 | 0x100 | 0x400; /* contiguous in C's order, aligned, writeable */
    return out->dtype == dtype && (out->flags & carray) == carray && out->ndim == MATRIX &&
           out->shape[0] == m && out->shape[1] == n;
}

static Side
side_of_matrices(const Shortcut *self, const Limits *most, const Array *a, const Array *b,
                 const Array *out)
{
    const Py_ssize_t m = a->shape[0], k = b->shape[0], n = b->shape[1];
    if (a->shape[1] != k)
        return PYTHON;
    const double size = (double)m * (double)n, product = size * (double)k;
    const int few = size <= self->dot_elements;
    const int fits = out == NULL || takes_dot(out, a->dtype, m, n);
    if (fits && (k > 1 ? few && product <= most->deep : m > 1 && n > 1 && product <= most->outer))
        return DOT;
    const double limit =
        m == 1 || n == 1 ? most->line : k >= self->inner ? most->deep : most->shallow;
    if (product <= limit && (k > 1 || few))
        return MATMUL;
    return k > 1 && fits ? met(self, a, b, out != NULL) : PYTHON;
}

/* At least one of them is a vector, and the other one no stack. */
static Side
side_of_vectors(const Shortcut *self, const Limits *most, const Array *a, const Array *b,
                const Array *out)
{
    const Py_ssize_t k = b->shape[0];
    if (a->shape[a->ndim - 1] != k)
        return PYTHON;
    const double all = size_of(a) + size_of(b);
    if (all <= self->least)
        return out == NULL && k > 1 && all <= (double)k * self->dot_elements ? DOT : MATMUL;
    const double product = a->ndim == MATRIX ? size_of(a) : size_of(b);
    return product <= most->stack ? MATMUL : out == NULL ? met(self, a, b, 0) : PYTHON;
}

static Side
side_of_stacks(const Shortcut *self, const Limits *most, const Array *a, const Array *b,
               const Array *out)
{
    double product = 0; /* of those that are broadcast, whose number is not told here */
    if (b->ndim == MATRIX ||
        (a->ndim == STACK && b->ndim == STACK && a->shape[0] == b->shape[0]))
        product = size_of(a) * (double)b->shape[b->ndim - 1];
    else if (a->ndim == MATRIX)
        product = size_of(b) * (double)a->shape[0];
    if (0 < product && product <= most->stack)
        return MATMUL;
    return out == NULL && a->ndim <= STACK && b->ndim <= STACK ? met_stacks(self, a, b) : PYTHON;
}

/* matmul(a, b), matmul(a, b, out) or matmul(a, b, out=out). */
static Side
side_of_product(Shortcut *self, PyObject *const *args, Py_ssize_t count, PyObject *keywords)
{
    if (keywords != NULL) {
        if (count != 2 || PyTuple_GET_SIZE(keywords) != 1 ||
            PyTuple_GET_ITEM(keywords, 0) != name_out)
            return PYTHON;
        count++;
    }
    if (count < 2 || count > 3 || Py_TYPE(args[0]) != self->array ||
        Py_TYPE(args[1]) != self->array || (count == 3 && Py_TYPE(args[2]) != self->array))
        return PYTHON;
    const Array *a = (const Array *)args[0], *b = (const Array *)args[1];
    const Array *out = count == 3 ? (const Array *)args[2] : NULL;
    const Limits *most = self->limits;
    while (most->dtype != a->dtype)
        if (++most == self->limits + TYPES)
            return PYTHON;
    if (b->dtype != a->dtype || a->ndim == 0 || b->ndim == 0)
        return PYTHON;
    const int automatic = is_auto(&self->modes);
    if (automatic <= 0)
        return automatic < 0 ? ERROR : PYTHON;
    if (a->ndim == MATRIX && b->ndim == MATRIX)
        return side_of_matrices(self, most, a, b, out);
    if (a->ndim <= MATRIX && b->ndim <= MATRIX)
        return side_of_vectors(self, most, a, b, out);
    return a->ndim == 1 || b->ndim == 1 ? PYTHON : side_of_stacks(self, most, a, b, out);
}

/* Read trans_a and trans_b, given by these names alone; return whether that is all there is. */
static int
read_flags(PyObject *const *values, PyObject *keywords, long flags[2])
{
    const Py_ssize_t count = keywords == NULL ? 0 : PyTuple_GET_SIZE(keywords);
    for (Py_ssize_t place = 0; place < count; place++) {
        PyObject *name = PyTuple_GET_ITEM(keywords, place);
        if ((name != name_trans_a && name != name_trans_b) || !PyLong_CheckExact(values[place]))
            return 0;
        int overflow;
        const long value = PyLong_AsLongAndOverflow(values[place], &overflow);
        if (value < 0 || value > 2 || overflow)
            return 0;
        flags[name == name_trans_b] = value;
    }
    return 1;
}

/* gemm(alpha, a, b), with trans_a and trans_b by name.  Of a factor that is 0 or becomes it, of no
   matrices and of large results SciPy makes something else. */
static Side
side_of_gemm(Shortcut *self, PyObject *const *args, Py_ssize_t count, PyObject *keywords)
{
    const Limits *most = self->limits;
    long flags[2] = {0, 0};
    if (count != 3 || !PyFloat_CheckExact(args[0]) || Py_TYPE(args[1]) != self->array ||
        Py_TYPE(args[2]) != self->array || !read_flags(args + count, keywords, flags))
        return PYTHON;
    const Array *a = (const Array *)args[1], *b = (const Array *)args[2];
    const double alpha = fabs(PyFloat_AS_DOUBLE(args[0]));
    if (a->dtype != most->dtype || b->dtype != most->dtype || a->ndim != MATRIX ||
        b->ndim != MATRIX || !(1e-37 <= alpha && alpha <= 1e37))
        return PYTHON;
    const Py_ssize_t m = a->shape[flags[0] != 0], k = a->shape[flags[0] == 0];
    const Py_ssize_t rows = b->shape[flags[1] != 0], n = b->shape[flags[1] == 0];
    const double size = (double)m * (double)n, product = size * (double)k;
    if (k != rows || product == 0 || product > (k >= self->inner ? most->deep : most->shallow) ||
        size >= most->elements)
        return PYTHON;
    const int automatic = is_auto(&self->modes);
    return automatic < 0 ? ERROR : automatic ? GEMM : PYTHON;
}

static PyObject *
shortcut_call(PyObject *callable, PyObject *const *args, size_t nargsf, PyObject *kwnames)
{
    Shortcut *self = (Shortcut *)callable;
    Side side = PYTHON;
    if (self->side != NULL)
        side = self->side(self, args, PyVectorcall_NARGS(nargsf), kwnames);
    if (side == ERROR)
        return NULL;
    PyObject *target = self->targets[side];
    if (target == NULL) /* called by a finalizer of the cycle that it is part of */
        return PyErr_Format(PyExc_RuntimeError, "%s: its function is gone", Py_TYPE(self)->tp_name);
    return PyObject_Vectorcall(target, args, nargsf, kwnames);
}

static int
shortcut_init(PyObject *object, PyObject *args, PyObject *keywords)
{
    Shortcut *self = (Shortcut *)object;
    static char *names[] = {"function", NULL};
    PyObject *function;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "O:Shortcut", names, &function))
        return -1;
    /* A subclass written in Python has this flag by itself from Python 3.12 on. */
    if (!PyType_HasFeature(Py_TYPE(self), Py_TPFLAGS_HAVE_VECTORCALL) &&
        Py_TYPE(self)->tp_call == PyVectorcall_Call) {
        Py_TYPE(self)->tp_flags |= Py_TPFLAGS_HAVE_VECTORCALL;
        PyType_Modified(Py_TYPE(self));
    }
    self->call = shortcut_call;
    Py_INCREF(function);
    Py_XSETREF(self->targets[PYTHON], function);
    return 0;
}

static int
has_no_rules(Shortcut *self)
{
    if (self->side != NULL)
        PyErr_Format(PyExc_RuntimeError, "%R has its rules", self);
    return self->side == NULL;
}

/* Read (variables, route, overridden, was_overridden), the last of what can fail. */
static int
read_modes(Modes *modes, PyObject *of)
{
    PyObject *variables, *route, *overridden, *flag;
    if (!PyArg_ParseTuple(of, "OOOO:modes", &variables, &route, &overridden, &flag) ||
        watch(variables) < 0 || PyObject_GetBuffer(flag, &modes->buffer, PyBUF_SIMPLE) < 0)
        return -1;
    modes->was_overridden = modes->buffer.buf;
    modes->variables = Py_NewRef(variables);
    modes->route = Py_NewRef(route);
    modes->overridden = Py_NewRef(overridden);
    return 0;
}

PyDoc_STRVAR(rules_of_matmul_doc,
"rules_of_matmul(array, modes, matmul, dot, hosted, loggers, limits, figures, /)\n--\n\n"
"Say what NumPy computes, once; until then all calls are the function's.");

static PyObject *
shortcut_rules_of_matmul(PyObject *object, PyObject *args)
{
    Shortcut *self = (Shortcut *)object;
    PyObject *array, *modes, *matmul, *dot, *hosted, *logger, *root, *limits;
    Limits of[TYPES];
    Py_ssize_t inner;
    double dot_elements, least;
    if (!has_no_rules(self) ||
        !PyArg_ParseTuple(args, "O!O!OOO!(OO)O!(ndd):rules_of_matmul", &PyType_Type, &array,
                          &PyTuple_Type, &modes, &matmul, &dot, kinds_type, &hosted, &logger, &root,
                          &PyTuple_Type, &limits, &inner, &dot_elements, &least))
        return NULL;
    if (PyTuple_GET_SIZE(limits) != TYPES)
        return PyErr_Format(PyExc_ValueError, "limits of %d types are needed", TYPES);
    for (int place = 0; place < TYPES; place++) {
        Limits *x = &of[place];
        if (!PyArg_ParseTuple(PyTuple_GET_ITEM(limits, place), "Oddddd:limits", &x->dtype, &x->deep,
                              &x->shallow, &x->line, &x->outer, &x->stack))
            return NULL;
    }
    if (read_modes(&self->modes, modes) < 0)
        return NULL;
    self->targets[MATMUL] = Py_NewRef(matmul);
    self->targets[DOT] = Py_NewRef(dot);
    self->hosted = (Kinds *)Py_NewRef(hosted);
    self->logger = Py_NewRef(logger);
    self->root = Py_NewRef(root);
    for (int place = 0; place < TYPES; place++) {
        self->limits[place] = of[place];
        Py_INCREF(of[place].dtype);
    }
    self->inner = inner;
    self->dot_elements = dot_elements;
    self->least = least;
    self->array = (PyTypeObject *)Py_NewRef(array);
    self->side = side_of_product;
    Py_RETURN_NONE;
}

PyDoc_STRVAR(rules_of_gemm_doc,
"rules_of_gemm(array, modes, gemm, limits, inner, /)\n--\n\n"
"Say what SciPy computes, once; `limits` are (dtype, deep, shallow, elements).");

static PyObject *
shortcut_rules_of_gemm(PyObject *object, PyObject *args)
{
    Shortcut *self = (Shortcut *)object;
    PyObject *array, *modes, *gemm;
    Limits of = {NULL, 0, 0, 0, 0, 0, 0};
    Py_ssize_t inner;
    if (!has_no_rules(self) ||
        !PyArg_ParseTuple(args, "O!O!O(Oddd)n:rules_of_gemm", &PyType_Type, &array, &PyTuple_Type,
                          &modes, &gemm, &of.dtype, &of.deep, &of.shallow, &of.elements, &inner) ||
        read_modes(&self->modes, modes) < 0)
        return NULL;
    self->targets[GEMM] = Py_NewRef(gemm);
    self->limits[0] = of;
    Py_INCREF(of.dtype);
    self->inner = inner;
    self->array = (PyTypeObject *)Py_NewRef(array);
    self->side = side_of_gemm;
    Py_RETURN_NONE;
}

static int
shortcut_traverse(PyObject *object, visitproc visit, void *arg)
{
    Shortcut *self = (Shortcut *)object;
    Py_VISIT(Py_TYPE(self));
    for (int side = PYTHON; side <= DOT; side++)
        Py_VISIT(self->targets[side]);
    Py_VISIT(self->array);
    Py_VISIT(self->modes.variables);
    Py_VISIT(self->modes.route);
    Py_VISIT(self->modes.overridden);
    Py_VISIT(self->modes.buffer.obj);
    Py_VISIT(self->hosted);
    Py_VISIT(self->logger);
    Py_VISIT(self->root);
    for (int place = 0; place < TYPES; place++)
        Py_VISIT(self->limits[place].dtype);
    return 0;
}

static int
shortcut_clear(PyObject *object)
{
    Shortcut *self = (Shortcut *)object;
    self->side = NULL;
    for (int side = PYTHON; side <= DOT; side++)
        Py_CLEAR(self->targets[side]);
    Py_CLEAR(self->array);
    Py_CLEAR(self->modes.variables);
    Py_CLEAR(self->modes.route);
    Py_CLEAR(self->modes.overridden);
    PyBuffer_Release(&self->modes.buffer);
    Py_CLEAR(self->hosted);
    Py_CLEAR(self->logger);
    Py_CLEAR(self->root);
    for (int place = 0; place < TYPES; place++)
        Py_CLEAR(self->limits[place].dtype);
    return 0;
}

static void
shortcut_dealloc(PyObject *object)
{
    PyTypeObject *type = Py_TYPE(object);
    PyObject_GC_UnTrack(object);
    shortcut_clear(object);
    type->tp_free(object);
    Py_DECREF(type);
}

static PyMemberDef shortcut_members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(Shortcut, call), READONLY, NULL},
    {"__func__", T_OBJECT_EX, offsetof(Shortcut, targets), READONLY, NULL}, /* the first one */
    {NULL},
};

static PyMethodDef shortcut_methods[] = {
    {"rules_of_matmul", shortcut_rules_of_matmul, METH_VARARGS, rules_of_matmul_doc},
    {"rules_of_gemm", shortcut_rules_of_gemm, METH_VARARGS, rules_of_gemm_doc},
    {NULL},
};

static PyType_Slot shortcut_slots[] = {
    {Py_tp_doc, "Shortcut(function)\n--\n\nCalls a function, or one of NumPy's or SciPy's by its rules."},
    {Py_tp_new, PyType_GenericNew},
    {Py_tp_init, shortcut_init},
    {Py_tp_call, PyVectorcall_Call},
    {Py_tp_traverse, shortcut_traverse},
    {Py_tp_clear, shortcut_clear},
    {Py_tp_dealloc, shortcut_dealloc},
    {Py_tp_members, shortcut_members},
    {Py_tp_methods, shortcut_methods},
    {0, NULL},
};

static PyType_Spec shortcut_spec = {
    .name = "clgemm.api._shortcut.Shortcut",
    .basicsize = sizeof(Shortcut),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC |
             Py_TPFLAGS_HAVE_VECTORCALL,
    .slots = shortcut_slots,
};

static PyObject *
tuple_of(const Py_ssize_t *numbers, int count)
{
    PyObject *found = PyTuple_New(count);
    for (int place = 0; found != NULL && place < count; place++) {
        PyObject *number = PyLong_FromSsize_t(numbers[place]);
        if (number == NULL)
            Py_CLEAR(found);
        else
            PyTuple_SET_ITEM(found, place, number);
    }
    return found;
}

PyDoc_STRVAR(seen_doc,
"seen(array, /)\n--\n\nReturn what is read from an array: address, shape, strides, dtype and flags.");

static PyObject *
seen(PyObject *module, PyObject *object)
{
    const Array *x = array_of(object);
    if (x == NULL)
        return NULL;
    return Py_BuildValue("NNNOi", PyLong_FromVoidPtr(x->data), tuple_of(x->shape, x->ndim),
                         tuple_of(x->strides, x->ndim), x->dtype, x->flags);
}

static PyMethodDef module_methods[] = {
    {"seen", seen, METH_O, seen_doc},
    {NULL},
};

static int
module_exec(PyObject *module)
{
#if defined(Py_GIL_DISABLED) || defined(PYPY_VERSION)
    PyErr_SetString(PyExc_ImportError, "there is no shortcut in this kind of Python");
    return -1;
#else
    shortcut_type = (PyTypeObject *)PyType_FromSpec(&shortcut_spec);
    kinds_type = (PyTypeObject *)PyType_FromSpec(&kinds_spec);
    if (shortcut_type == NULL || PyModule_AddType(module, shortcut_type) < 0 ||
        kinds_type == NULL || PyModule_AddType(module, kinds_type) < 0)
        return -1;
    if (PyModule_AddIntConstant(module, "INTERFACE", INTERFACE) < 0)
        return -1;
    name_level = PyUnicode_InternFromString("level");
    name_out = PyUnicode_InternFromString("out");
    name_trans_a = PyUnicode_InternFromString("trans_a");
    name_trans_b = PyUnicode_InternFromString("trans_b");
    return name_level && name_out && name_trans_a && name_trans_b ? 0 : -1;
#endif
}

static PyModuleDef_Slot module_slots[] = {
    {Py_mod_exec, module_exec},
#if PY_VERSION_HEX >= 0x030C0000
    {Py_mod_multiple_interpreters, Py_MOD_MULTIPLE_INTERPRETERS_NOT_SUPPORTED}, /* nor has NumPy */
#endif
#ifdef Py_GIL_DISABLED
    {Py_mod_gil, Py_MOD_GIL_NOT_USED}, /* it only says that it is not for such a Python */
#endif
    {0, NULL},
};

static PyModuleDef module_def = {
    PyModuleDef_HEAD_INIT,
    .m_name = "clgemm.api._shortcut",
    .m_doc = "A callable in front of a function of Python's, for the plainest arguments without it.",
    .m_methods = module_methods,
    .m_slots = module_slots,
};

PyMODINIT_FUNC
PyInit__shortcut(void)
{
    return PyModuleDef_Init(&module_def);
}
