package manifests

import (
	"cmp"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"helm.sh/helm/v4/pkg/chart/common"
	"helm.sh/helm/v4/pkg/chart/common/util"
	chart "helm.sh/helm/v4/pkg/chart/v2"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	"helm.sh/helm/v4/pkg/engine"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"
)

var chartPath = flag.String("chart", root+"/deploy/helm/sluice", "folder or package of the Helm chart")

var loadChart = sync.OnceValues(func() (*chart.Chart, error) { return loader.Load(*chartPath) })

// charted returns the objects that Helm makes of the chart for release sluice in a namespace, its hooks, and its notes.
func charted(t *testing.T, namespace, values string) (c *chart.Chart, objects, hooks []runtime.Object, notes string, err error) {
	t.Helper()
	c, err = loadChart()
	if err != nil {
		t.Fatal(err)
	}
	var given map[string]any
	if err := yaml.Unmarshal([]byte(values), &given); err != nil {
		t.Fatal(err)
	}
	capabilities := *common.DefaultCapabilities
	all, err := util.ToRenderValues(c, given, common.ReleaseOptions{Name: "sluice", Namespace: namespace, Revision: 1, IsInstall: true}, &capabilities)
	if err != nil {
		return c, nil, nil, "", err
	}
	files, err := engine.Render(c, all)
	if err != nil {
		return c, nil, nil, "", err
	}
	for file, text := range files {
		if path.Base(file) == "NOTES.txt" {
			notes = text
			continue
		}
		for document := range strings.SplitSeq("\n"+text, "\n---\n") {
			var value any
			if err := yaml.Unmarshal([]byte(document), &value); err != nil || value == nil {
				if err != nil {
					return c, nil, nil, "", fmt.Errorf("%s: %w", file, err)
				}
				continue
			}
			object, _, err := decoder().Decode([]byte(document), nil, nil)
			if err != nil {
				return c, nil, nil, "", fmt.Errorf("%s: %w", file, err)
			}
			if object.(metav1.Object).GetAnnotations()["helm.sh/hook"] != "" {
				hooks = append(hooks, object)
			} else {
				objects = append(objects, object)
			}
		}
	}
	return c, objects, hooks, notes, nil
}

// plain returns objects by kind and name, as JSON without what the two tools do differently: Helm's labels, the namespace, and
// the order of lists whose elements have names or conditions.
func plain(t *testing.T, objects []runtime.Object, image string) map[string]any {
	t.Helper()
	found := map[string]any{}
	for _, o := range objects {
		if _, ok := o.(*corev1.Namespace); ok {
			continue // helm install --create-namespace
		}
		data, err := json.Marshal(o)
		if err != nil {
			t.Fatal(err)
		}
		var value map[string]any
		if err := json.Unmarshal([]byte(strings.ReplaceAll(string(data), image, "IMAGE")), &value); err != nil {
			t.Fatal(err)
		}
		delete(value["metadata"].(map[string]any), "namespace")
		found[fmt.Sprintf("%v %v", value["kind"], o.(metav1.Object).GetName())] = sorted(value)
	}
	return found
}

// sorted sorts lists of objects in value, and removes Helm's labels, in place.
func sorted(value any) any {
	switch v := value.(type) {
	case map[string]any:
		for _, label := range []string{"app.kubernetes.io/instance", "app.kubernetes.io/managed-by", "app.kubernetes.io/version", "helm.sh/chart"} {
			delete(v, label)
		}
		for key := range v {
			v[key] = sorted(v[key])
		}
	case []any:
		for i := range v {
			v[i] = sorted(v[i])
		}
		slices.SortFunc(v, func(a, b any) int { return cmp.Compare(jsonOf(a), jsonOf(b)) })
	}
	return value
}

func jsonOf(value any) string {
	data, _ := json.MarshalIndent(value, "", "  ")
	return string(data)
}

const (
	durable    = "persistence: {enabled: true}\n"
	spread     = "spread: {enabled: true}\n"
	network    = "networkPolicy: {strict: true}\n"
	autoscaled = "autoscaling: {enabled: true}\n"
	monitored  = "monitoring: {serviceMonitor: {enabled: true}, prometheusRule: {enabled: true}}\n"
	encrypted  = "tls: {enabled: true}\n"
	regional   = "region: eu\nregions: {us: [\"sluice.us.example:7462\"], ap: [\"sluice.ap.example:7462\"]}\n"
)

