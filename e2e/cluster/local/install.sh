# Sourced by `cluster`: the Debian packages and the binaries. Binaries are kept per version of
# Kubernetes and of their source; older ones may be removed by hand.

build_binaries() {
  local flags helm_flags package
  [ -e "$built/.complete" ] && return
  mkdir -p "$built"
  exec 8> "$built/.lock"
  flock 8
  if [ ! -e "$built/.complete" ]; then
    echo "cluster: compiling Kubernetes $version (cold: 5 to 9 minutes on two cores, once)" >&2
    # Programs ask each other for their versions and refuse v0.0.0.
    flags='-s -w' helm_flags='-s -w'
    for package in k8s.io/component-base/version k8s.io/client-go/pkg/version; do
      flags+=" -X $package.gitVersion=v$version -X $package.gitMajor=1 -X $package.gitMinor=$(cut -d . -f 2 <<< "$version")"
      flags+=" -X $package.gitTreeState=clean -X $package.gitCommit=unknown -X $package.buildDate=1970-01-01T00:00:00Z"
    done
    for package in helm.sh/helm/v3/pkg/chartutil helm.sh/helm/v3/pkg/lint/rules; do
      helm_flags+=" -X $package.k8sVersionMajor=1 -X $package.k8sVersionMinor=$(cut -d . -f 2 <<< "$version")"
    done
    (cd "$here/kubernetes"
      export CGO_ENABLED=0 GOWORK=off
      go build -trimpath -ldflags "$flags" -o "$built/kubernetes" . &&
      go build -trimpath -ldflags "$helm_flags" -o "$built/helm" helm.sh/helm/v3/cmd/helm) > "$built/build.log" 2>&1 ||
      { tail -n 30 "$built/build.log" >&2; fail "compile Kubernetes; its log: $built/build.log"; }
    cc -Os -static -s -o "$built/pause" "$here/pause.c"
    "$root/scripts/oci_image.py" --output "$built/pause.tar" --name localhost/pause:1 \
      --user 65535:65535 --entrypoint /pause "$built/pause=/pause" > /dev/null
    ln -sf kubernetes "$built/kubectl"
    touch "$built/.complete"
  fi
  exec 8>&-
}

install() {
  "$root/scripts/setup" cluster >&2
  build_binaries
}
