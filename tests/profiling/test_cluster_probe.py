"""The cluster probe: its fit on made-up times, and real processes over loopback."""

from __future__ import annotations

import math
import re
import socket
import subprocess
import threading
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

from sailor import load_job
from sailor.cli.app import build
from sailor.cli.session import Session
from sailor.errors import InputError
from sailor.model.catalog import Catalog
from sailor.model.cluster import Cluster, ClusterRef
from sailor.profiling import worker_processes
from sailor.profiling.cluster_orders import (
    REPEATS,
    ClusterFindings,
    ClusterOrders,
    batch_of,
    to_text,
)
from sailor.profiling.cluster_probe import (
    REFERENCE_BLOCK_S,
    ClusterProbe,
    ClusterRequest,
    figures_of,
    fit_ring,
    probe,
)
from sailor.profiling.network_orders import message_sizes
from sailor.sim.clusters import CLUSTERS, cluster_of
from sailor.sim.collectives import Wires, allreduce_s, group_of

JOB = """\
name: own
model: opt-350m
training: {global_batch: 8, precision: fp32}
pool: [{zone: us-central1-a, gpu: A100-40GB, quota: 4}]
"""
CATALOG = Catalog.builtin()
A100 = CATALOG.node("p4d.24xlarge")  # 8 GPUs, 300 GB/s each, 400 Gbit/s of network
SIZES = message_sizes(2**28)
Samples = tuple[tuple[float, ...], ...]


def request(**change: object) -> ClusterRequest:
    node = change.pop("node", A100)
    known = {"device": "cuda", "processes": 8, **change}
    return ClusterRequest(node, CATALOG.gpu(node.gpu), **known)  # type: ignore[arg-type]


def ring(ranks: int, share: float, bandwidth: float, fixed_s: float) -> dict[int, float]:
    moved = 2 * (ranks - 1) / ranks
    return {size: fixed_s + moved * size / (share * bandwidth) for size in SIZES}


def samples(seconds: dict[int, float]) -> Samples:
    """Return seven samples of each size, 1 % apart, with the given median."""
    return tuple(
        tuple(taken * (1 + 0.01 * (number - 3)) for number in range(REPEATS))
        for taken in seconds.values()
    )


def found(
    *, inside: Samples = (), across: Samples = (), launches: Sequence[float] = (), **change: object
) -> ClusterProbe:
    findings = ClusterFindings("made up", inside, across, tuple(launches), spread=0.03)
    return figures_of(request(**change), findings)


def values(probe_: ClusterProbe) -> dict[str, float]:
    return {figure.name: figure.value for figure in probe_.figures}


@pytest.mark.parametrize(
    ("ranks", "share", "step_s"), [(2, 0.26, 15e-6), (4, 0.66, 156e-6), (8, 0.9, 3e-6)]
)
def test_known_constants_are_found_again(ranks: int, share: float, step_s: float) -> None:
    exact = ring(ranks, share, 300e9, step_s * math.log2(ranks))
    fit = fit_ring(ranks, exact, "here")
    assert fit.bytes_per_s / 300e9 == pytest.approx(share, rel=1e-6)
    assert fit.fixed_s / math.log2(ranks) == pytest.approx(step_s, rel=1e-6)
    # Medians of a quiet machine are about 1 % off.
    noise = np.random.default_rng(ranks).normal(1, 0.01, len(SIZES))
    noisy = {
        size: taken * factor for (size, taken), factor in zip(exact.items(), noise, strict=True)
    }
    fit = fit_ring(ranks, noisy, "here")
    assert fit.bytes_per_s / 300e9 == pytest.approx(share, rel=0.01)
    assert fit.spread < 0.02


def test_figures_give_back_the_collectives_of_the_estimate() -> None:
    """What the simulator says with the figures is what was measured with them."""
    wires = Wires(link=0.7 * 300e9, node_nics=0.6 * 50e9, link_step_s=20e-6)
    here, both = group_of(8, 1, 8), group_of(16, 1, 8)
    got = values(
        found(
            inside=samples({size: allreduce_s(size, here, wires) for size in SIZES}),
            across=samples({size: allreduce_s(size, both, wires) for size in SIZES}),
            launches=[REFERENCE_BLOCK_S],
        )
    )
    assert got["link_share"] == pytest.approx(0.7, rel=0.01)
    assert got["link_step_s"] == pytest.approx(20e-6, rel=0.01)
    assert got["nic_share"] == pytest.approx(0.6, rel=0.01)
    assert got["host_factor"] == pytest.approx(1.0)


