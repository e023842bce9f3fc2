"""The order of candidates: known ones, defaults, neighbours, a sample; each once, and legal."""

# ruff: noqa: ARG002 - every method of a family takes the same arguments

from __future__ import annotations

from dataclasses import replace

import pytest
from helpers import CPU, GPU

from clgemm.kernels import BY_NAME, FAMILIES
from clgemm.kernels.family import Config, KernelFamily
from clgemm.problem import PRECISIONS
from clgemm.tuning.search import EVERY_OTHER, Search
from clgemm.tuning.trial import Outcome

S = PRECISIONS["s"]


class Toy(KernelFamily):
    """Sixteen points, four of which break a rule; X=3, Y=3 is the fastest."""

    name = "toy"
    files = ()

    def supports(self, traits, precision):
        return True

    def space(self, traits, precision):
        return {"X": (0, 1, 2, 3), "Y": (0, 1, 2, 3)}

    def default(self, traits, precision):
        return Config.of("toy", {"X": 0, "Y": 1})

    def broken_rules(self, traits, precision, config):
        if config["X"] == config["Y"] != 3 or (config["X"], config["Y"]) == (1, 2):
            yield "X and Y differ, below 3"

    def plan(self, traits, problem, config):
        raise NotImplementedError


def toy(x, y):
    return Config.of("toy", {"X": x, "Y": y})


def seconds(config):
    return 10.0 - config["X"] - config["Y"]


def tried(config, time=None, size_class="large"):
    time = seconds(config) if time is None else time
    return Outcome(config, "ok", "", {size_class: time}, {size_class: (9, 9, 9)})


def run(search, rate=seconds, limit=10_000):
    """Propose and report until nothing is left; return what was proposed."""
    proposals = []
    while (config := search.propose()) is not None:
        proposals.append(config)
        search.report(tried(config, rate(config)))
        assert len(proposals) <= limit
    return proposals


def test_a_small_space_is_exhausted_without_repetition():
    family = Toy()
    proposals = run(Search([family], CPU, S))
    assert len(set(proposals)) == len(proposals) == 12
    assert set(proposals) == set(family.candidates(CPU, S))


def test_known_ones_come_first_then_the_default_then_neighbours():
    known = [toy(2, 0), toy(0, 3)]
    proposals = run(Search([Toy()], CPU, S, known), lambda c: 1.0 if c == toy(0, 3) else 9.0)
    assert proposals[:3] == [toy(2, 0), toy(0, 3), toy(0, 1)]
    near = {toy(1, 3), toy(2, 3), toy(3, 3), toy(0, 2)}  # of (0, 3), which stays the best
    assert set(proposals[4:7]) <= near, "the fourth is one of the sample"


def test_known_ones_that_do_not_fit_are_left_out():
    misfits = [
        toy(1, 1),
        toy(1, 2),
        Config.of("toy", {"X": 0}),
        Config.of("toy", {"X": 0, "Y": 1, "Z": 2}),
        Config.of("unknown", {"X": 0, "Y": 1}),
    ]
    proposals = run(Search([Toy()], CPU, S, misfits))
    assert proposals[0] == toy(0, 1)
    assert not set(misfits) & set(proposals)


def test_a_neighbour_differs_in_one_parameter_until_none_is_left():
    search = Search([Toy()], CPU, S)
    start = search.propose()
    search.report(tried(start))
    for count in range(2, 2 + EVERY_OTHER - 2):
        config = search.propose()
        changed = [n for n in "XY" if config[n] != start[n]]
        assert len(changed) == 1, count
        search.report(tried(config, 99.0))  # the start stays the best


def test_one_in_so_many_comes_from_the_sample():
    """Where every neighbour is as good, the walk alone would never leave the first corner."""
    family = BY_NAME["cpu_packed"]
    search = Search([family], CPU, S)
    proposals = []
    for _ in range(2 * EVERY_OTHER):
        config = search.propose()
        proposals.append(config)
        search.report(tried(config, 1.0 if not proposals[1:] else 2.0))
    distances = [
        sum(a != b for a, b in zip(c.params, proposals[0].params, strict=True)) for c in proposals
    ]
    assert max(distances[EVERY_OTHER - 1], distances[2 * EVERY_OTHER - 1]) > 2
    assert set(distances[1 : EVERY_OTHER - 1]) == {1}


