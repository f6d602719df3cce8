package manifests

import (
	"cmp"
	"crypto/x509"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"

	certmanagerv1 "github.com/cert-manager/cert-manager/pkg/apis/certmanager/v1"
	monitoringv1 "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation"
	psaapi "k8s.io/pod-security-admission/api"
	podsecurity "k8s.io/pod-security-admission/policy"
)

// check compares the objects of one kustomization with each other and with the binary.
type check struct {
	objects        []runtime.Object
	set            *appsv1.StatefulSet
	pod            *corev1.PodTemplateSpec
	container      *corev1.Container
	services       map[string]*corev1.Service
	peers          *corev1.Service // the headless Service
	env            map[string]string
	clients, nodes []string          // ports of the binary, as 7460/TCP
	ports          map[string]string // ports of the container by name
	volumeAt       map[string]corev1.VolumeSource
	tls            bool
	watched        string // the port of probes and /metrics: of SLUICE_METRICS_ADDR, in plain HTTP, or else the HTTP port
	watchedTLS     bool
	found          []string
}

func (c *check) want(ok bool, format string, args ...any) {
	if !ok {
		c.found = append(c.found, fmt.Sprintf(format, args...))
	}
}

// of returns the value that p points to, or the zero value.
func of[T any](p *T) (value T) {
	if p != nil {
		value = *p
	}
	return value
}

func problems(objects []runtime.Object) []string {
	set := named[*appsv1.StatefulSet](objects)["sluice"]
	if set == nil || len(set.Spec.Template.Spec.Containers) != 1 {
		return []string{"want one StatefulSet sluice with one container"}
	}
	c := &check{
		objects: objects, set: set, pod: &set.Spec.Template, container: &set.Spec.Template.Spec.Containers[0],
		services: named[*corev1.Service](objects), env: map[string]string{}, ports: map[string]string{}, volumeAt: map[string]corev1.VolumeSource{},
		clients: []string{settings["SLUICE_GRPC_PORT"] + "/TCP", settings["SLUICE_HTTP_PORT"] + "/TCP"},
		nodes:   []string{settings["SLUICE_PEER_PORT"] + "/TCP", settings["SLUICE_GOSSIP_PORT"] + "/TCP", settings["SLUICE_GOSSIP_PORT"] + "/UDP"},
	}
	for kind, n := range map[string]int{
		"ServiceAccount": len(named[*corev1.ServiceAccount](objects)), "PodDisruptionBudget": len(named[*policyv1.PodDisruptionBudget](objects)),
	} {
		c.want(n == 1, "there are %d objects of kind %s, want 1", n, kind)
	}
	c.settings()
	n, more := len(named[*networkingv1.NetworkPolicy](objects)), 0
	if c.env["SLUICE_REGION"] != "" {
		more = 1
		c.regions()
	}
	c.want(n == 1+more, "there are %d objects of kind NetworkPolicy, want %d", n, 1+more)
	if c.peers == nil || c.services["sluice"] == nil || len(c.services) != 2+more {
		return append(c.found, "want the headless Service and the Service sluice, and one for other regions where there are any")
	}
	c.founding()
	c.volumes()
	c.servicePorts()
	c.monitoring()
	c.networkPolicies()
	c.certificates()
	c.pods()
	c.stopping()
	return c.found
}

