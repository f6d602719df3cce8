package manifests

import (
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// Judge returns what is wrong with objects that run a program with these settings
// and ports, a line each. Objects that are missing are named and judged no further.
func Judge(o *Objects, settings map[string]string, ports Ports) []string {
	j := &judge{Objects: o, settings: settings, ports: ports}
	if !j.complete() {
		return j.faults
	}
	j.container = &o.StatefulSet.Spec.Template.Spec.Containers[0]
	j.selectors()
	j.membership()
	j.containerPorts()
	j.services()
	j.network()
	j.environment()
	j.mounts()
	j.data()
	j.operators()
	j.files()
	j.encryption()
	j.security()
	j.restricted()
	j.probes()
	j.monitoring()
	j.availability()
	j.scaling()
	return j.faults
}

type judge struct {
	*Objects
	settings  map[string]string
	ports     Ports
	container *corev1.Container
	faults    []string
}

func (j *judge) fault(format string, args ...any) {
	j.faults = append(j.faults, fmt.Sprintf(format, args...))
}

// want adds a fault unless ok.
func (j *judge) want(ok bool, format string, args ...any) {
	if !ok {
		j.fault(format, args...)
	}
}

func (j *judge) complete() bool {
	j.want(j.StatefulSet != nil, "there is no StatefulSet")
	j.want(j.ServiceAccount != nil, "there is no ServiceAccount")
	j.want(j.Budget != nil, "there is no PodDisruptionBudget")
	j.want(j.NetworkPolicy != nil, "there is no NetworkPolicy")
	if j.StatefulSet != nil {
		n := len(j.StatefulSet.Spec.Template.Spec.Containers)
		j.want(n == 1, "StatefulSet: %d containers, want 1", n)
	}
	return j.faults == nil
}

// selectors: whatever selects pods must select these.
func (j *judge) selectors() {
	pod := labels.Set(j.StatefulSet.Spec.Template.Labels)
	selects := func(who string, s *metav1.LabelSelector) {
		selector, err := metav1.LabelSelectorAsSelector(s)
		j.want(err == nil && !selector.Empty() && selector.Matches(pod), "%s does not select the pods, which have labels %v", who, pod)
	}
	selects("StatefulSet", j.StatefulSet.Spec.Selector)
	selects("PodDisruptionBudget", j.Budget.Spec.Selector)
	selects("NetworkPolicy", &j.NetworkPolicy.Spec.PodSelector)
	for _, s := range j.Services {
		selects("Service "+s.Name, &metav1.LabelSelector{MatchLabels: s.Spec.Selector})
	}
	spec := &j.StatefulSet.Spec.Template.Spec
	for _, c := range spec.TopologySpreadConstraints {
		selects("topology spread over "+c.TopologyKey, c.LabelSelector)
		// Two nodes on one machine are worth less than one; two in one zone are not.
		j.want(c.WhenUnsatisfiable == corev1.ScheduleAnyway || c.TopologyKey == corev1.LabelHostname,
			"topology spread over %s keeps pods from running", c.TopologyKey)
	}
	if spec.Affinity == nil || spec.Affinity.PodAntiAffinity == nil {
		j.fault("StatefulSet: nothing keeps pods apart")
		return
	}
	apart := spec.Affinity.PodAntiAffinity
	j.want(len(apart.PreferredDuringSchedulingIgnoredDuringExecution) > 0 && len(apart.RequiredDuringSchedulingIgnoredDuringExecution) == 0,
		"StatefulSet: anti-affinity must be preferred, not required: fewer machines than nodes is no reason to run none")
	for _, term := range apart.PreferredDuringSchedulingIgnoredDuringExecution {
		selects("anti-affinity", term.PodAffinityTerm.LabelSelector)
	}
}

// membership: nodes find each other by the headless Service, before they are ready.
func (j *judge) membership() {
	name := j.StatefulSet.Spec.ServiceName
	s := j.Services[name]
	if s == nil {
		j.fault("StatefulSet: serviceName %q is no Service", name)
		return
	}
	j.want(s.Spec.ClusterIP == corev1.ClusterIPNone, "Service %s is not headless", name)
	j.want(s.Spec.PublishNotReadyAddresses, "Service %s hides nodes that are not ready, which is before they have joined", name)
	j.founding()
	j.want(j.env("SLUICE_JOIN").Value == name, "SLUICE_JOIN is %q, want the headless Service %s", j.env("SLUICE_JOIN").Value, name)
	for setting, field := range map[string]string{"SLUICE_NAME": "metadata.name", "SLUICE_ADVERTISE": "status.podIP"} {
		from := j.env(setting).ValueFrom
		j.want(from != nil && from.FieldRef != nil && from.FieldRef.FieldPath == field, "%s is not from %s", setting, field)
	}
	j.want(j.StatefulSet.Spec.PodManagementPolicy == "Parallel", "StatefulSet: pods are not started in parallel")
}

func (j *judge) env(name string) corev1.EnvVar {
	for _, e := range j.container.Env {
		if e.Name == name {
			return e
		}
	}
	return corev1.EnvVar{}
}

// wire is one port on the wire.
type wire struct {
	number   int32
	protocol corev1.Protocol
}

func (w wire) String() string { return fmt.Sprintf("%d/%s", w.number, w.protocol) }

func protocol(p corev1.Protocol) corev1.Protocol {
	if p == "" {
		return corev1.ProtocolTCP
	}
	return p
}

// clientWires are for everybody, nodeWires for nodes only.
func (j *judge) clientWires() []wire {
	return []wire{{j.ports.GRPC, corev1.ProtocolTCP}, {j.ports.HTTP, corev1.ProtocolTCP}}
}

func (j *judge) nodeWires() []wire {
	return []wire{{j.ports.Peer, corev1.ProtocolTCP}, {j.ports.Gossip, corev1.ProtocolTCP}, {j.ports.Gossip, corev1.ProtocolUDP}}
}

// sameWires reports a fault where two lists differ, in whatever order.
func (j *judge) sameWires(who string, got, want []wire) {
	order := func(a, b wire) int { return strings.Compare(a.String(), b.String()) }
	got, want = slices.SortedFunc(slices.Values(got), order), slices.SortedFunc(slices.Values(want), order)
	j.want(slices.Equal(got, want), "%s: ports %v, want %v", who, got, want)
}

func (j *judge) containerPorts() {
	var got []wire
	for _, p := range j.container.Ports {
		got = append(got, wire{p.ContainerPort, protocol(p.Protocol)})
	}
	j.sameWires("container", got, append(j.clientWires(), j.nodeWires()...))
}

// services: the headless one has all ports, others the two for clients, and each
// leads to the container's port of that name.
func (j *judge) services() {
	clients := 0
	for _, name := range slices.Sorted(maps.Keys(j.Services)) {
		s := j.Services[name]
		var got []wire
		for _, p := range s.Spec.Ports {
			got = append(got, wire{p.Port, protocol(p.Protocol)})
			target, ok := j.target(p)
			j.want(ok && target == wire{p.Port, protocol(p.Protocol)}, "Service %s: port %s leads to %v", name, p.Name, target)
			if p.Port == j.ports.GRPC {
				speaks, what := "kubernetes.io/h2c", "HTTP/2"
				if j.doorsTLS() {
					speaks, what = "https", "TLS"
				}
				j.want(p.AppProtocol != nil && *p.AppProtocol == speaks, "Service %s: port %s does not say that it is %s", name, p.Name, what)
			}
		}
		if name == j.StatefulSet.Spec.ServiceName {
			j.sameWires("Service "+name, got, append(j.clientWires(), j.nodeWires()...))
			continue
		}
		clients++
		j.sameWires("Service "+name, got, j.clientWires())
		j.want(!s.Spec.PublishNotReadyAddresses, "Service %s sends clients to nodes that are not ready", name)
	}
	j.want(clients == 1, "%d Services for clients, want 1", clients)
}

// target returns the container's port that a Service's port leads to.
func (j *judge) target(p corev1.ServicePort) (wire, bool) {
	for _, c := range j.container.Ports {
		byName := p.TargetPort.Type == intstr.String && p.TargetPort.StrVal == c.Name
		byNumber := p.TargetPort.Type == intstr.Int && p.TargetPort.IntVal == c.ContainerPort
		if (byName || byNumber) && protocol(c.Protocol) == protocol(p.Protocol) {
			return wire{c.ContainerPort, protocol(c.Protocol)}, true
		}
	}
	return wire{}, false
}

// environment: every SLUICE_ variable is a setting of the binary.
func (j *judge) environment() {
	seen := map[string]bool{}
	memory := int64(0)
	for _, e := range j.container.Env {
		j.want(!seen[e.Name], "container: %s is set twice", e.Name)
		seen[e.Name] = true
		if strings.HasPrefix(e.Name, "SLUICE_") {
			_, ok := j.settings[e.Name]
			j.want(ok, "container: %s is no setting of sluice serve", e.Name)
		}
		if e.Name == "SLUICE_MEMORY_LIMIT" {
			q, err := resource.ParseQuantity(strings.TrimSuffix(e.Value, "B"))
			j.want(err == nil, "container: %s: %v", e.Name, err)
			memory = q.Value()
		}
	}
	most := j.container.Resources.Limits.Memory().Value()
	j.want(memory > most/2 && memory <= most/5*4, "container: SLUICE_MEMORY_LIMIT is %d bytes, want at most 80 %% of its memory limit, %d", memory, most)
	j.want(!seen["GOMEMLIMIT"] && !seen["SLUICE_MAX_ENTRIES"], "container: SLUICE_MEMORY_LIMIT alone bounds memory")
	links := j.StatefulSet.Spec.Template.Spec.EnableServiceLinks
	j.want(links != nil && !*links, "StatefulSet: variables named after Services would look like settings")
	j.want(slices.Equal(j.container.Args, []string{"serve"}), "container: args %v, want serve", j.container.Args)
}

// mounts: the rules and the secret are where the settings say, from objects that exist.
func (j *judge) mounts() {
	volumes := map[string]corev1.Volume{}
	for _, v := range j.StatefulSet.Spec.Template.Spec.Volumes {
		volumes[v.Name] = v
	}
	at := map[string]corev1.Volume{}
	claims := j.claims()
	for _, m := range j.container.VolumeMounts {
		if _, ok := claims[m.Name]; ok {
			continue // see data
		}
		v, ok := volumes[m.Name]
		j.want(ok, "container: mount %s has no volume", m.Name)
		if v.EmptyDir != nil {
			continue // see operators
		}
		j.want(m.ReadOnly, "container: mount %s can be written", m.Name)
		j.want(m.SubPath == "" && m.SubPathExpr == "", "container: mount %s by subPath never changes", m.Name)
		at[m.MountPath] = v
	}
	rules := at[j.env("SLUICE_RULES").Value].ConfigMap
	if rules == nil {
		j.fault("container: no ConfigMap is mounted at SLUICE_RULES")
	} else {
		j.want(j.ConfigMaps[rules.Name] != nil, "StatefulSet: there is no ConfigMap %s", rules.Name)
	}
	file := j.env("SLUICE_SECRET_FILE").Value
	secret := at[path.Dir(file)].Secret
	if secret == nil {
		j.fault("container: no Secret is mounted at SLUICE_SECRET_FILE")
		return
	}
	j.want(secret.Optional == nil || !*secret.Optional, "StatefulSet: without its Secret a node would start with the one that everybody knows")
	j.want(slices.ContainsFunc(secret.Items, func(k corev1.KeyToPath) bool { return k.Path == path.Base(file) }),
		"StatefulSet: the Secret has no file %s", path.Base(file))
	j.want(secret.DefaultMode != nil && *secret.DefaultMode&0o007 == 0, "StatefulSet: everybody in the pod can read the secret")
	for name, s := range j.Secrets {
		j.want(name == secret.SecretName, "Secret %s is not used", name)
		for _, k := range secret.Items {
			j.want(len(s.Data[k.Key]) > 0, "Secret %s has no key %s", name, k.Key)
		}
	}
}
