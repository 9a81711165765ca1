# Sourced by `cluster`: the processes, their configuration, and how all of it is ended.

# start PROCESS NAMESPACE ARGUMENTS...: the program is the process's name without its number, and runs
# under its own name in $bin, by which it is recognised.
start() {
  local process=$1 space=$2 program
  shift 2
  is_ours "$run/$process.pid" "$bin/$process " && return
  program=${process%%[0-9]*}
  case $program in
  containerd) ln -sf "$(command -v containerd)" "$bin/$process" ;;
  *) ln -sf "$built/kubernetes" "$bin/$process" ;;
  esac
  [ ! -s "$logs/$process.log" ] || mv "$logs/$process.log" "$logs/$process.log.1"
  spawn "$run/$process.pid" "$logs/$process.log" nsenter "--net=/run/netns/$space" "$bin/$process" "$@"
}

# put FILE: writes its input there, if it is another: kube-proxy ends when its file is written.
put() {
  local text
  text=$(cat)
  [ "$(cat "$1" 2> /dev/null)" = "$text" ] || printf '%s\n' "$text" > "$1"
}

start_all() { # nodes
  local first n
  first=$(node_namespace 1)
  start etcd "$first" "--data-dir=$state/etcd" --unsafe-no-fsync --log-level=warn \
    --listen-client-urls=http://127.0.0.1:2379 --advertise-client-urls=http://127.0.0.1:2379 \
    --listen-peer-urls=http://127.0.0.1:2380 --initial-advertise-peer-urls=http://127.0.0.1:2380 \
    --initial-cluster=default=http://127.0.0.1:2380
  start_apiserver
  # The outside is where this script runs; $$ is this script.
  start relay "$first" "/proc/$$/ns/net" "127.0.0.1:$port=127.0.0.1:$port"
  for ((n = 1; n <= $1; n++)); do start_containerd "$n"; done
  until_true 90 'API server' kubectl get --raw /readyz
  start kube-controller-manager "$first" $(as_client kube-controller-manager) --bind-address=127.0.0.1 --leader-elect=false \
    --use-service-account-credentials "--service-account-private-key-file=$pki/accounts.key" \
    "--root-ca-file=$pki/ca.crt" "--cluster-signing-cert-file=$pki/ca.crt" "--cluster-signing-key-file=$pki/ca.key" \
    --allocate-node-cidrs=false --node-monitor-period=2s "--node-monitor-grace-period=${NODE_GRACE:-20s}" --profiling=false
  start kube-scheduler "$first" $(as_client kube-scheduler) --bind-address=127.0.0.1 --leader-elect=false --profiling=false
  start_coredns
  for ((n = 1; n <= $1; n++)); do
    until_true 30 "containerd$n" ctr_of "$n" version
    ctr_of "$n" images ls -q name==localhost/pause:1 | grep -q . || ctr_of "$n" images import "$built/pause.tar" > /dev/null
    start_kubelet "$n"
    start_kube_proxy "$n"
  done
  for ((n = 1; n <= $1; n++)); do
    until_true 60 "node$n" kubectl get node "node$n"
    kubectl wait --for=condition=Ready "node/node$n" --timeout=180s > /dev/null ||
      { kubectl describe node "node$n" | sed -n '/^Conditions/,/^Addresses/p'; tail -5 "$logs/kubelet$n.log"; fail "node$n is not ready"; } >&2
  done
  until_true 30 'default service account' kubectl get serviceaccount default
}

# Flags of a component that is a client of the API server.
as_client() {
  echo "--kubeconfig=$pki/$1.kubeconfig --authentication-kubeconfig=$pki/$1.kubeconfig --authorization-kubeconfig=$pki/$1.kubeconfig"
}

