"""A client that has exited and whose child holds its connection: the service, `status`, and the shown command."""

import json
import shlex
import subprocess

from tests.eventually import eventually
from tests.exporter_process import UNUSED_PID, Serve, fast_command, on_the_gpu, run, run_python
from tests.standin.forking import ForkingClient
from tests.standin.mps import MpsStandIn
from tests.standin.nvml import MEBIBYTE, NvmlStandIn


def test_the_command_that_ends_the_holder_recovers_the_server(
    mps: MpsStandIn, nvml: NvmlStandIn, serve: Serve, environment: dict[str, str]
) -> None:
    mps.start()
    exporter = serve()
    with ForkingClient(mps) as client:
        (child,) = client.children
        nvml.write([on_the_gpu({client.pid: 516}, mps)])
        exporter.shows(1, "cuda_mps_client_info", pid=str(client.pid))
        exporter.shows(516 * MEBIBYTE, "cuda_mps_client_memory_used_bytes")
        client.exit()

        def is_held() -> None:
            (daemon,) = exporter.page("/api/v1/status")["data"]["daemons"]
            clients = [each for server in daemon["servers"] for each in server["clients"]]
            assert [(each["pid"], each.get("held_by")) for each in clients] == [(client.pid, [child])]

        eventually(is_held)
        exporter.shows(1, "cuda_mps_client_info", pid=str(client.pid))
        exporter.shows(516 * MEBIBYTE, "cuda_mps_client_memory_used_bytes")
        assert f"held by PID {child}" in run(environment, "status").stdout

        mps.connect_and_wait(UNUSED_PID)
        mps.fault(client.pid)
        mps.disconnect(UNUSED_PID)

        def command() -> str:
            findings = exporter.page("/api/v1/status")["data"]["findings"]
            steps = [step for each in findings for step in each["steps"] if "kill" in "".join(step["commands"])]
            assert steps
            assert steps[0]["ends"] == 1
            return str(steps[0]["commands"][0])

        shown = eventually(command)
        assert shown == f"kill -KILL {child}"
        subprocess.run(shlex.split(shown), check=True)
        exporter.shows(1, "cuda_mps_server_state", state="active")
        exporter.shows(0, "cuda_mps_server_clients")
    assert [event["reason"] for event in exporter.events("fault_changed") if event["reason"] == "stuck"] == []


def test_status_alone_names_the_holder_of_a_client_that_exited_before(
    mps: MpsStandIn, nvml: NvmlStandIn, environment: dict[str, str]
) -> None:
    mps.start()
    with ForkingClient(mps) as client:
        nvml.write([on_the_gpu({client.pid: 516}, mps)])
        client.exit()
        shown = json.loads(run_python(environment, *fast_command("status"), "--json").stdout)
        ((found,),) = (server["clients"] for server in shown["daemons"][0]["servers"])
        assert (found["pid"], found.get("held_by")) == (client.pid, client.children)
