"""Compiled modules made for tests: a BLAS of few functions, and clients that call it."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess

import numpy as np
import pytest
from helpers import PATIENCE

from clgemm.interpose.entries import Entry
from clgemm.layouts import address_of
from clgemm.runtime import machine_code

COMPILER = shutil.which("gcc") or shutil.which("cc")
WHY_NOT = machine_code.why_not() or (None if COMPILER else "there is no C compiler")
needs_compiler = pytest.mark.skipif(WHY_NOT is not None, reason=str(WHY_NOT))

# A gemm that counts its calls and computes as a textbook does: C is not read if beta is 0.
BLAS = """
#include <complex.h>
#include <stdint.h>
typedef float complex fc; typedef double complex dc;
int64_t originals;

#define GEMM(NAME, INT, T, CONJ) \
static T NAME##_at(const T *x, INT ld, INT i, INT j, int trans, int conj_) { \
    T v = trans ? x[j + i * ld] : x[i + j * ld]; return conj_ ? CONJ(v) : v; } \
static void NAME(int ta, int ca, int tb, int cb, INT m, INT n, INT k, T alpha, const T *a, \
                 INT lda, const T *b, INT ldb, T beta, T *c, INT ldc) { \
    __atomic_fetch_add(&originals, 1, __ATOMIC_SEQ_CST); \
    for (INT j = 0; j < n; ++j) for (INT i = 0; i < m; ++i) { \
        T sum = 0; \
        for (INT p = 0; p < k; ++p) \
            sum += NAME##_at(a, lda, i, p, ta, ca) * NAME##_at(b, ldb, p, j, tb, cb); \
        c[i + j * ldc] = alpha * sum + (beta == 0 ? 0 : beta * c[i + j * ldc]); } }

#define CBLAS(FULL, NAME, INT, T, BY, OF) \
void FULL(int order, int ta, int tb, INT m, INT n, INT k, BY alpha, const T *a, INT lda, \
          const T *b, INT ldb, BY beta, T *c, INT ldc) { \
    int t1 = ta == 112 || ta == 113, t2 = tb == 112 || tb == 113, c1 = ta >= 113, c2 = tb >= 113; \
    if (order == 102) NAME(t1, c1, t2, c2, m, n, k, OF alpha, a, lda, b, ldb, OF beta, c, ldc); \
    else NAME(t2, c2, t1, c1, n, m, k, OF alpha, b, ldb, a, lda, OF beta, c, ldc); }

#define FORTRAN(FULL, NAME, INT, T) \
void FULL(const char *ta, const char *tb, const INT *m, const INT *n, const INT *k, \
          const T *alpha, const T *a, const INT *lda, const T *b, const INT *ldb, const T *beta, \
          T *c, const INT *ldc) { \
    NAME(*ta != 'N' && *ta != 'n', *ta == 'C', *tb != 'N' && *tb != 'n', *tb == 'C', *m, *n, *k, \
         *alpha, a, *lda, b, *ldb, *beta, c, *ldc); }

