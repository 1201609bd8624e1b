"""Contracts of what answers questions when a job is resolved."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

from sailor.errors import SailorError
from sailor.interfaces import (
    AvailabilitySource,
    NetworkModel,
    PriceQuery,
    PriceSource,
    ProfileSource,
    SourceContext,
    WorkerGroup,
)
from sailor.model.arch import ModelSpec
from sailor.model.hardware import Market, NodeType, Zone
from sailor.model.job import CatalogAdditions, Job, Training, check_pool
from sailor.testing.contract import Contract, require
from sailor.testing.tiny import tiny_jobs

STRANGE_ZONE = "nowhere-1"
STRANGE_NODE = "nowhere-8"
STRANGE_GPU = "nobody-knows"


class PriceSourceContract(Contract[PriceSource]):
    """A price source answers what it was asked, and leaves out what it doesn't know."""

    protocol = PriceSource

    @abstractmethod
    def known(self) -> Sequence[PriceQuery]:
        """Return queries that the source has a price for."""

    def test_known_queries_get_one_price_each(self) -> None:
        """Nothing is missing, nothing is doubled, nothing was not asked for."""
        prices = self.provided().prices(self.known(), self.context()).prices
        answered = [PriceQuery(row.zone, row.node_type, row.market) for row in prices]
        require(
            len(answered) == len(set(answered)) and set(answered) == set(self.known()),
            f"asked for {list(self.known())}, answered {answered}",
        )

    def test_the_order_of_queries_does_not_matter(self) -> None:
        """A query gets the same price wherever it stands in the list."""
        source, known, context = self.provided(), list(self.known()), self.context()
        there = source.prices(known, context).prices
        back = source.prices(known[::-1], context).prices
        require(
            sorted(map(repr, there)) == sorted(map(repr, back)),
            "the prices depend on the order of the queries",
        )

    def test_an_unknown_node_is_left_out(self) -> None:
        """A node of a provider that nobody knows has no price, not a price of 0."""
        strange = [PriceQuery(STRANGE_ZONE, STRANGE_NODE, market) for market in Market]
        answer = self.provided().prices(strange, _with_strangers(self.context()))
        require(not answer.prices, f"{STRANGE_NODE} has a price: {answer.prices}")

    def test_egress_answers_only_what_was_asked(self) -> None:
        """Each pair of zones has at most one price, and only pairs that were asked."""
        zones = sorted({query.zone for query in self.known()})
        pairs = [(src, dst) for src in zones for dst in zones]
        found = [(row.src, row.dst) for row in self.provided().egress(pairs, self.context())]
        require(
            len(found) == len(set(found)) and set(found) <= set(pairs),
            f"asked for {pairs}, answered {found}",
        )


class ProfileSourceContract(Contract[ProfileSource]):
    """A profile source answers for its whole grid, and for nothing else with a zero."""

    protocol = ProfileSource

    @abstractmethod
    def known(self) -> tuple[ModelSpec, Training, str]:
        """Return a model, a training and a GPU type that the source has profiles for."""

    def test_the_grid_is_not_empty_and_has_no_repeats(self) -> None:
        """The (tp, microbatch) pairs are distinct."""
        grid = list(self.provided().grid(*self.known(), self.context()))
        require(bool(grid) and len(grid) == len(set(grid)), f"the grid is {grid}")

    def test_every_point_of_the_grid_has_a_profile_and_a_footprint(self) -> None:
        """The profile is of the model, GPU type, tp, microbatch and precision asked for."""
        source, context = self.provided(), self.context()
        model, training, gpu = self.known()
        for tp, microbatch in source.grid(model, training, gpu, context):
            found = source.profile(model, training, gpu, tp, microbatch, context)
            wanted = (model.name, gpu, tp, microbatch, training.precision)
            got = found and (found.model, found.gpu, found.tp, found.microbatch, found.precision)
            require(got == wanted, f"asked for {wanted}, answered {got}")
            require(
                source.footprint(model, training, tp, context) is not None,
                f"there is no footprint of {model.name} at tp {tp}",
            )

    def test_a_gpu_that_nobody_knows_is_not_profiled(self) -> None:
        """An empty grid and no profile, or an error that names it: no zeros, no other's figures."""
        source, context = self.provided(), self.context()
        model, training, _ = self.known()
        with suppress(SailorError):
            grid = source.grid(model, training, STRANGE_GPU, context)
            require(not grid, f"it has a grid for a GPU type that is in no catalogue: {grid}")
        with suppress(SailorError):
            found = source.profile(model, training, STRANGE_GPU, 1, 1, context)
            require(found is None, f"it has figures for one that is in no catalogue: {found}")


