"""Names of device plugins and DRA drivers: shares of GPUs, and resource claims."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exporter.parse.cgroup import GpuDevice, cdi_claim_uid, claim_uid, gpu_device
from tests.builders import CLAIM, GPU
from tests.parse.test_any_text import texts

MIG = GPU.replace("GPU-", "MIG-")

FORMS = {
    GPU: GpuDevice(GPU, shared=False),
    f"{GPU}::0": GpuDevice(GPU, shared=True),
    f"{GPU}::12": GpuDevice(GPU, shared=True),
    MIG: GpuDevice(MIG, shared=False),
    f"{MIG}::3": GpuDevice(MIG, shared=True),
    "nvidia0": GpuDevice(0, shared=False),
    "nvidia11/vgpu4": GpuDevice(11, shared=True),
}

PIECES = (GPU, MIG, "::", "0", "nvidia", "/vgpu", "/gi1", "k8s.gpu.nvidia.com/claim=", CLAIM, "-gpu-0", "\n", "٣", "")
ids = texts | st.lists(st.sampled_from(PIECES), max_size=6).map("".join)


def test_reads_each_form_of_a_device_id(subtests: pytest.Subtests) -> None:
    for device, meaning in FORMS.items():
        with subtests.test(device=device, meaning=meaning):
            assert gpu_device(device) == meaning


def test_ignores_other_device_ids(subtests: pytest.Subtests) -> None:
    for device in [
        "",
        "0",
        f"{GPU}::",
        f"{GPU}:0",
        f"{GPU}::x",
        f"{GPU}::0\n",
        GPU.upper(),
        f" {GPU}",
        "nvidia",
        "nvidia0/gi1",
        "nvidia0/gi1/vgpu0",
        "nvidia٣",
        f"{GPU}::{'9' * 20}",
        "MIG-GPU-1/0/0",
        "0000:00:06.0",
    ]:
        with subtests.test(device=device):
            assert gpu_device(device) is None


@given(ids)
def test_any_text_can_be_a_device_id(text: str) -> None:
    device, claim = gpu_device(text), cdi_claim_uid(text)
    assert device is None or isinstance(device.gpu, int) or text.startswith(device.gpu)
    assert claim is None or claim in text


def test_reads_the_uid_of_a_claim() -> None:
    assert cdi_claim_uid(f"k8s.gpu.nvidia.com/claim={CLAIM}-gpu-0") == CLAIM
    assert cdi_claim_uid(f"k8s.gpu.nvidia.com/claim={CLAIM}-gpu-0-mig-9-4-4") == CLAIM
    assert claim_uid(f"/var/lib/kubelet/plugins/gpu.nvidia.com/mps/{CLAIM}-0a1b2/pipe") == CLAIM


def test_other_cdi_devices_are_of_no_claim(subtests: pytest.Subtests) -> None:
    for device in [
        "",
        CLAIM,
        f"example.com/claim={CLAIM}-gpu-0",
        f"k8s.gpu.nvidia.com/claim={CLAIM}",
        f"nvidia.com/gpu={GPU}",
    ]:
        with subtests.test(device=device):
            assert cdi_claim_uid(device) is None
