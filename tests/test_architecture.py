"""The house stands as drawn: who imports whom, how large functions are, what a wheel carries."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import zipfile
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

import pytest
from helpers import PATIENCE

import clgemm
from clgemm.kernels import FAMILIES, half, source

PACKAGE = Path(clgemm.__file__).parent
ROOT = PACKAGE.parent
FUNCTION_LINES = 45

LAYERS = (
    "lazy_imports layouts",
    "problem traits errors settings _version",
    "kernels",
    "runtime",
    "host",
    "streaming tuning",
    "dispatch",
    "api",
    "contraction",
    "blas",
    "interpose",
    "cli __main__ __init__",
)
"""From the ground up.  A module imports from its own layer and from those below it."""
RANK = {room: rank for rank, rooms in enumerate(LAYERS) for room in rooms.split()}

KERNELS_MAY_IMPORT = {"kernels", "problem", "traits", "errors", "settings"}
SEES_OPENCL = {"runtime", "streaming", "tuning", "dispatch", "api", "contraction"}
IMPORTS_SCIPY = {"host.scipy_blas", "errors"}
"""The second one for the class of SciPy's own error."""


class Import(NamedTuple):
    """One import statement's target."""

    module: str
    """Dotted, absolute; relative to the package and without its name if it is inside."""
    inside: bool
    """Of the package itself."""
    line: int


def module_name(path, package):
    return ".".join(path.relative_to(package).with_suffix("").parts)