def test_a_host_is_compared_with_the_usual_one_of_its_gpu_type() -> None:
    # 32 blocks of a token at 25.5 tokens/s: 1.2255 ms; hosts of an H100 take 0.75 of it.
    assert pytest.approx(1.2255e-3, rel=1e-4) == REFERENCE_BLOCK_S
    taken = [0.5e-3, 0.6e-3, 0.9e-3]
    assert values(found(launches=taken))["host_factor"] == pytest.approx(0.6 / 1.2255, rel=1e-4)
    h100 = CATALOG.node("p5.48xlarge")
    slower = values(found(launches=taken, node=h100))["host_factor"]
    assert slower == pytest.approx(0.6 / 1.2255 / 0.75, rel=1e-4)


def test_more_than_the_data_sheet_says_is_another_node_type() -> None:
    fast = samples(ring(8, 0.9, 450e9, 1e-5))
    with pytest.raises(InputError, match=r"405 GB/s, and the links .* of p4d.24xlarge carries 300"):
        found(inside=fast)
    with pytest.raises(InputError, match=r"80 GB/s, and the network of p4d.24xlarge carries 50"):
        found(across=samples(ring(16, 1.6, 50e9, 1e-4)))
    # noise around a share of 1 is not an error
    assert values(found(inside=samples(ring(8, 1.01, 300e9, 1e-5))))["link_share"] == 1.0


def test_times_that_say_nothing_are_refused() -> None:
    flat = dict.fromkeys(SIZES, 1e-3)
    falling = {size: 2**20 / size for size in SIZES}
    # 256 KiB at 300 GB/s are 1 us beside 10 us that every message takes
    short = {size: taken for size, taken in ring(2, 1, 300e9, 1e-5).items() if size <= 2**18}
    for seconds in (flat, falling, short):
        with pytest.raises(InputError, match="take hardly longer for larger messages"):
            fit_ring(2, seconds, "here")
    wild = {size: size / 1e9 * (1 if index % 2 else 40) for index, size in enumerate(SIZES)}
    with pytest.raises(InputError, match="half of the sizes are over 50% off"):
        fit_ring(2, wild, "here")


def test_what_is_not_measured_is_said() -> None:
    alone = found(launches=[1e-3], processes=1)
    assert list(values(alone)) == ["host_factor"]
    assert [remark.split(" is ")[0].split(" are ")[0] for remark in alone.remarks] == [
        "1 of the 8 GPUs of p4d.24xlarge took part", "link_share and link_step_s", "nic_share",
        "host_factor",
    ]  # fmt: skip
    assert "right within a half" in alone.remarks[-1]
    no_host = found(inside=samples(ring(8, 0.9, 300e9, 1e-5)), device="cpu")
    assert any("host_factor is left out: a CPU" in remark for remark in no_host.remarks)


def test_a_ring_bound_by_the_links_inside_is_a_lower_bound_of_the_network() -> None:
    inside = samples(ring(8, 0.1, 300e9, 1e-5))
    slow = found(inside=inside, across=samples(ring(16, 0.6, 50e9, 1e-4)))
    assert any("lower bound" in remark for remark in slow.remarks)
    quick = found(inside=inside, across=samples(ring(16, 0.3, 50e9, 1e-4)))
    assert not any("lower bound" in remark for remark in quick.remarks)


