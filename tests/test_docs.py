"""README and docs are right: what they show runs, and what they name is there."""

from __future__ import annotations

import logging
import re
import shlex
import subprocess
import sys
from functools import lru_cache
from pathlib import Path

import pytest

from clgemm import settings
from clgemm.cli import main
from clgemm.dispatch import route, trial
from clgemm.runtime import registry

ROOT = Path(__file__).parents[1]
if not (ROOT / "README.md").exists():
    pytest.skip("an installed clgemm has no pages beside it", allow_module_level=True)

README = ROOT / "README.md"
PAGES = [README, *sorted(ROOT.glob("SECURITY.md")), *sorted((ROOT / "docs").glob("*.md"))]
README_LINES = 130
PLACES = (ROOT, ROOT / "clgemm", ROOT / "clgemm" / "kernels")
"""Where a path in a page may begin."""

FENCED = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
SPAN = re.compile(r"`([^`]+)`")
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
COMMAND = re.compile(r"(?:-m )?\bclgemm ((?:-v )?(?:info|cache|tune|run|explain|demo)\b[^#|&`]*)")
SCRIPT = re.compile(r"python ((?:bench|tests)/[\w/]+\.py)( [^#|&`]*)?")
OPTION = re.compile(r"(?<!\S)--[a-z][a-z-]*")
OURS = ("bench/", "tests/", "docs/", ".ci/", "clgemm/")
PATH = re.compile(r"(?:[\w.-]+/)+[\w.-]*|[\w-]+\.(?:py|cl|md|toml)")
ENDS = (".py", ".cl", ".md", ".json", "/")
MARKS = ("demo", "test")


def text_of(page):
    return page.read_text(encoding="utf-8")


def blocks(page, language):
    """List the fenced blocks of a page in one language."""
    return [text for name, text in FENCED.findall(text_of(page)) if name == language]


def prose(page):
    """Return a page without its fenced blocks, lines of a sentence joined."""
    return re.sub(r"(?<=\S)\n(?=\S)", " ", FENCED.sub("", text_of(page)))


def shell_lines(page):
    """List what a page shows for a shell: lines of blocks without comments, and spans."""
    shown = "".join(blocks(page, "sh")).splitlines()
    return [line.split(" #")[0] for line in shown] + SPAN.findall(prose(page))


def commands(page):
    """List the arguments of clgemm's command line that a page shows."""
    return [m.group(1).strip() for line in shell_lines(page) for m in COMMAND.finditer(line)]


def scripts(page):
    """List the scripts of this repository that a page runs, and the options it gives them."""
    found = {m.groups() for line in shell_lines(page) for m in SCRIPT.finditer(line)}
    return {(script, option) for script, given in found for option in OPTION.findall(given or "")}


def paths(page):
    """List the files and folders of this repository that a page names."""
    found = []
    for span in SPAN.findall(prose(page)):
        found += [word for word in span.split() if word.startswith(OURS)]
        if PATH.fullmatch(span) and span.endswith(ENDS):
            found.append(span)
    for line in "".join(blocks(page, "sh")).splitlines():
        found += [word for word in line.split() if word.startswith(OURS)]
    return sorted(set(found))


def is_there(path):
    return any((place / path).exists() for place in PLACES)


def anchors(page):
    """Give the names that links may have for a page's headings."""
    kept = (re.sub(r"[^\w\- ]", "", heading.lower()) for heading in HEADING.findall(text_of(page)))
    return {heading.replace(" ", "-") for heading in kept}


def named(page):
    return str(page.relative_to(ROOT))


every_page = pytest.mark.parametrize("page", PAGES, ids=named)


@pytest.fixture
def log():
    """Give the logger that examples may set up, and leave it as it was."""
    logger, root = logging.getLogger("clgemm"), logging.getLogger()
    level, handlers = logger.level, list(root.handlers)
    yield logger
    logger.setLevel(level)
    root.handlers[:] = handlers


@pytest.mark.parametrize("page", [p for p in PAGES if blocks(p, "python")], ids=named)
@pytest.mark.usefixtures("log")
def test_the_examples_of_a_page_run_one_after_the_other(page, device):
    names = {"__name__": named(page)}
    with registry.using(device):
        for number, example in enumerate(blocks(page, "python"), 1):
            exec(compile(example, f"{named(page)}, example {number}", "exec"), names)  # noqa: S102


def complaint(command, capsys):
    """Say what the command line's parser has against arguments, "" if nothing."""
    try:
        main.parser().parse_args(shlex.split(command))
    except SystemExit as ended:
        return capsys.readouterr().err if ended.code else ""
    return ""