// settings: what the container sets exists in the binary, and nodes find each other.
func (c *check) settings() {
	for _, e := range c.container.Env {
		_, twice := c.env[e.Name]
		_, known := settings[e.Name]
		c.want(known && !twice, "%s is not a setting of sluice serve, or is set twice", e.Name)
		c.env[e.Name] = e.Value
		if e.ValueFrom != nil && e.ValueFrom.FieldRef != nil {
			c.env[e.Name] = e.ValueFrom.FieldRef.FieldPath
		}
	}
	// A flag would override its variable, and with it what is checked here.
	c.want(slices.Equal(c.container.Args, []string{"serve"}), "args %v, want serve: settings are variables", c.container.Args)
	c.tls = c.env["SLUICE_TLS_CERT"] != ""
	c.want(c.tls == (c.env["SLUICE_PEER_TLS_CERT"] != ""), "TLS is on for clients or for nodes only")
	c.watched, c.watchedTLS = c.clients[1], c.tls
	if addr := c.env["SLUICE_METRICS_ADDR"]; addr != "" {
		c.watched, c.watchedTLS = strings.TrimPrefix(addr, ":")+"/TCP", false
	}
	c.want(c.env["SLUICE_NAME"] == "metadata.name" && c.env["SLUICE_ADVERTISE"] == "status.podIP", "nodes do not have the pod's name and address")
	memory, err := resource.ParseQuantity(strings.TrimSuffix(c.env["SLUICE_MEMORY_LIMIT"], "B"))
	most := c.container.Resources.Limits.Memory().Value()
	c.want(err == nil && memory.Value() > most/2 && memory.Value() <= most/5*4, "SLUICE_MEMORY_LIMIT is not 50 to 80 %% of the container's limit")
	c.want(c.env["SLUICE_MAX_ENTRIES"] == "", "SLUICE_MEMORY_LIMIT alone must bound memory")
	c.peers = c.services[c.set.Spec.ServiceName]
	c.want(c.peers != nil && c.env["SLUICE_JOIN"] == c.peers.Name && c.peers.Spec.ClusterIP == "None" && c.peers.Spec.PublishNotReadyAddresses,
		"nodes must join by the headless Service, which must list pods that are not ready")
	c.want(c.set.Spec.PodManagementPolicy == "Parallel", "pods must start in parallel: they found a cluster together")
	c.want(c.pod.Spec.EnableServiceLinks != nil && !*c.pod.Spec.EnableServiceLinks, "variables of Services look like settings")
}

// founding: a majority of all pods that may ever exist founds the cluster, or only the first pods may.
func (c *check) founding() {
	least, most := int(of(c.set.Spec.Replicas)), int(of(c.set.Spec.Replicas))
	for _, a := range named[*autoscalingv2.HorizontalPodAutoscaler](c.objects) {
		least, most = int(of(a.Spec.MinReplicas)), int(a.Spec.MaxReplicas)
		c.autoscaler(a)
	}
	c.want(c.set.Spec.Replicas == nil || least%2 == 1, "replicas: want an odd number")
	expect, err := strconv.Atoi(c.env["SLUICE_BOOTSTRAP_EXPECT"])
	c.want(err == nil && least >= 3 && expect <= least, "SLUICE_BOOTSTRAP_EXPECT is %d, only %d pods are sure to exist", expect, least)
	if names := c.env["SLUICE_BOOTSTRAP_NAMES"]; names != "" {
		founders := strings.Split(names, ",")
		most = len(founders)
		for i := range founders {
			c.want(slices.Contains(founders, fmt.Sprintf("%s-%d", c.set.Name, i)) && most <= least, "only the first pods may found a cluster, not %s", names)
		}
	}
	c.want(2*expect > most, "SLUICE_BOOTSTRAP_EXPECT %d must be a majority of the %d pods that may found a cluster", expect, most)
}

// autoscaler: it adds pods for CPU, no more than may need machines, and removes them one at a time, each after the last one's handoffs.
func (c *check) autoscaler(a *autoscalingv2.HorizontalPodAutoscaler) {
	to, least, most := a.Spec.ScaleTargetRef, of(a.Spec.MinReplicas), a.Spec.MaxReplicas
	c.want(to.APIVersion == "apps/v1" && to.Kind == "StatefulSet" && to.Name == c.set.Name && c.set.Spec.Replicas == nil,
		"only the autoscaler may set the replicas of the StatefulSet")
	c.want(least < most && most < 2*least, "maxReplicas must be above minReplicas and below twice minReplicas")
	for _, s := range c.pod.Spec.TopologySpreadConstraints {
		c.want(s.MinDomains == nil, "spread over %s: pods wait for machines, and drains with them", s.TopologyKey)
	}
	for _, m := range a.Spec.Metrics {
		c.want(m.Resource != nil && m.Resource.Name == corev1.ResourceCPU, "autoscaler: only CPU follows the load")
	}
	down := of(of(a.Spec.Behavior).ScaleDown)
	c.want(len(a.Spec.Metrics) > 0 && len(down.Policies) > 0 && of(down.StabilizationWindowSeconds) >= 300, "autoscaler: no metric, or no policy and window for scaling down")
	for _, p := range down.Policies {
		c.want(p.Type == "Pods" && p.Value == 1 && int64(p.PeriodSeconds) >= 2*of(c.pod.Spec.TerminationGracePeriodSeconds),
			"autoscaler: pods leave faster than they hand counters over")
	}
}

