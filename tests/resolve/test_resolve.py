"""What resolve makes of a job: places, prices, profiles, and every reason for leaving one out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sailor.api import build_problem, load_job, optimize
from sailor.errors import InputError
from sailor.model.result import Status

ROOT = Path(__file__).resolve().parents[2]
SOSP = ROOT / "examples" / "jobs" / "sosp25" / "prices.yaml"


A3_PRICE = {
    "zone": "us-central1-a", "node_type": "a3-highgpu-8g", "market": "on_demand",
    "usd_per_hour": "80 USD/h", "source": "our contract", "as_of": "2026-03-01",
}  # fmt: skip


def job(**changes: Any) -> dict[str, Any]:
    base: dict[str, Any] = {
        "name": "small",
        "model": "opt-350m",
        "training": {"global_batch": 64, "precision": "fp32"},
        "pool": [{"zone": "us-central1-a", "gpu": "A100-40GB", "quota": 8}],
        "sources": {"prices": {"file": str(SOSP)}},
    }
    return {**base, **changes}


def refused(**changes: Any) -> str:
    with pytest.raises(InputError) as caught:
        build_problem(job(**changes))
    return str(caught.value)


def test_a_quota_is_shared_by_every_shape_of_the_gpu() -> None:
    problem = build_problem(job())
    shapes = {p.node_type for p in problem.placements}
    assert {"a2-highgpu-1g", "a2-highgpu-4g", "a2-highgpu-8g"} <= shapes
    (capacity,) = problem.capacities
    assert capacity.max_gpus == 8
    assert len(capacity.placements) == len(problem.placements)
    by_shape = {p.node_type: p.usd_per_hour for p in problem.placements}
    assert by_shape["a2-highgpu-4g"] == pytest.approx(4 * 3.673385)


def test_a_quota_of_a_region_covers_its_zones() -> None:
    problem = build_problem(
        job(pool=[{"region": "us-central1", "gpu": "A100-40GB", "quota": 8,
                   "node_types": ["a2-highgpu-4g"]}])
    )  # fmt: skip
    zones = {p.zone for p in problem.placements}
    assert {"us-central1-a", "us-central1-b", "us-central1-c", "us-central1-f"} <= zones
    assert len(problem.capacities) == 1


def test_an_offer_without_a_price_is_left_out_with_the_reason() -> None:
    problem = build_problem(
        job(
            pool=[
                {"zone": "us-central1-a", "gpu": "A100-40GB", "quota": 8},
                {"zone": "us-central1-a", "gpu": "L4-24GB", "quota": 8},
            ],
            sources={"prices": {"file": str(SOSP)}, "profiles": ["embedded", "analytic"]},
        )
    )
    assert {problem.node(p.node_type).gpu for p in problem.placements} == {"A100-40GB"}
    assert any("g2-standard" in text and "us-central1-a" in text for text in problem.excluded)


def test_the_jobs_own_facts_come_first() -> None:
    own = {
        "zone": "us-central1-a",
        "node_type": "a2-highgpu-1g",
        "market": "on_demand",
        "usd_per_hour": "1.25 USD/h",
        "source": "our contract",
        "as_of": "2026-03-01",
    }
    problem = build_problem(job(catalog={"prices": [own]}))
    place = next(p for p in problem.placements if p.node_type == "a2-highgpu-1g")
    assert place.usd_per_hour == 1.25
    assert "our contract" in place.price_source
    link = {
        "src": "us-central1-a",
        "dst": "us-central1-a",
        "latency_s": "20 us",
        "bandwidth": "100 Gbit/s",
        "source": "iperf",
    }
    problem = build_problem(job(catalog={"links": [link]}))
    (only,) = problem.links
    assert (only.latency_s, only.bandwidth) == pytest.approx((2e-5, 12.5e9))


def test_constraints_leave_places_out_and_say_so() -> None:
    two = [{"zone": f"us-central1-{z}", "gpu": "A100-40GB", "quota": 8} for z in "ab"]
    problem = build_problem(job(pool=two, constraints={"zones": ["us-central1-b"]}))
    assert {p.zone for p in problem.placements} == {"us-central1-b"}
    assert any("constraints.zones" in text for text in problem.excluded)
    problem = build_problem(job(pool=two, constraints={"regions": ["us-west1"]}))
    assert problem.placements == ()
    result = optimize(job(pool=two, constraints={"regions": ["us-west1"]}))
    assert result.status is Status.INFEASIBLE
    assert "constraints.regions" in result.reasons[0]


def test_measured_and_modelled_times_are_not_mixed_on_one_gpu() -> None:
    problem = build_problem(job())
    assert {p.provenance.value for p in problem.profiles} == {"measured"}
    assert max(p.microbatch for p in problem.profiles) == 8  # the grid that was measured
    modelled = build_problem(job(training={"global_batch": 64, "precision": "bf16"}))
    assert {p.provenance.value for p in modelled.profiles} == {"modelled"}
    assert any("modelled from shapes" in text for text in modelled.assumptions)


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        ({"model": "opt-350"}, ["opt-350", "did you mean 'opt-350m'"]),
        ({"cost_model": "sailr"}, ["cost_model", "sailr", "'sailor'"]),
        (
            {"pool": [{"zone": "us-central1-z", "gpu": "A100-40GB", "quota": 8}]},
            ["pool[0].zone", "us-central1-z", "did you mean 'us-central1-"],
        ),
        (
            {"pool": [{"zone": "us-central1-a", "gpu": "A100-41GB", "quota": 8}]},
            ["pool[0].gpu", "A100-41GB", "A100-40GB"],
        ),
        (
            {"pool": [{"zone": "us-central1-a", "node_type": "p4d.24xlarge", "count": 1}]},
            ["p4d.24xlarge", "aws", "us-central1-a", "gcp"],
        ),
        ({"search_space": {"tp": [3]}}, ["search_space.tp", "tp 3", "16 heads", "allowed: 1, 2"]),
        ({"constraints": {"pp": 27}}, ["constraints.pp", "27 stages", "26 units"]),
        ({"constraints": {"dp": 65}}, ["constraints.dp", "65", "global batch 64"]),
        ({"constraints": {"microbatch": 128}}, ["constraints.microbatch", "128", "64"]),
        (
            {"cost_model": "published", "training": {"global_batch": 64, "precision": "bf16"}},
            ["cost_model", "fp32", "bf16"],
        ),
        ({"sources": {"prices": "gpc"}}, ["sources.prices", "gpc", "'gcp'"]),
        ({"cluster": "selen"}, ["cluster", "selen", "did you mean 'selene'"]),
        ({"cluster": {"link_share": 1.5}}, ["cluster.link_share", "1"]),
        (
            {"training": {"global_batch": 64, "ep": 2}},
            ["training", "ep 2 needs experts", "opt-350m has none"],
        ),
        (
            {"model": "mixtral-8x7b", "training": {"global_batch": 64, "ep": 3}},
            ["training", "num_experts 8 is not a multiple of ep 3"],
        ),
        (
            {
                "cost_model": "published",
                "training": {"global_batch": 64, "precision": "fp32", "cp": 2},
            },
            ["training", "cost model 'published' knows", "cost_model: sailor"],
        ),
    ],
)
def test_a_wrong_name_or_wish_gets_one_sentence(changes: dict[str, Any], parts: list[str]) -> None:
    text = refused(**changes)
    assert "\n" not in text
    for part in parts:
        assert part in text, text


def test_a_job_s_cluster_is_known_by_name_or_by_figures() -> None:
    usual = build_problem(job()).cluster
    assert (usual.name, usual.link_share, usual.nic_share) == ("unknown", 0.8, 0.8)
    assert (usual.host_factor, usual.link_step_s, usual.error_pct) == (1.0, 15e-6, 7.6)
    named = build_problem(job(cluster="mosaic-h100")).cluster
    assert (named.link_share, named.nic_share, named.host_factor) == (0.96, 0.94, 1.63)
    assert named.error_pct == 2.3
    measured = build_problem(job(cluster={"name": "selene", "link_share": 0.7})).cluster
    assert (measured.link_share, measured.nic_share) == (0.7, 0.79)
    assert measured.source.startswith("link_share as the job states; the rest: 8 HDR")


def test_the_cluster_reaches_profiles_and_links() -> None:
    """Half of the host's speed doubles launches; links that are assumed have the cards' share."""
    pool = [{"zone": "us-central1-a", "node_type": "a3-highgpu-8g", "count": 2}]
    fast, slow = (
        build_problem(
            job(
                pool=pool,
                training={"global_batch": 64},
                sources={"prices": {"file": str(SOSP)}, "network": ["zones"]},
                catalog={"prices": [A3_PRICE]},
                cluster=cluster,
            )
        )
        for cluster in ({}, {"host_factor": 2.0, "nic_share": 0.4})
    )
    for one, two in zip(fast.profiles, slow.profiles, strict=True):
        assert two.block_host.forward_s == pytest.approx(2 * one.block_host.forward_s)
        assert two.block == one.block
    card = fast.node("a3-highgpu-8g").nic_bandwidth
    assert {link.bandwidth for link in fast.links} == {0.8 * card}
    assert {link.bandwidth for link in slow.links} == {0.4 * card}


def test_cp_takes_its_gpus_of_one_node() -> None:
    """On nodes of 8 cp 4 leaves tp 1 and 2."""
    pool = [{"zone": "us-central1-a", "node_type": "a2-highgpu-8g", "count": 2}]
    problem = build_problem(job(pool=pool, training={"global_batch": 64, "cp": 4}))
    assert {profile.tp for profile in problem.profiles} == {1, 2}
    assert {profile.provenance.value for profile in problem.profiles} == {"modelled"}


def test_strict_makes_assumptions_errors() -> None:
    with pytest.raises(InputError, match="modelled from shapes"):
        build_problem(job(training={"global_batch": 64, "precision": "bf16"}), strict=True)


def test_a_model_that_fits_nowhere_says_what_is_needed() -> None:
    result = optimize(job(model="gpt-3-175b", training={"global_batch": 8, "precision": "bf16"}))
    assert result.status is Status.INFEASIBLE
    assert "offer more GPUs" in result.reasons[0]
    assert "GiB" in result.reasons[0]


def test_the_digest_is_of_content_not_of_paths(tmp_path: Path) -> None:
    problem = build_problem(job())
    copy = tmp_path / "other.yaml"
    copy.write_text(SOSP.read_text())
    again = build_problem(job(sources={"prices": {"file": str(copy)}}))
    assert again.digest() == problem.digest()
    copy.write_text(SOSP.read_text().replace("3.673385", "3.7"))
    assert build_problem(job(sources={"prices": {"file": str(copy)}})).digest() != problem.digest()


def test_paths_in_a_job_file_are_relative_to_it(tmp_path: Path) -> None:
    (tmp_path / "prices.yaml").write_text(SOSP.read_text())
    path = tmp_path / "job.yaml"
    path.write_text(
        "name: here\nmodel: opt-350m\ntraining: {global_batch: 64, precision: fp32}\n"
        "pool: [{zone: us-central1-a, gpu: A100-40GB, quota: 8}]\n"
        "sources: {prices: {file: prices.yaml}}\n"
    )
    assert load_job(path).sources.prices[0].path == str(tmp_path / "prices.yaml")
    assert build_problem(path).placements


def test_sizes_between_measured_ones_are_interpolated_and_said_to_be() -> None:
    """Microbatch 3 lies halfway between 2 and 4; 16 is beyond the measured 8."""
    problem = build_problem(job(search_space={"microbatch": [2, 3, 4, 16], "tp": [2]}))
    by_size = {p.microbatch: p for p in problem.profiles}
    assert sorted(by_size) == [2, 3, 4]
    middle = (by_size[2].block.forward_s + by_size[4].block.forward_s) / 2
    assert by_size[3].block.forward_s == pytest.approx(middle, rel=1e-12)
    assert by_size[3].source.startswith("interpolated between microbatch 2 and 4")
    assert any("microbatch 3, tp 2" in text for text in problem.assumptions)
    assert any("microbatch 16 at tp 2: outside" in text for text in problem.excluded)
    pinned = build_problem(job(constraints={"microbatch": 3, "tp": 2}))
    assert [p.microbatch for p in pinned.profiles] == [3]


@pytest.mark.parametrize("planner", ["dynamic", "exhaustive"])
def test_a_zone_pair_without_egress_price_is_avoided(tmp_path: Path, planner: str) -> None:
    """Twice the GPUs lie in two zones; bytes between them have no price, so one zone is used."""
    prices = tmp_path / "prices.yaml"
    prices.write_text(
        "schema_version: 1\nsource: test\nas_of: 2026-01-01\n"
        "prices: [{gpu: A100-40GB, usd_per_gpu_hour: 3}]\negress: {same_zone: 0}\n"
    )
    one, two = "a2-highgpu-1g", "a2-highgpu-2g"
    wanted = job(
        training={"global_batch": 64, "precision": "fp32"},
        pool=[
            {"zone": zone, "gpu": "A100-40GB", "quota": 2, "node_types": [one, two]}
            for zone in ("us-central1-a", "us-central1-b")
        ],
        sources={"prices": {"file": str(prices)}},
        constraints={"microbatch": 2, "pp": 1},
    )
    result = optimize(wanted, planner=planner)
    assert result.plan is not None
    assert len({r.zone for stage in result.plan.stages for r in stage.replicas}) == 1
    assert any("egress is unknown" in text for text in result.excluded)
