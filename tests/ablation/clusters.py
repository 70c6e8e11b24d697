"""Real schedulers on this machine, for tests: SLURM from Debian's packages, a Ray cluster of two nodes. Each is a context,
and raises NotHere with the reason where it cannot be."""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.ablation import quick
from workbench.run.writer import append_line

ROOT = Path(__file__).resolve().parents[2]
CONF = """
ClusterName=workbench-test
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
AuthType=auth/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
SlurmctldPort={port}
SlurmdPort={other}
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=sched_min_interval=200000
SlurmdParameters=config_overrides
ReturnToService=2
GresTypes=gpu
NodeName={host} NodeAddr=127.0.0.1 CPUs=4 Gres=gpu:2 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


class NotHere(Exception):
    """Why there is no such scheduler on this machine."""


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


@contextmanager
def slurm(folder: Path) -> Iterator[Path]:
    """One node of four CPUs and two things that count as GPUs; SLURM_CONF says where. Ends all that it started."""
    for command in ("slurmctld", "slurmd", "sbatch", "munged"):
        if not shutil.which(command) and not Path(f"/usr/sbin/{command}").is_file():
            raise NotHere(f"no {command}: apt-get install slurmd slurmctld slurm-client munge")
    if importlib.util.find_spec("submitit") is None:
        raise NotHere("no submitit: pip install 'agent-rl-workbench[lab]'")
    if os.geteuid():
        raise NotHere("SLURM's daemons are started by root")
    started = [_munged()]
    for name in ("state", "spool"):
        (folder / name).mkdir(parents=True)
    host = socket.gethostname().partition(".")[0]
    (folder / "slurm.conf").write_text(
        CONF.format(host=host, folder=folder, port=free_port(), other=free_port())
    )
    (folder / "gres.conf").write_text(f"NodeName={host} Name=gpu File=/dev/tty[0-1]\n")
    before, os.environ["SLURM_CONF"] = os.environ.get("SLURM_CONF"), str(folder / "slurm.conf")
    try:
        started += [
            subprocess.Popen(
                [_found(name), "-D", *more], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
            )
            for name, more in (("slurmctld", ["-c"]), ("slurmd", ["-N", host]))
        ]
        _wait_until_idle(folder)
        yield folder
    finally:
        subprocess.run(["scancel", "--user=root"], capture_output=True, timeout=30)
        time.sleep(1)
        for one in reversed([one for one in started if one is not None]):
            one.send_signal(signal.SIGTERM)
            try:
                one.wait(15)
            except subprocess.TimeoutExpired:
                one.kill()
                one.wait()
        os.environ.pop("SLURM_CONF") if before is None else os.environ.__setitem__(
            "SLURM_CONF", before
        )


def _munged() -> subprocess.Popen | None:
    """None: there is one."""
    if subprocess.run(["munge", "-n"], capture_output=True, timeout=30).returncode == 0:
        return None
    for folder in ("/run/munge", "/var/log/munge", "/var/lib/munge"):
        Path(folder).mkdir(parents=True, exist_ok=True)
        shutil.chown(folder, "munge", "munge")
    one = subprocess.Popen(
        [_found("munged"), "-F"],
        user="munge",
        group="munge",
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    for _ in range(50):
        if subprocess.run(["munge", "-n"], capture_output=True, timeout=30).returncode == 0:
            return one
        time.sleep(0.2)
    one.kill()
    raise NotHere("munged does not answer here")


def _found(command: str) -> str:
    return shutil.which(command) or f"/usr/sbin/{command}"


def _wait_until_idle(folder: Path, limit_s: float = 60) -> None:
    until = time.monotonic() + limit_s
    while time.monotonic() < until:
        said = subprocess.run(
            ["sinfo", "-h", "-o", "%T"], capture_output=True, text=True, timeout=30
        ).stdout.split()
        if said == ["idle"]:
            return
        time.sleep(0.5)
    raise NotHere(
        f"SLURM's node is {said}, not idle, after {limit_s:g} s: {(folder / 'slurmd.log').read_text()[-500:]}"
    )


@contextmanager
def ray_cluster() -> Iterator[object]:
    """Two nodes of two CPUs and one thing that counts as a GPU each; the address stands in RAY_ADDRESS."""
    if importlib.util.find_spec("ray") is None:
        raise NotHere("no ray: pip install 'agent-rl-workbench[ray]'")
    import ray
    from ray._private import services
    from ray.cluster_utils import Cluster

    os.environ["PYTHONPATH"] = os.pathsep.join(
        dict.fromkeys(
            filter(None, [str(ROOT), *os.environ.get("PYTHONPATH", "").split(os.pathsep)])
        )
    )
    os.environ |= SLOW
    asked, services.get_node = services.get_node, _patient(services.get_node)
    try:
        cluster = Cluster(
            initialize_head=True, head_node_args=_node() | {"include_dashboard": False}
        )
    except Exception as error:  # Ray raises no other
        services.get_node = asked
        if "timed out during startup" not in str(error):
            raise
        raise NotHere(f"Ray's first node did not start: {error}") from error
    os.environ["RAY_ADDRESS"] = cluster.address
    try:
        cluster.add_node(**_node())
        cluster.wait_for_nodes()
        yield cluster
    finally:
        services.get_node = asked
        del os.environ["RAY_ADDRESS"]
        ray.shutdown()
        cluster.shutdown()


PORTS = (
    "metrics_agent_port",
    "metrics_export_port",
    "dashboard_agent_listen_port",
    "runtime_env_agent_port",
)
SLOW = {"RAY_agent_register_timeout_ms": "180000", "RAY_worker_register_timeout_seconds": "180"}


def _node() -> dict[str, int]:
    """A small node. Its agents are told their ports: a node that has to ask for them waits 15 s, then gives up."""
    return {"num_cpus": 2, "num_gpus": 1, "object_store_memory": 80_000_000} | {
        name: free_port() for name in PORTS
    }


def _patient(get_node, limit_s: float = 150):
    """Ray waits 30 s for a node that starts, too few on a crowded machine: here each time that it asks, it waits longer."""

    def asked(*given, **options):
        until = time.monotonic() + limit_s
        while True:
            try:
                return get_node(*given, **options)
            except RuntimeError:
                if time.monotonic() > until:
                    raise
                time.sleep(1)

    return asked


def do_and_say(job, plan, out, cwd, cell_limit_s=None):
    """As quick.do, and writes down on which GPUs, when."""
    begun = time.time()
    facts = quick.do(job, plan, out, cwd, cell_limit_s)
    time.sleep(0.3)
    append_line(
        out / "gpus.jsonl",
        {
            "gpus": os.environ.get("CUDA_VISIBLE_DEVICES", "not set"),
            "begun": begun,
            "ended": time.time(),
            "process": os.getpid(),
            "node": node_here(),
        },
    )
    return facts


def node_here() -> str:
    """Of Ray; "" elsewhere."""
    ray = sys.modules.get("ray")
    return (
        ray.get_runtime_context().get_node_id() if ray is not None and ray.is_initialized() else ""
    )


def do_when_let(job, plan, out, cwd, cell_limit_s=None):
    """As quick.do, once the file `slow` is gone."""
    while (cwd / "slow").exists():
        time.sleep(0.1)
    return quick.do(job, plan, out, cwd, cell_limit_s)


def seen(what: str) -> tuple[str, int]:
    return os.environ["CUDA_VISIBLE_DEVICES"], os.getpid()


def fails(what: str) -> None:
    raise ValueError(what)