// servicePorts: Services and probes use ports that the container has, which are those of the binary.
func (c *check) servicePorts() {
	var open []string
	for _, p := range c.container.Ports {
		c.ports[p.Name] = fmt.Sprintf("%d/%s", p.ContainerPort, max(p.Protocol, "TCP"))
		open = append(open, c.ports[p.Name])
	}
	clients := c.clients
	if c.watched != clients[1] {
		clients = append(slices.Clone(clients), c.watched)
	}
	c.want(slices.Equal(open, slices.Concat(clients, c.nodes)), "container ports %v, the binary has %v %v", open, c.clients, c.nodes)
	for _, s := range c.services {
		c.selects("Service "+s.Name, &metav1.LabelSelector{MatchLabels: s.Spec.Selector})
		var listed []string
		for _, p := range s.Spec.Ports {
			at := fmt.Sprintf("%d/%s", p.Port, max(p.Protocol, "TCP"))
			c.want(c.ports[p.TargetPort.String()] == at, "Service %s: no container port %s is %s", s.Name, p.TargetPort.String(), at)
			c.want(at != c.clients[0] || of(p.AppProtocol) == map[bool]string{false: "kubernetes.io/h2c", true: "https"}[c.tls], "Service %s: port %s has the wrong appProtocol", s.Name, p.Name)
			listed = append(listed, at)
		}
		want := c.clients
		switch {
		case s == c.peers:
			want = open
		case s.Name == "sluice-regions":
			want = c.nodes[:1]
		}
		c.want(slices.Equal(listed, want), "Service %s: ports %v, want %v", s.Name, listed, want)
		c.want(s == c.peers || !s.Spec.PublishNotReadyAddresses, "Service %s: clients reach pods that are not ready", s.Name)
	}
	for i, probe := range []*corev1.Probe{c.container.StartupProbe, c.container.LivenessProbe, c.container.ReadinessProbe} {
		file := []string{"/healthz", "/healthz", "/readyz"}[i]
		c.want(probe != nil && probe.HTTPGet != nil && c.ports[probe.HTTPGet.Port.String()] == c.watched && probe.HTTPGet.Path == file &&
			c.watchedTLS == (probe.HTTPGet.Scheme == "HTTPS"), "want a probe of %s on the HTTP port", file)
	}
}

// monitoring: Prometheus scrapes each pod once, by a ServiceMonitor or by the annotations.
func (c *check) monitoring() {
	const job = "app.kubernetes.io/name" // the alerts take one job for one cluster
	notes, monitors := c.pod.Annotations, named[*monitoringv1.ServiceMonitor](c.objects)
	annotated := notes["prometheus.io/scrape"] == "true"
	c.want(annotated == (len(monitors) == 0) && len(monitors) < 2, "Prometheus must scrape each node once")
	c.want(!annotated || notes["prometheus.io/port"]+"/TCP" == c.watched && notes["prometheus.io/path"] == "/metrics", "annotations: want /metrics of the HTTP port")
	for _, m := range monitors {
		selector, err := metav1.LabelSelectorAsSelector(&m.Spec.Selector)
		c.want(err == nil && selector.Matches(labels.Set(c.peers.Labels)) && !selector.Matches(labels.Set(c.services["sluice"].Labels)), "Prometheus must scrape each node once")
		c.want(m.Spec.JobLabel == job && c.peers.Labels[job] != "", "ServiceMonitor: jobLabel %q is not %s", m.Spec.JobLabel, job)
		if len(m.Spec.Endpoints) != 1 {
			c.want(false, "ServiceMonitor: %d endpoints, want 1", len(m.Spec.Endpoints))
			continue
		}
		e := m.Spec.Endpoints[0]
		c.want(c.ports[e.Port] == c.watched && e.Path == "/metrics" && c.watchedTLS == (e.Scheme != nil && e.Scheme.String() == "https"), "ServiceMonitor: want /metrics of the HTTP port")
		if c.watchedTLS {
			verify := of(e.TLSConfig)
			ca := of(verify.CA.Secret)
			c.want(ca.Name == c.secretOf("SLUICE_TLS_CERT") && ca.Key == "ca.crt", "ServiceMonitor: does not verify the certificate by its CA")
			c.validFor("SLUICE_TLS_CERT", of(verify.ServerName))
		}
	}
}