// TestChart: for each overlay and each component there are values of the chart that make the same objects.
func TestChart(t *testing.T) {
	quoted := func(key, file string) string {
		data, err := os.ReadFile(root + "/deploy/k8s/" + file)
		if err != nil {
			t.Fatal(err)
		}
		return key + ": " + jsonOf(string(data)) + "\n"
	}
	callers := quoted("callers", "components/callers/callers.yaml")
	production := durable + spread + network + autoscaled + monitored
	cases := map[string]string{
		"base":                   "",
		"overlays/example":       "replicas: 5\nsecret: {value: " + strings.Repeat("s", 44) + "}\nrules:\n  " + quoted("shop.yaml", "overlays/example/rules/shop.yaml"),
		"overlays/durable":       durable,
		"overlays/production":    production,
		"overlays/secured":       production + encrypted + callers,
		"components/spread":      spread,
		"components/network":     network,
		"components/autoscaling": autoscaled,
		"components/monitoring":  monitored,
		"components/tls":         encrypted,
		"components/callers":     callers,
		"components/region":      encrypted + regional,
		"overlays/region":        production + encrypted + callers + regional,
	}
	for _, dir := range []string{"overlays", "components"} {
		entries, err := os.ReadDir(root + "/deploy/k8s/" + dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			if _, ok := cases[dir+"/"+e.Name()]; !ok {
				t.Errorf("%s/%s: the chart has no values for it here", dir, e.Name())
			}
		}
	}
	for folder, values := range cases {
		t.Run(folder, func(t *testing.T) {
			t.Parallel()
			from, file, text := folder, "", ""
			if strings.HasPrefix(folder, "components/") {
				from, file = "overlays/durable", "overlays/durable/kustomization.yaml"
				components := "../../" + folder
				if folder == "components/region" {
					components = "../../components/tls, " + components
				}
				text = "namespace: sluice\nresources: [../../base]\ncomponents: [" + components + "]\n"
			}
			want, err := render(t, from, file, text)
			if err != nil {
				t.Fatal(err)
			}
			c, got, hooks, notes, err := charted(t, "sluice", values)
			if err != nil {
				t.Fatal(err)
			}
			for _, problem := range problems(got) {
				t.Error(problem)
			}
			for _, o := range got {
				m := o.(metav1.Object)
				if m.GetNamespace() != "sluice" || m.GetLabels()["app.kubernetes.io/instance"] != "sluice" || m.GetLabels()["helm.sh/chart"] == "" {
					t.Errorf("%T %s: namespace %q, labels %v", o, m.GetName(), m.GetNamespace(), m.GetLabels())
				}
			}
			ours, theirs := plain(t, got, imageName+":"+c.Metadata.AppVersion), plain(t, want, imageName+":dev")
			for name := range theirs {
				if !reflect.DeepEqual(ours[name], theirs[name]) {
					t.Errorf("%s: Helm makes\n%s\nkustomize makes\n%s", name, jsonOf(ours[name]), jsonOf(theirs[name]))
				}
			}
			if len(ours) != len(theirs) || len(got) != len(ours) {
				t.Errorf("Helm makes %d objects, kustomize %d", len(got), len(theirs))
			}
			if !strings.Contains(notes, "helm test sluice --namespace sluice") || strings.Contains(notes, "create secret") == strings.Contains(values, "secret:") {
				t.Errorf("notes:\n%s", notes)
			}
			chartTests(t, hooks, len(hooks) == 2 == strings.Contains(values, network))
		})
	}
}

// chartTests: `helm test` runs an audit that the binary takes, in a pod of the restricted Pod Security Standard.
func chartTests(t *testing.T, hooks []runtime.Object, ok bool) {
	t.Helper()
	pod := named[*corev1.Pod](hooks)["sluice-audit"]
	if !ok || pod == nil || len(pod.Spec.Containers) != 1 {
		t.Fatalf("want a Pod sluice-audit, and a NetworkPolicy where the nodes' is strict: %d hooks", len(hooks))
	}
	for _, problem := range restricted(&pod.ObjectMeta, &pod.Spec) {
		t.Error(problem)
	}
	args := slices.DeleteFunc(slices.Clone(pod.Spec.Containers[0].Args), func(arg string) bool { return strings.HasPrefix(arg, "--ca=") })
	out, err := exec.Command(binary, append(args, "--addr=127.0.0.1:1")...).CombinedOutput()
	if exit, ok := errors.AsType[*exec.ExitError](err); !ok || exit.ExitCode() != 3 {
		t.Errorf("sluice %v without a node: %v, want exit code 3\n%s", args, err, out)
	}
}

