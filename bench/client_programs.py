"""Programs of other people's packages that multiply matrices, and know nothing of clgemm.

Each defines `work`, which returns what it found as an array: figures that rounding hardly changes.
"""

from __future__ import annotations

PCA = """
import numpy as np
from sklearn.decomposition import PCA

x = np.random.default_rng(0).standard_normal((6000, 800)).astype(np.float32)
def work():
    return PCA(20, svd_solver="covariance_eigh").fit(x).explained_variance_
"""

KMEANS = """
import numpy as np
from sklearn.cluster import KMeans

x = np.random.default_rng(0).standard_normal((20000, 200)).astype(np.float32)
def work():
    return [KMeans(50, n_init=1, max_iter=20, random_state=0).fit(x).inertia_]
"""

GAUSSIAN_PROCESS = """
import numpy as np
from sklearn.gaussian_process import GaussianProcessRegressor

rng = np.random.default_rng(0)
x, y = rng.standard_normal((1500, 10)), rng.standard_normal(1500)
def work():
    return GaussianProcessRegressor(alpha=0.1, optimizer=None).fit(x, y).predict(x[:50])
"""

FACTORS = """
import numpy as np
from sklearn.decomposition import NMF

x = np.random.default_rng(0).random((2000, 1500))
def work():
    return [NMF(40, init="nndsvd", max_iter=30, tol=0).fit(x).reconstruction_err_]
"""

LEAST_SQUARES = """
import numpy as np
import statsmodels.api as sm

rng = np.random.default_rng(0)
x, y = sm.add_constant(rng.standard_normal((20000, 300))), rng.standard_normal(20000)
def work():
    return sm.OLS(y, x).fit(method="qr").params
"""

PRINCIPAL_COMPONENTS = """
import numpy as np
from statsmodels.multivariate.pca import PCA

x = np.random.default_rng(0).standard_normal((3000, 600))
def work():
    return PCA(x, ncomp=10, method="eig").eigenvals[:10]
"""

MOLECULE = """
from pyscf import gto, mp, scf

water = "; ".join(f"O 0 0 {3 * i}; H 0 .76 {3 * i + .59}; H 0 -.76 {3 * i + .59}" for i in range(3))
molecule = gto.M(atom=water, basis="cc-pvdz", verbose=0)
def work():
    field = scf.RHF(molecule).density_fit().run()
    return [field.e_tot, mp.MP2(field).run().e_corr]
"""

COMPILED = """
import numba
import numpy as np

a = np.random.default_rng(0).standard_normal((1200, 1200))
@numba.njit
def powers(x):
    y = x
    for _ in range(6):
        y = np.dot(y, x) / 40.0
    return y
def work():
    return powers(a)[:4, :4].ravel()
"""

TRANSFORMER = """
import numpy as np

rng = np.random.default_rng(0)
width, length, heads = 768, 512, 12
def weights(*shape):
    return (rng.standard_normal(shape) / np.sqrt(shape[0])).astype(np.float32)
qkv, out, up, down = weights(width, 3 * width), weights(width, width), \\
    weights(width, 4 * width), weights(4 * width, width)
tokens = weights(length, width)
def norm(x):
    return (x - x.mean(-1, keepdims=True)) / x.std(-1, keepdims=True)
def work():
    x = tokens
    for _ in range(4):
        q, k, v = (norm(x) @ qkv).reshape(length, 3, heads, -1).transpose(1, 2, 0, 3)
        scores = q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1])
        scores = np.exp(scores - scores.max(-1, keepdims=True))
        seen = scores / scores.sum(-1, keepdims=True) @ v
        x = x + seen.swapaxes(0, 1).reshape(length, width) @ out
        x = x + np.maximum(norm(x) @ up, 0) @ down
    return x[:4, :4].ravel()
"""

EINSUM = """
import numpy as np

rng = np.random.default_rng(0)
a, b, c = (rng.standard_normal((40, 50, 60)) for _ in range(3))
def work():
    x = np.einsum("ijk,ljk,lmn->imn", a, b, c, optimize=True)
    flat = x.reshape(40, -1)
    return [np.linalg.norm(x), np.linalg.norm(np.linalg.multi_dot([flat, flat.T, a[0, :40]]))]
"""

WORDS = """
import numpy as np
from gensim.models import Word2Vec  # it takes SciPy's functions by their addresses

rng = np.random.default_rng(0)
sentences = [[f"word{x}" for x in rng.zipf(1.5, 20) if x < 2000] for _ in range(5000)]
def work():
    model = Word2Vec(sentences, vector_size=100, min_count=2, workers=1, seed=1, epochs=3)
    return [np.linalg.norm(model.wv.vectors)]
"""

PROGRAMS = {
    "scikit-learn PCA": PCA,
    "scikit-learn KMeans": KMEANS,
    "scikit-learn Gaussian process": GAUSSIAN_PROCESS,
    "scikit-learn NMF": FACTORS,
    "statsmodels OLS": LEAST_SQUARES,
    "statsmodels PCA": PRINCIPAL_COMPONENTS,
    "PySCF RHF and MP2": MOLECULE,
    "numba np.dot": COMPILED,
    "NumPy transformer": TRANSFORMER,
    "NumPy einsum, multi_dot": EINSUM,
    "gensim Word2Vec": WORDS,
}

REPEATS = 5
END = f"""
import json, time
found = []
for _ in range({REPEATS}):
    begin = time.perf_counter()
    values = work()
    found.append(time.perf_counter() - begin)
print(json.dumps({{"seconds": found, "values": [float(x) for x in values]}}))
"""
"""What follows each: it says how long `work` took each time, and what it found at last."""
IN_TURN = """
import contextlib, json, time
import clgemm, hooked_calls
seconds, values = {"without": [], "with": []}, {}
for turn in range(TURNS + 1):
    for way in ("without", "with") if turn % 2 else ("with", "without"):
        with clgemm.interposed() if way == "with" else contextlib.nullcontext():
            begin = time.perf_counter()
            while time.perf_counter() < begin + 0.02:
                work()
            begin = time.perf_counter()
            values[way] = [float(x) for x in work()]
            seconds[way].append(time.perf_counter() - begin)
rows = clgemm.usage().rows
told = {"calls": sum(x.calls for x in rows), "device": sum(x.device_calls for x in rows)}
hooked = hooked_calls.seconds(hooked_calls.recorded(work))
told |= {"hooked": hooked, "values": values}
print(json.dumps({"seconds": {x: y[1:] for x, y in seconds.items()}} | told))
"""
"""The same with the slots written and restored in turn, in one process; the first turn is left
out, in which sides are tried and kernels built, and so are runs of 20 ms or one at the beginning of
each, after slots were written.  At last: the seconds of a run's calls that can be interposed."""