// selects: a selector selects the pods.
func (c *check) selects(what string, s *metav1.LabelSelector) bool {
	selector, err := metav1.LabelSelectorAsSelector(s)
	ok := err == nil && !selector.Empty() && selector.Matches(labels.Set(c.pod.Labels))
	c.want(ok, "%s does not select the pods", what)
	return ok
}

// networkPolicies: clients reach their ports, nodes also reach each other and DNS, and nothing else is open.
func (c *check) networkPolicies() {
	for name, policy := range named[*networkingv1.NetworkPolicy](c.objects) {
		c.selects("NetworkPolicy", &policy.Spec.PodSelector)
		if name == "sluice-regions" {
			continue // see regions
		}
		open := map[string][]string{}
		allow := func(who string, peers []networkingv1.NetworkPolicyPeer, ports []networkingv1.NetworkPolicyPort) {
			if c.onlyNodes(peers) {
				who = who[:strings.Index(who, " ")] + " nodes"
			}
			c.want(len(ports) > 0, "NetworkPolicy: a rule opens every port")
			for _, p := range ports {
				c.want(p.Port != nil && p.EndPort == nil, "NetworkPolicy: a rule opens a range of ports")
				open[who] = append(open[who], fmt.Sprintf("%d/%s", of(p.Port).IntVal, cmp.Or(of(p.Protocol), "TCP")))
			}
		}
		for _, r := range policy.Spec.Ingress {
			for _, peer := range r.From {
				chosen := peer.NamespaceSelector != nil && len(peer.NamespaceSelector.MatchLabels) > 0
				c.want(c.onlyNodes(r.From) || chosen && peer.IPBlock == nil, "NetworkPolicy: ingress from a namespace that is not selected by labels")
			}
			allow("from clients", r.From, r.Ports)
		}
		want := map[string][]string{"from clients": slices.Compact(append(slices.Clone(c.clients), c.watched)), "from nodes": c.nodes}
		if slices.Contains(policy.Spec.PolicyTypes, networkingv1.PolicyTypeEgress) {
			want["to nodes"], want["to DNS"] = c.nodes, []string{"53/TCP", "53/UDP"}
		}
		c.want(len(policy.Spec.PolicyTypes) == len(want)/2 && policy.Spec.PolicyTypes[0] == networkingv1.PolicyTypeIngress, "NetworkPolicy: types %v", policy.Spec.PolicyTypes)
		for _, r := range policy.Spec.Egress {
			c.want(len(r.To) > 0, "NetworkPolicy: egress to everywhere")
			allow("to DNS", r.To, r.Ports)
		}
		for _, who := range []string{"from clients", "from nodes", "to nodes", "to DNS"} {
			slices.Sort(open[who])
			got := slices.Compact(open[who])
			c.want(slices.Equal(got, want[who]), "NetworkPolicy: %v open %s, want %v", got, who, want[who])
		}
	}
}

// regions: nodes of other regions reach the peer port, with TLS, and no other.
func (c *check) regions() {
	policy := named[*networkingv1.NetworkPolicy](c.objects)["sluice-regions"]
	if policy == nil || c.services["sluice-regions"] == nil {
		c.want(false, "want a Service and a NetworkPolicy sluice-regions")
		return
	}
	c.want(c.env["SLUICE_REGIONS"] != "" && c.tls && c.env["SLUICE_PEER_TLS"] == "", "a region needs --regions and TLS")
	only := func(peers []networkingv1.NetworkPolicyPeer, ports []networkingv1.NetworkPolicyPort) {
		c.want(len(ports) == 1 && fmt.Sprintf("%d/%s", of(ports[0].Port).IntVal, of(ports[0].Protocol)) == c.nodes[0], "NetworkPolicy sluice-regions: want the peer port only")
		c.want(len(peers) > 0 && !slices.ContainsFunc(peers, func(p networkingv1.NetworkPolicyPeer) bool { return p.IPBlock == nil }), "NetworkPolicy sluice-regions: want networks")
	}
	for _, r := range policy.Spec.Ingress {
		only(r.From, r.Ports)
	}
	for _, r := range policy.Spec.Egress {
		only(r.To, r.Ports)
	}
	// Where the policy of the nodes has egress, this one must too, else nothing reaches the other regions; elsewhere it would forbid the rest.
	nodes := named[*networkingv1.NetworkPolicy](c.objects)["sluice"]
	c.want(nodes != nil && slices.Equal(nodes.Spec.PolicyTypes, policy.Spec.PolicyTypes) && len(policy.Spec.Ingress) == 1 && len(policy.Spec.Egress) == len(policy.Spec.PolicyTypes)-1,
		"NetworkPolicy sluice-regions: types differ from those of sluice")
}

