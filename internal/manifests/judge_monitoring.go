package manifests

import (
	"slices"

	monitoringv1 "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// jobLabel is the label of Services whose value is the job: the alerts take one job for one cluster.
const jobLabel = "app.kubernetes.io/name"

// monitoring: each node is scraped once, by annotations or by the operator of Prometheus.
func (j *judge) monitoring() {
	notes := j.StatefulSet.Spec.Template.Annotations
	annotated := notes["prometheus.io/scrape"] == "true"
	if j.ServiceMonitor == nil {
		port := intstr.Parse(notes["prometheus.io/port"])
		j.want(annotated && port.IntVal == j.ports.HTTP && notes["prometheus.io/path"] == "/metrics",
			"StatefulSet: metrics are not where the annotations say")
		return
	}
	j.want(!annotated, "StatefulSet: is scraped by its annotations too")
	spec := &j.ServiceMonitor.Spec
	selector, err := metav1.LabelSelectorAsSelector(&spec.Selector)
	if err != nil {
		j.fault("ServiceMonitor: %v", err)
		return
	}
	var chosen []*corev1.Service
	for _, s := range j.Services {
		if !selector.Empty() && selector.Matches(labels.Set(s.Labels)) {
			chosen = append(chosen, s)
		}
	}
	if len(chosen) != 1 {
		j.fault("ServiceMonitor: chooses %d Services, want 1: nodes would be scraped never, or more than once", len(chosen))
		return
	}
	s := chosen[0]
	j.want(s.Spec.PublishNotReadyAddresses, "ServiceMonitor: does not see nodes that are not ready")
	j.want(spec.JobLabel == jobLabel && s.Labels[jobLabel] != "", "ServiceMonitor: jobLabel %q is no label of Service %s", spec.JobLabel, s.Name)
	if len(spec.Endpoints) != 1 {
		j.fault("ServiceMonitor: has %d endpoints, want 1", len(spec.Endpoints))
		return
	}
	e := &spec.Endpoints[0]
	at := slices.IndexFunc(s.Spec.Ports, func(p corev1.ServicePort) bool { return p.Name == e.Port })
	j.want(at >= 0 && s.Spec.Ports[at].Port == j.ports.HTTP && e.Path == "/metrics", "ServiceMonitor: metrics are not at port %q, path %q", e.Port, e.Path)
	j.scrapeTLS(e)
}

// scrapeTLS: the operator asks as the port answers, and by a name that is in its certificate.
func (j *judge) scrapeTLS(e *monitoringv1.Endpoint) {
	want, got := "http", "http"
	if j.doorsTLS() {
		want = "https"
	}
	if e.Scheme != nil {
		got = e.Scheme.String() // in small letters, however it is given
	}
	j.want(got == want, "ServiceMonitor: asks by %s, the port answers %s", got, want)
	if !j.doorsTLS() {
		return
	}
	if e.TLSConfig == nil || e.TLSConfig.ServerName == nil || e.TLSConfig.CA.Secret == nil {
		j.fault("ServiceMonitor: does not look at the port's certificate")
		return
	}
	doors, secret := j.certificateAt("SLUICE_TLS_CERT")
	if doors == nil {
		return
	}
	j.want(slices.Contains(doors.Spec.DNSNames, *e.TLSConfig.ServerName), "ServiceMonitor: %q is no name of the port's certificate", *e.TLSConfig.ServerName)
	ca := e.TLSConfig.CA.Secret
	j.want(ca.Name == secret && ca.Key == "ca.crt", "ServiceMonitor: takes the authority from %s of Secret %s", ca.Key, ca.Name)
}
