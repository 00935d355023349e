// argocd compares, applies and prunes objects as Argo CD does, with the library that does the work in it.
//
// It reads {"name", "namespace", "tracking", "objects"} from stdin: an Application, how Argo CD recognizes what belongs
// to it ("annotation", or "label" as before Argo CD 3), and what it contains now. It prints one line of JSON for each
// object that differs before the sync, and one for each object of the sync: what was done with it.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"time"

	"github.com/argoproj/argo-cd/gitops-engine/pkg/cache"
	"github.com/argoproj/argo-cd/gitops-engine/pkg/diff"
	"github.com/argoproj/argo-cd/gitops-engine/pkg/engine"
	"github.com/argoproj/argo-cd/gitops-engine/pkg/sync"
	"github.com/argoproj/argo-cd/gitops-engine/pkg/utils/kube"
	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/tools/clientcmd"
)

const (
	trackingID    = "argocd.argoproj.io/tracking-id"
	instanceLabel = "app.kubernetes.io/instance"
	syncSeconds   = 240
)

type application struct {
	Name      string                       `json:"name"`
	Namespace string                       `json:"namespace"`
	Tracking  string                       `json:"tracking"`
	Objects   []*unstructured.Unstructured `json:"objects"`
}

type info struct{ application string }

func main() {
	if err := run(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(kubeconfig string) error {
	wanted := application{}
	if err := json.NewDecoder(os.Stdin).Decode(&wanted); err != nil {
		return err
	}
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return err
	}
	config.QPS, config.Burst = 100, 300
	ctx, cancel := context.WithTimeout(context.Background(), syncSeconds*time.Second)
	defer cancel()

	cluster := cache.NewClusterCache(config,
		cache.SetLogr(logr.Discard()),
		cache.SetPopulateResourceInfoHandler(func(found *unstructured.Unstructured, isRoot bool) (any, bool) {
			name := ""
			if isRoot {
				name = wanted.of(found)
			}
			return &info{name}, name != ""
		}))
	engine := engine.NewEngine(config, cluster, engine.WithLogr(logr.Discard()))
	stop, err := engine.Run()
	if err != nil {
		return err
	}
	defer stop()
	for _, each := range wanted.Objects {
		wanted.mark(each)
	}
	isManaged := func(each *cache.Resource) bool {
		found, ok := each.Info.(*info)
		return ok && found.application == wanted.Name
	}
	managed, err := cluster.GetManagedLiveObjs(wanted.Objects, isManaged)
	if err != nil {
		return err
	}
	compared := sync.Reconcile(wanted.Objects, managed, wanted.Namespace, cluster)
	differences, err := diff.DiffArray(compared.Target, compared.Live, diff.WithLogr(logr.Discard()))
	if err != nil {
		return err
	}
	for number, each := range differences.Diffs {
		if each.Modified {
			object := compared.Target[number]
			if object == nil {
				object = compared.Live[number]
			}
			show(kube.GetResourceKey(object), "differs", "")
		}
	}
	done, err := engine.Sync(ctx, wanted.Objects, isManaged, "revision", wanted.Namespace, sync.WithPrune(true), sync.WithLogr(logr.Discard()))
	for _, each := range done {
		show(each.ResourceKey, string(each.Status), each.Message)
	}
	return err
}

// of returns the application to which an object belongs; empty: none.
func (wanted application) of(found *unstructured.Unstructured) string {
	if wanted.Tracking == "label" {
		return found.GetLabels()[instanceLabel]
	}
	if found.GetAnnotations()[trackingID] == wanted.id(found) {
		return wanted.Name
	}
	return ""
}

// mark lets an object belong to the application.
func (wanted application) mark(object *unstructured.Unstructured) {
	if wanted.Tracking == "label" {
		labels := object.GetLabels()
		if labels == nil {
			labels = map[string]string{}
		}
		labels[instanceLabel] = wanted.Name
		object.SetLabels(labels)
		return
	}
	annotations := object.GetAnnotations()
	if annotations == nil {
		annotations = map[string]string{}
	}
	annotations[trackingID] = wanted.id(object)
	object.SetAnnotations(annotations)
}

func (wanted application) id(object *unstructured.Unstructured) string {
	kind := object.GroupVersionKind()
	return fmt.Sprintf("%s:%s/%s:%s/%s", wanted.Name, kind.Group, kind.Kind, object.GetNamespace(), object.GetName())
}

func show(key kube.ResourceKey, action string, message string) {
	line, _ := json.Marshal(map[string]string{
		"object": fmt.Sprintf("%s/%s/%s", key.Kind, key.Namespace, key.Name), "action": action, "message": message,
	})
	fmt.Println(string(line))
}