start_apiserver() {
  # Pods leave a lost node after 10 s, not after 5 minutes.
  start kube-apiserver "$(node_namespace 1)" --etcd-servers=http://127.0.0.1:2379 "--secure-port=$port" \
    --bind-address=0.0.0.0 "--advertise-address=$(node_address 1)" --external-hostname=127.0.0.1 \
    "--tls-cert-file=$pki/kube-apiserver.crt" "--tls-private-key-file=$pki/kube-apiserver.key" "--client-ca-file=$pki/ca.crt" \
    --service-account-issuer=https://kubernetes.default.svc.cluster.local \
    "--service-account-key-file=$pki/accounts.pub" "--service-account-signing-key-file=$pki/accounts.key" \
    "--service-cluster-ip-range=$service_net" --authorization-mode=Node,RBAC --enable-admission-plugins=NodeRestriction \
    "--kubelet-client-certificate=$pki/kube-apiserver-client.crt" "--kubelet-client-key=$pki/kube-apiserver-client.key" \
    "--kubelet-certificate-authority=$pki/ca.crt" --kubelet-preferred-address-types=InternalIP \
    "--requestheader-client-ca-file=$pki/front-proxy.crt" --requestheader-allowed-names=front-proxy \
    --requestheader-username-headers=X-Remote-User --requestheader-group-headers=X-Remote-Group \
    --requestheader-extra-headers-prefix=X-Remote-Extra- \
    --default-not-ready-toleration-seconds=10 --default-unreachable-toleration-seconds=10 \
    --allow-privileged=true --profiling=false
}

start_containerd() { # node
  local node=$state/node$1
  mkdir -p "$node/cni"
  # restrict_oom_score_adj: without CAP_SYS_RESOURCE a score below the parent's is refused, and runc then
  # ends without saying why. Namespaces of pods stay in the state folder: other containerds may run here.
  put "$node/containerd.toml" << END
version = 2
root = "$node/containerd"
state = "$run/containerd$1"
[grpc]
  address = "$run/containerd$1.sock"
[plugins."io.containerd.internal.v1.opt"]
  path = "$node/containerd-opt"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "localhost/pause:1"
  restrict_oom_score_adj = true
  netns_mounts_under_state_dir = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "$node/cni"
END
  put "$node/cni/10-pods.conflist" << END
{"cniVersion": "1.0.0", "name": "$name-$1", "plugins": [
  {"type": "bridge", "bridge": "cni0", "isGateway": true, "hairpinMode": true, "ipam": {
    "type": "host-local", "dataDir": "$node/addresses", "ranges": [[{"subnet": "$(pod_net "$1")"}]],
    "routes": [{"dst": "0.0.0.0/0"}]}},
  {"type": "portmap", "capabilities": {"portMappings": true}}]}
END
  start "containerd$1" "$(node_namespace "$1")" --config "$node/containerd.toml"
}

# CoreDNS on the node's address, which every pod can reach: no Service, and nothing it could ask outside.
start_coredns() {
  put "$state/Corefile" << END
.:53 {
    bind $(node_address 1)
    errors
    ready $(node_address 1):8181
    kubernetes cluster.local in-addr.arpa {
        kubeconfig $pki/coredns.kubeconfig
        pods insecure
        ttl 1
    }
}
END
  : > "$state/resolv.conf"
  start coredns "$(node_namespace 1)" "$state/Corefile"
}

start_kubelet() { # node
  local node=$state/node$1
  make_cgroup "$name-$1"
  # Images come by `import` and cannot be fetched again: nothing may be removed because a disk is full.
  put "$node/kubelet.yaml" << END
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
containerRuntimeEndpoint: unix://$run/containerd$1.sock
cgroupDriver: cgroupfs
cgroupRoot: /$name-$1
failCgroupV1: false
failSwapOn: false
address: $(node_address "$1")
healthzBindAddress: 127.0.0.1
authentication: {anonymous: {enabled: false}, webhook: {enabled: true}, x509: {clientCAFile: $pki/ca.crt}}
authorization: {mode: Webhook}
tlsCertFile: $pki/node$1.crt
tlsPrivateKeyFile: $pki/node$1.key
podLogsDir: $node/logs
resolvConf: $state/resolv.conf
clusterDomain: cluster.local
clusterDNS: [$(node_address 1)]
imageGCHighThresholdPercent: 100
imageGCLowThresholdPercent: 99
evictionHard: {memory.available: 50Mi, nodefs.available: 0%, nodefs.inodesFree: 0%, imagefs.available: 0%, imagefs.inodesFree: 0%}
nodeStatusUpdateFrequency: 3s
nodeLeaseDurationSeconds: 10
featureGates: {KubeletCrashLoopBackOffMax: true}
crashLoopBackOff: {maxContainerRestartPeriod: ${RESTART_MAX:-3s}}
END
  start "kubelet$1" "$(node_namespace "$1")" "--config=$node/kubelet.yaml" "--kubeconfig=$pki/node$1.kubeconfig" \
    "--hostname-override=node$1" "--node-ip=$(node_address "$1")" "--root-dir=$node/kubelet"
}

