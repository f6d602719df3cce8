package manifests

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	psaapi "k8s.io/pod-security-admission/api"
	"k8s.io/pod-security-admission/policy"
)

// user is the image's user; Dockerfile says the same.
const user = 65532

// security: the restricted Pod Security Standard, and no token for the API.
func (j *judge) security() {
	pod := &j.StatefulSet.Spec.Template.Spec
	no := func(b *bool) bool { return b != nil && !*b }
	j.want(pod.ServiceAccountName == j.ServiceAccount.Name, "StatefulSet: there is no ServiceAccount %s", pod.ServiceAccountName)
	j.want(no(pod.AutomountServiceAccountToken) && no(j.ServiceAccount.AutomountServiceAccountToken), "pods get a token for the Kubernetes API")
	j.want(!pod.HostNetwork && !pod.HostPID && !pod.HostIPC, "StatefulSet: pods share the machine's namespaces")

	if s := pod.SecurityContext; s == nil {
		j.fault("StatefulSet: pods have no security context")
	} else {
		j.want(s.RunAsNonRoot != nil && *s.RunAsNonRoot && s.RunAsUser != nil && *s.RunAsUser == user && s.RunAsGroup != nil && *s.RunAsGroup == user,
			"StatefulSet: pods do not run as user and group %d", user)
		j.want(s.SeccompProfile != nil && s.SeccompProfile.Type == corev1.SeccompProfileTypeRuntimeDefault, "StatefulSet: no seccomp profile")
		j.want(s.FSGroup != nil && *s.FSGroup == user, "StatefulSet: group %d cannot read the secret", user)
	}
	if s := j.container.SecurityContext; s == nil {
		j.fault("container: no security context")
	} else {
		j.want(no(s.AllowPrivilegeEscalation) && (s.Privileged == nil || !*s.Privileged), "container: may gain privileges")
		j.want(s.ReadOnlyRootFilesystem != nil && *s.ReadOnlyRootFilesystem, "container: can write its root")
		j.want(s.Capabilities != nil && slices.Equal(s.Capabilities.Drop, []corev1.Capability{"ALL"}) && len(s.Capabilities.Add) == 0,
			"container: keeps capabilities")
	}
	r := j.container.Resources
	j.want(!r.Requests.Cpu().IsZero() && !r.Requests.Memory().IsZero(), "container: requests no CPU or memory")
	j.want(!r.Limits.Memory().IsZero() && r.Limits.Memory().Cmp(*r.Requests.Memory()) == 0, "container: memory limit is not what it requests")
	j.want(r.Limits.Cpu().IsZero(), "container: a CPU limit would make answers late")
}

// restricted asks the rules by which Kubernetes itself admits pods to a namespace of that profile.
func (j *judge) restricted() {
	rules, err := policy.NewEvaluator(policy.DefaultChecks(), nil)
	if err != nil {
		j.fault("the rules of pod security: %v", err)
		return
	}
	pod := &j.StatefulSet.Spec.Template
	level := psaapi.LevelVersion{Level: psaapi.LevelRestricted, Version: psaapi.LatestVersion()}
	for _, result := range rules.EvaluatePod(level, &pod.ObjectMeta, &pod.Spec) {
		j.want(result.Allowed, "pod security, restricted: %s: %s", result.ForbiddenReason, result.ForbiddenDetail)
	}
	if j.Namespace != nil {
		enforced := j.Namespace.Labels[psaapi.EnforceLevelLabel]
		j.want(enforced == string(psaapi.LevelRestricted), "Namespace: enforces pod security %q, want restricted", enforced)
	}
}

// probes ask the HTTP port what the daemon answers there.
func (j *judge) probes() {
	for _, one := range []struct {
		name, path string
		probe      *corev1.Probe
	}{
		{"startup", "/healthz", j.container.StartupProbe},
		{"readiness", "/readyz", j.container.ReadinessProbe},
		{"liveness", "/healthz", j.container.LivenessProbe},
	} {
		if one.probe == nil || one.probe.HTTPGet == nil {
			j.fault("container: no %s probe by HTTP", one.name)
			continue
		}
		get := one.probe.HTTPGet
		target, ok := j.target(corev1.ServicePort{TargetPort: get.Port})
		j.want(ok && target.number == j.ports.HTTP && get.Path == one.path, "container: %s probe asks %s on port %s", one.name, get.Path, get.Port.String())
		j.want((get.Scheme == corev1.URISchemeHTTPS) == j.doorsTLS(), "container: %s probe asks by %q", one.name, get.Scheme)
	}
}

// availability: one node at a time goes, and has time to.
func (j *judge) availability() {
	spec := &j.StatefulSet.Spec
	if j.Autoscaler == nil {
		j.want(spec.Replicas != nil && *spec.Replicas >= 3 && *spec.Replicas%2 == 1, "StatefulSet: replicas must be odd and 3 at least")
	}
	max := j.Budget.Spec.MaxUnavailable
	j.want(max != nil && *max == intstr.FromInt32(1) && j.Budget.Spec.MinAvailable == nil, "PodDisruptionBudget: more than one node may go at once")
	j.want(j.container.TerminationMessagePolicy == corev1.TerminationMessageFallbackToLogsOnError,
		"container: `kubectl describe pod` does not show why a node ended")
	stop := j.container.Lifecycle
	j.want(stop != nil && stop.PreStop != nil && stop.PreStop.Sleep != nil && stop.PreStop.Sleep.Seconds > 0,
		"container: stops before others have heard that it takes no more calls")
	grace := spec.Template.Spec.TerminationGracePeriodSeconds
	// 3 s before the signal, 25 s to hand counters over, 2 s for calls under way, 3 s to leave the set.
	j.want(grace != nil && *grace >= 40, "StatefulSet: too little time to stop in order")
}
