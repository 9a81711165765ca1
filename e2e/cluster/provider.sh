# Sourced: which cluster the tests use. $cluster is a script with the verbs up, down, import, inside, env,
# door and no-door: kind where docker and kind are there, and else processes on this machine.
# CLUSTER_PROVIDER=kind or local decides otherwise.

provider=${CLUSTER_PROVIDER:-}
if [ -z "$provider" ]; then
  provider=local
  if command -v kind > /dev/null && docker info > /dev/null 2>&1; then provider=kind; fi
fi
cluster=$root/e2e/cluster/$provider/cluster