def test_orders_and_findings_survive_as_text() -> None:
    orders = ClusterOrders(1, 4, (0, 1), "tcp://a:1", "cpu", (65536, 131072), False, 5.0, "x")
    assert ClusterOrders.from_text(to_text(orders)) == orders
    findings = ClusterFindings("d", ((1.0, 2.0),), (), (0.5,), 0.1)
    assert ClusterFindings.from_text(to_text(findings)) == findings
    assert [batch_of(size) for size in (2**16, 2**22, 2**24, 2**30)] == [20, 4, 1, 1]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"max_bytes": 1000}, "messages of at most 1000 bytes"),
        ({"processes": 9}, "9 processes, and p4d.24xlarge has 8 GPUs"),
        ({"processes": 1, "device": "cpu"}, "one process on a CPU measures nothing"),
        ({"machine": 1, "device": "cpu"}, "machine 1 without an address"),
        ({"init": "host:99", "device": "cpu"}, "write tcp://HOST:PORT"),
    ],
)
def test_bad_requests_are_refused(change: dict[str, object], said: str) -> None:
    with pytest.raises(InputError, match=said):
        probe(request(**change))


def test_devices_that_are_not_there_are_counted() -> None:
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("this machine has CUDA devices")
    with pytest.raises(InputError, match=r"torch can use 0 CUDA devices here.*--device cpu"):
        probe(request())


def test_the_host_s_clock_stops_before_the_device_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    from sailor.profiling import host_launch

    told: list[str] = []

    class Clock:
        """Each look at it is 8 ms after the one before."""

        @staticmethod
        def perf_counter() -> float:
            told.append("clock")
            return 8e-3 * len([word for word in told if word == "clock"])

    monkeypatch.setattr(host_launch, "time", Clock)
    monkeypatch.setattr(host_launch, "_settle", lambda _: told.append("device done"))
    median_s, spread = host_launch.launch_seconds(torch.device("cpu"))
    turns = host_launch._WARM_UP + host_launch._REPEATS
    assert told == ["device done", "clock", "clock"] * turns + ["device done"]
    assert median_s == pytest.approx(8e-3 / 4)  # four blocks in each sample
    assert spread == pytest.approx(0, abs=1e-9)


def test_the_launched_block_is_a_transformer_s() -> None:
    torch = pytest.importorskip("torch")
    from torch.utils.flop_counter import FlopCounterMode

    from sailor.profiling.host_launch import LaunchedBlock

    block = LaunchedBlock(torch.device("cpu"))
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        out = block(block.token)
    # 64 wide: 4 h^2 of attention and 12 h^2 of a gated feed-forward part, two operations each
    assert counter.get_flop_counts()["Global"][torch.ops.aten.mm] == 2 * 16 * 64 * 64
    assert out.shape == block.token.shape
    assert torch.isfinite(out).all()
    assert not torch.equal(out, block.token)


@pytest.fixture
def processes(monkeypatch: pytest.MonkeyPatch) -> list[subprocess.Popen[bytes]]:
    """Return the list of every process that the probe starts."""
    started: list[subprocess.Popen[bytes]] = []
    real = subprocess.Popen

    def start(*arguments: object, **options: object) -> subprocess.Popen[bytes]:
        started.append(real(*arguments, **options))
        return started[-1]

    monkeypatch.setattr(worker_processes.subprocess, "Popen", start)
    return started


def run(*arguments: object) -> Result:
    words = ["profile", "cluster", *map(str, arguments)]
    return CliRunner().invoke(build(), words, obj=Session())


def test_two_processes_here_write_a_piece_of_a_job(
    tmp_path: Path, processes: list[subprocess.Popen[bytes]]
) -> None:
    pytest.importorskip("torch")
    out = tmp_path / "cluster.yaml"
    done = run(
        "--out", out, "--node-type", "p4d.24xlarge", "--device", "cpu", "--processes", 2,
        "--max-bytes", 2**25, "--time-limit", 60,
    )  # fmt: skip
    assert done.exit_code == 0, (done.output, done.exception)
    assert [process.poll() for process in processes] == [0, 0]
    text = out.read_text()
    assert re.search(r"^# sailor profile cluster, \d{4}-\d\d-\d\d: p4d.24xlarge, .* torch", text)
    assert "# nic_share is left out" in text
    job = tmp_path / "job.yaml"
    job.write_text(JOB)
    assert load_job(job).cluster == ClusterRef()
    job.write_text(JOB + text)
    cluster = load_job(job).cluster
    given = cluster.given()
    assert set(given) == {"link_share", "link_step_s"}
    for name, value in given.items():
        assert f"  {name}: {value:.3g}  #" in text
        assert re.search(rf"{name} +{value:.3g} ", done.output)
    # 10 MB/s to 300 GB/s
    assert 1e7 / 300e9 < given["link_share"] <= 1
    assert 0 <= given["link_step_s"] < 0.2
    assert cluster_of(cluster).nic_share == Cluster().nic_share


