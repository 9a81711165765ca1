// All processes of a small Kubernetes in one binary: kube-apiserver, kube-controller-manager,
// kube-scheduler, kubelet, kube-proxy, etcd, CoreDNS and kubectl, chosen by the name that it is called
// by. They share most of their code: one binary is linked once and its pages are in memory once.
//
// Digits at the end of the name are left out: `kubelet2` is a kubelet. The scripts tell processes apart by them.
package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	_ "time/tzdata"

	"github.com/coredns/caddy"
	// The plugins of CoreDNS that its configuration names. Its own main package is left out: that
	// registers flags which the others have, too.
	_ "github.com/coredns/coredns/core/dnsserver"
	_ "github.com/coredns/coredns/plugin/bind"
	_ "github.com/coredns/coredns/plugin/errors"
	_ "github.com/coredns/coredns/plugin/kubernetes"
	_ "github.com/coredns/coredns/plugin/ready"
	"github.com/spf13/cobra"
	"go.etcd.io/etcd/server/v3/etcdmain"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
	kubectl "k8s.io/kubectl/pkg/cmd"
	kubectlutil "k8s.io/kubectl/pkg/cmd/util"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllers "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	proxy "k8s.io/kubernetes/cmd/kube-proxy/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"
)

// programs by name; each ends the process or returns its exit code.
var programs = map[string]func() int{
	"etcd":                    func() int { etcdmain.Main(os.Args); return 0 },
	"kube-apiserver":          component(apiserver.NewAPIServerCommand),
	"kube-controller-manager": component(controllers.NewControllerManagerCommand),
	"kube-scheduler":          component(func() *cobra.Command { return scheduler.NewSchedulerCommand() }),
	"kube-proxy":              component(proxy.NewProxyCommand),
	"kubelet":                 component(func() *cobra.Command { return kubelet.NewKubeletCommand(context.Background()) }),
	"kubectl":                 runKubectl,
	"coredns":                 func() int { return failed(runDNS(os.Args[1])) },
	"relay":                   func() int { return failed(relay(os.Args[1], os.Args[2:])) },
}

func main() {
	name := strings.TrimRight(filepath.Base(os.Args[0]), "0123456789")
	run, known := programs[name]
	if !known {
		fmt.Fprintf(os.Stderr, "%s: call me by the name of a part of Kubernetes\n", name)
		os.Exit(2)
	}
	os.Exit(run())
}

func component(command func() *cobra.Command) func() int {
	return func() int { return cli.Run(command()) }
}

func runKubectl() int {
	if err := cli.RunNoErrOutput(kubectl.NewDefaultKubectlCommand()); err != nil {
		kubectlutil.CheckErr(err)
	}
	return 0
}

// runDNS serves what the Corefile says until the process ends.
func runDNS(corefile string) error {
	text, err := os.ReadFile(corefile)
	if err != nil {
		return err
	}
	server, err := caddy.Start(caddy.CaddyfileInput{Contents: text, Filepath: corefile, ServerTypeName: "dns"})
	if err != nil {
		return err
	}
	server.Wait()
	return nil
}

func failed(err error) int {
	if err == nil {
		return 0
	}
	fmt.Fprintln(os.Stderr, err)
	return 1
}
