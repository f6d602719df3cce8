package manifests

import (
	autoscalingv2 "k8s.io/api/autoscaling/v2"
)

// scaling: an autoscaler keeps three nodes at least, and takes them away no faster than they hand over.
func (j *judge) scaling() {
	if j.Autoscaler == nil {
		return
	}
	set, spec := j.StatefulSet, &j.Autoscaler.Spec
	to := spec.ScaleTargetRef
	j.want(to.APIVersion == set.APIVersion && to.Kind == set.Kind && to.Name == set.Name,
		"HorizontalPodAutoscaler: scales %s %s %s, want the StatefulSet", to.APIVersion, to.Kind, to.Name)
	j.want(set.Spec.Replicas == nil, "StatefulSet: has replicas, which each apply would set the autoscaler's number back to")
	j.want(spec.MinReplicas != nil && *spec.MinReplicas >= 3 && spec.MaxReplicas > *spec.MinReplicas,
		"HorizontalPodAutoscaler: must keep 3 nodes at least, and have room above")
	j.want(spec.MinReplicas != nil && spec.MaxReplicas < 2**spec.MinReplicas,
		"HorizontalPodAutoscaler: may want more nodes than the fewest are a majority of, and so more than there may be room for")
	for _, t := range set.Spec.Template.Spec.TopologySpreadConstraints {
		j.want(t.MinDomains == nil, "StatefulSet: pods wait for as many machines, and drains and rollouts with them")
	}
	anti := set.Spec.Template.Spec.Affinity.PodAntiAffinity
	j.want(len(anti.RequiredDuringSchedulingIgnoredDuringExecution) == 0, "StatefulSet: pods wait for a machine of their own, and drains and rollouts with them")
	for _, m := range spec.Metrics {
		j.want(m.Type == autoscalingv2.ResourceMetricSourceType && m.Resource != nil && m.Resource.Name == "cpu",
			"HorizontalPodAutoscaler: scales by something else than CPU")
		j.want(m.Resource != nil && !j.container.Resources.Requests.Name(m.Resource.Name, "DecimalSI").IsZero(),
			"HorizontalPodAutoscaler: scales by a part of what pods do not request")
	}
	j.want(len(spec.Metrics) > 0, "HorizontalPodAutoscaler: has no metric")
	if spec.Behavior == nil || spec.Behavior.ScaleDown == nil {
		j.fault("HorizontalPodAutoscaler: scales down as fast as it likes")
		return
	}
	down := spec.Behavior.ScaleDown
	j.want(down.StabilizationWindowSeconds != nil && *down.StabilizationWindowSeconds >= 300,
		"HorizontalPodAutoscaler: scales down at the first lull")
	j.want(len(down.Policies) > 0, "HorizontalPodAutoscaler: scales down as fast as it likes")
	for _, p := range down.Policies {
		// The next one goes when the last has gone and the others have had the same time again to copy what it gave them.
		grace := set.Spec.Template.Spec.TerminationGracePeriodSeconds
		j.want(p.Type == autoscalingv2.PodsScalingPolicy && p.Value == 1 && grace != nil && int64(p.PeriodSeconds) >= 2**grace,
			"HorizontalPodAutoscaler: takes nodes away faster than they hand over")
	}
}
