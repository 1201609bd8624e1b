"""The network probe: its arithmetic on made-up times, and two real processes over loopback."""

from __future__ import annotations

import socket
import subprocess
import threading
from pathlib import Path

import pytest
from click.testing import CliRunner

from sailor.cli.app import build
from sailor.cli.session import Session
from sailor.errors import InputError
from sailor.interfaces import SourceContext, WorkerGroup
from sailor.model.catalog import Catalog
from sailor.model.hardware import Link
from sailor.profiling import network_probe, worker_processes
from sailor.profiling.network_orders import Findings, message_sizes, repeats_of
from sailor.profiling.network_probe import NetworkRequest, fit_curve, probe, rates
from sailor.profiling.store import ProfileStore
from sailor.sources.network_measured import StoreNetwork

SIZES = message_sizes(2**30)


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


def test_sizes_go_from_64_kib_to_1_gib_by_doubling() -> None:
    assert (SIZES[0], SIZES[-1], len(SIZES)) == (65536, 1073741824, 15)
    assert [repeats_of(size) for size in (2**16, 2**26, 2**30)] == [20, 4, 3]


def test_a_curve_of_degree_two_is_found_again() -> None:
    truth = Link.model_validate(
        {
            "src": "a", "dst": "b", "latency_s": 1e-4, "source": "made up",
            "curve": {"coefficients": (-0.02, 0.3, 1.5), "peak_bytes_per_s": 5e9},
        }
    )  # fmt: skip
    # a message and its one-byte answer: transfer_s has one latency, the answer takes another
    seconds = [truth.transfer_s(size) + 1e-4 for size in SIZES]
    found = rates(SIZES, seconds, round_trip_s=2e-4)
    # 64 KiB at 0.0117 GB/s take 5.6 ms: every size is above two round trips
    assert tuple(found) == SIZES
    curve, worst = fit_curve(found)
    assert curve.coefficients == pytest.approx((-0.02, 0.3, 1.5), rel=1e-6)
    assert worst < 1e-9
    assert curve.peak_bytes_per_s == pytest.approx(max(found.values()))


def test_sizes_hidden_by_the_latency_are_left_out() -> None:
    seconds = [2e-3 + size / 1e9 for size in SIZES]  # 1 GB/s, a round trip of 2 ms
    found = rates(SIZES, seconds, round_trip_s=2e-3)
    assert min(found) == 2**21  # 2.1 ms, the first above the round trip
    assert all(rate == pytest.approx(1e9) for rate in found.values())
    curve, _ = fit_curve(found)
    assert curve.bytes_per_s(2**16) == pytest.approx(1e9)
    assert curve.bytes_per_s(2**30) == pytest.approx(1e9)


def store_of(seconds: tuple[tuple[float, ...], tuple[float, ...]], sizes: int) -> ProfileStore:
    findings = Findings("2.13.0", (2e-4, 4e-4), seconds)
    request = NetworkRequest("a", "b", init="tcp://x:1", max_bytes=2 ** (15 + sizes))
    return network_probe._store(request, findings)


def test_each_direction_is_a_link_of_its_own() -> None:
    there = tuple(2e-4 + size / 1e9 for size in SIZES)
    back = tuple(4e-4 + size / 5e8 for size in SIZES)
    forth, home = store_of((there, back), len(SIZES)).links
    assert (forth.src, forth.dst, home.src, home.dst) == ("a", "b", "b", "a")
    assert forth.latency_s == pytest.approx(1e-4)
    assert home.latency_s == pytest.approx(2e-4)
    assert forth.transfer_s(2**28) == pytest.approx(1e-4 + 2**28 / 1e9)
    assert home.transfer_s(2**28) == pytest.approx(2e-4 + 2**28 / 5e8)
    assert not forth.assumed
    assert "fit within 0%" in forth.source


def test_two_sizes_give_a_bandwidth_and_none_an_error() -> None:
    # 64, 128 and 256 KiB: the first takes 0.33 of its round trip longer, the others enough
    seconds = (2.6e-4, 4.1e-4, 6.5e-4)
    slow = tuple(second * 10 for second in seconds)
    link = store_of((seconds, slow), 3).links[0]
    assert link.curve is None
    assert link.bandwidth == pytest.approx(2**18 / 4.5e-4)
    assert "too few for a curve" in link.source
    with pytest.raises(InputError, match="says nothing about bandwidth"):
        store_of(((2.1e-4,) * 3, slow), 3)


def test_two_processes_here_measure_loopback(
    tmp_path: Path, processes: list[subprocess.Popen[bytes]]
) -> None:
    pytest.importorskip("torch")
    out = tmp_path / "links.json"
    arguments = [
        "profile", "network", "--out", str(out), "--src", "desk", "--dst", "desk",
        "--max-bytes", str(2**26), "--time-limit", "60",
    ]  # fmt: skip
    done = CliRunner().invoke(build(), arguments, obj=Session())
    assert done.exit_code == 0, (done.output, done.exception)
    assert [process.poll() for process in processes] == [0, 0]
    (link,) = ProfileStore.load(out).links
    assert 1e-6 < link.latency_s < 0.2
    assert 1e7 < 2**26 / (link.transfer_s(2**26) - link.latency_s) < 1e12
    group = WorkerGroup("desk", "any", "any", 4)
    assert StoreNetwork().link(group, group, SourceContext(Catalog.builtin(), out)) == link
    assert "loopback" in done.output


def test_two_machines_meet_at_an_address(processes: list[subprocess.Popen[bytes]]) -> None:
    pytest.importorskip("torch")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"tcp://127.0.0.1:{free.getsockname()[1]}"
    stores: dict[int, ProfileStore | None] = {}

    def take_part(rank: int) -> None:
        request = NetworkRequest(
            "a", "b", init=address, rank=rank, max_bytes=2**25, time_limit_s=60, src_gpu="cpu"
        )
        stores[rank] = probe(request)

    other = threading.Thread(target=take_part, args=(1,))
    other.start()
    take_part(0)
    other.join(timeout=60)
    assert stores[1] is None
    store = stores[0]
    assert store is not None
    ends = [(link.src, link.src_gpu, link.dst, link.dst_gpu) for link in store.links]
    assert ends == [("a", "cpu", "b", None), ("b", None, "a", "cpu")]
    assert [process.poll() for process in processes] == [0, 0]


def test_a_partner_that_does_not_come_ends_in_a_sentence(
    processes: list[subprocess.Popen[bytes]],
) -> None:
    pytest.importorskip("torch")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"tcp://127.0.0.1:{free.getsockname()[1]}"
    with pytest.raises(InputError, match="was not done after 1 s"):
        probe(NetworkRequest("a", "b", init=address, time_limit_s=1))
    assert len(processes) == 1
    assert processes[0].poll() is not None  # nothing is left behind


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"max_bytes": 1000}, "messages of at most 1000 bytes"),
        ({"rank": 1}, "rank 1 without an address"),
        ({"init": "localhost:99"}, "write tcp://HOST:PORT"),
    ],
)
def test_bad_requests_are_refused(change: dict[str, object], said: str) -> None:
    with pytest.raises(InputError, match=said):
        probe(NetworkRequest("a", "b", **change))
