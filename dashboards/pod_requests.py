"""What pods request of GPUs, by kube-state-metrics, and which of these pods have MPS clients.

kube-state-metrics writes the resource `nvidia.com/gpu.shared` as `nvidia_com_gpu_shared`. If it is scraped without
`honor_labels`, the labels of its target replace its own labels, which Prometheus then names `exported_…`.
"""

from collections.abc import Callable

from dashboards.query import with_parts

REQUEST = "cluster, client_namespace, client_pod, client_pod_uid, node, resource"

_NAMES = {
    "namespace": "client_namespace",
    "exported_namespace": "client_namespace",
    "pod": "client_pod",
    "exported_pod": "client_pod",
    "exported_node": "node",
    "uid": "client_pod_uid",
}

Selector = Callable[[str, str], str]
"""Returns the selector of a family with further matchers."""


def pod_requests(mps: Selector, kubernetes: Selector) -> str:
    """Return what each pod requests on nodes with MPS daemons: the labels of REQUEST, and `clients`.

    `clients` is `some`, `none`, or `unknown` if nothing shows where a client of the node is. Pods that have ended do
    not count. Of two copies of kube-state-metrics, one counts.
    """
    requests = with_parts(
        """
        max by ({request}) (
          sum by ({request}, instance) (
            {label_replace}
              {requests}
                unless on (cluster, uid)
              {ended} == 1,
              {names}
          )
        )
          * on (cluster, node) group_left (clients) (
          label_replace(max by (cluster, node) ({clients_anywhere}), "clients", "unknown", "", "")
            or on (cluster, node)
          label_replace(max by (cluster, node) ({daemons}) ^ 0, "clients", "none", "", "")
        )
        """,
        request=REQUEST,
        label_replace="label_replace(" * len(_NAMES),
        requests=kubernetes("kube_pod_container_resource_requests", 'resource=~"nvidia_com_.+"'),
        ended=kubernetes("kube_pod_status_phase", 'phase=~"Failed|Succeeded"'),
        names="),\n".join(f'"{name}", "$1", "{label}", "(.+)"' for label, name in _NAMES.items()) + ")",
        clients_anywhere=mps(
            "cuda_mps_client_info", 'node!="", client_container="", client_pod_uid="", job_id="", task="", unit=""'
        ),
        daemons=mps("cuda_mps_daemon_up", 'node!=""'),
    )
    return with_parts(
        """
        label_replace(
          {requests}
            and on (cluster, client_pod_uid)
          {clients},
          "clients", "some", "", ""
        )
          or on ({request})
        {requests}
        """,
        requests=requests,
        request=REQUEST,
        clients=mps("cuda_mps_client_info", 'client_pod_uid!=""'),
    )