class NetworkModelContract(Contract[NetworkModel]):
    """A network model gives the link that was asked for, or None."""

    protocol = NetworkModel

    @abstractmethod
    def known(self) -> Sequence[tuple[WorkerGroup, WorkerGroup]]:
        """Return pairs of groups, sender first, that the model has a link for."""

    def test_a_link_is_of_the_groups_that_were_asked_for(self) -> None:
        """Zones agree; GPU types and numbers of workers agree where the link names them."""
        for src, dst in self.known():
            link = self.provided().link(src, dst, self.context())
            require(link is not None, f"there is no link from {src} to {dst}")
            if link is not None:
                require(
                    (link.src, link.dst) == (src.zone, dst.zone)
                    and link.src_gpu in (None, src.gpu)
                    and link.dst_gpu in (None, dst.gpu)
                    and link.src_workers in (None, src.workers)
                    and link.dst_workers in (None, dst.workers),
                    f"asked for {src} to {dst}, answered {link}",
                )

    def test_more_bytes_take_longer_and_never_less_than_the_latency(self) -> None:
        """Seconds rise with the message, from 1 B to 1 GiB."""
        for src, dst in self.known():
            link = self.provided().link(src, dst, self.context())
            if link is not None:
                seconds = [link.transfer_s(2.0**power) for power in range(31)]
                require(
                    seconds == sorted(seconds) and link.latency_s <= seconds[0] < math.inf,
                    f"seconds from {src} to {dst}, 1 B to 1 GiB: {seconds}",
                )

    def test_zones_of_unlike_providers_are_not_linked_by_guess(self) -> None:
        """A zone that nobody knows has no link to a known one."""
        src, _ = self.known()[0]
        strange = replace(src, zone=STRANGE_ZONE, node_type=STRANGE_NODE)
        link = self.provided().link(src, strange, _with_strangers(self.context()))
        require(link is None, f"a link to a zone of another provider was made up: {link}")


class AvailabilitySourceContract(Contract[AvailabilitySource]):
    """An availability source gives a pool that a job could have written."""

    protocol = AvailabilitySource

    def job(self) -> Job:
        """Return a job to ask for."""
        return tiny_jobs()[0]

    def test_the_pool_is_one_that_a_job_could_write(self) -> None:
        """Something is to be had, and no offer stands there twice."""
        check_pool(self.provided().offers(self.job(), self.context()))

    def test_asking_twice_gives_the_same(self) -> None:
        """The answer does not depend on earlier calls."""
        source = self.provided()
        first, second = (tuple(source.offers(self.job(), self.context())) for _ in range(2))
        require(first == second, f"first {first}, then {second}")


def _with_strangers(context: SourceContext) -> SourceContext:
    """Return the context with a zone and a node of a provider that nobody has heard of."""
    node = next(iter(context.catalog.nodes.values()))
    additions = CatalogAdditions(
        zones=(Zone(name=STRANGE_ZONE, region="nowhere", provider="nowhere"),),
        nodes=(
            NodeType.model_validate(
                {**node.model_dump(), "name": STRANGE_NODE, "provider": "nowhere"}
            ),
        ),
    )
    return replace(context, catalog=context.catalog.with_additions(additions))
