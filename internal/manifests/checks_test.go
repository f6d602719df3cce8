package manifests

import (
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
	tls            bool
	found          []string
}

func (c *check) want(ok bool, format string, args ...any) {
	if !ok {
		c.found = append(c.found, fmt.Sprintf(format, args...))
	}
}

func problems(objects []runtime.Object) []string {
	set := named[*appsv1.StatefulSet](objects)["sluice"]
	if set == nil || len(set.Spec.Template.Spec.Containers) != 1 {
		return []string{"want one StatefulSet sluice with one container"}
	}
	c := &check{
		objects: objects, set: set, pod: &set.Spec.Template, container: &set.Spec.Template.Spec.Containers[0],
		services: named[*corev1.Service](objects), env: map[string]string{}, ports: map[string]string{},
		clients: []string{settings["SLUICE_GRPC_PORT"] + "/TCP", settings["SLUICE_HTTP_PORT"] + "/TCP"},
		nodes:   []string{settings["SLUICE_PEER_PORT"] + "/TCP", settings["SLUICE_GOSSIP_PORT"] + "/TCP", settings["SLUICE_GOSSIP_PORT"] + "/UDP"},
	}
	c.settings()
	c.founding()
	c.servicePorts()
	c.networkPolicies()
	c.volumes()
	c.certificates()
	c.pods()
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
	for i, arg := range c.container.Args {
		flag, _, _ := strings.Cut(arg, "=")
		_, known := settings["SLUICE_"+strings.ToUpper(strings.ReplaceAll(strings.TrimPrefix(flag, "--"), "-", "_"))]
		c.want(i == 0 && arg == "serve" || i > 0 && known, "%s is not a flag of sluice serve", flag)
	}
	c.tls = c.env["SLUICE_TLS_CERT"] != ""
	c.want(c.tls == (c.env["SLUICE_PEER_TLS_CERT"] != ""), "TLS is on for clients or for nodes only")
	c.want(c.env["SLUICE_NAME"] == "metadata.name" && c.env["SLUICE_ADVERTISE"] == "status.podIP", "nodes do not have the pod's name and address")
	memory, err := resource.ParseQuantity(strings.TrimSuffix(c.env["SLUICE_MEMORY_LIMIT"], "B"))
	c.want(err == nil && memory.Value() <= c.container.Resources.Limits.Memory().Value()/5*4, "SLUICE_MEMORY_LIMIT is above 80 %% of the container's limit")
	c.peers = c.services[c.set.Spec.ServiceName]
	c.want(c.peers != nil && c.env["SLUICE_JOIN"] == c.peers.Name && c.peers.Spec.ClusterIP == "None" && c.peers.Spec.PublishNotReadyAddresses,
		"nodes must join by the headless Service, which must list pods that are not ready")
	c.want(c.pod.Spec.EnableServiceLinks != nil && !*c.pod.Spec.EnableServiceLinks, "variables of Services look like settings")
}

