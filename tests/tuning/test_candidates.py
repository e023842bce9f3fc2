"""The order of candidates: known ones, defaults, neighbours, a sample; each once, and legal."""

# ruff: noqa: ARG002 - every method of a family takes the same arguments

from __future__ import annotations

from dataclasses import replace

import pytest
from helpers import CPU, GPU

from clgemm.kernels import BY_NAME, FAMILIES
from clgemm.kernels.family import Config, KernelFamily, Plan, Step
from clgemm.problem import PRECISIONS
from clgemm.tuning.outcome import Outcome
from clgemm.tuning.search.candidates import EVERY_OTHER, Candidates, Proposal

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
        kernel = self.spec("toy", S, Config.of("toy", {"X": config["X"]}), "")
        return Plan((Step(kernel, (1,), (1,), ()),))


def toy(x, y):
    return Config.of("toy", {"X": x, "Y": y})


def seconds(config):
    return 10.0 - config["X"] - config["Y"]


def tried(config, time=None, shape="square"):
    time = seconds(config) if time is None else time
    return Outcome(config, "ok", "", {shape: time}, 9)


def run(search, rate=seconds, limit=10_000):
    """Propose and report until nothing is left; return what was proposed."""
    proposals = []
    while (proposal := search.propose()) is not None:
        proposals.append(proposal.config)
        search.report(tried(proposal.config, rate(proposal.config)))
        assert len(proposals) <= limit
    return list(dict.fromkeys(proposals))


def only_walk(*arguments):
    """Search without the halving: its order would hide the walk's."""
    search = Candidates(*arguments)
    search.bracket = 0
    return search


def test_a_small_space_is_exhausted_without_repetition():
    """Only the halving comes back to a candidate, each time for longer."""
    family, proposals = Toy(), []
    search = Candidates([family], CPU, S)
    while (proposal := search.propose()) is not None:
        proposals.append(proposal)
        search.report(tried(proposal.config))
    assert len(set(proposals)) == len(proposals)
    assert {p.config for p in proposals} == set(family.candidates(CPU, S))
    efforts = {}
    for proposal in proposals:
        efforts.setdefault(proposal.config, []).append(proposal.effort)
    assert all(x in ([1], [0], [0, 1], [0, 1, 2]) for x in efforts.values())


@pytest.mark.parametrize("bracket", [2, 4, 7])
def test_the_better_half_of_a_sample_is_timed_for_longer(bracket):
    search = Candidates([Toy()], CPU, S)
    search.bracket = bracket
    assert search.propose() == Proposal(toy(0, 1), 1), "the default is no part of it"
    search.report(tried(toy(0, 1)))
    before, left, effort = [], bracket, 0
    while left:
        turn = []
        for _ in range(left):
            proposal = search.propose()
            assert proposal.effort == effort
            turn.append(proposal.config)
            search.report(tried(proposal.config))
        assert not before or turn == sorted(before, key=seconds)[:left]
        before, left, effort = turn, left // 2, effort + 1


def test_of_several_timings_the_last_counts():
    search = Candidates([Toy()], CPU, S)
    search.report(tried(toy(0, 1), 1.0))
    search.report(tried(toy(0, 1), 2.0))
    assert search.best() == {"square": 2.0}
    search.report(Outcome(toy(0, 1), "wrong", "in a later run"))
    assert search.best() == {}
    assert search.ranking("square") == []


def test_quick_tries_what_is_known_and_nothing_else():
    search = Candidates([Toy()], CPU, S, [toy(2, 0)], known_only=True)
    assert run(search) == [toy(2, 0), toy(0, 1)]


def test_a_known_one_stands_unless_another_is_clearly_faster():
    search = Candidates([Toy()], CPU, S, [toy(2, 0)])
    search.report(tried(toy(2, 0), 1.0))
    search.report(tried(toy(3, 0), 0.98))
    assert [o.config for o in search.ranking("square")] == [toy(2, 0), toy(3, 0)]
    search.report(tried(toy(3, 1), 0.9))
    assert search.ranking("square")[0].config == toy(3, 1)


def test_only_those_close_to_the_best_are_compared():
    search = Candidates([Toy()], CPU, S)
    times = {toy(3, 0): 1.0, toy(3, 1): 1.05, toy(2, 0): 1.07, toy(2, 1): 1.2}
    for config, time in times.items():
        search.report(tried(config, time))
    assert search.close_to_best("square", 9) == list(times)[:3]
    assert search.close_to_best("square", 2) == list(times)[:2]
    assert search.close_to_best("small", 9) == []