def imported_names(node, module):
    """Give the absolute dotted names that an import statement may load."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        base = node.module or ""
        if node.level:
            parents = ["clgemm", *module.split(".")][: -node.level]
            base = ".".join([*parents, base] if base else parents)
        return [f"{base}.{alias.name}" for alias in node.names]
    if isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
        called = getattr(node.func, "id", getattr(node.func, "attr", None))
        if called in {"import_module", "__import__", "lazy_import"}:
            return [str(node.args[0].value)]
    return []


def imports_of(path, package):
    """List what a module imports, anywhere in it, for type checkers only or not."""
    module, found = module_name(path, package), []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        for name in imported_names(node, module):
            inside = name == "clgemm" or name.startswith("clgemm.")
            target = name
            if inside:
                target = resolve(name.split(".")[1:], package)
            found.append(Import(target, inside, getattr(node, "lineno", 0)))
    return found


def resolve(parts, package):
    """Find the module that holds a dotted name: the longest part of it that is a file or folder."""
    for length in range(len(parts), 0, -1):
        place = package.joinpath(*parts[:length])
        if place.with_suffix(".py").exists() or (place / "__init__.py").exists():
            return ".".join(parts[:length])
    return "__init__"


def room(module):
    return module.split(".", maxsplit=1)[0]


def may_kernels_import(found):
    if found.inside:
        return room(found.module) in KERNELS_MAY_IMPORT
    return room(found.module) in sys.stdlib_module_names | {"numpy"}


RULES = {
    "kernels are text and integers": lambda module, found: (
        room(module) != "kernels" or may_kernels_import(found)
    ),
    "only runtime/opencl.py knows pyopencl": lambda module, found: (
        room(found.module) not in {"pyopencl", "pytools"} or module == "runtime.opencl"
    ),
    "SciPy is imported where nobody can have replaced it": lambda module, found: (
        room(found.module) != "scipy" or module in IMPORTS_SCIPY
    ),
    "only what moves data or launches uses OpenCL": lambda module, found: (
        found.module != "runtime.opencl" or room(module) in SEES_OPENCL
    ),
    "that is upward": lambda module, found: (
        not found.inside or RANK.get(room(found.module), 99) <= RANK[room(module)]
    ),
    "the store keeps dicts": lambda module, found: (
        module != "tuning.store.store"
        or found.module == "kernels.source"  # hashes, by name
        or room(found.module) != "kernels"
    ),
    "a face sees no Config and no buffer": lambda module, found: (
        module not in {"blas", "api.matmul"} or room(found.module) not in {"kernels", "tuning"}
    ),
}
"""What must hold of each import, and what is said if it does not."""


def violations(package):
    """List every import that the house forbids, as sentences."""
    broken = []
    for path in sorted(package.rglob("*.py")):
        module = module_name(path, package)
        if room(module) not in RANK:
            broken.append(f"{module} has no place in LAYERS")
            continue
        for found in imports_of(path, package):
            where = f"{module}:{found.line} imports {found.module}"
            broken += [
                f"{where}: {text}" for text, holds in RULES.items() if not holds(module, found)
            ]
    return broken


def circles(package):
    """List the modules that import each other in a circle, for type checkers only or not."""
    graph = {
        module_name(path, package): {i.module for i in imports_of(path, package) if i.inside}
        - {module_name(path, package)}
        for path in package.rglob("*.py")
    }

    def reaches(start, goal, seen):
        for target in graph.get(start, ()):
            if target == goal or (
                target not in seen and not seen.add(target) and reaches(target, goal, seen)
            ):
                return True
        return False

    return sorted(module for module in graph if reaches(module, module, set()))


def test_the_page_of_the_house_has_this_list():
    page = ROOT / "docs" / "architecture.md"
    if not page.exists():
        pytest.skip("an installed clgemm has no pages beside it")
    text = page.read_text(encoding="utf-8").split("## Imports", 1)[1].split("```")[1]
    drawn = [set(line.split()) for line in text.split("\n")[1:] if line]
    unsaid = {"_version", "__main__", "__init__"}
    assert drawn[::-1] == [set(line.split()) - unsaid for line in LAYERS]


def test_no_module_imports_upward():
    assert violations(PACKAGE) == []


def test_no_module_imports_itself_by_way_of_others():
    assert circles(PACKAGE) == []


@pytest.mark.parametrize(
    ("module", "text", "complaint"),
    [
        ("dispatch.engine", "from clgemm import blas", "upward"),
        ("dispatch.engine", "from .. import blas", "upward"),
        ("dispatch.engine", "def f():\n    import clgemm.blas", "upward"),
        ("dispatch.engine", "import clgemm", "upward"),
        ("runtime.device", "from clgemm.tuning import tuner", "upward"),
        ("runtime.device", "from ..tuning import tuner", "upward"),
        (
            "runtime.device",
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from clgemm.tuning import x",
            "upward",
        ),
        ("kernels.family", "import pyopencl", "text and integers"),
        ("kernels.family", "import scipy", "text and integers"),
        ("dispatch.engine", "import scipy.linalg.blas", "SciPy is imported"),
        ("kernels.family", "from clgemm.runtime import device", "text and integers"),
        ("runtime.device", "import pyopencl as cl", "only runtime/opencl.py"),
        ("devices", "import problem", "no place"),
        ("dispatch.engine", "def f():\n    from scipy import linalg", "SciPy is imported"),
        ("tuning.store.store", "from clgemm.kernels import family", "keeps dicts"),
        ("blas", "from clgemm.tuning import tuner", "no Config"),
        ("host.blas", "from clgemm.runtime.opencl import cl", "only what moves data"),
        ("blas", "import importlib\nimportlib.import_module('pyopencl')", "knows pyopencl"),
        ("blas", "lazy_import('pyopencl')", "knows pyopencl"),
    ],
)
def test_a_violation_is_noticed(module, text, complaint, tmp_path):
    for name in ("blas", "dispatch.engine", "host.blas", "runtime.opencl", "runtime.device",
                 "tuning.tuner", "tuning.store.store", "kernels.family"):  # fmt: skip
        place = tmp_path.joinpath(*name.split(".")).with_suffix(".py")
        place.parent.mkdir(exist_ok=True, parents=True)
        (place.parent / "__init__.py").touch()
        place.touch()
    (tmp_path / "__init__.py").touch()
    assert violations(tmp_path) == []
    tmp_path.joinpath(*module.split(".")).with_suffix(".py").write_text(text)
    assert any(complaint in sentence for sentence in violations(tmp_path))


def test_numpys_matmul_is_looked_up_once():
    found = {
        module_name(path, PACKAGE)
        for path in PACKAGE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute) and ast.unparse(node) == "np.matmul"
    }
    assert found == {"host.blas"}


def test_the_library_leaves_the_filters_of_warnings_alone():
    """They are one list for all threads: who restores it undoes what another did meanwhile."""
    changes = {"catch_warnings", "filterwarnings", "resetwarnings", "simplefilter"}
    found = {
        module_name(path, PACKAGE)
        for path in PACKAGE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute) and node.attr in changes
    }
    assert found == {"cli.main"}  # whose process it is


def test_a_circle_is_noticed(tmp_path):
    (tmp_path / "problem.py").write_text("from clgemm import traits")
    (tmp_path / "traits.py").write_text("from clgemm import errors")
    (tmp_path / "errors.py").touch()
    assert circles(tmp_path) == []
    (tmp_path / "errors.py").write_text("from clgemm import problem")
    assert circles(tmp_path) == ["errors", "problem", "traits"]


@pytest.mark.process
def test_importing_clgemm_loads_no_opencl():
    program = """
import sys
import clgemm
loaded = [name for name in sys.modules if name.split(".")[0] in ("pyopencl", "pytools")]
assert not loaded, loaded
if sys.platform == "linux":
    maps = open("/proc/self/maps").read().lower()
    assert "opencl" not in maps and "pocl" not in maps and "intelocl" not in maps
assert clgemm.__all__ and all(hasattr(clgemm, name) for name in clgemm.__all__)
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=PATIENCE)


def modules():
    return sorted(PACKAGE.rglob("*.py"))