// onlyNodes reports whether peers are pods of this cluster only.
func (c *check) onlyNodes(peers []networkingv1.NetworkPolicyPeer) bool {
	return len(peers) > 0 && !slices.ContainsFunc(peers, func(p networkingv1.NetworkPolicyPeer) bool {
		selector, err := metav1.LabelSelectorAsSelector(p.PodSelector)
		return p.NamespaceSelector != nil || p.IPBlock != nil || err != nil || selector.Empty() || !selector.Matches(labels.Set(c.pod.Labels))
	})
}

// volumes: files that settings name are in volumes, which are made of objects that exist.
func (c *check) volumes() {
	maps := named[*corev1.ConfigMap](c.objects)
	mounts := map[string]corev1.VolumeMount{}
	at, secrets := c.volumeAt, named[*corev1.Secret](c.objects)
	for _, m := range c.container.VolumeMounts {
		mounts[m.Name] = m
	}
	for _, v := range c.pod.Spec.Volumes {
		m := mounts[v.Name]
		at[m.MountPath] = v.VolumeSource
		c.want(len(validation.IsDNS1123Label(v.Name)) == 0, "volume %s: the name must be a label of DNS", v.Name)
		c.want(m.Name != "" && m.ReadOnly == (v.EmptyDir == nil) && m.SubPath+m.SubPathExpr == "", "volume %s must be mounted whole and read-only", v.Name)
		c.want(v.ConfigMap == nil || maps[v.ConfigMap.Name] != nil, "volume %s: there is no ConfigMap of that name", v.Name)
		if s := v.Secret; s != nil {
			c.want(s.Optional == nil && s.DefaultMode != nil && *s.DefaultMode&7 == 0, "volume %s: the Secret must be required, and readable by its group only", v.Name)
			made := secrets[s.SecretName]
			for _, item := range s.Items {
				c.want(made == nil || len(made.Data[item.Key]) > 0, "volume %s: Secret %s has no key %s", v.Name, s.SecretName, item.Key)
			}
			delete(secrets, s.SecretName)
			c.want(len(s.Items) > 0 || c.certificateIn(s.SecretName) != nil, "volume %s: no Certificate writes Secret %s", v.Name, s.SecretName)
		}
	}
	c.want(len(secrets) == 0, "%d Secrets are not mounted", len(secrets))
	for _, name := range []string{"SECRET_FILE", "CALLERS", "GOSSIP_KEYRING", "TLS_CERT", "TLS_KEY", "TLS_CLIENT_CA", "PEER_TLS_CERT", "PEER_TLS_KEY", "PEER_TLS_CA"} {
		file := c.env["SLUICE_"+name]
		v, key := at[path.Dir(file)], path.Base(file)
		keys := []string{"ca.crt", "tls.crt", "tls.key"} // what cert-manager writes
		if v.Secret != nil && len(v.Secret.Items) > 0 {
			keys = []string{v.Secret.Items[0].Path}
		}
		inMap := v.ConfigMap != nil && maps[v.ConfigMap.Name] != nil && maps[v.ConfigMap.Name].Data[key] != ""
		c.want(file == "" || inMap || v.Secret != nil && slices.Contains(keys, key), "SLUICE_%s: no volume holds %s", name, file)
	}
	c.want(at[c.env["SLUICE_RULES"]].ConfigMap != nil, "SLUICE_RULES is not a mounted ConfigMap")
	c.want(c.env["SLUICE_SECRET_FILE"] != "", "nodes have no secret")
	c.want(at[path.Dir(c.env["SLUICE_OPERATORS_DIR"])].EmptyDir != nil, "SLUICE_OPERATORS_DIR is not in an emptyDir")
	c.want((len(c.set.Spec.VolumeClaimTemplates) > 0) == (c.env["SLUICE_DATA_DIR"] != ""), "SLUICE_DATA_DIR is not on a volume of the pod")
	for _, claim := range c.set.Spec.VolumeClaimTemplates {
		keep, m := c.set.Spec.PersistentVolumeClaimRetentionPolicy, mounts[claim.Name]
		c.want(keep != nil && keep.WhenScaled == "Retain" && keep.WhenDeleted == "Retain", "volumes are deleted when the cluster is scaled to 0")
		c.want(slices.Equal(claim.Spec.AccessModes, []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}) && !claim.Spec.Resources.Requests.Storage().IsZero(),
			"volume %s has no size, or is not for one pod alone", claim.Name)
		c.want(m.MountPath == c.env["SLUICE_DATA_DIR"] && !m.ReadOnly, "volume %s is not mounted at SLUICE_DATA_DIR", claim.Name)
	}
}

