# Sourced by `cluster`: its certificate authority, the certificates, and a kubeconfig for each client.
# Keys are PKCS#8, which every TLS library reads. They are of use in this cluster only.

new_key() { openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:prime256v1 -out "$1" 2> /dev/null; }

authority() { # name
  [ -s "$pki/$1.crt" ] && return
  new_key "$pki/$1.key"
  openssl req -x509 -new -key "$pki/$1.key" -subj "/CN=$name-$1" -days 3650 -out "$pki/$1.crt"
}

certificate() { # name subject usage [alternative names]
  local file=$pki/$1
  [ -s "$file.crt" ] && return
  new_key "$file.key"
  openssl req -new -key "$file.key" -subj "$2" -out "$file.csr"
  openssl x509 -req -in "$file.csr" -CA "$pki/ca.crt" -CAkey "$pki/ca.key" -CAcreateserial -days 3650 \
    -out "$file.crt" 2> /dev/null -extfile <(
      echo 'keyUsage=critical,digitalSignature'
      echo "extendedKeyUsage=$3"
      [ -z "${4:-}" ] || echo "subjectAltName=$4"
    )
  rm "$file.csr"
}

kubeconfig() { # certificate file server
  (umask 077; cat > "$2" << END
apiVersion: v1
kind: Config
clusters:
  - name: $name
    cluster: {server: "https://$3:$port", certificate-authority-data: $(base64 -w 0 "$pki/ca.crt")}
users:
  - name: $1
    user: {client-certificate-data: $(base64 -w 0 "$pki/$1.crt"), client-key-data: $(base64 -w 0 "$pki/$1.key")}
contexts:
  - {name: $name, context: {cluster: $name, user: $1}}
current-context: $name
END
  )
}

make_certificates() { # nodes
  local n client first in_cluster
  first=$(node_address 1)
  in_cluster=DNS:kubernetes.default,DNS:kubernetes.default.svc,DNS:kubernetes.default.svc.cluster.local
  authority ca
  # Of the aggregation layer, which is not used; without it two components log an error every 5 s.
  authority front-proxy
  certificate kube-apiserver /CN=kube-apiserver serverAuth \
    "IP:127.0.0.1,IP:$first,IP:$api_address,DNS:localhost,DNS:kubernetes,$in_cluster"
  certificate kube-apiserver-client /O=system:masters/CN=kube-apiserver-client clientAuth
  certificate admin /O=system:masters/CN=admin clientAuth
  certificate coredns /O=system:masters/CN=coredns clientAuth
  for client in kube-controller-manager kube-scheduler kube-proxy; do
    certificate "$client" "/CN=system:$client" clientAuth
  done
  if [ ! -s "$pki/accounts.pub" ]; then
    openssl genrsa -out "$pki/accounts.key" 2048 2> /dev/null
    openssl rsa -in "$pki/accounts.key" -pubout -out "$pki/accounts.pub" 2> /dev/null
  fi
  kubeconfig admin "$KUBECONFIG" 127.0.0.1
  for client in coredns kube-controller-manager kube-scheduler; do
    kubeconfig "$client" "$pki/$client.kubeconfig" 127.0.0.1
  done
  kubeconfig kube-proxy "$pki/kube-proxy.kubeconfig" "$first"
  for ((n = 1; n <= $1; n++)); do
    certificate "node$n" "/O=system:nodes/CN=system:node:node$n" serverAuth,clientAuth \
      "IP:$(node_address "$n"),DNS:node$n"
    kubeconfig "node$n" "$pki/node$n.kubeconfig" "$first"
  done
}