// founding: a majority of all pods that may ever exist founds the cluster, or only the first pods may.
func (c *check) founding() {
	least, most := 1, 1
	if n := c.set.Spec.Replicas; n != nil {
		least, most = int(*n), int(*n)
	}
	for _, a := range named[*autoscalingv2.HorizontalPodAutoscaler](c.objects) {
		least, most = int(*a.Spec.MinReplicas), int(a.Spec.MaxReplicas)
		c.want(a.Spec.ScaleTargetRef.Kind == "StatefulSet" && a.Spec.ScaleTargetRef.Name == c.set.Name && c.set.Spec.Replicas == nil,
			"only the autoscaler may set the replicas of the StatefulSet")
		c.want(most < 2*least, "maxReplicas must be below twice minReplicas")
		for _, p := range a.Spec.Behavior.ScaleDown.Policies {
			c.want(p.Type == "Pods" && p.Value == 1 && int64(p.PeriodSeconds) >= 2**c.pod.Spec.TerminationGracePeriodSeconds,
				"autoscaler: pods leave faster than they hand counters over")
		}
	}
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

// servicePorts: Services, probes and Prometheus use ports that the container has, which are those of the binary.
func (c *check) servicePorts() {
	var open []string
	for _, p := range c.container.Ports {
		c.ports[p.Name] = fmt.Sprintf("%d/%s", p.ContainerPort, max(p.Protocol, "TCP"))
		open = append(open, c.ports[p.Name])
	}
	c.want(slices.Equal(open, slices.Concat(c.clients, c.nodes)), "container ports %v, the binary has %v %v", open, c.clients, c.nodes)
	for _, s := range c.services {
		c.selects("Service "+s.Name, &metav1.LabelSelector{MatchLabels: s.Spec.Selector})
		for _, p := range s.Spec.Ports {
			at := fmt.Sprintf("%d/%s", p.Port, max(p.Protocol, "TCP"))
			c.want(c.ports[p.TargetPort.String()] == at, "Service %s: no container port %s is %s", s.Name, p.TargetPort.String(), at)
			c.want(p.AppProtocol == nil || c.tls == (*p.AppProtocol == "https"), "Service %s: port %s has the wrong appProtocol", s.Name, p.Name)
			c.want(s == c.peers || slices.Contains(c.clients, at), "Service %s: port %s is for nodes", s.Name, p.Name)
		}
	}
	for i, probe := range []*corev1.Probe{c.container.StartupProbe, c.container.LivenessProbe, c.container.ReadinessProbe} {
		file := []string{"/healthz", "/healthz", "/readyz"}[i]
		c.want(probe != nil && probe.HTTPGet != nil && c.ports[probe.HTTPGet.Port.String()] == c.clients[1] && probe.HTTPGet.Path == file &&
			c.tls == (probe.HTTPGet.Scheme == "HTTPS"), "want a probe of %s on the HTTP port", file)
	}
	for _, m := range named[*monitoringv1.ServiceMonitor](c.objects) {
		selector, err := metav1.LabelSelectorAsSelector(&m.Spec.Selector)
		c.want(err == nil && selector.Matches(labels.Set(c.peers.Labels)) && !selector.Matches(labels.Set(c.services["sluice"].Labels)) &&
			c.pod.Annotations["prometheus.io/scrape"] == "", "Prometheus must scrape each node once")
		e := m.Spec.Endpoints[0]
		c.want(c.ports[e.Port] == c.clients[1] && e.Path == "/metrics" && c.tls == (e.Scheme != nil), "ServiceMonitor: want /metrics of the HTTP port")
		if c.tls {
			c.validFor(e.TLSConfig.CA.Secret.Name, *e.TLSConfig.ServerName)
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
	for _, policy := range named[*networkingv1.NetworkPolicy](c.objects) {
		c.selects("NetworkPolicy", &policy.Spec.PodSelector)
		reached := map[string]int{}
		allow := func(peers []networkingv1.NetworkPolicyPeer, ports []networkingv1.NetworkPolicyPort, others ...string) {
			between := len(peers) == 1 && peers[0].PodSelector != nil && peers[0].NamespaceSelector == nil && c.selects("NetworkPolicy for nodes", peers[0].PodSelector)
			c.want(len(ports) > 0, "NetworkPolicy: a rule opens every port")
			for _, p := range ports {
				at := fmt.Sprintf("%s/%s", p.Port, *p.Protocol)
				reached[at]++
				c.want(between || !slices.Contains(c.nodes, at), "NetworkPolicy: %s is open to clients", at)
				c.want(slices.Contains(slices.Concat(c.nodes, others), at), "NetworkPolicy: %s is not a container port", at)
			}
		}
		for _, r := range policy.Spec.Ingress {
			allow(r.From, r.Ports, c.clients...)
		}
		for _, r := range policy.Spec.Egress {
			c.want(len(r.To) > 0, "NetworkPolicy: egress to everywhere")
			allow(r.To, r.Ports, "53/UDP", "53/TCP")
		}
		for _, p := range slices.Concat(c.clients, c.nodes) {
			c.want(reached[p] >= 1 && (slices.Contains(c.clients, p) || reached[p] == len(policy.Spec.PolicyTypes)), "NetworkPolicy: %s cannot be reached, or from one side only", p)
		}
	}
}

// volumes: files that settings name are in volumes, which are made of objects that exist.
func (c *check) volumes() {
	maps := named[*corev1.ConfigMap](c.objects)
	mounts := map[string]corev1.VolumeMount{}
	at := map[string]corev1.VolumeSource{}
	for _, m := range c.container.VolumeMounts {
		mounts[m.Name] = m
	}
	for _, v := range c.pod.Spec.Volumes {
		m := mounts[v.Name]
		at[m.MountPath] = v.VolumeSource
		c.want(m.Name != "" && m.ReadOnly == (v.EmptyDir == nil) && m.SubPath == "", "volume %s must be mounted whole and read-only", v.Name)
		c.want(v.ConfigMap == nil || maps[v.ConfigMap.Name] != nil, "volume %s: there is no ConfigMap of that name", v.Name)
		if s := v.Secret; s != nil {
			c.want(s.Optional == nil && s.DefaultMode != nil && *s.DefaultMode&7 == 0, "volume %s: the Secret must be required, and readable by its group only", v.Name)
			c.want(len(s.Items) > 0 || c.certificateIn(s.SecretName) != nil, "volume %s: no Certificate writes Secret %s", v.Name, s.SecretName)
		}
	}
	for _, name := range []string{"SECRET_FILE", "CALLERS", "TLS_CERT", "TLS_KEY", "TLS_CLIENT_CA", "PEER_TLS_CERT", "PEER_TLS_KEY", "PEER_TLS_CA"} {
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
		c.want(m.MountPath == c.env["SLUICE_DATA_DIR"] && !m.ReadOnly, "volume %s is not mounted at SLUICE_DATA_DIR", claim.Name)
	}
}

// certificates have issuers, and the names that clients, nodes and Prometheus verify.
func (c *check) certificates() {
	certificates := named[*certmanagerv1.Certificate](c.objects)
	for name, one := range certificates {
		issuer := named[*certmanagerv1.Issuer](c.objects)[one.Spec.IssuerRef.Name]
		c.want(issuer != nil && (issuer.Spec.SelfSigned != nil || issuer.Spec.CA != nil && c.certificateIn(issuer.Spec.CA.SecretName) != nil), "Certificate %s has no issuer", name)
		c.want((one.Spec.PrivateKey.RotationPolicy == "Never") == one.Spec.IsCA, "Certificate %s: a CA must keep its key, others must rotate it", name)
	}
	if c.tls {
		c.validFor("sluice-doors-tls", "sluice."+c.set.Namespace+".svc")
		pod := c.set.Name + "-0." + c.peers.Name + "." + c.set.Namespace + ".svc"
		c.validFor("sluice-nodes-tls", pod)
		c.want(strings.ReplaceAll(c.env["SLUICE_PEER_TLS_NAME"], "{name}", c.set.Name+"-0") == pod, "SLUICE_PEER_TLS_NAME is not %s", pod)
		c.want(certificates["sluice-doors"].Spec.IssuerRef != certificates["sluice-nodes"].Spec.IssuerRef, "a certificate for clients is valid for nodes")
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

func (c *check) validFor(secret, name string) {
	one := c.certificateIn(secret)
	c.want(one != nil && (&x509.Certificate{DNSNames: one.Spec.DNSNames}).VerifyHostname(name) == nil, "the certificate in Secret %s is not valid for %s", secret, name)
}

// pods pass the restricted Pod Security Standard, stop in order and one at a time.
func (c *check) pods() {
	rules, err := podsecurity.NewEvaluator(podsecurity.DefaultChecks(), nil)
	c.want(err == nil, "pod security: %v", err)
	for _, r := range rules.EvaluatePod(psaapi.LevelVersion{Level: psaapi.LevelRestricted, Version: psaapi.LatestVersion()}, &c.pod.ObjectMeta, &c.pod.Spec) {
		c.want(r.Allowed, "pod security: %s: %s", r.ForbiddenReason, r.ForbiddenDetail)
	}
	c.want(*c.pod.Spec.SecurityContext.RunAsUser == 65532 && *c.container.SecurityContext.ReadOnlyRootFilesystem && !*c.pod.Spec.AutomountServiceAccountToken,
		"pods must run as the image's user, with a read-only root and without a token")
	c.want(named[*corev1.ServiceAccount](c.objects)[c.pod.Spec.ServiceAccountName] != nil, "there is no ServiceAccount %s", c.pod.Spec.ServiceAccountName)
	c.want(c.container.TerminationMessagePolicy == corev1.TerminationMessageFallbackToLogsOnError, "terminationMessagePolicy: kubectl describe does not show why a node ended")
	c.want(c.container.Lifecycle.PreStop.Sleep.Seconds > 0 && *c.pod.Spec.TerminationGracePeriodSeconds >= 40, "pods have too little time to stop")
	c.selects("StatefulSet", c.set.Spec.Selector)
	for _, s := range c.pod.Spec.TopologySpreadConstraints {
		c.selects("spread over "+s.TopologyKey, s.LabelSelector)
	}
	for _, b := range named[*policyv1.PodDisruptionBudget](c.objects) {
		c.selects("PodDisruptionBudget", b.Spec.Selector)
		c.want(b.Spec.MaxUnavailable != nil && *b.Spec.MaxUnavailable == intstr.FromInt32(1), "PodDisruptionBudget: more than one pod may go at once")
	}
}