// secretOf returns the name of the Secret that holds the file of a setting.
func (c *check) secretOf(setting string) string {
	return of(c.volumeAt[path.Dir(c.env[setting])].Secret).SecretName
}

// certificates have issuers, are renewed, and have the usages and the names that clients, nodes and Prometheus verify.
func (c *check) certificates() {
	certificates := named[*certmanagerv1.Certificate](c.objects)
	for name, one := range certificates {
		s, issuer := one.Spec, of(named[*certmanagerv1.Issuer](c.objects)[one.Spec.IssuerRef.Name])
		signer, rotation := c.certificateIn(of(issuer.Spec.CA).SecretName), certmanagerv1.RotationPolicyAlways
		if s.IsCA {
			// A CA with a new key would separate the nodes that know it from the others.
			rotation = certmanagerv1.RotationPolicyNever
		}
		c.want(s.IsCA && issuer.Spec.SelfSigned != nil || !s.IsCA && signer != nil && signer.Spec.IsCA, "Certificate %s has no issuer: a CA signs itself, others are signed by a CA of these", name)
		key := of(s.PrivateKey)
		c.want(key.RotationPolicy == rotation, "Certificate %s: a CA must keep its key, others must rotate it", name)
		c.want(slices.Contains([]certmanagerv1.PrivateKeyAlgorithm{"ECDSA", "Ed25519", "RSA"}, key.Algorithm), "Certificate %s: there is no algorithm %q", name, key.Algorithm)
		c.want(of(s.RenewBefore).Duration > 0 && of(s.RenewBefore).Duration <= of(s.Duration).Duration/2, "Certificate %s is not renewed in time", name)
		for _, u := range s.Usages {
			c.want(slices.Contains([]certmanagerv1.KeyUsage{"digital signature", "server auth", "client auth"}, u), "Certificate %s: usage %q", name, u)
		}
	}
	if c.tls {
		for _, name := range []string{"sluice", "sluice." + c.set.Namespace, "sluice." + c.set.Namespace + ".svc"} {
			c.validFor("SLUICE_TLS_CERT", name, "server auth")
		}
		pod := c.set.Name + "-0." + c.peers.Name + "." + c.set.Namespace + ".svc"
		c.validFor("SLUICE_PEER_TLS_CERT", pod, "server auth", "client auth")
		c.want(strings.ReplaceAll(c.env["SLUICE_PEER_TLS_NAME"], "{name}", c.set.Name+"-0") == pod, "SLUICE_PEER_TLS_NAME is not %s", pod)
		clients, nodes := of(c.certificateIn(c.secretOf("SLUICE_TLS_CERT"))), of(c.certificateIn(c.secretOf("SLUICE_PEER_TLS_CERT")))
		c.want(clients.Spec.IssuerRef != nodes.Spec.IssuerRef, "a certificate for clients is valid for nodes")
	}
}

func (c *check) certificateIn(secret string) *certmanagerv1.Certificate {
	for _, one := range named[*certmanagerv1.Certificate](c.objects) {
		if one.Spec.SecretName == secret {
			return one
		}
	}
	return nil
}

func (c *check) validFor(setting, name string, usages ...certmanagerv1.KeyUsage) {
	spec := of(c.certificateIn(c.secretOf(setting))).Spec
	c.want((&x509.Certificate{DNSNames: spec.DNSNames}).VerifyHostname(name) == nil, "the certificate at %s is not valid for %s", setting, name)
	for _, u := range usages {
		c.want(slices.Contains(spec.Usages, u), "the certificate at %s is not for %s", setting, u)
	}
}

