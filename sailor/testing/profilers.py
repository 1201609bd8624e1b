"""Contract of what measures or counts a model's units."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import replace
from functools import cached_property

from sailor.interfaces import ProfileAnswer, Profiler, ProfileRequest, Progress
from sailor.model.profile import LayerFootprint, LayerProfile
from sailor.testing.contract import Contract, require


class ProfilerContract(Contract[Profiler]):
    """A profiler answers for what it was asked, and names what it left out."""

    protocol = Profiler

    @abstractmethod
    def request(self) -> ProfileRequest:
        """Return a request that the profiler can take, with one tp and microbatch, and small."""

    @cached_property
    def answer(self) -> ProfileAnswer:
        """Return the answer to the request, asked for once in a test."""
        progress: list[Progress] = []
        return self.provided().profile(self.request(), progress.append)

    def test_the_request_is_supported(self) -> None:
        """No reason is given against it."""
        reasons = list(self.provided().unsupported(self.request()))
        require(not reasons, f"it can't take the request: {reasons}")

    def test_the_answer_is_of_what_was_asked(self) -> None:
        """Profiles and footprints are of the model, GPU type, sizes and precision asked for."""
        request, answer = self.request(), self.answer
        rows: list[LayerProfile | LayerFootprint] = [*answer.profiles, *answer.footprints]
        require(bool(rows), "it found nothing, and didn't say that it would not")
        for row in rows:
            require(
                (row.model, row.precision) == (request.model.name, request.precision)
                and row.tp in request.tps,
                f"asked for {request}, answered {row}",
            )
        for profile in answer.profiles:
            require(
                profile.gpu == request.gpu and profile.microbatch in request.microbatches,
                f"asked for {request}, answered {profile}",
            )

    def test_a_degree_that_does_not_divide_the_heads_is_refused(self) -> None:
        """`unsupported` says so, before anything runs."""
        request = self.request()
        odd = replace(request, tps=(request.model.num_heads + 1,))
        require(
            bool(self.provided().unsupported(odd)),
            f"it says nothing against tp {odd.tps[0]} with {request.model.num_heads} heads",
        )