@every_page
def test_every_command_line_can_be_read(page, capsys):
    refused = {command: complaint(command, capsys) for command in commands(page)}
    assert [f"{command}: {why}" for command, why in refused.items() if why] == []


@lru_cache
def options(script):
    """Return what a script says of its options."""
    return subprocess.run(
        [sys.executable, ROOT / script, "--help"], capture_output=True, text=True, check=True
    ).stdout


@every_page
def test_every_option_of_a_script_is_one(page):
    unknown = [
        f"{script} {option}"
        for script, option in sorted(scripts(page))
        if option not in OPTION.findall(options(script).replace("[", " ").replace("]", " "))
    ]
    assert unknown == []


@every_page
def test_every_path_is_there(page):
    assert [path for path in paths(page) if not is_there(path)] == []


@every_page
def test_every_link_leads_somewhere(page):
    broken = []
    for target in LINK.findall(prose(page)):
        if target.startswith("https://"):
            continue
        file, _, anchor = target.partition("#")
        goal = page.parent / file if file else page
        if not goal.exists() or (anchor and anchor not in anchors(goal)):
            broken.append(target)
    assert broken == []


@every_page
def test_every_environment_variable_is_one(page):
    read = set(re.findall(r"CLGEMM_[A-Z0-9_]+", text_of(Path(settings.__file__))))
    assert set(re.findall(r"CLGEMM_[A-Z0-9_]+", text_of(page))) <= read


def test_every_environment_variable_is_explained():
    read = set(re.findall(r"CLGEMM_[A-Z0-9_]+", text_of(Path(settings.__file__))))
    page = text_of(ROOT / "docs" / "tuning.md")
    assert set(re.findall(r"^\| `(CLGEMM_\w+)`", page, re.MULTILINE)) == read


def test_every_marker_is_explained(pytestconfig):
    page = text_of(ROOT / "docs" / "contributing.md")
    ours = {"contract", "device", "families(*names)", "process", "slow"}
    assert set(re.findall(r"^\| `([\w()*]+)` \|", page, re.MULTILINE)) == ours
    assert ours <= {line.split(":")[0] for line in pytestconfig.getini("markers")}


def test_every_page_is_linked_from_the_readme():
    linked = {(ROOT / target.partition("#")[0]).resolve() for target in LINK.findall(prose(README))}
    assert [named(page) for page in PAGES if page != README and page.resolve() not in linked] == []


def test_pages_name_the_limits_in_force():
    tuning, n = ROOT / "docs" / "tuning.md", round((route.SMALL_FLOPS / 2) ** (1 / 3))
    cube = f"{n} \N{MULTIPLICATION SIGN} {n} \N{MULTIPLICATION SIGN} {n}"
    for page in (README, ROOT / "docs" / "architecture.md", tuning):
        assert f"up to {cube}" in prose(page).replace("Up to", "up to")
    longest = f"the lesser one below {1e3 * route.LONGEST:g} ms"
    assert f"within a factor of {trial.NEAR:g}, and {longest}" in prose(tuning)


def test_the_readme_is_short():
    assert len(text_of(README).splitlines()) <= README_LINES


@pytest.mark.parametrize("mark", MARKS)
def test_the_command_that_is_run_for_every_change_follows_its_mark(mark):
    """As `.ci/run` finds it: a comment, the beginning of a block, one line, the end."""
    lines = text_of(README).splitlines()
    place = lines.index(f"<!-- {mark} -->")
    assert (lines[place + 1], lines[place + 3]) == ("```sh", "```")
    assert lines[place + 2].startswith("python3 -m venv ")


def test_what_pages_show_is_found():
    """The tests above would pass where nothing is found."""
    assert {"info", "tune --precision s", "explain 300 4096x37x513 --precision sd"} <= set(
        commands(README)
    )
    assert "-v explain 300" in commands(ROOT / "docs" / "tuning.md")
    assert {("bench/bench_shapes.py", "--seed"), ("bench/bench_gemm.py", "--set")} <= scripts(
        ROOT / "docs" / "performance.md"
    )
    assert {"bench/bench_gemm.py", "bench/results/"} <= set(
        paths(ROOT / "docs" / "contributing.md")
    )
    found = paths(ROOT / "docs" / "architecture.md")
    assert {"dispatch/route.py", "kernels/__init__.py", "api/", "problem.py"} <= set(found)
    assert "add-a-family" in anchors(ROOT / "docs" / "kernels.md")
    assert not is_there("dispatch/nothing.py")
