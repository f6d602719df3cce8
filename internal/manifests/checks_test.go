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

// problems compares the objects of one kustomization with each other and with the binary.
func problems(objects []runtime.Object) (found []string) {
	want := func(ok bool, format string, args ...any) {
		if !ok {
			found = append(found, fmt.Sprintf(format, args...))
		}
	}
	set, services := named[*appsv1.StatefulSet](objects)["sluice"], named[*corev1.Service](objects)
	if set == nil || len(set.Spec.Template.Spec.Containers) != 1 {
		return []string{"want one StatefulSet sluice with one container"}
	}
	pod, container := &set.Spec.Template, &set.Spec.Template.Spec.Containers[0]

	// Selectors select the pods.
	selects := func(what string, s *metav1.LabelSelector) {
		selector, err := metav1.LabelSelectorAsSelector(s)
		want(err == nil && !selector.Empty() && selector.Matches(labels.Set(pod.Labels)), "%s does not select the pods", what)
	}
	selects("StatefulSet", set.Spec.Selector)
	for _, s := range services {
		selects("Service "+s.Name, &metav1.LabelSelector{MatchLabels: s.Spec.Selector})
	}
	for _, c := range pod.Spec.TopologySpreadConstraints {
		selects("spread over "+c.TopologyKey, c.LabelSelector)
	}
	for _, b := range named[*policyv1.PodDisruptionBudget](objects) {
		selects("PodDisruptionBudget", b.Spec.Selector)
		want(b.Spec.MaxUnavailable != nil && *b.Spec.MaxUnavailable == intstr.FromInt32(1), "PodDisruptionBudget: more than one pod may go at once")
	}

	// Settings and flags exist.
	env := map[string]string{}
	for _, e := range container.Env {
		_, twice := env[e.Name]
		_, known := settings[e.Name]
		want(known && !twice, "%s is not a setting of sluice serve, or is set twice", e.Name)
		env[e.Name] = e.Value
		if e.ValueFrom != nil && e.ValueFrom.FieldRef != nil {
			env[e.Name] = e.ValueFrom.FieldRef.FieldPath
		}
	}
	for i, arg := range container.Args {
		flag, _, _ := strings.Cut(arg, "=")
		_, known := settings["SLUICE_"+strings.ToUpper(strings.ReplaceAll(strings.TrimPrefix(flag, "--"), "-", "_"))]
		want(i == 0 && arg == "serve" || i > 0 && known, "%s is not a flag of sluice serve", flag)
	}
	want(env["SLUICE_NAME"] == "metadata.name" && env["SLUICE_ADVERTISE"] == "status.podIP", "nodes do not have the pod's name and address")
	limit, err := resource.ParseQuantity(strings.TrimSuffix(env["SLUICE_MEMORY_LIMIT"], "B"))
	want(err == nil && limit.Value() <= container.Resources.Limits.Memory().Value()/5*4, "SLUICE_MEMORY_LIMIT is above 80 %% of the container's limit")
	peers := services[set.Spec.ServiceName]
	want(peers != nil && env["SLUICE_JOIN"] == peers.Name && peers.Spec.ClusterIP == "None" && peers.Spec.PublishNotReadyAddresses,
		"nodes must join by the headless Service, which must list pods that are not ready")
	want(pod.Spec.EnableServiceLinks != nil && !*pod.Spec.EnableServiceLinks, "variables of Services look like settings")

	// Only one cluster can be founded: a majority of all pods that may ever exist founds it, or only the first pods may.
	least, most := 1, 1
	if set.Spec.Replicas != nil {
		least, most = int(*set.Spec.Replicas), int(*set.Spec.Replicas)
	}
	for _, a := range named[*autoscalingv2.HorizontalPodAutoscaler](objects) {
		least, most = int(*a.Spec.MinReplicas), int(a.Spec.MaxReplicas)
		want(a.Spec.ScaleTargetRef.Kind == "StatefulSet" && a.Spec.ScaleTargetRef.Name == set.Name && set.Spec.Replicas == nil, "the autoscaler must set the replicas, alone")
		want(most < 2*least, "maxReplicas must be below twice minReplicas")
		for _, p := range a.Spec.Behavior.ScaleDown.Policies {
			want(p.Value == 1 && int64(p.PeriodSeconds) >= 2**pod.Spec.TerminationGracePeriodSeconds, "autoscaler: pods leave faster than they hand counters over")
		}
	}
	expect, err := strconv.Atoi(env["SLUICE_BOOTSTRAP_EXPECT"])
	if names := env["SLUICE_BOOTSTRAP_NAMES"]; names != "" {
		founders := strings.Split(names, ",")
		most = len(founders)
		for i := range founders {
			want(slices.Contains(founders, fmt.Sprintf("%s-%d", set.Name, i)), "only the first pods may found a cluster, not %s", names)
		}
	}
	want(err == nil && max(expect, most) >= 1 && 2*expect > most, "SLUICE_BOOTSTRAP_EXPECT %d must be a majority of the %d pods that may found a cluster", expect, most)
	want(least >= 3 && expect <= least, "SLUICE_BOOTSTRAP_EXPECT is %d, only %d pods are sure to exist", expect, least)

	// Ports are the binary's, by name and number.
	port := func(p corev1.Protocol, number any) string {
		if p == "" {
			p = corev1.ProtocolTCP
		}
		return fmt.Sprintf("%v/%s", number, p)
	}
	clients := []string{port("TCP", settings["SLUICE_GRPC_PORT"]), port("TCP", settings["SLUICE_HTTP_PORT"])}
	nodes := []string{port("TCP", settings["SLUICE_PEER_PORT"]), port("TCP", settings["SLUICE_GOSSIP_PORT"]), port("UDP", settings["SLUICE_GOSSIP_PORT"])}
	byName, open := map[string]string{}, []string{}
	for _, p := range container.Ports {
		byName[p.Name] = port(p.Protocol, p.ContainerPort)
		open = append(open, byName[p.Name])
	}
	want(slices.Equal(open, slices.Concat(clients, nodes)), "container ports %v, the binary has %v %v", open, clients, nodes)
	tls := env["SLUICE_TLS_CERT"] != ""
	want(tls == (env["SLUICE_PEER_TLS_CERT"] != ""), "TLS is on for clients or for nodes only")
	for _, s := range services {
		for _, p := range s.Spec.Ports {
			want(byName[p.TargetPort.String()] == port(p.Protocol, p.Port), "Service %s: no container port %s has number %d", s.Name, p.TargetPort.String(), p.Port)
			want(p.AppProtocol == nil || tls == (*p.AppProtocol == "https"), "Service %s: port %s has the wrong appProtocol", s.Name, p.Name)
			want(s == peers || slices.Contains(clients, port(p.Protocol, p.Port)), "Service %s: port %s is for nodes", s.Name, p.Name)
		}
	}
	for name, probe := range map[string]*corev1.Probe{"startup": container.StartupProbe, "readiness": container.ReadinessProbe, "liveness": container.LivenessProbe} {
		file := map[bool]string{true: "/readyz", false: "/healthz"}[name == "readiness"]
		want(probe != nil && probe.HTTPGet != nil && byName[probe.HTTPGet.Port.String()] == clients[1] && probe.HTTPGet.Path == file && tls == (probe.HTTPGet.Scheme == "HTTPS"),
			"%s probe: want %s on the HTTP port", name, file)
	}
	isNode := func(p networkingv1.NetworkPolicyPeer) bool {
		if p.PodSelector == nil || p.NamespaceSelector != nil || p.IPBlock != nil {
			return false
		}
		s, err := metav1.LabelSelectorAsSelector(p.PodSelector)
		return err == nil && !s.Empty() && s.Matches(labels.Set(pod.Labels))
	}
	for _, policy := range named[*networkingv1.NetworkPolicy](objects) {
		selects("NetworkPolicy", &policy.Spec.PodSelector)
		check := func(peers []networkingv1.NetworkPolicyPeer, ports []networkingv1.NetworkPolicyPort, others []string) (reached []string) {
			between := len(peers) > 0 && !slices.ContainsFunc(peers, func(p networkingv1.NetworkPolicyPeer) bool { return !isNode(p) })
			for _, p := range ports {
				at := port(*p.Protocol, p.Port.IntVal)
				reached = append(reached, at)
				want(between || !slices.Contains(nodes, at), "NetworkPolicy: %s is open to clients", at)
				want(slices.Contains(slices.Concat(nodes, others), at), "NetworkPolicy: %s is not a container port", at)
			}
			return reached
		}
		var in, out []string
		for _, r := range policy.Spec.Ingress {
			in = append(in, check(r.From, r.Ports, clients)...)
			want(len(r.Ports) > 0, "NetworkPolicy: every port is open")
		}
		for _, r := range policy.Spec.Egress {
			want(len(r.To) > 0 && len(r.Ports) > 0, "NetworkPolicy: egress to everywhere")
			out = append(out, check(r.To, r.Ports, []string{"53/UDP", "53/TCP"})...)
		}
		for _, p := range slices.Concat(clients, nodes) {
			want(slices.Contains(in, p), "NetworkPolicy: %s cannot be reached", p)
		}
		for _, p := range append(nodes, "53/UDP") {
			want(!slices.Contains(policy.Spec.PolicyTypes, "Egress") || slices.Contains(out, p), "NetworkPolicy: nodes cannot reach %s", p)
		}
	}

	// Files that settings name are in volumes, which are in objects that exist.
	certificates := named[*certmanagerv1.Certificate](objects)
	writtenTo := func(secret string) *certmanagerv1.Certificate {
		for _, c := range certificates {
			if c.Spec.SecretName == secret {
				return c
			}
		}
		return nil
	}
	mounted := map[string]corev1.VolumeSource{}
	for _, v := range pod.Spec.Volumes {
		i := slices.IndexFunc(container.VolumeMounts, func(m corev1.VolumeMount) bool { return m.Name == v.Name })
		want(i >= 0, "volume %s is not mounted", v.Name)
		if i >= 0 {
			m := container.VolumeMounts[i]
			mounted[m.MountPath] = v.VolumeSource
			want(m.ReadOnly == (v.EmptyDir == nil) && m.SubPath == "", "volume %s must be mounted whole and read-only", v.Name)
		}
		if v.ConfigMap != nil {
			want(named[*corev1.ConfigMap](objects)[v.ConfigMap.Name] != nil, "volume %s: there is no ConfigMap %s", v.Name, v.ConfigMap.Name)
		}
		if s := v.Secret; s != nil {
			want(s.Optional == nil && s.DefaultMode != nil && *s.DefaultMode&7 == 0, "volume %s: the Secret must be required, and readable by its group only", v.Name)
			want(len(s.Items) > 0 || writtenTo(s.SecretName) != nil, "volume %s: no Certificate writes Secret %s", v.Name, s.SecretName)
		}
	}
	want(mounted[env["SLUICE_RULES"]].ConfigMap != nil, "SLUICE_RULES is not a mounted ConfigMap")
	want(mounted[path.Dir(env["SLUICE_SECRET_FILE"])].Secret != nil, "SLUICE_SECRET_FILE is not in a mounted Secret")
	want(mounted[path.Dir(env["SLUICE_OPERATORS_DIR"])].EmptyDir != nil, "SLUICE_OPERATORS_DIR is not in an emptyDir")
	for _, name := range []string{"CALLERS", "TLS_CERT", "TLS_KEY", "TLS_CLIENT_CA", "PEER_TLS_CERT", "PEER_TLS_KEY", "PEER_TLS_CA"} {
		file := env["SLUICE_"+name]
		v := mounted[path.Dir(file)]
		inMap := v.ConfigMap != nil && named[*corev1.ConfigMap](objects)[v.ConfigMap.Name].Data[path.Base(file)] != ""
		inSecret := v.Secret != nil && len(v.Secret.Items) == 0 && slices.Contains([]string{"ca.crt", "tls.crt", "tls.key"}, path.Base(file))
		want(file == "" || inMap || inSecret, "SLUICE_%s: no volume holds %s", name, file)
	}
	claims := set.Spec.VolumeClaimTemplates
	for _, claim := range claims {
		keep := set.Spec.PersistentVolumeClaimRetentionPolicy
		want(keep != nil && keep.WhenScaled == "Retain" && keep.WhenDeleted == "Retain", "volumes are deleted when the cluster is scaled to 0")
		want(slices.ContainsFunc(container.VolumeMounts, func(m corev1.VolumeMount) bool {
			return m.Name == claim.Name && m.MountPath == env["SLUICE_DATA_DIR"] && !m.ReadOnly
		}), "volume %s is not mounted at SLUICE_DATA_DIR", claim.Name)
	}
	want((len(claims) > 0) == (env["SLUICE_DATA_DIR"] != ""), "SLUICE_DATA_DIR is not on a volume of the pod")

	// Certificates have the names that clients, nodes and Prometheus verify.
	valid := func(secret, name string) {
		c := writtenTo(secret)
		want(c != nil && (&x509.Certificate{DNSNames: c.Spec.DNSNames}).VerifyHostname(name) == nil, "the certificate in Secret %q is not valid for %s", secret, name)
	}
	if clientSide, nodeSide := mounted[path.Dir(env["SLUICE_TLS_CERT"])].Secret, mounted[path.Dir(env["SLUICE_PEER_TLS_CERT"])].Secret; tls && clientSide != nil && nodeSide != nil {
		valid(clientSide.SecretName, "sluice."+set.Namespace+".svc")
		name := set.Name + "-0." + peers.Name + "." + set.Namespace + ".svc"
		valid(nodeSide.SecretName, name)
		want(strings.ReplaceAll(env["SLUICE_PEER_TLS_NAME"], "{name}", set.Name+"-0") == name, "SLUICE_PEER_TLS_NAME is not %s", name)
		a, b := writtenTo(clientSide.SecretName), writtenTo(nodeSide.SecretName)
		want(a == nil || b == nil || a.Spec.IssuerRef != b.Spec.IssuerRef, "a certificate for clients is valid for nodes")
	}
	for name, c := range certificates {
		issuer := named[*certmanagerv1.Issuer](objects)[c.Spec.IssuerRef.Name]
		want(issuer != nil && (issuer.Spec.SelfSigned != nil || issuer.Spec.CA != nil && writtenTo(issuer.Spec.CA.SecretName) != nil), "Certificate %s has no issuer", name)
		want(c.Spec.PrivateKey.RotationPolicy == map[bool]certmanagerv1.PrivateKeyRotationPolicy{true: "Never", false: "Always"}[c.Spec.IsCA],
			"Certificate %s: nodes with the old CA and nodes with the new one must trust each other", name)
	}
	for _, m := range named[*monitoringv1.ServiceMonitor](objects) {
		chosen := 0
		for _, s := range services {
			if selector, err := metav1.LabelSelectorAsSelector(&m.Spec.Selector); err == nil && selector.Matches(labels.Set(s.Labels)) {
				chosen++
			}
		}
		e := m.Spec.Endpoints[0]
		want(chosen == 1 && pod.Annotations["prometheus.io/scrape"] == "", "Prometheus must scrape each node once")
		want(byName[e.Port] == clients[1] && e.Path == "/metrics" && tls == (e.Scheme != nil), "ServiceMonitor: want /metrics of the HTTP port")
		if tls {
			valid(e.TLSConfig.CA.Secret.Name, *e.TLSConfig.ServerName)
		}
	}

	// Pods pass the restricted Pod Security Standard and stop in order.
	rules, err := podsecurity.NewEvaluator(podsecurity.DefaultChecks(), nil)
	want(err == nil, "pod security: %v", err)
	for _, r := range rules.EvaluatePod(psaapi.LevelVersion{Level: psaapi.LevelRestricted, Version: psaapi.LatestVersion()}, &pod.ObjectMeta, &pod.Spec) {
		want(r.Allowed, "pod security: %s: %s", r.ForbiddenReason, r.ForbiddenDetail)
	}
	want(*pod.Spec.SecurityContext.RunAsUser == 65532 && *container.SecurityContext.ReadOnlyRootFilesystem && !*pod.Spec.AutomountServiceAccountToken,
		"pods must run as the image's user, with a read-only root and without a token")
	want(named[*corev1.ServiceAccount](objects)[pod.Spec.ServiceAccountName] != nil, "there is no ServiceAccount %s", pod.Spec.ServiceAccountName)
	want(container.TerminationMessagePolicy == corev1.TerminationMessageFallbackToLogsOnError, "terminationMessagePolicy: kubectl describe does not show why a node ended")
	want(container.Lifecycle.PreStop.Sleep.Seconds > 0 && *pod.Spec.TerminationGracePeriodSeconds >= 40, "pods have too little time to stop")
	return found
}