def test_two_machines_meet_at_an_address(
    tmp_path: Path, processes: list[subprocess.Popen[bytes]]
) -> None:
    pytest.importorskip("torch")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"tcp://127.0.0.1:{free.getsockname()[1]}"
    answers: dict[int, ClusterProbe | None] = {}

    def take_part(machine: int) -> None:
        answers[machine] = probe(
            request(
                device="cpu", processes=1, init=address, machine=machine, max_bytes=2**25,
                time_limit_s=60,
            )
        )  # fmt: skip

    other = threading.Thread(target=take_part, args=(1,))
    other.start()
    take_part(0)
    other.join(timeout=60)
    assert answers[1] is None
    mine = answers[0]
    assert mine is not None
    assert list(values(mine)) == ["nic_share"]
    assert 1e7 / 50e9 < values(mine)["nic_share"] <= 1
    assert {message.among for message in mine.messages} == {"between the machines"}
    assert [process.poll() for process in processes] == [0, 0]


def test_a_machine_that_does_not_come_ends_in_a_sentence(
    processes: list[subprocess.Popen[bytes]],
) -> None:
    pytest.importorskip("torch")
    with pytest.raises(InputError, match=r"cluster probe was not done after 1 s"):
        probe(request(device="cpu", processes=1, init="tcp://127.0.0.1:9", time_limit_s=1))
    assert [process.poll() is not None for process in processes] == [True]


def test_a_job_s_own_node_type_is_known(tmp_path: Path) -> None:
    job = tmp_path / "job.yaml"
    job.write_text(
        JOB
        + """\
catalog:
  nodes:
    - {name: rack-7, provider: own, gpu: A100-40GB, num_gpus: 3, intra_node_bandwidth: 25 GB/s,
       nic_bandwidth: 100 Gbit/s, source: our rack}
"""
    )
    misspelt = run("--out", tmp_path / "c.yaml", "--node-type", "p4d.24xlarg")
    assert isinstance(misspelt.exception, InputError)
    assert "did you mean 'p4d.24xlarge'" in str(misspelt.exception)
    many = run(
        "--out", tmp_path / "c.yaml", "--node-type", "rack-7", "--job", job, "--processes", 4
    )
    assert "4 processes, and rack-7 has 3 GPUs" in str(many.exception)


def test_the_page_gives_the_figures_of_the_table_of_clusters() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "cost-model.md").read_text("utf-8")
    known = [cluster for name, cluster in CLUSTERS.items() if name != "unknown"]
    for name, per_unit in (("link_share", 1), ("link_step_s", 1e6), ("nic_share", 1),
                           ("host_factor", 1)):  # fmt: skip
        row = next(line for line in page.splitlines() if line.startswith(f"| `{name}` |"))
        _, _, _, assumed, seen, *_ = (cell.strip().removesuffix(" us") for cell in row.split("|"))
        assert float(assumed) == pytest.approx(getattr(Cluster(), name) * per_unit)
        low, high = (float(end) for end in seen.split(" to "))
        values_ = [getattr(cluster, name) * per_unit for cluster in known]
        assert (low, high) == (pytest.approx(min(values_)), pytest.approx(max(values_)))
    errors = sorted(cluster.error_pct for cluster in known)
    low, high, *outliers = (
        float(number)
        for number in re.findall(
            r"(?:within|to|`hf-h100`|`jean-zay-v100`) ([0-9.]+) ?%?", _cost(page)
        )
    )
    assert (low, high) == (errors[0], errors[-3])
    assert outliers == pytest.approx(errors[-2:], abs=0.3)
    assert f"is {Cluster().error_pct} %" in _cost(page)


def _cost(page: str) -> str:
    """Return the paragraph that says what not knowing the figures costs, on one line."""
    start = page.index("With the cluster's own figures")
    return " ".join(page[start : page.index("To measure them")].split())
