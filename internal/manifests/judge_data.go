package manifests

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// claims are the volumes that each pod gets for itself, by name.
func (j *judge) claims() map[string]corev1.PersistentVolumeClaim {
	claims := map[string]corev1.PersistentVolumeClaim{}
	for _, c := range j.StatefulSet.Spec.VolumeClaimTemplates {
		claims[c.Name] = c
	}
	return claims
}

// data: a node writes its snapshots to a volume of its own, or writes none. In the pod's own
// file system they would go with the pod, whose root cannot be written anyway.
func (j *judge) data() {
	claims := j.claims()
	dir := j.env("SLUICE_DATA_DIR").Value
	found := false
	for _, m := range j.container.VolumeMounts {
		claim, ok := claims[m.Name]
		if !ok {
			continue
		}
		j.want(m.MountPath == dir, "container: volume %s is mounted at %s, SLUICE_DATA_DIR is %q", m.Name, m.MountPath, dir)
		j.want(!m.ReadOnly, "container: volume %s cannot be written", m.Name)
		j.want(slices.Equal(claim.Spec.AccessModes, []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}),
			"StatefulSet: volume %s is not for one node alone", m.Name)
		j.want(!claim.Spec.Resources.Requests.Storage().IsZero(), "StatefulSet: volume %s has no size", m.Name)
		found = true
	}
	j.want(found == (len(claims) > 0), "StatefulSet: there are volumes that are not mounted")
	j.want(found == (dir != ""), "container: no volume of the pod's own is mounted at SLUICE_DATA_DIR %s", dir)
	if keep := j.StatefulSet.Spec.PersistentVolumeClaimRetentionPolicy; found {
		j.want(keep != nil && keep.WhenScaled == "Retain" && keep.WhenDeleted == "Retain",
			"StatefulSet: volumes go when the cluster is scaled to 0, which is how it is stopped")
	}
}
