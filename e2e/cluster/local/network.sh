# Sourced by `cluster`: network namespaces, addresses and routes.
#
# Namespace NAME-1 holds the control plane and node 1; its bridge `nodes` carries node 1's address, and
# each further node, in its namespace NAME-N, is plugged into that bridge. No namespace has a route
# out: nothing in a test can reach another machine, not even by mistake.

make_namespace() {
  [ -e "/run/netns/$1" ] || ip netns add "$1"
  ip -n "$1" link set lo up
}

has_link() { ip -n "$1" link show "$2" > /dev/null 2>&1; }

make_network() { # nodes
  local first n m space device
  first=$(node_namespace 1)
  make_namespace "$first"
  # A bridge and not a dummy device, which some kernels lack; the kubelet takes no loopback address.
  if ! has_link "$first" nodes; then
    ip -n "$first" link add nodes type bridge
    ip -n "$first" address add "$(node_net 1)" dev nodes
    ip -n "$first" link set nodes up
  fi
  for ((n = 2; n <= $1; n++)); do
    space=$(node_namespace "$n")
    make_namespace "$space"
    has_link "$space" eth0 && continue
    ip -n "$first" link add "node$n" type veth peer name eth0 netns "$space"
    ip -n "$first" link set "node$n" master nodes up
    ip -n "$space" address add "$(node_net "$n")" dev eth0
    ip -n "$space" link set eth0 up
  done
  modprobe br_netfilter 2> /dev/null || true
  for ((n = 1; n <= $1; n++)); do
    space=$(node_namespace "$n")
    device=eth0
    [ "$n" != 1 ] || device=nodes
    # Without any route the kernel refuses a Service's address before kube-proxy's rules see it.
    ip -n "$space" route replace "$service_net" dev "$device" src "$(node_address "$n")"
    for ((m = 1; m <= $1; m++)); do
      [ "$m" = "$n" ] || ip -n "$space" route replace "$(pod_net "$m")" via "$(node_address "$m")"
    done
    nsenter "--net=/run/netns/$space" sysctl -qw net.ipv4.ip_forward=1 \
      net.bridge.bridge-nf-call-iptables=1 net.ipv4.conf.all.route_localnet=1
  done
}

remove_network() {
  local space
  for space in /run/netns/"$name"-[0-9]*; do
    [ ! -e "$space" ] || ip netns delete "${space##*/}"
  done
}
