"""Contract suites for plug-in authors: subclass one, say what to test, and pytest runs the rest.

    class TestAcmePrices(PriceSourceContract):
        def provided(self):
            return AcmePrices()

        def known(self):
            return [PriceQuery("acme-east-1", "acme-a100-8", Market.ON_DEMAND)]

Everything that ships with sailor passes these suites too.
"""

from __future__ import annotations

from sailor.testing.contract import Contract
from sailor.testing.outputs import BackendContract, CostTermContract, ReportSinkContract
from sailor.testing.planners import PlannerContract
from sailor.testing.profilers import ProfilerContract
from sailor.testing.sources import (
    AvailabilitySourceContract,
    NetworkModelContract,
    PriceSourceContract,
    ProfileSourceContract,
)
from sailor.testing.tiny import tiny_jobs

__all__ = [
    "AvailabilitySourceContract",
    "BackendContract",
    "Contract",
    "CostTermContract",
    "NetworkModelContract",
    "PlannerContract",
    "PriceSourceContract",
    "ProfileSourceContract",
    "ProfilerContract",
    "ReportSinkContract",
    "tiny_jobs",
]
