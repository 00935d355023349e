// flux applies and prunes objects like Flux's kustomize-controller, with the same library.
//
// It reads {"name", "namespace", "objects", "previous"} from stdin: a Kustomization, what it contains now, and what it
// contained before. It prints one line of JSON for each object: the action.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"

	"github.com/fluxcd/cli-utils/pkg/kstatus/polling"
	"github.com/fluxcd/pkg/ssa"
	"github.com/fluxcd/pkg/ssa/normalize"
	"github.com/fluxcd/pkg/ssa/utils"
	"github.com/go-logr/logr"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
	"sigs.k8s.io/controller-runtime/pkg/log"
)

const (
	group   = "kustomize.toolkit.fluxcd.io"
	manager = "kustomize-controller"
)

type kustomization struct {
	Name      string                       `json:"name"`
	Namespace string                       `json:"namespace"`
	Objects   []*unstructured.Unstructured `json:"objects"`
	Previous  []*unstructured.Unstructured `json:"previous"`
}

func main() {
	log.SetLogger(logr.Discard())
	if err := run(context.Background(), os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context, kubeconfig string) error {
	wanted := kustomization{}
	if err := json.NewDecoder(os.Stdin).Decode(&wanted); err != nil {
		return err
	}
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return err
	}
	config.QPS, config.Burst = 100, 300
	http, err := rest.HTTPClientFor(config)
	if err != nil {
		return err
	}
	mapper, err := apiutil.NewDynamicRESTMapper(config, http)
	if err != nil {
		return err
	}
	cluster, err := client.New(config, client.Options{Mapper: mapper})
	if err != nil {
		return err
	}
	poller := polling.NewStatusPoller(cluster, mapper, polling.Options{})
	resources := ssa.NewResourceManager(cluster, poller, ssa.Owner{Field: manager, Group: group})

	// As in kustomize-controller: normalize, label, apply in stages, and prune objects that are no longer declared.
	if err := normalize.UnstructuredList(wanted.Objects); err != nil {
		return err
	}
	resources.SetOwnerLabels(wanted.Objects, wanted.Name, wanted.Namespace)
	options := ssa.DefaultApplyOptions()
	options.ExclusionSelector = map[string]string{group + "/reconcile": "disabled", group + "/ssa": "Ignore"}
	options.IfNotPresentSelector = map[string]string{group + "/ssa": "IfNotPresent"}
	options.ForceSelector = map[string]string{group + "/force": "enabled"}
	applied, err := resources.ApplyAllStaged(ctx, wanted.Objects, options)
	if err != nil {
		return err
	}
	show(applied)
	stale := []*unstructured.Unstructured{}
	for _, each := range wanted.Previous {
		if !contains(wanted.Objects, each) {
			stale = append(stale, each)
		}
	}
	pruned, err := resources.DeleteAll(ctx, stale, ssa.DeleteOptions{
		PropagationPolicy: metav1.DeletePropagationBackground,
		Inclusions:        resources.GetOwnerLabels(wanted.Name, wanted.Namespace),
		Exclusions:        map[string]string{group + "/prune": "disabled", group + "/reconcile": "disabled"},
	})
	if err != nil {
		return err
	}
	show(pruned)
	return nil
}

func contains(objects []*unstructured.Unstructured, one *unstructured.Unstructured) bool {
	for _, each := range objects {
		if utils.FmtUnstructured(each) == utils.FmtUnstructured(one) {
			return true
		}
	}
	return false
}

func show(changes *ssa.ChangeSet) {
	if changes == nil {
		return
	}
	for _, each := range changes.Entries {
		line, _ := json.Marshal(map[string]string{"object": each.Subject, "action": each.Action.String()})
		fmt.Println(string(line))
	}
}
