"""The contracts catch what they are there for: each test fails on an object that is wrong in it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import date
from functools import cache

import pytest

import sailor
from sailor.interfaces import (
    LaunchSpec,
    PriceAnswer,
    PriceQuery,
    ProfileAnswer,
    ProfileRequest,
    SearchOutcome,
    WorkerGroup,
)
from sailor.model.hardware import EgressPrice, Link, Market, Price
from sailor.model.job import Training
from sailor.model.presets import preset
from sailor.model.problem import Problem
from sailor.registry import Registry
from sailor.testing import (
    AvailabilitySourceContract,
    BackendContract,
    Contract,
    CostTermContract,
    NetworkModelContract,
    PlannerContract,
    PriceSourceContract,
    ProfilerContract,
    ProfileSourceContract,
    ReportSinkContract,
    tiny_jobs,
)

ZONE = "us-central1-a"
QUERY = PriceQuery(ZONE, "a2-highgpu-1g", Market.ON_DEMAND)
GROUP = WorkerGroup(ZONE, "A100-40GB", "a2-highgpu-1g", 1)


class Fake:
    """An object with a name and the methods that it is given."""

    def __init__(self, **methods: Callable[..., object]) -> None:
        self.name = "fake"
        vars(self).update(methods)


def price_of(query: PriceQuery, usd_per_hour: float = 3.6) -> Price:
    return Price(
        zone=query.zone, node_type=query.node_type, market=query.market,
        usd_per_hour=usd_per_hour, source="test", as_of=date(2026, 1, 1),
    )  # fmt: skip


def prices(answer: Callable[[list[PriceQuery]], list[Price]]) -> Fake:
    def egress(pairs: object, context: object) -> object:
        told = {"usd_per_byte": 0.0, "source": "test", "as_of": date(2026, 1, 1)}
        return [EgressPrice(src="mars-1", dst="mars-1", **told)]

    return Fake(prices=lambda queries, context: PriceAnswer(answer(queries)), egress=egress)


class Profiling(ProfilerContract):
    def request(self):
        return ProfileRequest(preset("opt-350m"), "fp32", "V100-16GB")


class Prices(PriceSourceContract):
    def known(self):
        return [QUERY, replace(QUERY, market=Market.SPOT)]


def network(**changes: object) -> Fake:
    link = {"src": ZONE, "dst": ZONE, "latency_s": 1e-4, "bandwidth": 1e9, "source": "test"}
    return Fake(link=lambda src, dst, context: Link(**{**link, **changes}))


class Network(NetworkModelContract):
    def known(self):
        return [(GROUP, GROUP)]


class Slow(Link):
    """A link on which a large message takes less time than a small one."""

    def transfer_s(self, message_bytes: float) -> float:
        return 1.0 / message_bytes


class Profiles(ProfileSourceContract):
    def known(self):
        return preset("opt-350m"), Training(global_batch=8, precision="fp32"), "V100-16GB"


def profiles(grid: object, **methods: Callable[..., object]) -> Fake:
    embedded = Registry.load(entry_points=False).profile_source("embedded")
    own = {"grid": lambda *a: grid, "profile": embedded.profile, "footprint": embedded.footprint}
    return Fake(**{**own, **methods})


class Availability(AvailabilitySourceContract):
    pass


class Term(CostTermContract):
    def case(self):
        problem = problems()[0]
        plan = solved(problem)
        return problem, plan, sailor.simulate(tiny_jobs()[0], plan)


class Backend(BackendContract):
    def runnable(self):
        return tiny_jobs()[0], solved(problems()[0])

    def not_runnable(self):
        return self.runnable()


class Sink(ReportSinkContract):
    def results(self):
        return (sailor.optimize(tiny_jobs()[0]),)


@cache
def problems() -> tuple[Problem, ...]:
    return tuple(sailor.build_problem(job) for job in tiny_jobs())


@cache
def exhaustive():
    return Registry.load(entry_points=False).planner("exhaustive")


@cache
def solved(problem: Problem):
    outcome = (
        Registry.load(entry_points=False)
        .planner("dynamic")
        .solve(problem, sailor.Limits(), lambda _: None, lambda: False)
    )
    return outcome.plan


class Planner(PlannerContract):
    def problems(self):
        return (problems()[0], problems()[-1])

    def oracle(self):
        return planner(lambda problem, stop: SearchOutcome(None, reasons=("none",)))


def planner(answer: Callable[[Problem, bool], SearchOutcome]) -> Fake:
    return Fake(
        unsupported=lambda problem: (),
        solve=lambda problem, limits, progress, stop: answer(problem, stop()),
    )


def overfull(problem: Problem, stop: bool) -> SearchOutcome:
    """Put twice the batch into each pipeline: the plan misses the global batch."""
    plan = solved(problems()[0])
    doubled = [
        stage.model_copy(
            update={
                "replicas": tuple(
                    r.model_copy(update={"num_microbatches": 2 * r.num_microbatches})
                    for r in stage.replicas
                )
            }
        )
        for stage in plan.stages
    ]
    return SearchOutcome(plan.model_copy(update={"stages": tuple(doubled)}))


CALLS = iter(range(10_000))
TEXT = LaunchSpec({}, (("torchrun",),), {})

CASES = [
    (Prices, prices(lambda q: []), "known_queries_get_one_price_each"),
    (Prices, prices(lambda q: [price_of(x) for x in q] * 2), "known_queries_get_one_price_each"),
    (
        Prices,
        prices(lambda q: [price_of(x, 1.0 + i) for i, x in enumerate(q)]),
        "the_order_of_queries_does_not_matter",
    ),
    (Prices, prices(lambda q: [price_of(x) for x in q]), "an_unknown_node_is_left_out"),
    (Prices, prices(lambda q: []), "egress_answers_only_what_was_asked"),
    (Prices, Fake(), "follows_the_protocol"),
    (Network, Fake(link=lambda *a: None), "a_link_is_of_the_groups_that_were_asked_for"),
    (Network, network(dst="us-west1-b"), "a_link_is_of_the_groups_that_were_asked_for"),
    (Network, network(src_gpu="T4-16GB"), "a_link_is_of_the_groups_that_were_asked_for"),
    (
        Network,
        Fake(link=lambda *a: Slow(src=ZONE, dst=ZONE, latency_s=0.0, bandwidth=1.0, source="test")),
        "more_bytes_take_longer_and_never_less_than_the_latency",
    ),
    (Network, network(), "zones_of_unlike_providers_are_not_linked_by_guess"),
    (Profiles, profiles(()), "the_grid_is_not_empty_and_has_no_repeats"),
    (Profiles, profiles(((1, 1), (1, 1))), "the_grid_is_not_empty_and_has_no_repeats"),
    (
        Profiles,
        profiles(((1, 1),), profile=lambda *a: None),
        "every_point_of_the_grid_has_a_profile_and_a_footprint",
    ),
    (
        Profiles,
        profiles(((1, 1),), footprint=lambda *a: None),
        "every_point_of_the_grid_has_a_profile_and_a_footprint",
    ),
    (Profiles, profiles(((1, 1),)), "a_gpu_that_nobody_knows_is_not_profiled"),
    (
        Availability,
        Fake(offers=lambda job, context: job.pool * 2),
        "the_pool_is_one_that_a_job_could_write",
    ),
    (
        Availability,
        Fake(offers=lambda job, context: job.pool * (1 + next(CALLS))),
        "asking_twice_gives_the_same",
    ),
    (Term, Fake(usd_per_iteration=lambda *a: float("nan")), "the_term_is_finite_and_repeats"),
    (Term, Fake(usd_per_iteration=lambda *a: next(CALLS)), "the_term_is_finite_and_repeats"),
    (
        Backend,
        Fake(unsupported=lambda *a: ("no",), render=lambda *a: TEXT),
        "a_runnable_plan_renders_the_same_twice",
    ),
    (
        Backend,
        Fake(unsupported=lambda *a: (), render=lambda *a: replace(TEXT, commands=((7,),))),
        "a_runnable_plan_renders_the_same_twice",
    ),
    (
        Backend,
        Fake(
            unsupported=lambda *a: (), render=lambda *a: replace(TEXT, env={"N": f"{next(CALLS)}"})
        ),
        "a_runnable_plan_renders_the_same_twice",
    ),
    (
        Backend,
        Fake(unsupported=lambda *a: ("no",), render=lambda *a: TEXT),
        "a_plan_that_it_cannot_run_is_refused_in_words",
    ),
    (Profiling, Fake(unsupported=lambda request: ("no",)), "the_request_is_supported"),
    (
        Profiling,
        Fake(profile=lambda request, on_progress: ProfileAnswer()),
        "the_answer_is_of_what_was_asked",
    ),
    (
        Profiling,
        Fake(unsupported=lambda request: ()),
        "a_degree_that_does_not_divide_the_heads_is_refused",
    ),
    (Sink, Fake(write=lambda results: b"bytes"), "none_one_and_several_results_are_text"),
    (Sink, Fake(write=lambda results: "no line break"), "none_one_and_several_results_are_text"),
    (Sink, Fake(write=lambda results: f"{next(CALLS)}\n"), "writing_twice_gives_the_same"),
    (Planner, planner(overfull), "plans_can_be_run"),
    (
        Planner,
        planner(lambda problem, stop: SearchOutcome(None, reasons=("no",))),
        "plans_can_be_run",
    ),
    (Planner, planner(lambda problem, stop: SearchOutcome(None)), "no_plan_comes_with_reasons"),
    (
        Planner,
        planner(
            lambda problem, stop: SearchOutcome(solved(problem) if next(CALLS) % 4 < 2 else None)
        ),
        "a_seed_repeats",
    ),
    (
        Planner,
        planner(lambda problem, stop: SearchOutcome(solved(problem))),
        "it_does_not_beat_the_oracle",
    ),
    (
        Planner,
        planner(lambda p, stop: SearchOutcome(None if stop else solved(p), proven=True)),
        "it_stops_when_it_is_told_to",
    ),
]


@pytest.mark.parametrize(("suite", "wrong", "test"), CASES)
def test_a_wrong_object_fails(suite: type[Contract], wrong: object, test: str) -> None:
    broken = type(f"Broken{suite.__name__}", (suite,), {"provided": lambda self: wrong})()
    with pytest.raises((AssertionError, ValueError)):
        getattr(broken, f"test_{test}")()


def test_every_test_of_every_contract_is_shown_to_fail() -> None:
    shown = {(suite.__mro__[1], test) for suite, _, test in CASES}
    every = {
        (contract, name.removeprefix("test_"))
        for contract, _ in shown
        for name in vars(contract)
        if name.startswith("test_")
    }
    assert every - shown == set()
    assert len({contract for contract, _ in shown}) == 9
