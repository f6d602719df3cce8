package manifests

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// network: everybody, or whole namespaces that are chosen, reach the doors; nodes alone reach the rest.
func (j *judge) network() {
	spec := &j.NetworkPolicy.Spec
	var doors, between []wire
	for i, rule := range spec.Ingress {
		wires := wiresOf(rule.Ports)
		if j.nodesAlone(rule.From) {
			between = append(between, wires...)
			continue
		}
		for _, peer := range rule.From {
			j.want(peer.NamespaceSelector != nil && !emptySelector(peer.NamespaceSelector) && peer.IPBlock == nil,
				"NetworkPolicy: ingress %d chooses no namespaces; leave from out if it is for everybody", i+1)
		}
		for _, w := range wires {
			j.want(slices.Contains(j.clientWires(), w), "NetworkPolicy: %s is not for nodes alone", w)
			if !slices.Contains(doors, w) {
				doors = append(doors, w)
			}
		}
	}
	j.sameWires("NetworkPolicy, for callers", doors, j.clientWires())
	j.sameWires("NetworkPolicy, for nodes", between, j.nodeWires())
	switch {
	case slices.Equal(spec.PolicyTypes, []networkingv1.PolicyType{networkingv1.PolicyTypeIngress}):
		j.want(len(spec.Egress) == 0, "NetworkPolicy: has egress rules that do not count")
	case slices.Equal(spec.PolicyTypes, []networkingv1.PolicyType{networkingv1.PolicyTypeIngress, networkingv1.PolicyTypeEgress}):
		j.egress()
	default:
		j.fault("NetworkPolicy: types %v, want Ingress, or Ingress and Egress", spec.PolicyTypes)
	}
}

// egress: nodes ask each other, and for each other's names.
func (j *judge) egress() {
	var between, names []wire
	for i, rule := range j.NetworkPolicy.Spec.Egress {
		j.want(len(rule.To) > 0, "NetworkPolicy: egress %d leads everywhere", i+1)
		if j.nodesAlone(rule.To) {
			between = append(between, wiresOf(rule.Ports)...)
		} else {
			names = append(names, wiresOf(rule.Ports)...)
		}
	}
	const dns = 53
	j.sameWires("NetworkPolicy, to nodes", between, j.nodeWires())
	j.sameWires("NetworkPolicy, to the name service", names, []wire{{dns, corev1.ProtocolTCP}, {dns, corev1.ProtocolUDP}})
}

// nodesAlone reports whether peers are the nodes of this cluster and nobody else.
func (j *judge) nodesAlone(peers []networkingv1.NetworkPolicyPeer) bool {
	pod := labels.Set(j.StatefulSet.Spec.Template.Labels)
	for _, peer := range peers {
		if peer.PodSelector == nil || peer.NamespaceSelector != nil || peer.IPBlock != nil || emptySelector(peer.PodSelector) {
			return false
		}
		selector, err := metav1.LabelSelectorAsSelector(peer.PodSelector)
		if err != nil || !selector.Matches(pod) {
			return false
		}
	}
	return len(peers) > 0
}

func emptySelector(s *metav1.LabelSelector) bool {
	return len(s.MatchLabels) == 0 && len(s.MatchExpressions) == 0
}

func wiresOf(ports []networkingv1.NetworkPolicyPort) (wires []wire) {
	for _, p := range ports {
		w := wire{protocol: corev1.ProtocolTCP}
		if p.Protocol != nil {
			w.protocol = *p.Protocol
		}
		if p.Port != nil {
			w.number = p.Port.IntVal
		}
		wires = append(wires, w)
	}
	return wires
}