def test_finalists_lead_somewhere_or_in_their_family():
    search = Candidates([Toy(), BY_NAME["cpu_packed"]], CPU, S)
    packed = BY_NAME["cpu_packed"].default(CPU, S)
    for config, square, small in [(toy(3, 0), 1.0, 9.0), (toy(3, 1), 1.05, 9.0),
                                  (toy(2, 0), 1.3, 3.0), (packed, 2.0, 7.0)]:  # fmt: skip
        search.report(Outcome(config, "ok", "", {"square": square, "small": small}, 9))
    every = [toy(3, 0), toy(2, 0), packed, toy(3, 1)]
    assert search.finalists(9) == every, "leaders, each family's best, then those close behind"
    assert search.finalists(3) == every[:3]
    search.report(Outcome(packed, "wrong", "as a finalist"))
    assert packed not in search.finalists(9)


def test_a_large_space_does_not_drown_a_small_one():
    families = [BY_NAME["cpu_packed"], Toy()]
    search = Candidates(families, CPU, S)
    search.bracket = 6
    sampled = []
    for _ in range(2 + 6):
        proposal = search.propose()
        sampled.append(proposal.config.family)
        search.report(tried(proposal.config, 1.0))
    assert sampled[2:].count("toy") == 3


def test_known_ones_come_first_then_the_default_then_neighbours():
    known = [toy(2, 0), toy(0, 3)]
    search = only_walk([Toy()], CPU, S, known)
    proposals = run(search, lambda c: 1.0 if c == toy(0, 3) else 9.0)
    assert proposals[:3] == [toy(2, 0), toy(0, 3), toy(0, 1)]
    near = {toy(1, 3), toy(2, 3), toy(3, 3), toy(0, 2)}  # of (0, 3), which stays the best
    assert set(proposals[3 : 3 + EVERY_OTHER - 1]) <= near, "then one of the sample"


def test_known_ones_that_do_not_fit_are_left_out():
    misfits = [
        toy(1, 1),
        toy(1, 2),
        Config.of("toy", {"X": 0}),
        Config.of("toy", {"X": 0, "Y": 1, "Z": 2}),
        Config.of("unknown", {"X": 0, "Y": 1}),
    ]
    proposals = run(Candidates([Toy()], CPU, S, misfits))
    assert proposals[0] == toy(0, 1)
    assert not set(misfits) & set(proposals)


def test_a_neighbour_differs_in_one_parameter_until_none_is_left():
    search = only_walk([Toy()], CPU, S)
    start = search.propose().config
    search.report(tried(start))
    for count in range(1, EVERY_OTHER):
        config = search.propose().config
        changed = [n for n in "XY" if config[n] != start[n]]
        assert len(changed) == 1, count
        search.report(tried(config, 99.0))  # the start stays the best


def test_neighbours_whose_kernels_are_built_come_first():
    """X is a define of the kernel, Y is its plan's."""
    search = only_walk([Toy()], CPU, S)
    start = search.propose().config
    search.report(tried(start, 1.0))
    near = []
    for _ in range(2):
        near.append(search.propose().config)
        search.report(tried(near[-1], 9.0))
    assert [c["X"] for c in near] == [start["X"]] * 2


def test_one_in_so_many_comes_from_the_sample():
    """Where every neighbour is as good, the walk alone would never leave the first corner."""
    search = only_walk([BY_NAME["cpu_packed"]], CPU, S)
    proposals = []
    for _ in range(1 + 4 * EVERY_OTHER):
        config = search.propose().config
        proposals.append(config)
        search.report(tried(config, 1.0 if not proposals[1:] else 2.0))
    distances = [
        sum(a != b for a, b in zip(c.params, proposals[0].params, strict=True)) for c in proposals
    ]
    assert max(distances[EVERY_OTHER::EVERY_OTHER]) > 2
    assert set(distances[1:EVERY_OTHER]) == {1}


def test_the_walk_finds_the_best_long_before_the_end():
    space = set(BY_NAME["cpu_packed"].candidates(CPU, S))
    goal = max(space, key=lambda c: c.params)

    def rate(config):
        return 1.0 + sum(a != b for a, b in zip(config.params, goal.params, strict=True))

    search, proposals = Candidates([BY_NAME["cpu_packed"]], CPU, S), []
    while goal not in proposals:
        proposals.append(search.propose().config)
        search.report(tried(proposals[-1], rate(proposals[-1])))
    assert len(proposals) < len(space) // 2