// TestChartKeepsReplicas: an upgrade with autoscaling keeps the replicas of the StatefulSet that Kubernetes has. Without the field
// Kubernetes would set it to 1.
func TestChartKeepsReplicas(t *testing.T) {
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body := map[string]string{
			"/apis/apps/v1": `{"kind": "APIResourceList", "groupVersion": "apps/v1", "resources": [{"name": "statefulsets", "kind": "StatefulSet", "namespaced": true}]}`,
			"/apis/apps/v1/namespaces/sluice/statefulsets/sluice": `{"kind": "StatefulSet", "apiVersion": "apps/v1", "metadata": {"name": "sluice"}, "spec": {"replicas": 5}}`,
		}[r.URL.Path]
		if body == "" {
			t.Errorf("Helm requests %s", r.URL.Path)
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, body)
	}))
	defer api.Close()
	c, err := loadChart()
	if err != nil {
		t.Fatal(err)
	}
	values, err := util.ToRenderValues(c, map[string]any{"autoscaling": map[string]any{"enabled": true}},
		common.ReleaseOptions{Name: "sluice", Namespace: "sluice", Revision: 2, IsUpgrade: true}, common.DefaultCapabilities)
	if err != nil {
		t.Fatal(err)
	}
	files, err := engine.RenderWithClient(c, values, &rest.Config{Host: api.URL})
	if text := files["sluice/templates/statefulset.yaml"]; err != nil || !strings.Contains(text, "\n  replicas: 5\n") {
		t.Errorf("%v; want 5 replicas:\n%s", err, text)
	}
}