def test_the_top_of_the_package_is_short():
    assert len(list(PACKAGE.glob("*.py"))) <= 10


def test_each_package_says_what_is_in_it():
    """In its `__init__`, which has nothing else but the list of families."""
    for folder in (p.parent for p in PACKAGE.rglob("__init__.py") if p.parent != PACKAGE):
        text = ast.get_docstring(ast.parse((folder / "__init__.py").read_text("utf-8")))
        names = [p.stem for p in folder.glob("*.py") if p.stem != "__init__"]
        missing = [name for name in names if name not in text] if len(names) > 4 else []
        assert not missing, f"{folder.relative_to(ROOT)} does not name {missing}"


def functions(path):
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def function_lines(node):
    """Count a function's lines without its docstring."""
    lines = node.end_lineno - node.lineno + 1
    if ast.get_docstring(node) is not None:
        text = node.body[0]
        lines -= text.end_lineno - text.lineno + 1
    return lines


def test_functions_are_short():
    long = [
        f"{path.relative_to(ROOT)}:{node.lineno} {node.name}: {function_lines(node)} lines"
        for path in modules()
        for node in functions(path)
        if function_lines(node) > FUNCTION_LINES
    ]
    assert long == []


def public_definitions(body, prefix=""):
    for node in body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and not node.name.startswith("_"):
            yield prefix + node.name, node
            if isinstance(node, ast.ClassDef):
                yield from public_definitions(node.body, prefix + node.name + ".")


def test_everything_public_has_a_docstring():
    silent = []
    for path in modules():
        tree = ast.parse(path.read_text(encoding="utf-8"))
        if path.stat().st_size and not ast.get_docstring(tree):
            silent.append(str(path))
        silent += [
            f"{path.relative_to(ROOT)}: {name}"
            for name, node in public_definitions(tree.body)
            if not ast.get_docstring(node)
        ]
    assert silent == []


def test_every_kernel_file_is_used():
    """What no family is made of is dead text."""
    used = {"common.cl", *half.FILES} | {name for family in FAMILIES for name in family.files}
    kernels = PACKAGE / "kernels"
    assert {path.relative_to(kernels).as_posix() for path in kernels.rglob("*.cl")} == used


@pytest.mark.process
def test_kernel_files_are_read_as_resources(tmp_path):
    """A package in a zip archive has no files: only importlib.resources can read its data."""
    archive = tmp_path / "clgemm.zip"
    with zipfile.ZipFile(archive, "w") as packed:
        for path in sorted(PACKAGE.rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                packed.write(path, path.relative_to(ROOT))
    program = (
        "import clgemm; from clgemm.kernels import source;"
        "assert '.zip' in clgemm.__file__, clgemm.__file__;"
        "print(source.family_hash('direct'), len(source.read('common.cl')))"
    )
    run = subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | {"PYTHONPATH": str(archive)},
        cwd=tmp_path,
        check=True,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert run.stdout.split() == [source.family_hash("direct"), str(len(source.read("common.cl")))]


@pytest.fixture
def project():
    if sys.version_info < (3, 11):
        pytest.skip("tomllib comes with Python 3.11")
    import tomllib  # noqa: PLC0415 - see the line above

    if not (ROOT / "pyproject.toml").exists():
        pytest.skip("an installed clgemm has no pyproject.toml beside it")
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.usefixtures("project")
def test_a_wheel_carries_every_file(tmp_path):
    """What a wheel lacks is missed by users only: tests run from a checkout."""
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", tmp_path, ROOT]
    run = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    if run.returncode:
        pytest.skip(f"no wheel could be built here: {run.stderr[-200:]}")
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as packed:
        there = set(packed.namelist())
    wanted = {
        path.relative_to(ROOT).as_posix()
        for path in PACKAGE.rglob("*")
        if path.suffix in {".py", ".cl", ".json", ".typed"} or path.name == "py.typed"
    }
    assert wanted <= there


def test_the_command_line_is_an_entry_point(project):
    assert project["project"]["scripts"] == {"clgemm": "clgemm.cli.main:main"}


def test_what_is_required_is_what_is_imported(project):
    """Every third-party import has its requirement, and every requirement its import.

    What only an extra brings is asked for where it is used, and may be missing.
    """
    optional = {
        requirement.split(">")[0]
        for extra in ("bench", "test")
        for requirement in project["project"]["optional-dependencies"][extra]
    }
    required = {
        requirement.split(">")[0].split("=")[0].strip()
        for requirement in project["project"]["dependencies"]
    }
    imported = {
        room(i.module)
        for path in modules()
        for i in imports_of(path, PACKAGE)
        if not i.inside and not i.module.startswith(("numpy.", "typing_extensions"))
    } - set(sys.stdlib_module_names)
    assert imported - optional == required


def test_the_installed_version_is_the_package_s():
    assert metadata.version("clgemm") == clgemm.__version__