start_kube_proxy() { # node
  local node=$state/node$1
  # The zeros keep it from setting sysctls of the whole machine.
  put "$node/kube-proxy.yaml" << END
apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: nftables
clientConnection: {kubeconfig: $pki/kube-proxy.kubeconfig}
clusterCIDR: 10.244.0.0/16
hostnameOverride: node$1
bindAddress: $(node_address "$1")
healthzBindAddress: 127.0.0.1:10256
metricsBindAddress: 127.0.0.1:10249
conntrack: {maxPerCore: 0, min: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s}
END
  start "kube-proxy$1" "$(node_namespace "$1")" "--config=$node/kube-proxy.yaml"
}

# The folders that stand for the root of all control groups: one, or one per controller (version 1).
cgroup_roots() {
  if [ -e /sys/fs/cgroup/cgroup.controllers ]; then echo /sys/fs/cgroup; else echo /sys/fs/cgroup/*; fi
}

# A kubelet's pods are under a group of its own, which must be there before it starts.
make_cgroup() {
  local hierarchy file
  for hierarchy in $(cgroup_roots); do
    [ -d "$hierarchy" ] && [ ! -L "$hierarchy" ] || continue
    mkdir -p "$hierarchy/$1" 2> /dev/null || continue
    # Without processors and memory of its own a group of version 1 takes no process.
    for file in cpuset.cpus cpuset.mems; do
      if [ -e "$hierarchy/$1/$file" ] && [ -z "$(cat "$hierarchy/$1/$file")" ]; then
        cat "$hierarchy/$file" > "$hierarchy/$1/$file" 2> /dev/null || true
      fi
    done
  done
}

end_all() {
  local n nodes process
  nodes=$(nodes_made)
  end_process relay
  for ((n = 1; n <= nodes; n++)); do end_process "kubelet$n"; end_process "kube-proxy$n"; done
  end_process coredns
  for ((n = 1; n <= nodes; n++)); do end_containers "$n"; done
  for process in kube-scheduler kube-controller-manager; do end_process "$process"; done
  # On SIGTERM the API server waits for watches that nobody ends.
  end_process kube-apiserver KILL
  end_process etcd
  for ((n = 1; n <= nodes; n++)); do end_process "containerd$n"; remove_remains "$n"; done
  local mount
  grep -oE " $state/[^ ]+" /proc/self/mountinfo | sort -ru | while read -r mount; do umount "$mount" 2> /dev/null || true; done
}

end_process() { stop "$run/$1.pid" "$bin/$1 " "${2:-TERM}"; }

# Kills the processes in all containers: their shims end by themselves then.
end_containers() { # node
  is_ours "$run/containerd$1.pid" "$bin/containerd$1 " || return 0
  local task try left
  for ((try = 0; try < 10; try++)); do
    left=$(timeout 20 ctr --address "$run/containerd$1.sock" --namespace k8s.io tasks ls -q 2> /dev/null) || true
    [ -n "$left" ] || break
    for task in $left; do
      ctr_of "$1" tasks kill --signal SIGKILL --all "$task" > /dev/null 2>&1 || true
      ctr_of "$1" tasks rm --force "$task" > /dev/null 2>&1 || true
    done
    sleep 0.2
  done
  for task in $(ctr_of "$1" containers ls -q); do ctr_of "$1" containers rm "$task" > /dev/null 2>&1 || true; done
}

# What a killed containerd left: processes in the node's control groups, and shims, known by its socket.
remove_remains() { # node
  local hierarchy group pid try
  for pid in /proc/[0-9]*; do
    pid=${pid#/proc/}
    case $({ tr '\0' ' ' < "/proc/$pid/cmdline"; } 2> /dev/null) in
    *containerd-shim*"-address $run/containerd$1.sock "*) kill -KILL "$pid" 2> /dev/null || true ;;
    esac
  done
  for hierarchy in $(cgroup_roots); do
    group=$hierarchy/$name-$1
    [ -d "$group" ] || continue
    for ((try = 0; try < 20; try++)); do
      pid=$(find "$group" -name cgroup.procs -exec cat {} + 2> /dev/null | sort -u)
      [ -n "$pid" ] || break
      # shellcheck disable=SC2086
      kill -KILL $pid 2> /dev/null || true
      sleep 0.1
    done
    find "$group" -depth -type d -exec rmdir {} + 2> /dev/null || true
  done
}