// TestChartValues: values that make no cluster are rejected, and names and Secrets of the user's are used.
func TestChartValues(t *testing.T) {
	for values, want := range map[string]string{
		"replicas: 1":                  "/replicas",
		"replicas: 4":                  "want an odd number",
		"replica: 3":                   "additional properties 'replica'",
		"settings: {CHECK_TIMEOUT: 1}": "'CHECK_TIMEOUT' does not match",
		"secret: {value: " + strings.Repeat("s", 31) + "}": "/secret/value",
		"rules: {shop.txt: x}":                             "'shop.txt' does not match",
		"autoscaling: {enabled: true, maxReplicas: 6}":     "less than twice",
		"tls: {clientAuth: maybe}":                         "/tls/clientAuth",
		"tls: {issuer: {kind: ClusterIssuer}}":             "'name'",
		"networkPolicy: {clients: {sluice-clients: }}":     "/networkPolicy/clients",
		"monitoring: {port: 7461}":                         "/monitoring/port",

		"regions: {us: [us.example]}":                                         "region is missing beside regions",
		encrypted + "region: eu":                                              "regions names no region but this one, eu",
		encrypted + "region: eu\nregions: {eu: [eu.example]}":                 "regions names no region but this one, eu",
		encrypted + "region: EU":                                              "/region",
		encrypted + "region: eu\nregions: {us: []}":                           "/regions/us",
		encrypted + "region: eu\nregions: {us: [\"a,b\"]}":                    "/regions/us/0",
		encrypted + "region: eu\nregions: {us: [sluice-peers]}":               "regions.us: sluice-peers is this cluster itself",
		encrypted + "region: eu\nregions: {us: [a.example], ap: [a.example]}": "regions: a.example is given for ap and again for us",
		encrypted + "region: eu\nregions: {us: [a.example], eu: [a.example]}": "regions.us: a.example is also an address of this region, eu",
		encrypted + regional + "regionWeights: {za: 2}":                       "regionWeights: regions has no za",
		encrypted + regional + "regionWeights: {us: 0}":                       "/regionWeights/us",
		"regionWeights: {us: 2}":                                              "regionWeights: regions has no us",
		regional:                                                              "region needs tls.enabled",
		regional + encrypted + "settings: {peer-tls: accept}":                 "no settings.peer-tls but require",
	} {
		if _, _, _, _, err := charted(t, "sluice", values); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want an error with %q", values, err, want)
		}
	}
	if _, _, _, _, err := charted(t, "sluice", regional+"settings: {insecure: \"secret,region-tls\"}"); err != nil {
		t.Errorf("regions without TLS by the explicit word: %v", err)
	}
	_, objects, _, _, err := charted(t, "sluice", regional+encrypted+network+"regionWeights: {us: 2, eu: 1000}\nregionService: {type: NodePort, annotations: {lb: internal}}")
	if err != nil {
		t.Fatal(err)
	}
	for _, problem := range problems(objects) {
		t.Error(problem)
	}
	text := ""
	for _, o := range objects {
		text += jsonOf(o)
	}
	for _, want := range []string{`"value": "ap=sluice.ap.example:7462,us=sluice.us.example:7462"`, `"value": "eu=1000,us=2"`, `"type": "NodePort"`, `"lb": "internal"`, `"cidr": "0.0.0.0/0"`} {
		if !strings.Contains(text, want) {
			t.Errorf("no object of a region has %s", want)
		}
	}
	metricsPort(t)
	_, objects, hooks, notes, err := charted(t, "prod", `
fullnameOverride: limits
image: {tag: v9, pullPolicy: Always, pullSecrets: [registry]}
secret: {existing: mine, key: shared}
existingRules: our-rules
existingCallers: our-callers
settings: {check-timeout: 2s, log-format: text, peer-tls: accept, max-entries: 2000000}
tls: {enabled: true, clientAuth: require, clientSecret: scraper, existingAPIsSecret: apis, existingNodesSecret: nodes}
monitoring: {serviceMonitor: {enabled: true}}
podDisruptionBudget: {enabled: false}
networkPolicy: {enabled: false}
service: {type: LoadBalancer, annotations: {internal: "true"}}
test: {tokenSecret: auditor}
`)
	if err != nil {
		t.Fatal(err)
	}
	var kinds []string
	text = notes
	for _, o := range slices.Concat(objects, hooks) {
		kinds = append(kinds, o.GetObjectKind().GroupVersionKind().Kind)
		text += jsonOf(o)
	}
	slices.Sort(kinds)
	if want := []string{"Pod", "Service", "Service", "ServiceAccount", "ServiceMonitor", "StatefulSet"}; !slices.Equal(kinds, want) {
		t.Errorf("objects %v, want %v", kinds, want)
	}
	for _, want := range []string{
		imageName + ":v9", `"registry"`, `"secretName": "mine"`, `"key": "shared"`, `"name": "our-rules"`, `"name": "our-callers"`, `"value": "2s"`, `"value": "2000000"`, `"value": "accept"`,
		`"value": "limits-0,limits-1,limits-2"`, `"value": "{name}.limits-peers.prod.svc"`, `"secretName": "apis"`, `"secretName": "nodes"`, `"secretName": "auditor"`, `"secretName": "scraper"`, `"--cert=/etc/sluice/client/tls.crt"`, `"keySecret"`, `"name": "scraper"`,
		`"type": "LoadBalancer"`, "exec limits-0", "limits.prod.svc",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("no object has %s", want)
		}
	}
	if strings.Count(text, "SLUICE_LOG_FORMAT") != 1 || regexp.MustCompile(`"sluice-(peers|rules|callers|secret|apis|nodes)`).MatchString(text) {
		t.Errorf("a setting is there twice, or a name is that of the chart:\n%s", text)
	}
}

// metricsPort: with monitoring.port, probes and Prometheus need no TLS, and a network policy lets Prometheus reach that port alone.
func metricsPort(t *testing.T) {
	t.Helper()
	_, objects, _, _, err := charted(t, "sluice", encrypted+"monitoring: {port: 7465}\n")
	if err != nil {
		t.Fatal(err)
	}
	for _, problem := range problems(objects) {
		t.Error(problem)
	}
	for _, extra := range []string{"", network} {
		_, objects, _, _, err := charted(t, "sluice", encrypted+extra+"monitoring: {port: 7465, serviceMonitor: {enabled: true}}\n")
		if err != nil {
			t.Fatal(err)
		}
		for _, problem := range problems(objects) {
			t.Error(problem)
		}
		text := ""
		for _, o := range objects {
			if kind := o.GetObjectKind().GroupVersionKind().Kind; kind == "ServiceMonitor" || kind == "NetworkPolicy" {
				text += jsonOf(o)
			}
		}
		if strings.Count(text, `"metrics"`) != 1 || strings.Contains(text, "https") || strings.Count(text, "7465") != 1 {
			t.Errorf("ServiceMonitor and NetworkPolicy:\n%s", text)
		}
	}
}
