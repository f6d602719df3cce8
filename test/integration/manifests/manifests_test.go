// Package manifests tests the files under deploy: it decodes them strictly into the real types, and compares
// them with each other and with the flags of the binary. The package is a module of its own, so that the types of Kubernetes,
// cert-manager and the Prometheus operator stay out of the product's go.mod.
package manifests

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"sync"
	"testing"

	certmanagerv1 "github.com/cert-manager/cert-manager/pkg/apis/certmanager/v1"
	monitoringv1 "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
	"sigs.k8s.io/yaml"
)

const root = "../../.."

var (
	overlays = []string{"base", "overlays/example", "overlays/durable", "overlays/production", "overlays/secured"}
	// binary is built by TestMain; settings are the variables that `sluice serve` reads, with their defaults.
	binary   string
	settings = map[string]string{}
)

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "sluice-manifests-")
	if err == nil {
		binary = filepath.Join(dir, "sluice")
		build := exec.Command("go", "build", "-o", binary, "./cmd/sluice")
		build.Dir = root
		build.Stderr = os.Stderr
		err = build.Run()
	}
	help := []byte(nil)
	if err == nil {
		help, err = exec.Command(binary, "serve", "--help").Output()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "build the binary and read its flags:", err)
		os.RemoveAll(dir)
		os.Exit(1)
	}
	help = regexp.MustCompile(`\n {12,}`).ReplaceAll(help, []byte(" ")) // long lines are folded
	for _, f := range regexp.MustCompile(`(?m)^\s+--([a-z-]+)[^(\n]*(?:.*\(default "?([^")]*)"?\)$)?`).FindAllStringSubmatch(string(help), -1) {
		settings["SLUICE_"+strings.ToUpper(strings.ReplaceAll(f[1], "-", "_"))] = f[2]
	}
	code := m.Run()
	os.RemoveAll(dir)
	os.Exit(code)
}

// decoder returns a decoder that knows the kinds below and no others, and all their fields.
var decoder = sync.OnceValue(func() runtime.Decoder {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		corev1.AddToScheme, appsv1.AddToScheme, policyv1.AddToScheme, autoscalingv2.AddToScheme, networkingv1.AddToScheme,
		certmanagerv1.AddToScheme, monitoringv1.AddToScheme,
	} {
		if err := add(scheme); err != nil {
			panic(err)
		}
	}
	return serializer.NewCodecFactory(scheme, serializer.EnableStrict).UniversalDeserializer()
})

// render returns the objects that kustomize makes of a folder of deploy/k8s, in which one file may have another text.
func render(t *testing.T, folder, file, text string) (objects []runtime.Object, err error) {
	dir := t.TempDir()
	if err := os.CopyFS(dir, os.DirFS(root+"/deploy/k8s")); err != nil {
		t.Fatal(err)
	}
	// Users write the file of the secret themselves.
	files := map[string]string{"overlays/example/cluster.secret": strings.Repeat("s", 44)}
	if file != "" {
		files[file] = text
	}
	for name, data := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(data), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	built, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), filepath.Join(dir, folder))
	if err != nil {
		return nil, err
	}
	for _, r := range built.Resources() {
		object, _, err := decoder().Decode([]byte(r.MustYaml()), nil, nil)
		if err != nil {
			return nil, fmt.Errorf("%s %s: %w", r.GetKind(), r.GetName(), err)
		}
		objects = append(objects, object)
	}
	return objects, nil
}

// named returns the objects of one kind by name.
func named[T metav1.Object](objects []runtime.Object) map[string]T {
	found := map[string]T{}
	for _, o := range objects {
		if one, ok := o.(T); ok {
			found[one.GetName()] = one
		}
	}
	return found
}