// restricted returns what keeps a pod from the restricted Pod Security Standard.
func restricted(meta *metav1.ObjectMeta, spec *corev1.PodSpec) (found []string) {
	rules, err := podsecurity.NewEvaluator(podsecurity.DefaultChecks(), nil)
	if err != nil {
		return []string{fmt.Sprintf("pod security: %v", err)}
	}
	for _, r := range rules.EvaluatePod(psaapi.LevelVersion{Level: psaapi.LevelRestricted, Version: psaapi.LatestVersion()}, meta, spec) {
		if !r.Allowed {
			found = append(found, fmt.Sprintf("pod security: %s: %s", r.ForbiddenReason, r.ForbiddenDetail))
		}
	}
	return found
}

// pods pass the restricted Pod Security Standard, prefer machines of their own, and get the memory that they request.
func (c *check) pods() {
	c.found = append(c.found, restricted(&c.pod.ObjectMeta, &c.pod.Spec)...)
	for _, n := range named[*corev1.Namespace](c.objects) {
		c.want(n.Labels[psaapi.EnforceLevelLabel] == string(psaapi.LevelRestricted), "Namespace: does not enforce restricted pod security")
	}
	user, account := of(c.pod.Spec.SecurityContext), named[*corev1.ServiceAccount](c.objects)[c.pod.Spec.ServiceAccountName]
	c.want(of(user.RunAsUser) == 65532 && of(user.RunAsGroup) == 65532 && of(user.FSGroup) == 65532 && of(of(c.container.SecurityContext).ReadOnlyRootFilesystem),
		"pods must run as the image's user and group, with a read-only root")
	c.want(c.pod.Spec.AutomountServiceAccountToken != nil && !*c.pod.Spec.AutomountServiceAccountToken && account != nil &&
		account.AutomountServiceAccountToken != nil && !*account.AutomountServiceAccountToken, "pods need a ServiceAccount without a token")
	r := c.container.Resources
	c.want(!r.Requests.Cpu().IsZero() && r.Limits.Cpu().IsZero() && !r.Limits.Memory().IsZero() && r.Limits.Memory().Equal(*r.Requests.Memory()),
		"resources: want CPU without a limit, and a memory limit that is requested")
	c.selects("StatefulSet", c.set.Spec.Selector)
	for _, s := range c.pod.Spec.TopologySpreadConstraints {
		c.selects("spread over "+s.TopologyKey, s.LabelSelector)
		c.want(s.WhenUnsatisfiable == corev1.ScheduleAnyway || s.TopologyKey == corev1.LabelHostname, "spread over %s keeps pods from running", s.TopologyKey)
	}
	apart := of(of(c.pod.Spec.Affinity).PodAntiAffinity)
	c.want(len(apart.PreferredDuringSchedulingIgnoredDuringExecution) == 1 && len(apart.RequiredDuringSchedulingIgnoredDuringExecution) == 0,
		"anti-affinity must be preferred, not required: with fewer machines than pods all must run")
	for _, term := range apart.PreferredDuringSchedulingIgnoredDuringExecution {
		c.selects("anti-affinity", term.PodAffinityTerm.LabelSelector)
	}
}

// stopping: pods stop one at a time, after clients have left and counters are handed over, and say why they ended.
func (c *check) stopping() {
	var sleep corev1.SleepAction
	if l := c.container.Lifecycle; l != nil && l.PreStop != nil {
		sleep = of(l.PreStop.Sleep)
	}
	// 3 s before the signal, 25 s to hand counters over, 2 s for calls in flight, 3 s to leave the voter set.
	c.want(sleep.Seconds > 0 && of(c.pod.Spec.TerminationGracePeriodSeconds) >= 40, "pods have too little time to stop")
	c.want(c.container.TerminationMessagePolicy == corev1.TerminationMessageFallbackToLogsOnError, "terminationMessagePolicy: kubectl describe does not show why a node ended")
	for _, b := range named[*policyv1.PodDisruptionBudget](c.objects) {
		c.selects("PodDisruptionBudget", b.Spec.Selector)
		c.want(of(b.Spec.MaxUnavailable) == intstr.FromInt32(1) && b.Spec.MinAvailable == nil, "PodDisruptionBudget: more than one pod may go at once")
	}
}