def test_the_walk_finds_the_best_long_before_the_end():
    space = set(BY_NAME["cpu_packed"].candidates(CPU, S))
    goal = max(space, key=lambda c: c.params)

    def rate(config):
        return 1.0 + sum(a != b for a, b in zip(config.params, goal.params, strict=True))

    search, proposals = Search([BY_NAME["cpu_packed"]], CPU, S), []
    while goal not in proposals:
        proposals.append(search.propose())
        search.report(tried(proposals[-1], rate(proposals[-1])))
    assert len(proposals) < len(space) // 2


@pytest.mark.parametrize("code", "sdcz")
@pytest.mark.parametrize("traits", [CPU, GPU, replace(CPU, simd_bytes=16)], ids=lambda t: t.name)
def test_proposals_obey_the_rules(traits, code):
    precision = PRECISIONS[code]
    families = [f for f in FAMILIES if f.supports(traits, precision) and f.worth_tuning(traits)]
    search = Search(families, traits, precision)
    for count in range(40):
        config = search.propose()
        if config is None:
            break
        family = BY_NAME[config.family]
        assert family.is_valid(traits, precision, config)
        assert list(family.broken_rules(traits, precision, config)) == []
        # Of the sizes, some like large tiles and some small ones.
        time = 2.0 + (-1.0) ** count * dict(config.params).get("NR", 0) / 100
        search.report(Outcome(config, "ok", "", {"large": time, "small": 4 - time}, {}))
    assert count > 5


def test_equal_searches_propose_the_same():
    families = [BY_NAME["cpu_packed"]]

    def some():
        search = Search(families, CPU, S)
        for _ in range(30):
            config = search.propose()
            yield config
            search.report(tried(config, 1.0 / config["NR"]))

    assert list(some()) == list(some())


def test_what_is_skipped_is_never_proposed():
    search = Search([Toy()], CPU, S)
    for config in (toy(0, 1), toy(3, 3)):
        search.skip(config)
    proposals = run(search)
    assert len(proposals) == 10
    assert not {toy(0, 1), toy(3, 3)} & set(proposals)


def test_what_failed_is_not_proposed_again_and_never_ranks():
    search = Search([Toy()], CPU, S)
    count = 0
    while (config := search.propose()) is not None:
        count += 1
        ok = config == toy(2, 0)
        search.report(tried(config) if ok else Outcome(config, "crash", "ended with -11"))
    assert count == 12
    assert [outcome.config for outcome in search.ranking("large")] == [toy(2, 0)]


def test_ranking_and_best_are_per_size_class():
    search = Search([Toy()], CPU, S)
    search.report(Outcome(toy(0, 1), "ok", "", {"large": 1.0, "small": 5.0}, {}))
    search.report(Outcome(toy(0, 2), "ok", "", {"large": 2.0, "small": 3.0}, {}))
    search.report(Outcome(toy(0, 3), "wrong", "", {"large": 0.1, "small": 0.1}, {}))
    search.report(Outcome(toy(1, 0), "ok", "", {"large": 1.5}, {}))
    assert search.best() == {"large": 1.0, "small": 3.0}
    assert [o.config for o in search.ranking("large")] == [toy(0, 1), toy(1, 0), toy(0, 2)]
    # What was not timed in a class, as a family may decline it, does not rank there.
    assert [o.config for o in search.ranking("small")] == [toy(0, 2), toy(0, 1)]


def test_neighbours_of_every_size_class_s_best_are_tried():
    """With two winners far apart both neighbourhoods get their turn."""
    search = Search([Toy()], CPU, S)
    search.report(Outcome(toy(0, 1), "ok", "", {"large": 1.0, "small": 9.0}, {}))
    search.report(Outcome(toy(3, 3), "ok", "", {"large": 9.0, "small": 1.0}, {}))
    proposals = run(search, lambda _: 99.0)
    assert set(proposals) | {toy(0, 1), toy(3, 3)} == set(Toy().candidates(CPU, S))


def test_no_family_no_candidate():
    assert Search([], CPU, S).propose() is None