func TestKubernetes(t *testing.T) {
	for _, folder := range overlays {
		t.Run(folder, func(t *testing.T) {
			objects, err := render(t, folder, "", "")
			if err != nil {
				t.Fatal(err)
			}
			for _, problem := range problems(objects) {
				t.Error(problem)
			}
			if want := map[bool]int{true: 1}[folder == "overlays/example"]; len(named[*corev1.Secret](objects)) != want {
				t.Errorf("%d Secrets, want %d: a Secret in the repository is everybody's", len(named[*corev1.Secret](objects)), want)
			}
			for name, m := range named[*corev1.ConfigMap](objects) {
				dir, command := t.TempDir(), "rules"
				file := dir
				for key, text := range m.Data {
					if err := os.WriteFile(filepath.Join(dir, key), []byte(text), 0o600); err != nil {
						t.Fatal(err)
					}
					if name == "sluice-callers" {
						command, file = "callers", filepath.Join(dir, key)
					}
				}
				if out, err := exec.Command(binary, command, "check", file).CombinedOutput(); err != nil || len(m.Data) == 0 {
					t.Errorf("ConfigMap %s with %d files: %v\n%s", name, len(m.Data), err, out)
				}
			}
		})
	}
}

// TestOverlays: each overlay changes what its README and its comments say.
func TestOverlays(t *testing.T) {
	objects, err := render(t, "overlays/example", "", "")
	if err != nil {
		t.Fatal(err)
	}
	set, rules := named[*appsv1.StatefulSet](objects)["sluice"], named[*corev1.ConfigMap](objects)["sluice-rules"]
	if of(set.Spec.Replicas) != 5 || named[*corev1.Namespace](objects)[set.Namespace] == nil || len(rules.Data) != 1 || rules.Data["shop.yaml"] == "" {
		t.Errorf("overlays/example: want 5 replicas, a namespace and the rules of the overlay: %v in %q, %v", of(set.Spec.Replicas), set.Namespace, rules.Data)
	}
	for _, folder := range []string{"overlays/production", "overlays/secured"} {
		objects, err := render(t, folder, "", "")
		if err != nil {
			t.Fatal(err)
		}
		hard := false
		for _, s := range named[*appsv1.StatefulSet](objects)["sluice"].Spec.Template.Spec.TopologySpreadConstraints {
			hard = hard || s.TopologyKey == corev1.LabelHostname && s.WhenUnsatisfiable == corev1.DoNotSchedule
		}
		if !hard || len(named[*autoscalingv2.HorizontalPodAutoscaler](objects)) != 1 || len(named[*monitoringv1.ServiceMonitor](objects)) != 1 ||
			len(named[*certmanagerv1.Certificate](objects)) != map[string]int{"overlays/secured": 4}[folder] {
			t.Errorf("%s: want pods spread over machines, an autoscaler, a ServiceMonitor, and certificates where it is secured", folder)
		}
	}
}

