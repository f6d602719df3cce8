package manifests

import (
	"errors"
	"fmt"
	"io/fs"
	"path"

	certmanagerv1 "github.com/cert-manager/cert-manager/pkg/apis/certmanager/v1"
	monitoringv1 "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
	"sigs.k8s.io/yaml"
)

// Objects are what one kustomization builds, decoded. A kind that the manifests
// have once is a pointer, nil when it is missing.
type Objects struct {
	Namespace      *corev1.Namespace
	ServiceAccount *corev1.ServiceAccount
	StatefulSet    *appsv1.StatefulSet
	Budget         *policyv1.PodDisruptionBudget
	NetworkPolicy  *networkingv1.NetworkPolicy
	Autoscaler     *autoscalingv2.HorizontalPodAutoscaler
	ServiceMonitor *monitoringv1.ServiceMonitor
	PrometheusRule *monitoringv1.PrometheusRule
	Services       map[string]*corev1.Service
	ConfigMaps     map[string]*corev1.ConfigMap
	Secrets        map[string]*corev1.Secret
	Certificates   map[string]*certmanagerv1.Certificate
	Issuers        map[string]*certmanagerv1.Issuer
}

// Build runs kustomize on dir of fsys, with extra files (by path in fsys) added to
// what is there, as a user would add a secret that is not in git. A field that
// the API does not have is an error, and so is a kind that is not in Objects.
func Build(fsys fs.FS, dir string, extra map[string]string) (*Objects, error) {
	mem := filesys.MakeFsInMemory()
	err := fs.WalkDir(fsys, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		data, err := fs.ReadFile(fsys, name)
		if err != nil {
			return err
		}
		return mem.WriteFile(path.Join("/", name), data)
	})
	if err != nil {
		return nil, fmt.Errorf("read manifests: %w", err)
	}
	for name, data := range extra {
		if err := mem.WriteFile(path.Join("/", name), []byte(data)); err != nil {
			return nil, fmt.Errorf("add %s: %w", name, err)
		}
	}
	built, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(mem, path.Join("/", dir))
	if err != nil {
		return nil, fmt.Errorf("kustomize %s: %w", dir, err)
	}
	o := &Objects{
		Services:   map[string]*corev1.Service{},
		ConfigMaps: map[string]*corev1.ConfigMap{},
		Secrets:    map[string]*corev1.Secret{},

		Certificates: map[string]*certmanagerv1.Certificate{},
		Issuers:      map[string]*certmanagerv1.Issuer{},
	}
	var errs []error
	for _, r := range built.Resources() {
		text, err := r.AsYAML()
		if err == nil {
			err = o.add(r.GetApiVersion(), r.GetKind(), r.GetName(), text)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("%s %s: %w", r.GetKind(), r.GetName(), err))
		}
	}
	return o, errors.Join(errs...)
}

func (o *Objects) add(apiVersion, kind, name string, text []byte) error {
	switch apiVersion + " " + kind {
	case "v1 Namespace":
		return only(&o.Namespace, text)
	case "v1 ServiceAccount":
		return only(&o.ServiceAccount, text)
	case "apps/v1 StatefulSet":
		return only(&o.StatefulSet, text)
	case "policy/v1 PodDisruptionBudget":
		return only(&o.Budget, text)
	case "networking.k8s.io/v1 NetworkPolicy":
		return only(&o.NetworkPolicy, text)
	case "autoscaling/v2 HorizontalPodAutoscaler":
		return only(&o.Autoscaler, text)
	case "monitoring.coreos.com/v1 ServiceMonitor":
		return only(&o.ServiceMonitor, text)
	case "monitoring.coreos.com/v1 PrometheusRule":
		return only(&o.PrometheusRule, text)
	case "v1 Service":
		return named(o.Services, name, text)
	case "v1 ConfigMap":
		return named(o.ConfigMaps, name, text)
	case "v1 Secret":
		return named(o.Secrets, name, text)
	case "cert-manager.io/v1 Certificate":
		return named(o.Certificates, name, text)
	case "cert-manager.io/v1 Issuer":
		return named(o.Issuers, name, text)
	}
	return fmt.Errorf("nobody judges %s %s: teach internal/manifests", apiVersion, kind)
}

func only[T any](into **T, text []byte) error {
	if *into != nil {
		return errors.New("there are two")
	}
	*into = new(T)
	return yaml.UnmarshalStrict(text, *into)
}

func named[T any](into map[string]*T, name string, text []byte) error {
	one := new(T)
	into[name] = one
	return yaml.UnmarshalStrict(text, one)
}
