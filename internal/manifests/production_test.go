package manifests

import (
	"bytes"
	"flag"
	"os"
	"strings"
	"testing"

	monitoringv1 "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"sigs.k8s.io/yaml"
)

// TestProduction breaks what the components add to the base, one thing at a time.
func TestProduction(t *testing.T) {
	for _, c := range []struct {
		want  string
		spoil func(o *Objects)
	}{
		{"scales apps/v1 Deployment sluice", func(o *Objects) { o.Autoscaler.Spec.ScaleTargetRef.Kind = "Deployment" }},
		{"each apply would set", func(o *Objects) { o.StatefulSet.Spec.Replicas = new(int32(3)) }},
		{"must keep 3 nodes", func(o *Objects) { o.Autoscaler.Spec.MinReplicas = new(int32(2)) }},
		{"room above", func(o *Objects) { o.Autoscaler.Spec.MaxReplicas = 3 }},
		{"more than there may be room for", func(o *Objects) { o.Autoscaler.Spec.MaxReplicas = 6 }},
		{"wait for a machine of their own", func(o *Objects) {
			o.StatefulSet.Spec.Template.Spec.Affinity.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution = make([]corev1.PodAffinityTerm, 1)
		}},
		{"wait for as many machines", func(o *Objects) {
			o.StatefulSet.Spec.Template.Spec.TopologySpreadConstraints[0].MinDomains = new(int32(5))
		}},
		{"something else than CPU", func(o *Objects) { o.Autoscaler.Spec.Metrics[0].Resource.Name = corev1.ResourceMemory }},
		{"what pods do not request", func(o *Objects) {
			delete(o.StatefulSet.Spec.Template.Spec.Containers[0].Resources.Requests, corev1.ResourceCPU)
		}},
		{"has no metric", func(o *Objects) { o.Autoscaler.Spec.Metrics = nil }},
		{"at the first lull", func(o *Objects) { o.Autoscaler.Spec.Behavior.ScaleDown.StabilizationWindowSeconds = nil }},
		{"as fast as it likes", func(o *Objects) { o.Autoscaler.Spec.Behavior = nil }},
		{"as fast as it likes", func(o *Objects) { o.Autoscaler.Spec.Behavior.ScaleDown.Policies = nil }},
		{"faster than they hand over", func(o *Objects) { o.Autoscaler.Spec.Behavior.ScaleDown.Policies[0].PeriodSeconds = 60 }},
		{"faster than they hand over", func(o *Objects) { o.Autoscaler.Spec.Behavior.ScaleDown.Policies[0].Value = 2 }},
		{"faster than they hand over", func(o *Objects) {
			o.Autoscaler.Spec.Behavior.ScaleDown.Policies[0].Type = autoscalingv2.PercentScalingPolicy
		}},
		{"chooses no namespaces", func(o *Objects) { o.NetworkPolicy.Spec.Ingress[0].From[0].NamespaceSelector.MatchLabels = nil }},
		{"7462/TCP is not for nodes alone", func(o *Objects) {
			o.NetworkPolicy.Spec.Ingress[1].Ports = o.NetworkPolicy.Spec.Ingress[2].Ports
		}},
		{"egress 1 leads everywhere", func(o *Objects) { o.NetworkPolicy.Spec.Egress[0].To = nil }},
		{"to the name service", func(o *Objects) { o.NetworkPolicy.Spec.Egress = o.NetworkPolicy.Spec.Egress[:1] }},
		{"to nodes: ports", func(o *Objects) {
			o.NetworkPolicy.Spec.Egress[0].Ports = o.NetworkPolicy.Spec.Egress[0].Ports[:2]
		}},
		{"want Ingress, or Ingress and Egress", func(o *Objects) {
			o.NetworkPolicy.Spec.PolicyTypes = []networkingv1.PolicyType{networkingv1.PolicyTypeEgress}
		}},
		{"scraped by its annotations too", func(o *Objects) {
			o.StatefulSet.Spec.Template.Annotations = map[string]string{"prometheus.io/scrape": "true"}
		}},
		{"chooses 2 Services", func(o *Objects) { delete(o.ServiceMonitor.Spec.Selector.MatchLabels, "app.kubernetes.io/component") }},
		{"does not see nodes that are not ready", func(o *Objects) { o.Services["sluice-peers"].Spec.PublishNotReadyAddresses = false }},
		{"jobLabel \"\" is no label", func(o *Objects) { o.ServiceMonitor.Spec.JobLabel = "" }},
		{"0 endpoints", func(o *Objects) { o.ServiceMonitor.Spec.Endpoints = nil }},
		{"metrics are not at port \"grpc\"", func(o *Objects) { o.ServiceMonitor.Spec.Endpoints[0].Port = "grpc" }},
		{"asks by https", func(o *Objects) { o.ServiceMonitor.Spec.Endpoints[0].Scheme = new(monitoringv1.SchemeHTTPS) }},
	} {
		t.Run(c.want, func(t *testing.T) {
			o := build(t, "overlays/production")
			c.spoil(o)
			faults := Judge(o, program.Settings, ports)
			if !strings.Contains(strings.Join(faults, "\n"), c.want) {
				t.Errorf("the judge says %q", faults)
			}
		})
	}
}

