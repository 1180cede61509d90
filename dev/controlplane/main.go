// Command controlplane is one multi-call program: the Kubernetes control plane
// components, the node components, kubectl and kwok, linked together so that the
// packages they share are compiled once. It acts as the component whose name it
// is called by (argv[0]); dev/testbed links each name to this one file.
package main

import (
	"context"
	goflag "flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"go.etcd.io/etcd/server/v3/etcdmain"
	"k8s.io/component-base/cli"
	kubectl "k8s.io/kubectl/pkg/cmd"
	kubectlutil "k8s.io/kubectl/pkg/cmd/util"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllermanager "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	proxy "k8s.io/kubernetes/cmd/kube-proxy/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"
	kwokconfig "sigs.k8s.io/kwok/pkg/config"
	kwok "sigs.k8s.io/kwok/pkg/kwok/cmd"
	kwoklog "sigs.k8s.io/kwok/pkg/log"
)

var components = map[string]func() int{
	"etcd":                    func() int { etcdmain.Main(os.Args); return 0 },
	"kube-apiserver":          func() int { return cli.Run(apiserver.NewAPIServerCommand()) },
	"kube-controller-manager": func() int { return cli.Run(controllermanager.NewControllerManagerCommand()) },
	"kube-scheduler":          func() int { return cli.Run(scheduler.NewSchedulerCommand()) },
	"kube-proxy":              func() int { return cli.Run(proxy.NewProxyCommand()) },
	"kubelet":                 func() int { return cli.Run(kubelet.NewKubeletCommand(context.Background())) },
	"kwok":                    runKwok,
	"kubectl":                 runKubectl,
}

func main() {
	name := filepath.Base(os.Args[0])
	run, ok := components[name]
	if !ok {
		names := make([]string, 0, len(components))
		for n := range components {
			names = append(names, n)
		}
		slices.Sort(names)
		fmt.Fprintf(os.Stderr, "call this program as one of: %s\n", strings.Join(names, ", "))
		os.Exit(2)
	}
	if parent := os.Getenv(parentVariable); parent != "" {
		pid, err := strconv.Atoi(parent)
		if err != nil {
			fmt.Fprintf(os.Stderr, "%s=%q is no process id\n", parentVariable, parent)
			os.Exit(2)
		}
		go endWithParent(pid)
	}
	os.Exit(run())
}

// parentVariable holds the id of the process whose end ends this one too, so
// that a killed test run leaves no control plane behind. Unset: live on.
const parentVariable = "CONTROLPLANE_PARENT"

// endWithParent compares ids instead of asking for a signal (PR_SET_PDEATHSIG):
// that one is Linux only and fires when the parent's starting thread ends.
func endWithParent(pid int) {
	for os.Getppid() == pid {
		time.Sleep(500 * time.Millisecond)
	}
	fmt.Fprintln(os.Stderr, "the parent process is gone: ending")
	os.Exit(1)
}

// runKwok gives kwok flag sets of its own: the global ones already hold the
// `version` flag of the Kubernetes components, which kwok registers again.
func runKwok() int {
	pflag.CommandLine = pflag.NewFlagSet("kwok", pflag.ExitOnError)
	goflag.CommandLine = goflag.NewFlagSet("kwok", goflag.ExitOnError)
	flags := pflag.NewFlagSet("global", pflag.ContinueOnError)
	flags.ParseErrorsAllowlist.UnknownFlags = true
	flags.Usage = func() {}
	ctx, _ := kwoklog.InitFlags(context.Background(), flags)
	ctx, err := kwokconfig.InitFlags(ctx, flags)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	command := kwok.NewCommand(ctx)
	command.PersistentFlags().AddFlagSet(flags)
	if err := command.ExecuteContext(ctx); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// runKubectl prints errors as kubectl itself does, with hints.
func runKubectl() int {
	if err := cli.RunNoErrOutput(kubectl.NewDefaultKubectlCommand()); err != nil {
		kubectlutil.CheckErr(err)
	}
	return 0
}