// TestProblemsAreFound changes one line of a file each time.
func TestProblemsAreFound(t *testing.T) {
	const (
		set          = "base/statefulset.yaml"
		autoscaler   = "components/autoscaling/horizontalpodautoscaler.yaml"
		network      = "components/network/networkpolicy.yaml"
		certificates = "components/tls/certificates.yaml"
	)
	for _, c := range []struct{ folder, file, old, new, want string }{
		{"base", set, "minReadySeconds:", "minReadySecond:", `unknown field "spec.minReadySecond"`},
		{"base", "base/serviceaccount.yaml", "kind: ServiceAccount", "kind: ServiceAcount", "no kind \"ServiceAcount\""},
		{"base", "base/kustomization.yaml", "resources:", "resource:", `unknown field "resource"`},
		{"overlays/secured", certificates, "dnsNames:", "dnsName:", `unknown field "spec.dnsName"`},
		{"base", set, "name: SLUICE_LOG_FORMAT", "name: SLUICE_LOGS", "SLUICE_LOGS is not a setting"},
		{"base", set, "args: [serve]", "args: [serve, --bootstrap-expect=1]", "settings are variables"},
		{"base", set, "sluice-0,sluice-1,sluice-2", "sluice-0,sluice-1,sluice-3", "only the first pods may found"},
		{"base", set, `value: "3"`, `value: "1"`, "must be a majority of the 3 pods"},
		{"base", set, `value: "3"`, `value: "6"`, "only 3 pods are sure to exist"},
		{"overlays/production", set, "\"3\"\n            - name: SLUICE_BOOTSTRAP_NAMES", "\"2\"\n            - name: SLUICE_OTHER", "a majority of the 5 pods"},
		{"overlays/production", autoscaler, "maxReplicas: 5", "maxReplicas: 6", "below twice minReplicas"},
		{"overlays/production", autoscaler, "periodSeconds: 180", "periodSeconds: 60", "pods leave faster"},
		{"base", set, "Policy: FallbackToLogsOnError", "Policy: File", "terminationMessagePolicy"},
		{"base", set, "path: /readyz", "path: /ready", "want a probe of /readyz"},
		{"base", set, "containerPort: 7462", "containerPort: 7472", "container ports"},
		{"base", "base/services.yaml", "targetPort: grpc", "targetPort: grcp", "no container port grcp"},
		{"base", "base/networkpolicy.yaml", "port: 7460", "port: 7462", "[7461/TCP 7462/TCP] open from clients"},
		{"base", "base/networkpolicy.yaml", "port: 7462", "port: 7472", "7472/TCP] open from nodes"},
		{"base", "base/poddisruptionbudget.yaml", "maxUnavailable: 1", "maxUnavailable: 2", "more than one pod"},
		{"base", set, "drop: [ALL]", "drop: []", "pod security: unrestricted capabilities"},
		{"base", set, "name: sluice-rules", "name: sluice-rule", "volume rules"},
		{"overlays/secured", "components/tls/statefulset.yaml", "both.\n        - name: apis", "both.\n        - name: APIs", "must be a label of DNS"},
		{"overlays/secured", "components/tls/statefulset.yaml", "secretName: sluice-nodes-tls", "secretName: sluice-tls", "no Certificate writes Secret sluice-tls"},
		{"overlays/secured", "components/tls/kustomization.yaml", "serverName: sluice.sluice.svc", "serverName: metrics", "is not valid for metrics"},
		{"overlays/secured", certificates, "name: sluice-nodes\n---", "name: other\n---", "sluice-nodes has no issuer"},
		{"base", set, "podManagementPolicy: Parallel", "podManagementPolicy: OrderedReady", "must start in parallel"},
		{"base", set, "value: sluice-peers", "value: sluice", "must join by the headless Service"},
		{"base", set, "value: 819MiB", "value: 900MiB", "SLUICE_MEMORY_LIMIT is not"},
		{"base", set, "memory: 1Gi", "memory: 512Mi", "a memory limit that is requested"},
		{"base", set, "whenUnsatisfiable: ScheduleAnyway", "whenUnsatisfiable: DoNotSchedule", "keeps pods from running"},
		{"base", set, "podAntiAffinity:", "podAffinity:", "anti-affinity must be preferred"},
		{"base", set, `prometheus.io/port: "7461"`, `prometheus.io/port: "7460"`, "annotations: want /metrics"},
		{"base", set, "seconds: 3", "seconds: 0", "too little time to stop"},
		{"base", set, "readOnlyRootFilesystem: true", "readOnlyRootFilesystem: false", "a read-only root"},
		{"base", "base/serviceaccount.yaml", "Token: false", "Token: true", "a ServiceAccount without a token"},
		{"base", "base/kustomization.yaml", "  - poddisruptionbudget.yaml\n", "", "0 objects of kind PodDisruptionBudget"},
		{"base", "base/kustomization.yaml", "  - networkpolicy.yaml\n", "", "0 objects of kind NetworkPolicy, want 1"},
		{"base", "base/services.yaml", "appProtocol: kubernetes.io/h2c", "appProtocol: http", "wrong appProtocol"},
		{"base", "base/services.yaml", "    - name: peer\n      port: 7462\n      targetPort: peer\n", "", "Service sluice-peers: ports"},
		{"overlays/example", "overlays/example/namespace.yaml", "enforce: restricted", "enforce: baseline", "does not enforce restricted"},
		{"overlays/example", "overlays/example/kustomization.yaml", "secret=cluster", "other=cluster", "has no key secret"},
		{"overlays/example", "overlays/example/kustomization.yaml", "- name: sluice-secret", "- name: other", "1 Secrets are not mounted"},
		{"overlays/durable", "overlays/durable/statefulset.yaml", "[ReadWriteOnce]", "[ReadWriteMany]", "not for one pod alone"},
		{"overlays/production", network, "namespaceSelector:\n            matchLabels:\n              sluice-clients: allowed", "namespaceSelector: {}", "not selected by labels"},
		{"overlays/production", network, "[Ingress, Egress]", "[Egress]", "NetworkPolicy: types"},
		{"overlays/production", network, "port: 53\n", "port: 54\n", "open to DNS"},
		{"overlays/production", autoscaler, "name: cpu", "name: memory", "only CPU"},
		{"overlays/production", autoscaler, "stabilizationWindowSeconds: 600", "stabilizationWindowSeconds: 60", "window for scaling down"},
		{"overlays/production", "components/monitoring/servicemonitor.yaml", "jobLabel: app.kubernetes.io/name", "jobLabel: job", "jobLabel"},
		{"overlays/secured", certificates, "    - client auth\n", "", "is not for client auth"},
		{"overlays/secured", certificates, "renewBefore: 720h", "renewBefore: 2000h", "is not renewed in time"},
		{"overlays/secured", certificates, "algorithm: ECDSA", "algorithm: EC", "there is no algorithm"},
		{"overlays/secured", certificates, "rotationPolicy: Never", "rotationPolicy: Always", "a CA must keep its key"},
		{"overlays/secured", "components/tls/kustomization.yaml", "key: ca.crt", "key: tls.crt", "does not verify"},
		{"overlays/region", "components/region/networkpolicy.yaml", "port: 7462", "port: 7463", "sluice-regions: want the peer port only"},
		{"overlays/region", "components/region/networkpolicy.yaml", "- ipBlock:\n            cidr: 0.0.0.0/0", "- podSelector: {}", "sluice-regions: want networks"},
		{"overlays/region", "overlays/region/networkpolicy.yaml", "[Ingress, Egress]", "[Ingress]", "sluice-regions: types differ"},
		{"overlays/region", "components/region/service.yaml", "port: 7462", "port: 7463", "Service sluice-regions"},
		{"overlays/region", "components/region/statefulset.yaml", "name: SLUICE_REGIONS", "name: SLUICE_REGION_LIST", "SLUICE_REGION_LIST is not a setting"},
		{"overlays/region", "overlays/region/kustomization.yaml", "../secured", "../production", "a region needs --regions and TLS"},
	} {
		t.Run(c.want, func(t *testing.T) {
			data, err := os.ReadFile(filepath.Join(root, "deploy/k8s", c.file))
			if err != nil || !strings.Contains(string(data), c.old) {
				t.Fatalf("%s holds no %q: %v", c.file, c.old, err)
			}
			objects, err := render(t, c.folder, c.file, strings.Replace(string(data), c.old, c.new, 1))
			found := fmt.Sprint(err)
			if err == nil {
				found = strings.Join(problems(objects), "\n")
			}
			if !strings.Contains(found, c.want) || found == "" {
				t.Errorf("found %q, want %q", found, c.want)
			}
		})
	}
}