#define SAME(x) (x)
#define ALL(INT, TAG, CPRE, CPOST, FPRE, FPOST) \
GEMM(s##TAG, INT, float, SAME) GEMM(d##TAG, INT, double, SAME) \
GEMM(c##TAG, INT, fc, conjf) GEMM(z##TAG, INT, dc, conj) \
CBLAS(CPRE##sgemm##CPOST, s##TAG, INT, float, float, ) \
CBLAS(CPRE##dgemm##CPOST, d##TAG, INT, double, double, ) \
CBLAS(CPRE##cgemm##CPOST, c##TAG, INT, fc, const fc *, *) \
CBLAS(CPRE##zgemm##CPOST, z##TAG, INT, dc, const dc *, *) \
FORTRAN(FPRE##sgemm##FPOST, s##TAG, INT, float) FORTRAN(FPRE##dgemm##FPOST, d##TAG, INT, double) \
FORTRAN(FPRE##cgemm##FPOST, c##TAG, INT, fc) FORTRAN(FPRE##zgemm##FPOST, z##TAG, INT, dc)

ALL(int32_t, 32, cblas_, , , _)
ALL(int64_t, 64, scipy_cblas_, 64_, scipy_, _64_)
"""

_CALLS = """
#include <stdint.h>
extern void *PyEval_SaveThread(void);
void *releases_lock(void) { return (void *)PyEval_SaveThread; }
#define REAL(NAME, INT, T) \
extern void NAME(int, int, int, INT, INT, INT, T, const T *, INT, const T *, INT, T, T *, INT); \
void call_##NAME(int o, int ta, int tb, INT m, INT n, INT k, T x, const T *a, INT la, const T *b, \
                 INT lb, T y, T *c, INT lc) { NAME(o, ta, tb, m, n, k, x, a, la, b, lb, y, c, lc); }
#define COMPLEX(NAME, INT) \
extern void NAME(int, int, int, INT, INT, INT, void *, void *, INT, void *, INT, void *, void *, \
                 INT); \
void call_##NAME(int o, int ta, int tb, INT m, INT n, INT k, void *x, void *a, INT la, void *b, \
                 INT lb, void *y, void *c, INT lc) { \
    NAME(o, ta, tb, m, n, k, x, a, la, b, lb, y, c, lc); }
#define FORTRAN(NAME) \
extern void NAME(void *, void *, void *, void *, void *, void *, void *, void *, void *, void *, \
                 void *, void *, void *); \
void call_##NAME(void *ta, void *tb, void *m, void *n, void *k, void *x, void *a, void *la, \
                 void *b, void *lb, void *y, void *c, void *lc) { \
    NAME(ta, tb, m, n, k, x, a, la, b, lb, y, c, lc); }
"""
_WIDE = """
REAL(scipy_cblas_sgemm64_, int64_t, float) REAL(scipy_cblas_dgemm64_, int64_t, double)
COMPLEX(scipy_cblas_cgemm64_, int64_t) COMPLEX(scipy_cblas_zgemm64_, int64_t)
FORTRAN(scipy_sgemm_64_) FORTRAN(scipy_dgemm_64_) FORTRAN(scipy_cgemm_64_) FORTRAN(scipy_zgemm_64_)
"""
_NARROW = """
REAL(cblas_sgemm, int32_t, float) REAL(cblas_dgemm, int32_t, double)
COMPLEX(cblas_cgemm, int32_t) COMPLEX(cblas_zgemm, int32_t)
FORTRAN(sgemm_) FORTRAN(dgemm_) FORTRAN(cgemm_) FORTRAN(zgemm_)
"""
CLIENT = _CALLS + _WIDE + _NARROW
KEEPS_LOCK = CLIENT.replace("PyEval_SaveThread", "PyErr_Clear")

# Calls a function such that every register that it must keep, and every argument, can be looked at.
REGISTERS = """
#include <stdint.h>
int64_t seen[12], kept_before[5] = {11, 12, 13, 14, 15}, kept_after[5];
__asm__(
".globl record\\nrecord:\\n"
"  mov %rdi, seen(%rip)\\n mov %rsi, 8+seen(%rip)\\n mov %rdx, 16+seen(%rip)\\n"
"  mov %rcx, 24+seen(%rip)\\n mov %r8, 32+seen(%rip)\\n mov %r9, 40+seen(%rip)\\n"
"  movsd %xmm0, 48+seen(%rip)\\n movsd %xmm1, 56+seen(%rip)\\n"
"  mov 8(%rsp), %rax\\n mov %rax, 64+seen(%rip)\\n mov 16(%rsp), %rax\\n mov %rax, 72+seen(%rip)\\n"
"  mov %rsp, 80+seen(%rip)\\n ret\\n"
".globl call_it\\ncall_it:\\n"
"  push %rbx\\n push %rbp\\n push %r12\\n push %r13\\n push %r14\\n push %r15\\n"
"  sub $24, %rsp\\n mov %rdi, %rax\\n mov %rsi, %r11\\n"
"  mov 64(%r11), %r10\\n mov %r10, (%rsp)\\n mov 72(%r11), %r10\\n mov %r10, 8(%rsp)\\n"
"  mov (%r11), %rdi\\n mov 8(%r11), %rsi\\n mov 16(%r11), %rdx\\n mov 24(%r11), %rcx\\n"
"  mov 32(%r11), %r8\\n mov 40(%r11), %r9\\n movsd 48(%r11), %xmm0\\n movsd 56(%r11), %xmm1\\n"
"  mov kept_before(%rip), %rbx\\n mov 8+kept_before(%rip), %r12\\n"
"  mov 16+kept_before(%rip), %r13\\n mov 24+kept_before(%rip), %r14\\n"
"  mov 32+kept_before(%rip), %r15\\n mov %rsp, %rbp\\n"
"  call *%rax\\n"
"  sub %rsp, %rbp\\n mov %rbp, 88+seen(%rip)\\n"
"  mov %rbx, kept_after(%rip)\\n mov %r12, 8+kept_after(%rip)\\n mov %r13, 16+kept_after(%rip)\\n"
"  mov %r14, 24+kept_after(%rip)\\n mov %r15, 32+kept_after(%rip)\\n"
"  add $24, %rsp\\n pop %r15\\n pop %r14\\n pop %r13\\n pop %r12\\n"
"  pop %rbp\\n pop %rbx\\n ret\\n");
"""
# A thread that Python knows nothing of.
FOREIGN = """
#include <pthread.h>
static void *in_thread(void *x) {
    void **p = x;
    call_cblas_sgemm(102, 111, 111, 40, 40, 40, 1, p[0], 40, p[1], 40, 0, p[2], 40);
    return 0;
}
void in_foreign_thread(void *a, void *b, void *c) {
    void *p[] = {a, b, c};
    pthread_t thread;
    pthread_create(&thread, 0, in_thread, p);
    pthread_join(thread, 0);
}
"""

LINKED = {
    "lazy": ("-Wl,-z,lazy", "-Wl,-z,norelro"),
    "partial": ("-Wl,-z,lazy", "-Wl,-z,relro"),
    "no_plt": ("-fno-plt", "-Wl,-z,norelro"),
    "now": ("-Wl,-z,now", "-Wl,-z,relro"),
}
"""Ways to link a module: JUMP_SLOTs, the same as NumPy has them, GLOB_DATs, and read-only slots."""


def compiled(folder, name, source, *options):
    """Compile a shared object and return its path."""
    path, text = folder / f"{name}.so", folder / f"{name}.c"
    text.write_text(source)
    command = [COMPILER, "-shared", "-fPIC", "-O1", "-o", path, text, *options, "-lpthread"]
    subprocess.run(list(map(str, command)), check=True, timeout=PATIENCE)
    return path


def built(folder):
    """Compile a BLAS and clients linked with it; return their paths by name."""
    found = {"blas": compiled(folder, "libfakeblas", BLAS, "-fcx-limited-range")}
    with_blas = ("-Wl,--no-as-needed", f"-L{folder}", f"-Wl,-rpath,{folder}", "-l:libfakeblas.so")
    for way, options in LINKED.items():
        found[way] = compiled(folder, f"client_{way}", CLIENT, *options, *with_blas)
    keeps = LINKED["partial"] + with_blas
    found["keeps_lock"] = compiled(folder, "client_keeps_lock", KEEPS_LOCK, *keeps)
    found["foreign"] = compiled(folder, "client_foreign", CLIENT + FOREIGN, *keeps)
    found["unbound"] = compiled(folder, "client_unbound", CLIENT, *keeps)
    found["registers"] = compiled(folder, "registers", REGISTERS, "-Wl,-Bsymbolic")
    return found


class Client:
    """A client that is loaded: its gemms by name, as functions of NumPy's arrays."""

    def __init__(self, path):
        self.path = path
        self.library = ctypes.CDLL(str(path))  # bound at once; its calls release the lock

    def gemm(self, name, x, a, b, y, c, *, order="C", trans_a="N", trans_b="N", ld=(), **sizes):
        """Call a gemm with memory as it lies; sizes m, n, k, and leading dimensions."""
        entry = Entry.of(name)
        integer = ctypes.c_int64 if entry.wide else ctypes.c_int32
        m, n, k = (integer(sizes[s]) for s in "mnk")
        lda, ldb, ldc = map(integer, ld)
        pointers = [ctypes.c_void_p(address_of(z)) for z in (a, b, c)]
        x, y = (np.array(z, entry.precision.dtype) for z in (x, y))
        function = self.library["call_" + name]
        if entry.is_cblas:
            flags = [{"N": 111, "T": 112, "C": 113}[t] for t in (trans_a, trans_b)]
            if entry.precision.is_complex:
                factors = [ctypes.c_void_p(address_of(z)) for z in (x, y)]
            else:
                real = ctypes.c_double if entry.precision.is_double else ctypes.c_float
                factors = [real(z) for z in (x, y)]
            head = ({"C": 101, "F": 102}[order], *flags, m, n, k)
            function(*head, factors[0], pointers[0], lda, pointers[1], ldb, factors[1],
                     pointers[2], ldc)  # fmt: skip
            return
        by = ctypes.byref
        flags = [ctypes.c_char(t.encode()) for t in (trans_a, trans_b)]
        at_x, at_y = (ctypes.c_void_p(address_of(z)) for z in (x, y))
        function(*map(by, (*flags, m, n, k)), at_x, pointers[0], by(lda), pointers[1], by(ldb),
                 at_y, pointers[2], by(ldc))  # fmt: skip


def loaded_lazily(path):
    """Load a client whose functions are looked for by their first calls; Python does not do so."""
    return ctypes.CDLL(str(path), mode=os.RTLD_LAZY)