@pytest.mark.parametrize("code", "sdcz")
@pytest.mark.parametrize("traits", [CPU, GPU, replace(CPU, simd_bytes=16)], ids=lambda t: t.name)
def test_proposals_obey_the_rules(traits, code):
    precision = PRECISIONS[code]
    families = [f for f in FAMILIES if f.supports(traits, precision) and f.worth_tuning(traits)]
    search = Candidates(families, traits, precision)
    for count in range(40):
        proposal = search.propose()
        if proposal is None:
            break
        config = proposal.config
        family = BY_NAME[config.family]
        assert family.is_valid(traits, precision, config)
        assert list(family.broken_rules(traits, precision, config)) == []
        # Of the sizes, some like large tiles and some small ones.
        time = 2.0 + (-1.0) ** count * dict(config.params).get("NR", 0) / 100
        search.report(Outcome(config, "ok", "", {"square": time, "small": 4 - time}, 9))
    assert count > 5


def test_equal_searches_propose_the_same():
    families = [BY_NAME["cpu_packed"]]

    def some():
        search = Candidates(families, CPU, S)
        for _ in range(30):
            config = search.propose().config
            yield config
            search.report(tried(config, 1.0 / config["NR"]))

    assert list(some()) == list(some())


def test_what_failed_earlier_is_never_proposed():
    search = Candidates([Toy()], CPU, S)
    for config in (toy(0, 1), toy(3, 3)):
        search.report(Outcome(config, "crash", "in an earlier search"))
    proposals = run(search)
    assert len(proposals) == 10
    assert not {toy(0, 1), toy(3, 3)} & set(proposals)


def test_what_failed_is_not_proposed_again_and_never_ranks():
    search = Candidates([Toy()], CPU, S)
    proposed = []
    while (proposal := search.propose()) is not None:
        config = proposal.config
        proposed.append(config)
        ok = config == toy(2, 0)
        search.report(tried(config) if ok else Outcome(config, "crash", "ended with -11"))
    assert len(set(proposed)) == 12
    assert all(proposed.count(c) == 1 for c in proposed if c != toy(2, 0))
    assert [outcome.config for outcome in search.ranking("square")] == [toy(2, 0)]


def test_ranking_and_best_are_per_shape():
    search = Candidates([Toy()], CPU, S)
    search.report(Outcome(toy(0, 1), "ok", "", {"square": 1.0, "small": 5.0}, 9))
    search.report(Outcome(toy(0, 2), "ok", "", {"square": 2.0, "small": 3.0}, 9))
    search.report(Outcome(toy(0, 3), "wrong", "", {"square": 0.1, "small": 0.1}, 9))
    search.report(Outcome(toy(1, 0), "ok", "", {"square": 1.5}, 9))
    assert search.best() == {"square": 1.0, "small": 3.0}
    assert [o.config for o in search.ranking("square")] == [toy(0, 1), toy(1, 0), toy(0, 2)]
    # What was not timed with a shape, as a family may decline it, does not rank there.
    assert [o.config for o in search.ranking("small")] == [toy(0, 2), toy(0, 1)]


def test_neighbours_of_every_shape_s_best_are_tried():
    """With two winners far apart both neighbourhoods get their turn."""
    search = Candidates([Toy()], CPU, S)
    search.report(Outcome(toy(0, 1), "ok", "", {"square": 1.0, "small": 9.0}, 9))
    search.report(Outcome(toy(3, 3), "ok", "", {"square": 9.0, "small": 1.0}, 9))
    proposals = run(search, lambda _: 99.0)
    assert set(proposals) | {toy(0, 1), toy(3, 3)} == set(Toy().candidates(CPU, S))


def test_no_family_no_candidate():
    assert Candidates([], CPU, S).propose() is None


def test_what_is_ahead_is_what_will_be_proposed():
    """Known ones and defaults, then the sample; on the walk the best one's neighbours first."""
    known = toy(3, 1)
    search = Candidates([Toy()], CPU, S, [known])
    ahead = list(search.ahead())
    assert ahead[:2] == [known, toy(0, 1)]
    assert set(ahead) == set(Toy().candidates(CPU, S))
    search.bracket = 3
    proposed = []
    for _ in range(5):
        proposed.append(search.propose().config)
        search.report(tried(proposed[-1], 1.0 if proposed[-1] == known else 9.0))
    assert proposed == list(dict.fromkeys(ahead))[:5], "before anything is known"
    while search.propose().effort != 1:  # the rest of the halving
        pass
    near = search.propose().config
    search.report(tried(near, 9.0))
    changes = [sum(c[name] != known[name] for name in "XY") for c in search.ahead()]
    assert changes[0] == 1, "the sample may be anything"
    assert near not in set(search.ahead())


def test_nothing_but_known_ones_is_ahead_of_a_quick_search():
    search = Candidates([Toy()], CPU, S, [toy(3, 1)], known_only=True)
    assert list(search.ahead()) == [toy(3, 1), toy(0, 1)]