// Nodes are apart in production: see components/spread.
func TestProductionSpreads(t *testing.T) {
	for _, c := range build(t, "overlays/production").StatefulSet.Spec.Template.Spec.TopologySpreadConstraints {
		if hard := c.WhenUnsatisfiable == corev1.DoNotSchedule; hard != (c.TopologyKey == corev1.LabelHostname) {
			t.Errorf("spread over %s: %s", c.TopologyKey, c.WhenUnsatisfiable)
		}
	}
}

var write = flag.Bool("write", false, "write components/monitoring/prometheusrule.yaml anew")

const (
	alertsFile = "../../deploy/observability/alerts.yaml"
	ruleFile   = "../../deploy/k8s/components/monitoring/prometheusrule.yaml"
)

// ruleHead is what makes a PrometheusRule of alerts.yaml, which follows with two more spaces before its lines.
const ruleHead = `# The alerts of deploy/observability/alerts.yaml, written from there: make generate.
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: sluice
  labels:
    app.kubernetes.io/name: sluice
spec:
`

// The operator's rules are those of alerts.yaml, and it knows every field of them.
func TestPrometheusRule(t *testing.T) {
	alerts, err := os.ReadFile(alertsFile)
	if err != nil {
		t.Fatal(err)
	}
	_, groups, ok := bytes.Cut(alerts, []byte("\ngroups:"))
	if !ok {
		t.Fatalf("%s has no groups", alertsFile)
	}
	var want bytes.Buffer
	want.WriteString(ruleHead)
	for line := range bytes.Lines(append([]byte("groups:"), groups...)) {
		if len(bytes.TrimSpace(line)) > 0 {
			want.WriteString("  ")
		}
		want.Write(line)
	}
	if *write {
		if err := os.WriteFile(ruleFile, want.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(ruleFile)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want.Bytes()) {
		t.Errorf("%s is not what %s says: run make generate and commit what it writes", ruleFile, alertsFile)
	}

	rule := build(t, "overlays/production").PrometheusRule
	if rule == nil {
		t.Fatal("there is no PrometheusRule")
	}
	var plain monitoringv1.PrometheusRuleSpec
	if err := yaml.UnmarshalStrict(alerts, &plain); err != nil {
		t.Fatal(err)
	}
	a, err := yaml.Marshal(plain)
	if err != nil {
		t.Fatal(err)
	}
	b, err := yaml.Marshal(rule.Spec)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(a, b) {
		t.Error("what kustomize builds has other alerts than alerts.yaml")
	}
}