var write = flag.Bool("write", false, "write components/monitoring/prometheusrule.yaml from observability/alerts.yaml")

// TestPrometheusRule holds the PrometheusRule against alerts.yaml, and alerts.yaml against the operator's type.
func TestPrometheusRule(t *testing.T) {
	alerts, err := os.ReadFile(root + "/deploy/observability/alerts.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var spec monitoringv1.PrometheusRuleSpec
	if err := yaml.UnmarshalStrict(alerts, &spec); err != nil {
		t.Fatal(err)
	}
	_, groups, _ := strings.Cut(string(alerts), "\ngroups:")
	want := `# The alerts of deploy/observability/alerts.yaml, written from there: make generate.
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: sluice
  labels:
    app.kubernetes.io/name: sluice
spec:
  groups:` + regexp.MustCompile(`\n(.*\S)`).ReplaceAllString(groups, "\n  $1")
	const file = root + "/deploy/k8s/components/monitoring/prometheusrule.yaml"
	if *write {
		if err := os.WriteFile(file, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := os.ReadFile(file); err != nil || string(got) != want {
		t.Errorf("%s is not what alerts.yaml says: run make generate (%v)", file, err)
	}
	objects, err := render(t, "overlays/production", "", "")
	if rule := named[*monitoringv1.PrometheusRule](objects)["sluice"]; err != nil || rule == nil || len(spec.Groups) == 0 || !reflect.DeepEqual(rule.Spec, spec) {
		t.Errorf("the production overlay has other alerts than alerts.yaml: %v", err)
	}
}
